"""The drill: what it plans, what it does to a command, and what it concludes. `tests/slow/test_drills.py` has whole
drills.
"""

import json
import re
import struct
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from causes import quiet
from holdfast import drill
from holdfast.drill import compare, kill, report, table
from holdfast.drill.aim import KillSchedule, classify_end
from holdfast.drill.attempts import proven_places
from holdfast.drill.evidence import MetricLine, RunTrace, StateRecord
from holdfast.drill.kill import AttemptProgress, ChildExit, ChildTree, SentSignal
from holdfast.drill.places import SafePointSequence
from holdfast.drill.plan import DAMAGE, DrillOptions, RunPace, measure_pace, plan_kills
from holdfast.drill.report import DrillAttempt, DrillReport
from holdfast.drill.safepoint import SafePoint
from holdfast.errors import ChildError, UsageError
from holdfast.journal import Log
from holdfast.run.metrics import TIMINGS
from holdfast.store.store import Store
from stores import invoke

PACE = RunPace(last=100, saves=5, step_s=0.1, save_s=0.02, total_s=12.0)


# The plan --------------------------------------------------------------------------------------------------------


def a_course(epochs=4, batches=25, count_from=0):
    """The safe points of a run of so many epochs."""
    seen = []
    for epoch in range(epochs):
        first, number = epoch * batches, epoch + count_from
        seen += [StateRecord(SafePoint(first + batch), 1, {}, number) for batch in range(1, batches + 1)]
        seen.append(StateRecord(SafePoint(first + batches, "end"), 1, {}, number))
    return SafePointSequence(seen)


def planned(kills, signals, seed, *, damage=True, course=None, pace=PACE):
    course = course or a_course()
    return plan_kills(
        pace, course, course.choose_targets(kills, seed), DrillOptions(kills, signals, seed, damage=damage)
    )


def test_every_kill_waits_for_what_it_is_to_lead_to():
    """A KILL for its place to be durable, a TERM for the step before; each run saves, or waits, exactly there."""
    for kill_ in [each for seed in range(20) for each in planned(8, ("KILL", "TERM"), seed, damage=False)]:
        place = kill_.target.place
        if kill_.signal == "KILL":
            assert kill_.kept == place
            assert place in kill_.aim.saves
            assert kill_.aim.brink == (100, "step")
        else:
            assert kill_.aim.hold == place
            assert kill_.reached == a_course().point_before(place)


def test_a_plan_is_a_pure_function_of_seed_and_reference():
    """The same seed plans the same kills; another seed others."""
    plans = [planned(8, ("KILL", "TERM"), seed) for seed in (3, 3, 4)]
    assert plans[0] == plans[1] != plans[2]


def test_signals_are_taken_in_turn_and_both_kinds_of_moment_are_struck():
    """Every signal strikes between steps and inside a save, at a random moment of them."""
    kills = planned(8, ("KILL", "TERM"), 1, damage=False)
    assert [each.signal for each in kills] == ["KILL", "TERM"] * 4
    assert {(each.signal, each.in_save is not None) for each in kills} == {
        (name, inside) for name in ("KILL", "TERM") for inside in (True, False)
    }
    assert all(each.delay_s < (0.005 if each.in_save else 0.2) for each in kills)
    assert len({each.delay_s for each in kills}) == 8


def test_each_damage_is_planted_once_and_never_two_in_one_place():
    """One flipped bit and one truncated shard, after different kills, to a checkpoint that is newer than the place."""
    for seed in range(20):
        kills = [each for each in planned(4, ("KILL", "TERM"), seed) if each.damage]
        assert sorted(each.damage for each in kills) == sorted(DAMAGE)
        for each in kills:
            newer = each.aim.saves[1] if each.signal == "KILL" else each.aim.hold
            assert newer.order > each.target.place.order
            assert each.target.place in each.aim.saves
    assert not any(each.damage for each in planned(4, ("KILL",), 0, damage=False))


def test_pace_is_learnt_from_a_journal():
    """Last step, saves before it, and medians of what a step and a save took."""
    events = [{"event": "digests", "step": step, "time": step * 0.5} for step in range(1, 9)]
    events += [{"event": "saved", "step": step, "save_s": 0.1 * step} for step in (2, 4, 8)]
    assert measure_pace(events, 5.0) == RunPace(8, 2, 0.5, 0.4, 5.0, start_s=1.5)


# What comes next ---------------------------------------------------------------------------------------------------


