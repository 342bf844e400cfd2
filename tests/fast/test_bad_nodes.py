"""A job leaves a node where two starts died by the node's fault: which nodes, for how long, and what Slurm is told."""

import json
import time

import pytest

from fakes import record
from holdfast import journal
from holdfast.cluster import bad_nodes, requeue, slurm
from holdfast.cluster.bad_nodes import (
    Death,
    choose_excludable,
    deaths_in_journal,
    exclusions_in_force,
    nodes_to_exclude,
)
from holdfast.cluster.cause import BAD_NODE, StopNotice
from holdfast.cluster.requeue import Requeue
from holdfast.job import Job
from holdfast.supervise import place
from holdfast.supervise.job_end import JobEnding
from holdfast.supervise.signals import SignalInbox
from job_fakes import in_a_job

MIN, HOUR = 60.0, 3600.0
HERE = Job("slurm", "120", 0)
NODES = "".join(f"n{number}|mixed|gpu:2|64|900|a\n" for number in range(1, 5)) + (
    "n9|down*|gpu:2|64|900|a\nn8|idle|gpu:8|64|900|a\n"
)


@pytest.mark.parametrize(
    ("times", "now_s", "expected"),
    [
        ([0.0], 1.0, {}),
        ([0.0, 30 * MIN], 31 * MIN, {"n1": 30 * MIN + 24 * HOUR}),
        ([0.0, 31 * MIN], 31 * MIN, {}),
        ([31 * MIN, 0.0, 61 * MIN], 61 * MIN, {"n1": 61 * MIN + 24 * HOUR}),  # in any order
        ([0.0, 1.0], 24 * HOUR, {"n1": 24 * HOUR + 1.0}),
        ([0.0, 1.0], 24 * HOUR + 1.0, {}),
        ([0.0, 1.0, 20 * HOUR], 30 * HOUR, {}),  # one death more prolongs nothing
        ([0.0, 1.0, 20 * HOUR, 20 * HOUR + 1], 30 * HOUR, {"n1": 44 * HOUR + 1}),
    ],
)
def test_two_deaths_within_half_an_hour_exclude_a_node_for_a_day(times, now_s, expected):
    """And two on two nodes do not."""
    died = [Death("n1", at_s) for at_s in times]
    assert expected == nodes_to_exclude([*died, Death("n2", times[0])], now_s)


@pytest.mark.parametrize(
    ("bad", "free", "users", "needed", "expected"),
    [
        (["n1"], ["n1"], [], 1, []),  # never all
        (["n1"], ["n1", "n2"], [], 1, ["n1"]),
        (["n1", "n2"], ["n1", "n2"], [], 1, ["n1"]),  # the one that was bad first
        (["n1"], ["n1", "n2"], [], 2, []),  # the job needs both
        (["n1"], ["n1", "n2", "n3"], [], 2, ["n1"]),
        (["n1"], ["n1", "n2"], ["n2"], 1, []),  # the user has taken the other one
        (["n1"], ["n1", "n2", "n3"], ["n1"], 1, []),  # it is the user's already
        (["n9"], ["n1"], [], 1, ["n9"]),  # it is down: the job loses nothing
        (["n9"], [], [], 1, []),
        ([f"n{n}" for n in range(1, 6)], [f"n{n}" for n in range(1, 50)], [], 1, ["n1", "n2", "n3"]),
    ],
)
def test_a_job_always_finds_its_nodes(bad, free, users, needed, expected):
    """And no more than three are excluded: where all seem bad, something else is."""
    assert expected == choose_excludable(bad, free, users, needed)


def owner_of(restart, number="120"):
    return {"host": "vm", "pid": 1, "job": {"id": number, "array_task": None, "restart_count": restart}}


def began(restart, node="n1", at_s=0.0, number="120"):
    return {
        "event": "begin",
        "time": at_s,
        "supervisor": "a",
        "owner": owner_of(restart, number),
        "node": node,
        "hears": True,
    }


def died(node="n1", at_s=1.0, cause=BAD_NODE):
    return {"event": "exit", "time": at_s, "cause": cause, "node": node}


