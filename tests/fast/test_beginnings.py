"""Where the time between a start and its first step went, as the journals tell it."""

from pathlib import Path

from holdfast.inspect import beginnings
from holdfast.journal import Log


def log(*events):
    return Log(1, Path("history/attempt.jsonl"), list(events))


def at(time, event, **facts):
    return {"event": event, "time": time, **facts}


BEGUN = at(110.0, "begin", owner={})
RESTORED = at(110.75, "restored", step=20, phase="step", restore_s=0.5)
FIRST = at(111.0, "first_step", step=21, phase="step", process_s=4.5)


def test_each_part_of_a_start_is_told():
    """The wait after the start before, the imports, the claim, the restore, the step; they add up."""
    supervisor = [at(50.0, "begin"), at(51.0, "start"), at(105.5, "exit"), at(105.5, "next"), at(106.5, "start")]
    found = beginnings.spent(log(BEGUN, RESTORED, FIRST), supervisor)
    assert {"wait": 1.0, "imports": 3.5, "open": 0.25, "restore": 0.5, "first step": 0.25} == found
    assert "5.5 s to its first step (imports 3.5 s, wait 1 s, restore 0.5 s, " in beginnings.shown(found)
    assert 111.0 - 105.5 == sum(found.values())


def test_the_queue_counts_from_our_request():
    """Only where a request is known; what lies after the start is another start's."""
    supervisor = [at(60.0, "requeued"), at(105.0, "begin"), at(106.5, "start"), at(200.0, "exit"), at(201.0, "start")]
    assert 45.0 == beginnings.spent(log(BEGUN, RESTORED, FIRST), supervisor)["queue"]
    assert "queue" not in beginnings.spent(log(BEGUN, RESTORED, FIRST), supervisor[1:])


def test_without_a_supervisor_the_process_tells_its_age():
    """And a start without a first step has no sentence."""
    found = beginnings.spent(log(BEGUN, RESTORED, FIRST), [])
    assert 3.5 == found["imports"]
    assert "first step" not in beginnings.spent(log(BEGUN, RESTORED), [])
    assert "" == beginnings.shown(beginnings.spent(log(BEGUN, RESTORED), []))
    assert {} == beginnings.spent(log(BEGUN), [])