def view(restored, at, kept=None):
    follow = AttemptProgress(Path(), 0)
    follow.restored = None if restored is None else SafePoint(restored)
    follow.at, follow.kept = SafePoint(at), SafePoint(restored or 0 if kept is None else kept)
    return follow


def attempt(**facts):
    return DrillAttempt(
        **{"attempt": 1, "restored": None, "restored_step": 0, "reached": 0, "stop": None, "quarantined": []} | facts
    )


def test_a_kill_comes_when_its_checkpoint_is_durable_and_a_stop_in_the_step_before_its_place():
    """A save in the background may not be durable steps later; a stop saves at its place, and ends there. No kill comes
    to an attempt that has restored nothing yet.
    """
    for name, moments in (
        ("KILL", ((0, -100, False), (3, -1, False), (1, 0, True))),
        ("TERM", ((-2, -100, False), (-1, -100, True))),
    ):
        schedule = KillSchedule(a_course(), PACE, DrillOptions(kills=1, signals=(name,), damage=False))
        step = schedule.targets_of_next_start(SafePoint(0), [])[0].place[0]
        assert schedule(view(None, 0)) is None
        for at, kept, comes in moments:
            now = view(0, step + at, step + kept)
            assert kill.is_kill_due(schedule(now), now) is comes, (name, at, kept)


def test_the_run_and_the_drill_choose_the_same_aim():
    """The first one beyond what was restored; both know that from the checkpoint alone."""
    schedule = KillSchedule(a_course(), PACE, DrillOptions(kills=5))
    aims = schedule.targets_of_next_start(SafePoint(0), [])
    places = [SafePoint(*aim.place) for aim in aims]
    assert places == sorted(places, key=lambda place: place.order)
    for restored in range(0, 101, 7):
        chosen = schedule(view(restored, restored))
        expected = next((aim for aim, place in zip(aims, places, strict=True) if place.order > (restored, 0)), None)
        assert (None if chosen is None else chosen.aim) == expected


def test_following_knows_what_is_kept_and_that_it_was_overtaken(tmp_path):
    """From the journal's own lines, whole ones; a fresh start has nothing to come back to. An attempt with a higher
    number overtakes it, not before there was one to follow.
    """
    lines = (
        ("restored", 0, "step", SafePoint(0)),
        ("digests", 4, "step", SafePoint(0)),
        ("saved", 4, "step", SafePoint(4)),
        ("digests", 4, "end", SafePoint(4)),
        ("saved", 4, "end", SafePoint(4, "end")),
    )
    with closing(AttemptProgress(tmp_path, 0)) as follow:
        for number in (1, 2):
            log = tmp_path / "attempts" / str(number) / f"attempt-{number}.jsonl"
            log.parent.mkdir(parents=True)
            log.touch()
            assert follow.has_later_attempt() is (number == 2)
            follow.read_new_events()
            assert follow.attempt == 1
        with (tmp_path / "attempts" / "1" / "attempt-1.jsonl").open("a", buffering=1) as journal:
            for event, step, phase, kept in lines:
                journal.write(json.dumps({"event": event, "step": step, "phase": phase, "checkpoint": None}) + "\n")
                follow.read_new_events()
                assert follow.kept == kept
    assert (follow.restored, follow.at) == (SafePoint(0), SafePoint(4, "end"))


def test_places_that_were_missed_are_made_up_for():
    """A kill that led to a place that was tried before, or to a fresh start, does not count: a further place
    is chosen.
    """
    schedule = KillSchedule(a_course(), PACE, DrillOptions(kills=3, damage=False))
    places = [SafePoint(*aim.place) for aim in schedule.targets_of_next_start(SafePoint(0), [])]
    assert len(places) == 3
    again = schedule.targets_of_next_start(places[1], [])  # the first was overshot
    assert len(again) == 2
    assert {places[2]} < {SafePoint(*aim.place) for aim in again}
    assert all(SafePoint(*aim.place).order > places[1].order for aim in again)
    assert schedule.targets_of_next_start(places[2], places[:2]) == ()  # enough, once this attempt has gone on


PLACES = [SafePoint(step) for step in range(1, 50)]