ENDS = "JobState=COMPLETING Reason=TimeLimit"
SIGNAL = {"event": "signal", "time": 5.0, "signal": "SIGTERM"}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([began(0), died(), died(at_s=2.0)], [Death("n1", 1.0), Death("n1", 2.0)]),
        ([began(0), died(cause="error"), died(node="")], []),  # nobody knows which of several nodes
        ([began(0), began(1, at_s=9.0)], [Death("n1", 9.0)]),  # NODE_FAIL, seen by the next start
        ([began(0), SIGNAL, began(1)], []),
        ([began(0), SIGNAL, died(cause=""), began(1)], []),
        ([began(0), {"event": "stop", "time": 5.0}, began(1)], []),
        ([began(0), began(0, number="121")], []),
        ([began(0, node=None), began(1)], []),
        ([{**began(0), "hears": None}, began(1)], []),  # a child of the script is killed without a signal
        ([began(0), began(1, "n1", 60.0), began(2, "n3", 120.0)], [Death("n1", 60.0), Death("n1", 120.0)]),
        ([{**began(0), "owner": 3}, {**began(1), "owner": None}, {**died(), "node": 7}], []),  # another's lines
    ],
)
def test_a_journal_shows_which_nodes_starts_died_on(events, expected):
    """By their own fault, or because they were lost."""
    assert expected == deaths_in_journal(events)


def test_of_several_nodes_the_one_whose_tasks_alone_failed_is_at_fault(monkeypatch):
    """Where several failed, nobody knows which was the first."""
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    two = Job("slurm", "120", 0, nodes=2)
    one = "srun: error: n2: task 1: Exited with exit code 1\n"
    ended = "srun: error: n1: task 0: Terminated\n"
    assert "n2" == bad_nodes.find_node_at_fault(two, one + ended)
    assert (
        "" == bad_nodes.find_node_at_fault(two, one + one.replace("n2", "n1")) == bad_nodes.find_node_at_fault(two, "")
    )
    assert "" == bad_nodes.find_node_at_fault(two, one.replace("n2", "n[1-2]"))
    assert "n1" == bad_nodes.find_node_at_fault(HERE, one)
    assert "" == bad_nodes.find_node_at_fault(Job("pbs", "1", 0), one) == bad_nodes.find_node_at_fault(None, one)


def test_what_is_excluded_now_is_told():
    """Not what has expired, and not what Slurm refused."""
    lines = [{"event": "excluded", "job": "120", "nodes": {"n1": 100.0, "n2": 300.0}}]
    assert {"n2": 300.0} == exclusions_in_force(lines, 200.0)
    assert {} == exclusions_in_force([*lines, {"event": "not_excluded"}], 200.0) == exclusions_in_force([], 200.0)
    assert {} == exclusions_in_force(
        [{"event": "excluded", "nodes": "n1"}, {"event": "excluded", "nodes": {"n1": "x"}}], 0.0
    )


def shown(**limits):
    """Slurm's record of a running job."""
    text = record()
    for name, value in limits.items():
        text = text.replace(f" {name}=(null)", f" {name}={value}")
    return text


# -- with a scheduler -----------------------------------------------------------------------------------------------


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    fakes = in_a_job(tmp_path, monkeypatch)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    fakes.job()
    fakes.say("sinfo", NODES)
    fakes.say("scontrol update")
    return fakes


