"""What the journals tell of each start: why it ended, and what of its work was done again."""

from pathlib import Path

import pytest

from holdfast import journal
from holdfast.inspect import starts
from holdfast.journal import Log


def owner(job="17", restart=0, task=None):
    return {"host": "n1", "pid": 1, "job": {"id": job, "array_task": task, "restart_count": restart}}


def log(number, *events, began=0.0, restored=0, **job):
    """An attempt that begins then, from that step."""
    lines = [
        {"event": "begin", "time": began, "owner": owner(**job)},
        {"event": "restored", "time": began, "step": restored, "phase": "step"},
        *events,
    ]
    return Log(number, Path("history/attempt.jsonl"), lines)


def at(time, step, event="metrics", **facts):
    return {"event": event, "time": time, "step": step, **facts}


REQUEUED = {"event": "requeued", "time": 101.0, "job": "17", "cause": "time limit", "restart_count": 0}


def test_the_summary_is_the_line_that_a_jobs_output_ends_with():
    """Causes from either journal; of a killed start the time since the place from which the next one went on."""
    logs = [
        log(1, at(10, 100), at(100, 1000), at(100, 1000, "stop", reason="SIGUSR1", phase="step"), REQUEUED),
        log(2, at(250, 1200), at(300, 1500), began=200, restored=1000, restart=1),
        log(3, at(600, 2000, "end"), began=400, restored=1200, restart=2),
    ]
    found = starts.starts_of_run(logs)
    assert ["time limit", "killed", "done"] == [each.cause for each in found]
    assert [(0, 1000), (1000, 1500), (1200, 2000)] == [(each.first, each.last) for each in found]
    assert [(0.0, 0), (50.0, 300), (0.0, 0)] == [(each.lost_s, each.lost_steps) for each in found]
    assert "3 starts (1 time limit, 1 killed), 50 s redone" == starts.summarize(found)
    without = [logs[0]._replace(events=logs[0].events[:-1]), *logs[1:]]
    assert "stopped by SIGUSR1" == starts.starts_of_run(without)[0].cause
    assert "time limit" == starts.starts_of_run(without, [REQUEUED])[0].cause


def test_a_task_of_an_array_is_asked_for_by_its_own_number():
    """And not by the array's."""
    stopped = at(100, 9, "stop", reason="SIGTERM", phase="step")
    logs = [log(1, stopped, task="3"), log(2, began=200, restored=9, task="3", restart=1)]
    told = {"event": "requeued", "time": 101.0, "cause": "preempted", "restart_count": 0}
    assert "stopped by SIGTERM" == starts.starts_of_run(logs, [told | {"job": "17"}])[0].cause
    assert "preempted" == starts.starts_of_run(logs, [told | {"job": "17_3"}])[0].cause


@pytest.mark.parametrize(
    ("last", "cause"),
    [
        ({"event": "failed", "error": "ValueError: no"}, "error"),
        ({"event": "stop", "reason": "SIGINT"}, "Ctrl-C"),
        ({"event": "stop", "reason": "deadline"}, "deadline"),
        ({"event": "saved"}, ""),
    ],
)
def test_what_is_still_open_has_no_cause(last, cause):
    """It may run."""
    assert [cause] == [each.cause for each in starts.starts_of_run([log(1, {"time": 5.0, "step": 3, **last})])]


def test_a_command_without_a_run_is_told_from_the_supervisors_journal():
    """Exit codes, what told it to stop, and a supervisor that was killed together with it."""
    begin = {"event": "begin", "time": 0.0, "supervisor": "a", "owner": owner()}
    events = [
        begin,
        at(1, 0, "start"),
        at(10, 5, "exit", verdict="stopped", code=75, told="SIGUSR1"),
        REQUEUED,
        begin | {"supervisor": "b", "owner": owner(restart=1)},
        at(200, 0, "start"),
        begin | {"supervisor": "c", "owner": owner(restart=2)},
        at(300, 0, "start"),
        at(310, 7, "exit", verdict="failed", code=-9),
        at(311, 0, "start"),
        at(320, 9, "exit", verdict="failed", code=1),
        at(321, 0, "start"),
        at(330, 12, "exit", verdict="done", code=0),
    ]
    found = starts.starts_of_command(events)
    assert ["time limit", "node lost", "killed", "error", "done"] == [each.cause for each in found]
    assert "5 starts (1 time limit, 1 node lost, 1 killed, 1 error)" == starts.summarize(found)