def test_a_kill_counts_only_when_the_next_attempt_went_beyond_a_place_that_is_new():
    """It restored a checkpoint, went further, and nobody had come back to that place before. Three kills that led to
    one place, one of them before any checkpoint and one whose checkpoint was damaged, were called 3 of 3.
    """
    ten = {"signal": "KILL", "restored": "a", "restored_step": 10}
    once = [attempt(signal="KILL", reached=5), attempt(signal="TERM", reached=15)]
    for attempts, proven in (
        ([attempt(signal="KILL"), attempt(**ten, reached=11)], [True, False]),
        ([attempt(signal="KILL"), attempt(**ten, reached=10, reached_phase="end")], [True, False]),
        ([attempt(), attempt(**ten, reached=11)], [False, False]),
        ([attempt(signal="KILL"), attempt(**ten, reached=10)], [False, False]),
        ([attempt(signal="KILL"), attempt(reached=40)], [False, False]),
        ([attempt(signal="KILL"), attempt(**ten | {"restored_step": 60}, reached=61)], [False, False]),  # no such place
        ([*once, *(attempt(**ten, reached=reached) for reached in (16, 17, 20))], [False, True, False, False, False]),
    ):
        assert proven_places(attempts, PLACES) == [SafePoint(10)] * sum(proven)
        assert [each.proven for each in attempts] == proven


ENDS = """
   0  -     end                   finished
   0  -     stop: SIGTERM         again      a launcher ate the exit code
   1  TERM  stop: SIGTERM         again
  75  -     stop: deadline        again
  75  -     stop: drill limit     finished
  -9  KILL  begin                 again
 137  KILL  begin                 again
 -15  TERM  end                   again      struck after the block: a restart finds a finished run
  -9  -     begin                 failed     not by us: the system was out of memory, perhaps
 -11  KILL  begin                 failed
   1  -     failed                failed
   1  KILL  failed                failed
   0  RANK  end                   finished   the launcher has started the rank again by itself
   1  RANK  begin                 again
   1  RANK  failed                again      rank 0 lost its peer
   1  RANK  stop: SIGTERM         again      the launcher told the others to stop
"""


def test_an_end_means_done_again_or_a_failure_of_the_command_itself():
    """75 and our own signals mean: again, as does whatever a launcher makes of a lost rank. Else what is not 0 is the
    user's to mend.
    """
    for row in ENDS.strip("\n").splitlines():
        exit_status, name, last, meaning, *_ = re.split(r"\s{2,}", row.strip())
        event, _, reason = last.partition(": ")
        log = Log(1, Path(), [{"event": "begin"}, {"event": event, "reason": reason}])
        fired = None if name == "-" else SentSignal(name, None)
        assert meaning == classify_end(ChildExit(int(exit_status), fired, "", 1.0), log), row


# The comparison -----------------------------------------------------------------------------------------------------


def states(*digests, attempt=1, start=1):
    return [StateRecord(SafePoint(step), attempt, {"model/w": digest}) for step, digest in enumerate(digests, start)]


def a_trace(seen, restored=None, metrics=()):
    return RunTrace(seen, list(metrics), restored or {1: SafePoint(0)}, {})


REFERENCE = a_trace(states("a", "b", "c", "d"))


def parted(*attempts):
    """Where a run of these attempts leaves the path of a, b, c, d; each says where it began."""
    seen = [
        state
        for number, (start, digests) in enumerate(attempts, 1)
        for state in states(*digests, attempt=number, start=start)
    ]
    return compare.first_state_difference(
        REFERENCE, a_trace(seen, {number: SafePoint(start - 1) for number, (start, _) in enumerate(attempts, 1)})
    )


def test_the_first_step_attempt_and_leaf_that_differ_are_named():
    """However often work was done again; also where a later attempt has undone it, since that one was inexact for a
    while.
    """
    assert parted((1, "abc"), (2, "bcd")) is None
    assert parted((1, "ab"), (3, "xy")) == (SafePoint(3), 2, ("model/w",), "1 of 1 leaves differ")
    assert parted((1, "ax"), (2, "bcd"))[:2] == (SafePoint(2), 1)


def test_steps_too_many_and_steps_too_few_are_differences():
    """Both runs pass the same safe points."""
    assert [parted((1, digests)).leaves for digests in ("abcde", "abc")] == [(), ()]


def generator(*digests, attempt=1):
    return [
        StateRecord(SafePoint(step), attempt, {"holdfast/rng/python/1": digest, "model/w": "same"})
        for step, digest in enumerate(digests, 1)
    ]