def ended(tmp_path, *events, job=HERE, requeue=True, chain=False):
    """The job of a supervisor whose journal has these events."""
    path = tmp_path / "place"
    path.mkdir(exist_ok=True)
    (path / "supervisor.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return JobEnding(job, place.SupervisorDirectory(path, {}), requeue, 99, chain)


def recent(node="n1", ago_s=60.0):
    return died(node, time.time() - ago_s)


def left(fakes, end):
    """What was said, and told Slurm, when the job leaves its node."""
    assert ("n1", 2) == end.find_node_at_fault("")
    end.place.record("exit", cause=BAD_NODE, node="n1")
    with SignalInbox() as signals:
        line = end.continue_job(signals, BAD_NODE, [])
    return line, [call for call in fakes.calls if call.startswith(("scontrol requeue", "scontrol update", "sbatch"))]


def test_the_second_death_requeues_the_job_without_its_node(tmp_path, fakes):
    """Slurm takes the exclusion only when the job is in the queue again; the journal has it before."""
    line, calls = left(fakes, end := ended(tmp_path, recent()))
    assert "job 120: bad node; requeued without n1, where starts died by the node's fault" == line
    assert ["scontrol requeue 120", "scontrol update JobId=120 ExcNodeList=n1"] == calls
    events = journal.read(end.place.journal)
    assert ["exit", "requeued", "excluded"] == [event["event"] for event in events][-3:]
    assert 86000 < exclusions_in_force(events, time.time())["n1"] - time.time() < 86401


def test_what_the_user_excluded_stays(tmp_path, fakes):
    """However it is spelled. Of ours what has expired goes."""
    fakes.say("scontrol show job", shown(ExcNodeList="n[3,5-6],x,n4"))
    fakes.say("scontrol show hostnames n[3,5-6],x,n4", "n3\nn5\nn6\nx\nn4\n")
    ours = {"event": "excluded", "time": 1.0, "job": "120", "nodes": {"n4": 2.0}}
    _, calls = left(fakes, ended(tmp_path, ours, recent()))
    assert "scontrol update JobId=120 ExcNodeList=n3,n5,n6,x,n1" == calls[-1]


def test_an_expired_exclusion_ends_with_the_next_requeue(tmp_path, fakes):
    """Whatever that is for; without deaths Slurm is asked for no nodes."""
    fakes.say("scontrol show job", shown(ExcNodeList="n4").replace("JobState=RUNNING Reason=None", ENDS))
    fakes.say("scontrol show hostnames n4", "n4\n")
    ours = {"event": "excluded", "time": 1.0, "job": "120", "nodes": {"n4": 2.0}}
    for events, expected in (([ours], ["scontrol update JobId=120 ExcNodeList="]), ([], [])):
        before = len(fakes.calls)
        with SignalInbox() as signals:
            line = ended(tmp_path, *events).continue_job(signals, "SIGTERM", [])
        assert "job 120: time limit; requeued" == line
        assert expected == [call for call in fakes.calls[before:] if "update" in call]
        assert bool(expected) == any("sinfo" in call for call in fakes.calls[before:])


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (
            {"sinfo": "n1|mixed|gpu:2|64|900|a\nn8|idle|gpu:8|64|900|a\nn9|down*|gpu:2|64|900|a\n"},
            "too few others are left",
        ),
        ({"sinfo": "n1|mixed|gpu:2|64|900|a\nn2|idle|gpu:2|64|800|a\n"}, "too few others are left"),  # smaller
        ({"scontrol show job": shown(ReqNodeList="n1"), "scontrol show hostnames n1": "n1\n"}, "required"),
        ({"scontrol show job": shown().replace("   Power=", "   Reservation=mine\n   Power=")}, "reservation"),
        ({"scontrol show job": shown().replace("BatchFlag=1", "BatchFlag=0")}, "no such batch job"),
    ],
)
def test_where_the_job_cannot_leave_what_happens_otherwise_stays(tmp_path, fakes, capsys, answers, why):
    """And it is said in a line."""
    for command, answer in answers.items():
        fakes.say(command, answer)
    assert ("n1", 0) == ended(tmp_path, recent()).find_node_at_fault("")
    assert why in capsys.readouterr().err


def test_only_a_job_that_may_be_requeued_leaves(tmp_path, fakes):
    """The node is named all the same."""
    for choice in ({"requeue": False}, {"chain": True}):
        assert ("n1", 0) == ended(tmp_path, recent(), **choice).find_node_at_fault("")
    assert ("", 0) == ended(tmp_path, recent(), job=None).find_node_at_fault("")
    assert ("n1", 1) == ended(tmp_path, recent(ago_s=31 * MIN)).find_node_at_fault("")
    assert [] == fakes.calls


def test_a_job_that_comes_back_twice_stays(tmp_path, fakes, capsys):
    """Somebody, or something, has taken the exclusion back."""
    until = {"n1": time.time() + 99}
    events = [
        each
        for n in (1.0, 2.0)
        for each in ({"event": "excluded", "time": n, "job": "120", "nodes": until}, began(0, at_s=n + 0.5))
    ]
    requeued = {**events[0], "time": 9.0}  # a time limit: the exclusion goes on, and nothing came back
    assert ("n1", 2) == ended(tmp_path, *events[:2], requeued, recent()).find_node_at_fault("")
    assert ("n1", 0) == ended(tmp_path, *events, recent()).find_node_at_fault("")
    assert "the job came back to it" in capsys.readouterr().err