def test_a_start_that_was_ended_because_it_hung_says_so():
    """Whether it saved or was killed; another start of the same run does not."""
    logs = [
        log(1, at(90, 17), at(100, 17, "stop", reason="SIGTERM", phase="step")),
        log(2, at(250, 30), began=200, restored=17),
        log(3, at(350, 40), began=300, restored=20),
        log(4, at(450, 50, "end"), began=400, restored=40),
    ]
    told = [
        at(101, 0, "exit", verdict="stopped", code=75, hung="step 17"),
        at(260, 0, "exit", verdict="failed", code=-9, hung="step 30"),
        at(360, 0, "exit", verdict="failed", code=-9, hung=""),
        at(451, 0, "exit", verdict="done", code=0, hung=""),
    ]
    assert ["hang", "hang", "killed", "done"] == [each.cause for each in starts.starts_of_run(logs, told)]
    command = [event for exit_ in told for event in (at(exit_["time"] - 9, 0, "start"), exit_)]
    assert ["hang", "hang", "killed", "done"] == [each.cause for each in starts.starts_of_command(command)]


def test_of_a_long_journal_the_ends_are_read(tmp_path, monkeypatch):
    """`holdfast status` of 500 runs with thousands of lines each is to take a second."""
    parsed = []
    real = journal._event
    monkeypatch.setattr(journal, "_event", lambda line: parsed.append(line) or real(line))
    logs = []
    for number, restored, reached in ((1, 0, 3000), (2, 2900, 6000)):
        lines = [each | {"values": {}} for each in (at(10 * number + step / 1000, step) for step in range(reached))]
        path = tmp_path / f"attempt-{number}.jsonl"
        path.write_bytes(journal.encode_events([*log(number, began=number, restored=restored).events, *lines]))
        logs.append(Log(number, path, journal.JournalLines(path)))
    found = starts.starts_of_run(logs)
    assert [(2999, 99), (5999, 0)] == [(each.last, each.lost_steps) for each in found]
    assert 0.099 == pytest.approx(found[0].lost_s)
    assert len(parsed) < 200


BEGUN = {"event": "begin", "time": 110.0, "owner": {}}
RESTORED = at(110.75, 20, "restored", phase="step")
FIRST = at(111.0, 21, "first_step", phase="step", process_s=4.5)


def parts(supervisor, *lines):
    return starts.seconds_spent(Log(1, Path("history/attempt.jsonl"), [BEGUN, *lines]), supervisor)


def test_each_part_of_a_start_is_told():
    """The wait after the start before, the imports, the restore, the step; they add up."""
    supervisor = [at(time, 0, event) for time, event in ((50.0, "begin"), (51.0, "start"), (105.5, "exit"))]
    found = parts([*supervisor, at(106.5, 0, "start")], RESTORED, FIRST)
    assert {"queue": 1.0, "imports": 3.5, "restore": 0.75, "first step": 0.25} == found
    assert "5.5 s to its first step (imports 3.5 s, queue 1 s, restore 0.75 s, " in starts.describe_seconds_spent(found)


def test_the_queue_counts_from_our_request():
    """Only where a request is known: what ended before ended in another job. What lies after is another start's."""
    supervisor = [at(59.0, 0, "exit"), at(60.0, 0, "requeued"), at(105.0, 0, "begin"), at(106.5, 0, "start")]
    supervisor += [at(200.0, 0, "exit"), at(201.0, 0, "start")]
    assert 46.5 == parts(supervisor, RESTORED, FIRST)["queue"]
    del supervisor[1]
    assert "queue" not in parts(supervisor, RESTORED, FIRST)


def test_without_a_supervisor_the_process_tells_its_age():
    """And a start without a first step has no sentence."""
    assert 3.5 == parts([], RESTORED, FIRST)["imports"]
    assert {"restore": 0.75} == parts([], RESTORED)
    assert "" == starts.describe_seconds_spent(parts([], RESTORED))
    assert {} == parts([])