def test_a_generator_that_nobody_seeds_or_draws_from_is_compared_within_its_run():
    """Each run has its own state of it; it has to stay what it was across the resumes of one run. One that was drawn
    from is never called idle.
    """
    first, second = a_trace(generator("p", "p", "p")), a_trace(generator("q", "q", "q"))
    idle = compare.idle_generators(first, second)
    assert idle == {"python"}
    assert compare.first_state_difference(first, second, idle) is None
    for after, same in ("rrr", True), ("rss", False):
        seen = [*generator("r", "r"), *generator(*after, attempt=2)[1:]]
        assert (
            compare.first_state_difference(first, a_trace(seen, {1: SafePoint(0), 2: SafePoint(1)}), idle) is None
        ) is same
    for drawn in "pq", "pp":
        assert compare.idle_generators(a_trace(generator(*drawn)), a_trace(generator("r", "s"))) == frozenset()


def metrics(*losses, epoch=0, **more):
    return [MetricLine(SafePoint(step), epoch, {"loss": loss, **more}) for step, loss in enumerate(losses, 1)]


NEXT = struct.unpack("<d", struct.pack("<Q", struct.unpack("<Q", struct.pack("<d", 0.5))[0] + 1))[0]


def test_metric_logs_are_compared_line_by_line_and_bit_by_bit():
    """Missing and duplicate lines, and the smallest possible difference of a value. Minus zero is not zero."""
    for other, found in (
        (metrics(0.5, 0.25, "nan"), []),
        (metrics(0.5, 0.25), ["missing"]),
        ([*metrics(0.5, 0.25, "nan"), *metrics(0.5)], ["duplicate"]),
        (metrics(0.5, 0.25, "nan", 0.1), ["extra"]),
        (metrics(NEXT, 0.25, "nan"), [f"0.5 became {NEXT}"]),
        (metrics(0.5, 0.25, "inf"), ["nan became inf"]),
        (metrics(0.5, 0.25, "nan", epoch=1), ["0 became 1"] * 3),
        (metrics(0.5, 0.25, "nan", acc=1.0), ["nothing became 1.0"] * 3),
    ):
        assert found == [each.what for each in compare.metric_differences(metrics(0.5, 0.25, "nan"), other)]
    assert compare.metric_differences(metrics(0.0), metrics(-0.0))


def test_timings_are_passed_over_by_name_and_named():
    """Nothing else is, unless asked for."""
    names = ("step_s", "seconds_total", "wall_time", "images_per_s", "throughput", "loss", "host_load")
    line, other = ([MetricLine(SafePoint(1), 0, dict.fromkeys(names, value))] for value in (1.0, 2.0))
    assert {each.name for each in compare.metric_differences(line, other)} == {"loss", "host_load"}
    exempt = (*TIMINGS, "host_*")
    assert [each.name for each in compare.metric_differences(line, other, exempt)] == ["loss"]
    assert compare.exempt_metrics(line, exempt) == sorted(set(names) - {"loss"})


# What it does to files and processes ----------------------------------------------------------------------------------


def a_store(root, *steps):
    store = Store(root)
    for step in steps:
        store.save({"model": {"w": np.zeros(100)}, "more": {"v": np.zeros(5)}}, step=step)
    return store


def test_damage_is_one_bit_or_a_missing_end_of_one_file_of_the_newest_checkpoint(tmp_path):
    """Nothing else changes, what it says it did is what it did, and a reader finds it."""
    for kind in DAMAGE:
        store = a_store(tmp_path / kind, 1, 2)
        before = {path: path.read_bytes() for path in tmp_path.rglob("checkpoints/step-*/*")}
        damaged = kill.damage_newest(tmp_path / kind, kind, 3)
        ((path, was),) = ((path, data) for path, data in before.items() if path.read_bytes() != data)
        now = path.read_bytes()
        assert path.parent.name == damaged.checkpoint == store.latest().name
        assert path.name in damaged.what
        if kind == "flipped bit":
            assert sum((a ^ b).bit_count() for a, b in zip(was, now, strict=True)) == 1
        else:
            assert now == was[: len(now)]
        assert list(store.latest().problems())
        assert not list(store[1].problems())