def test_after_the_last_requeue_the_job_stays(tmp_path, fakes, capsys):
    """Then its retries count."""
    end = ended(tmp_path, *[{"event": "requeued", "time": float(n)} for n in range(99)], recent())
    assert ("n1", 0) == end.find_node_at_fault("")
    assert "it was requeued too often" in capsys.readouterr().err


def test_what_slurm_refused_is_no_exclusion_of_ours():
    """If it is in the list later, the user has put it there."""
    done = {"event": "excluded", "time": 1.0, "job": "120", "nodes": {"n1": 9.0}}
    assert {"n1": 0} == bad_nodes.count_own_exclusions([done], "120")
    for word in ("not_excluded", "not_requeued"):
        assert {} == bad_nodes.count_own_exclusions([done, {"event": word, "time": 2.0}, began(1)], "120")


def test_an_exclusion_that_slurm_refuses_is_told(tmp_path, fakes, monkeypatch):
    """The job is in the queue all the same. While the job is between its end and the queue it is tried again."""
    monkeypatch.setattr(requeue, "_BETWEEN_S", (0.0, 0.01))
    fakes.say("scontrol update", err="slurm_update error: Access/permission denied", code=1)
    end = ended(tmp_path, recent())
    line, _ = left(fakes, end)
    assert line.endswith(
        "requeued, but its ExcNodeList stays as it was: scontrol update: slurm_update error: Access/permission denied"
    )
    assert {} == exclusions_in_force(journal.read(end.place.journal), time.time())
    monkeypatch.setattr(requeue, "_BETWEEN_S", (0.01,))
    fakes.say("scontrol update", err="Resource temporarily unavailable", code=1, after=f": > {tmp_path}/busy")
    _, calls = left(fakes, ended(tmp_path, recent()))
    assert 3 == sum("update" in call for call in calls)


def test_a_successor_is_kept_from_the_node_too(tmp_path, fakes):
    """Where requeueing is refused."""
    fakes.say("scontrol requeue", err="Requeue is disabled", code=1)
    fakes.say("sbatch", "121\n")
    end = ended(tmp_path, recent())
    _, calls = left(fakes, end)
    assert "--dependency=afterany:120 --exclude=n1 " in calls[-1]
    assert ["n1"] == [*bad_nodes.count_own_exclusions(journal.read(end.place.journal), "121")]


def test_a_node_that_was_lost_twice_is_left_before_the_command_starts(tmp_path, fakes):
    """Slurm itself has started the job there again. Of another node nothing follows."""
    now_s = time.time()
    lost = [began(0, at_s=now_s - 99), began(1, at_s=now_s - 66), began(2, at_s=now_s - 33)]
    assert ended(tmp_path, *lost, job=HERE._replace(restart_count=2)).is_on_bad_node()
    assert not ended(tmp_path, *lost[:2]).is_on_bad_node()
    elsewhere = [{**each, "node": "n3"} for each in lost]
    assert not ended(tmp_path, *elsewhere).is_on_bad_node()


def test_what_a_user_cancels_stays_cancelled(fakes):
    """Also when its node is bad."""
    fakes.job(JobState="COMPLETING")
    done = Requeue(HERE, StopNotice(BAD_NODE, time.time()), lambda event, **facts: None).continue_job()
    assert "cancelled" == done.how


def test_a_partition_is_read_as_sinfo_shows_it(fakes):
    """A node that is down, drains or does not answer cannot be had; one that sleeps can."""
    states = ("idle", "mixed", "allocated", "idle~", "completing", "down*", "drained", "draining", "idle*", "maint")
    fakes.say("sinfo", "".join(f"{state}|{state}|(null)|4+|900|(null)\n" for state in states))
    assert [*states[:5]] == [name for name, facts in slurm.partition_nodes("long").items() if facts.usable]
    one, other = (slurm.NodeFacts("idle", "gpu:2", 4, 900, each) for each in "ab")
    assert one.is_equivalent(other, None)
    assert not one.is_equivalent(other, "a")
