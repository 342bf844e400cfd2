"""`every=Auto()`: what a run measures, when it chooses, and what it remembers of earlier starts."""

import json
import time

import pytest

from holdfast import Auto, Stopped, journal
from holdfast.errors import UsageError
from holdfast.run import schedule
from holdfast.run.schedule import chosen_interval, read_past_measurements
from holdfast.young_daly import ChoiceWithInputs, PastStarts
from run_ranks import among_threads, train
from stores import invoke
from toy import Toy, new_run


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nobody waits ten seconds for the first save, nor one between two."""
    monkeypatch.setattr(schedule, "FIRST_S", 0.02)


def chosen(path):
    """The choices of each attempt, oldest first."""
    return [[event for event in log.events if event["event"] == "interval"] for log in journal.logs(path) if log.events]


def trained(path, steps=60, nap_s=0.002, **options):
    """A run of so many more steps, each of which takes a while."""
    toy = Toy()
    with new_run(path, toy, **{"every": Auto(), **options}) as run:
        for _ in run.steps(run.step + steps):
            toy.learn()
            time.sleep(nap_s)
    return toy


def until_chosen(path, **options):
    """A run that stops once it has chosen."""
    toy = Toy()
    with pytest.raises(Stopped), new_run(path, toy, **{"every": Auto(), **options}) as run:
        for _ in run.steps():
            toy.learn()
            time.sleep(0.001)
            if run._session.saves.schedule.pace.chosen is not None:
                run._session.stop.receive_from_rank("SIGTERM")


def test_a_fresh_run_saves_soon_and_then_chooses_once(tmp_path):
    """From its first measured save on; the journal has all that it was chosen from."""
    until_chosen(tmp_path)
    ((event,),) = chosen(tmp_path)
    found = chosen_interval(journal.logs(tmp_path)[0])
    assert isinstance(found, ChoiceWithInputs)
    assert found.choice.interval_s >= 1
    assert 0 < found.costs.stall_s <= found.costs.save_s
    assert found.costs.restart_s >= 0
    assert PastStarts() == found.seen
    assert {"choice", "costs", "seen", "around"} <= set(event)
    saved = [each for each in journal.logs(tmp_path)[0].events if each["event"] == "saved"]
    assert "due" == saved[0]["reason"]


def test_a_start_chooses_from_what_earlier_ones_measured(tmp_path):
    """Once, and before its first save."""
    until_chosen(tmp_path)
    trained(tmp_path, steps=60)
    first, second = chosen(tmp_path)
    assert [1, 1] == [len(first), len(second)]
    events = [event["event"] for event in journal.logs(tmp_path)[1].events if event["event"] in ("interval", "saved")]
    assert "interval" == events[0]
    assert second[0]["seen"]["uptime_s"] > 0
    assert 0 == second[0]["seen"]["interruptions"]


def test_saves_come_at_the_chosen_interval(tmp_path):
    """And not at the first one."""
    until_chosen(tmp_path)
    trained(tmp_path, steps=100)
    assert ["the end"] == [each["reason"] for each in journal.logs(tmp_path)[1].events if each["event"] == "saved"]


@pytest.mark.parametrize("background", [True, False])
def test_saves_that_the_loop_waits_for_cost_all_of_their_time(tmp_path, background):
    """Those in the background cost their stall, and the steps that they slow."""
    until_chosen(tmp_path, background=background)
    costs = chosen(tmp_path)[0][0]["costs"]
    assert (costs["stall_s"] < costs["save_s"]) == background


def test_a_deadline_limits_the_interval(tmp_path):
    """To half of the time that is left."""
    until_chosen(tmp_path, deadline=time.time() + 60, every=Auto(interrupted_hours=1e6))
    choice = chosen(tmp_path)[0][0]
    assert choice["around"]["left_s"] <= 60
    assert choice["choice"]["interval_s"] <= 30


def log(number, *events, began=0.0, restored=0):
    lines = [
        {"event": "begin", "time": began, "owner": {}},
        {"event": "restored", "time": began, "step": restored, "phase": "step"},
        *events,
    ]
    return journal.Log(number, None, lines)


def at(time, step, event="at", **facts):
    return {"event": event, "time": time, "step": step, "phase": "step", **facts}


def test_only_interruptions_without_notice_count(tmp_path):
    """Kills and errors; not stops, ends, Ctrl-C twice, or starts that made no step. All work counts as time."""
    logs = [
        log(1, at(100, 5)),
        log(2, at(130, 7), at(140, 7, "stop", reason="SIGTERM"), began=120, restored=5),
        log(3, at(200, 9), at(210, 9, "failed", error="RuntimeError: NCCL"), began=150, restored=7),
        log(4, at(310, 12, "failed", error="KeyboardInterrupt: "), began=300, restored=9),
        log(5, began=320, restored=12),
        log(6, at(400, 14), {"event": "failed", "time": 9000.0, "why": "its task is over"}, began=330, restored=12),
        log(7, at(500, 20, "end"), began=450, restored=14),
    ]
    assert PastStarts(3, 100.0 + 20 + 60 + 10 + 70 + 50) == read_past_measurements(logs).seen


def test_a_choice_stands_for_the_starts_before_it(tmp_path):
    """So a start reads no more than the journals since then."""
    choice = {"interval_s": 9.0, "interrupted_s": 9.0, "bound": "", "lost": 0, "lost_restarting": 0}
    costs = {"stall_s": 1.0, "slow_s": 0.0, "save_s": 2.0, "restart_s": 3.0, "step_s": 0.1}
    seen = {"uptimes_s": [5.0], "interruptions": 40, "uptime_s": 400.0}
    event = at(50, 3, "interval", choice=choice, costs=costs, seen=seen, around={})
    logs = [log(1, at(10, 2)), log(2, event, at(100, 5)), log(3, at(300, 9), began=200, restored=5)]
    assert PastStarts(42, 600.0) == read_past_measurements(logs).seen
    odd = event | {"choice": "no"}
    assert 3 == read_past_measurements([logs[0], log(2, odd, at(100, 5)), logs[2]]).seen.interruptions


def test_doctor_explains_the_choice(tmp_path):
    """In one sentence."""
    until_chosen(tmp_path / "run")
    answer = invoke("doctor", str(tmp_path / "run"), "--json").stdout
    (check,) = [each for each in json.loads(answer)["checks"] if each["name"] == "interval"]
    assert "ok" == check["level"]
    assert check["what"].startswith("a save costs ")
    assert "interrupted every 24 h (assumed: none was seen): save every " in check["what"]
    assert "of it to restarts" in check["what"]


def test_rank_0_decides_for_all(tmp_path, monkeypatch):
    """The others save with it, and only it measures."""
    until = [False]

    def before(run):
        time.sleep(0.002)
        if run._session.ranks.rank == 0 and run._session.saves.schedule.pace.chosen is not None:
            until[0] = True
        if run._session.ranks.rank:
            assert run._session.saves.schedule.pace is None

    work = among_threads(monkeypatch)
    done = work(2, lambda rank: train(tmp_path, rank, steps=400, before=before, every=Auto(interrupted_hours=0.001)))
    assert [400, 400] == [common for common, _ in done]
    assert until[0]
    assert 1 == len(chosen(tmp_path)[0])
    reasons = [each["reason"] for each in journal.logs(tmp_path)[0].events if each["event"] == "saved"]
    assert "due" in reasons


def test_ranks_must_give_the_same_rule(tmp_path, monkeypatch):
    """Otherwise no save would come on some."""
    given = [Auto(), Auto(interrupted_hours=3)]
    failed = among_threads(monkeypatch)(2, lambda rank: train(tmp_path, rank, every=given[rank]))
    assert all(isinstance(each, UsageError) for each in failed)
    assert "Auto" in str(failed[0])