def test_nothing_is_damaged_without_an_older_whole_checkpoint(tmp_path):
    """A drill never destroys the last thing to come back to."""
    for steps in ((), (1,), (1, 2)):
        two = a_store(tmp_path / str(steps), *steps)
        hurt = kill.damage_newest(tmp_path / str(steps), "flipped bit", 0)
        assert (hurt is not None) is (len(steps) > 1)
    two.quarantine(two[1], "gone")
    assert kill.damage_newest(tmp_path / str(steps), "truncated shard", 0) is None


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]{session})
print(child.pid, flush=True)
{then}
"""
SLEEPS, OWN_SESSION = "time.sleep(600)", ", start_new_session=True"


def family(session=OWN_SESSION, then=SLEEPS):
    """A command that starts a process, and says which."""
    return [sys.executable, "-c", FAMILY.format(session=session, then=then)]


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may go while it is read
        return True


def until(condition, limit_s=240):
    """Wait for it; it fails only where it never comes, however busy the machine is."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_leaving_ends_the_command_and_all_that_it_started():
    """No process of the command's outlives the drill, not even one in a session of its own: torchrun's are. A launcher
    that dies leaves its workers to nobody; a drill's next start must not meet them.
    """
    for session, then, code in (("", SLEEPS, -9), (OWN_SESSION, SLEEPS, -9), (OWN_SESSION, "", 0)):
        with ChildTree(family(session, then), {}) as child:
            until(lambda: child.ended() or (then and child.tail))  # noqa: B023
            grandchild = int(child.tail)
            assert child.ended() is (code == 0)
            assert not is_gone(grandchild)
        assert (child.finish(), child.ended()) == (code, True)
        assert is_gone(grandchild)


def test_a_drill_that_is_killed_leaves_nothing_behind():
    """Whatever becomes of the drill, in whichever session it is."""
    drills = f"from holdfast.drill.kill import ChildTree; import time; c = ChildTree({family()!r}, {{}})\n"
    drills += "while not (c.ended() or c.tail): time.sleep(0.01)\nprint(c.tail, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", drills], stdout=subprocess.PIPE, text=True) as drilling:
        grandchild = int(drilling.stdout.readline())
        assert not is_gone(grandchild)
        drilling.kill()
    until(lambda: is_gone(grandchild))


def test_a_command_that_hangs_is_ended_and_reported(tmp_path, monkeypatch):
    """The timeout comes from the undisturbed run; a hang is the command's failure, with its last words."""
    spoken = tmp_path / "spoken"
    hangs = (
        f"import pathlib, time; print('last words', flush=True); pathlib.Path({str(spoken)!r}).touch(); time.sleep(600)"
    )
    clock = SimpleNamespace(sleep=time.sleep, monotonic=lambda: 61.0 * spoken.exists())  # a busy machine takes no part
    monkeypatch.setattr(kill, "time", clock)
    with pytest.raises(ChildError, match=r"(?s)no end after 60 s, at step 0; killed\n.*last words"):
        kill.run_command([sys.executable, "-c", hangs], {}, tmp_path, lambda _: None, timeout_s=60)


def test_what_cannot_be_drilled_is_a_usage_error():
    """One line: which command cannot be started, or that it has no Run."""
    for command, says in ((["no-such-program"], "no-such-program"), ([sys.executable, "-c", "pass"], "without a Run")):
        with pytest.raises(UsageError, match=says):
            drill.drill(command, DrillOptions(), quiet)


def test_the_report_ends_with_its_verdict():
    """Whatever else it says."""
    others = (report.DIFFERENT, report.OUTPUT_DIFFERS, report.NOT_PROVEN, report.NOT_DETERMINISTIC)
    for verdict, asked, line in (
        (report.IDENTICAL, 1, "identical"),
        (report.IDENTICAL, 5, "identical (all 3 places)"),
        *((verdict, 5, verdict) for verdict in others),
    ):
        found = DrillReport(verdict=verdict, command=["x"], seed=0, kills_asked=asked, places=3, attempts=[attempt()])
        assert [*table.report_lines(found)][-1] == line
        assert found.exit_code == (verdict != report.IDENTICAL)


# The command line ---------------------------------------------------------------------------------------------------


def test_wrong_options_get_one_line_and_exit_2():
    """A command that is none, an option that is none, a program without a Run."""
    for words in ("", "--kills 0 -- true", "--signals HUP -- true", "--no-such -- true", "-- true"):
        done = invoke("drill", *words.split())
        assert done.exit_code == 2, words
        assert "Traceback" not in done.output


def test_options_of_the_command_are_its_own():
    """Also without `--`: what follows the program's name belongs to it."""
    words = [sys.executable, "-c", "raise SystemExit('--lr')", "--lr", "1"]
    assert invoke("drill", "--seed", "3", *words).exit_code == 8
