"""What a scheduler says and is asked: every line of the table of causes, refusal, absence, nonsense and silence.

Its commands are played by small scripts on PATH; tests/test_slurm.py asks the real ones.
"""

import os
import signal
import time
from contextlib import closing
from typing import Any

import pytest

from fakes import Fakes, record
from holdfast.cluster import job_leader, requeue, slurm, watch
from holdfast.cluster.ask import Absent, CommandResult, RunningCommand, SchedulerSilent, run_command
from holdfast.cluster.cause import StopNotice, find_cause
from holdfast.cluster.hold import HOLD
from holdfast.cluster.requeue import Requeue
from holdfast.cluster.slurm import JobStatus
from holdfast.errors import ClusterError, NoSpace, Superseded
from holdfast.job import Job, job
from holdfast.supervise import limits
from supervised import until

HERE = Job("slurm", "120", 0)
NOW = 5000.0


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("SLURM"):
            monkeypatch.delenv(name)
    return Fakes(tmp_path, monkeypatch)


# -- the table ------------------------------------------------------------------------------------------------------

ENDING: dict[str, Any] = {"state": "COMPLETING", "reason": "None", "restarts": 0, "start_s": 1000.0, "end_s": NOW}
GOING_ON: dict[str, Any] = {"state": "RUNNING", "reason": "None", "restarts": 0, "start_s": 1000.0}

TABLE = {
    "scancel": ("SIGTERM", 0, ENDING, "cancelled"),
    "scancel, after the end": ("SIGTERM", 0, ENDING | {"state": "CANCELLED"}, "cancelled"),
    "scancel after a notice": ("SIGUSR1", 0, ENDING, "cancelled"),
    "scancel of a restarted job": ("SIGTERM", 2, ENDING | {"restarts": 2}, "cancelled"),
    "scancel of a job that was preempted in an earlier start": (
        "SIGTERM",
        0,
        ENDING | {"preempt_s": 900.0},
        "cancelled",
    ),
    "requeue by hand": ("SIGTERM", 0, ENDING | {"restarts": 1}, "requeued"),
    "preemption with REQUEUE": ("SIGTERM", 1, ENDING | {"restarts": 2}, "requeued"),
    "a ghost": ("SIGTERM", 0, GOING_ON | {"restarts": 1}, "requeued"),
    "a ghost's notice": ("deadline", 0, GOING_ON | {"restarts": 1, "end_s": NOW}, "requeued"),
    "preemption with CANCEL": ("SIGTERM", 0, ENDING | {"preempt_s": NOW}, "preempted"),
    "preemption, after the end": ("SIGTERM", 0, ENDING | {"state": "PREEMPTED"}, "preempted"),
    "scancel within the grace of a preemption": ("SIGTERM", 0, ENDING | {"preempt_s": NOW - 6}, "unclear"),
    "grace of a preemption, srun step": ("SIGTERM", 0, GOING_ON | {"preempt_s": NOW, "end_s": NOW + 10}, "preempted"),
    "preempt_send_user_signal": ("SIGUSR1", 0, GOING_ON | {"preempt_s": NOW, "end_s": NOW + 10}, "preempted"),
    "time limit": ("SIGTERM", 0, ENDING | {"reason": "TimeLimit"}, "time limit"),
    "time limit, after the end": ("SIGTERM", 0, ENDING | {"state": "TIMEOUT", "reason": "TimeLimit"}, "time limit"),
    "time limit after a notice": ("SIGUSR1", 0, ENDING | {"reason": "TimeLimit"}, "time limit"),
    "notice of the time limit": ("SIGUSR1", 0, GOING_ON | {"end_s": NOW + 600}, "time limit"),
    "our own deadline": ("deadline", 0, GOING_ON | {"end_s": NOW + 20}, "time limit"),
    "our own deadline, and the limit was lifted": ("deadline", 0, GOING_ON | {"end_s": NOW + 86400}, "unclear"),
    "the cloud takes the node": ("spot notice", 0, GOING_ON | {"end_s": NOW + 86400}, "preempted"),
    "scancel after the cloud's notice": ("spot notice", 0, ENDING, "cancelled"),
    "USR1 by hand": ("SIGUSR1", 0, GOING_ON | {"end_s": NOW + 86400}, "unclear"),
    "USR1 by hand, no limit": ("SIGUSR1", 0, GOING_ON, "unclear"),
    "TERM by hand": ("SIGTERM", 0, GOING_ON, "unclear"),
    "TERM by hand, shortly before the end": ("SIGTERM", 0, GOING_ON | {"end_s": NOW + 30}, "unclear"),
    "Ctrl-C": ("SIGINT", 0, GOING_ON | {"end_s": NOW + 30}, "cancelled"),
    "the node failed": ("SIGTERM", 0, ENDING | {"reason": "NodeDown"}, "unclear"),
    "a state of a later Slurm": ("SIGTERM", 0, ENDING | {"state": "EVAPORATED"}, "unclear"),
    "fewer restarts than ours": ("SIGTERM", 3, ENDING | {"restarts": 1, "reason": "TimeLimit"}, "unclear"),
}


@pytest.mark.parametrize("line", TABLE)
def test_the_cause_follows_from_the_schedulers_evidence(line):
    """A line of docs/cluster.md's table each; what looks like nothing is the user's own doing."""
    what, restart_count, seen, expected = TABLE[line]
    assert expected == find_cause(StopNotice(what, NOW), restart_count, JobStatus(**seen))


def test_a_job_that_slurm_does_not_know_is_unclear():
    """No evidence."""
    assert "unclear" == find_cause(StopNotice("SIGTERM", NOW), 0, None)


def test_a_notice_counts_within_the_lead_that_the_script_asked_for():
    """Limits are looked at twice a minute, so a notice comes early; SIGTERM is one where the script says so."""
    for what in ("SIGUSR1", "SIGTERM"):
        for lead_s, left_s, expected in ((30, 110, "time limit"), (30, 130, "unclear"), (1200, 1250, "time limit")):
            seen = JobStatus(**GOING_ON, end_s=NOW + left_s)
            assert expected == find_cause(StopNotice(what, NOW, lead_s), 0, seen), (what, lead_s)


def seen():
    found = slurm.job_status(HERE)
    assert found is not None
    return found


# -- reading what Slurm says ----------------------------------------------------------------------------------------


def test_a_job_is_read_as_scontrol_shows_it(fakes):
    """Times come as Unix seconds; a job's name is never read as another field. Slurm forgets jobs after their end."""
    fakes.job(
        JobState="COMPLETING", Reason="TimeLimit", Restarts=3, EndTime=NOW, JobName="x JobState=RUNNING Restarts=0"
    )
    assert ("COMPLETING", "TimeLimit", 3, None, 1000.0, NOW) == seen()[:6]
    fakes.job(EndTime=5000, PreemptTime=4990, Requeue=0, BatchFlag=0, Command="(null)", WorkDir="/home/a b")
    assert (4990.0, 1000.0, 5000.0, False, False, "") == seen()[3:9]
    assert "/home/a b" == seen().options["chdir"]
    assert ["scontrol show job 120"] == list(dict.fromkeys(fakes.calls))
    # of a heterogeneous job scontrol shows every component; the first is the one that is requeued
    fakes.say("scontrol show job", record(Restarts=1) + record(Restarts=0, JobState="PENDING"))
    assert ("RUNNING", 1) == (seen().state, seen().restarts)
    fakes.say("scontrol show job", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    assert slurm.job_status(HERE) is None


def test_nonsense_and_absence_are_errors_and_no_evidence(fakes):
    """And not a job that runs on. A container may lack Slurm's commands."""
    with pytest.raises(Absent, match="scontrol cannot be started"):
        slurm.job_status(HERE)
    for text in ("", "hello\n", "JobId=120 JobName=x\n   JobState=\n", "\x00\xff", record(Restarts="many")):
        fakes.say("scontrol show job", text)
        with pytest.raises(ClusterError, match="not about a job"):
            slurm.job_status(HERE)


def test_time_left_is_read_in_every_form():
    """squeue(1), %L. A job that has not begun, or has ended, has none."""
    spans = {"1-02:03:04": 93784, "02:03:04": 7384, "3:04": 184, "0:00": 0, "365-00:00:00": 31536000}
    for text, seconds in (spans | {"UNLIMITED": float("inf")}).items():
        assert seconds == slurm.parse_time_left(CommandResult(0, text + "\n", "")), text
    for text in ("INVALID", "NOT_SET", "", "7", "x:10"):
        with pytest.raises(ClusterError, match="time left"):
            slurm.parse_time_left(CommandResult(0, text, ""))
    with pytest.raises(ClusterError, match="time left"):
        slurm.parse_time_left(CommandResult(1, "3:04\n", ""))


# -- asking ---------------------------------------------------------------------------------------------------------


def test_a_silent_scheduler_is_waited_for_no_longer_than_said(fakes):
    """Ten seconds; less here."""
    fakes.say("scontrol show job", record(), after="/bin/sleep 20")
    began = time.monotonic()
    with pytest.raises(SchedulerSilent, match="did not answer within"):
        run_command(["scontrol", "show", "job", "120"], limit_s=0.3)
    assert time.monotonic() - began < 5


def test_a_controller_that_is_away_is_silent_and_not_a_refusal(fakes):
    """As Slurm 22.05 says it."""
    for err in (
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "Unexpected message received for job 120",
        "Socket timed out on send/recv operation",
    ):
        fakes.say("scontrol show job", err=err, code=1)
        with pytest.raises(SchedulerSilent):
            slurm.job_status(HERE)


def test_an_answer_that_takes_its_time_is_not_waited_for(fakes):
    """`look` says None until it is there. A forked worker that ends leaves its parent's question alone."""
    fakes.say("squeue", "3:04\n", after="/bin/sleep 0.3")
    began = time.monotonic()
    with closing(RunningCommand(slurm.time_left_command(HERE))) as asked:
        assert asked.poll_result() is None
        assert time.monotonic() - began < 0.25
        child = os.fork()
        if not child:
            asked.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert 184 == slurm.parse_time_left(until(asked.poll_result))
    assert ["squeue --noheader --jobs 120 --format %L"] == fakes.calls


def test_an_answer_counts_although_what_the_command_began_still_runs(fakes):
    """A site's wrapper may leave a process behind that holds its output open."""
    fakes.say("squeue", "3:04\n", after="{ /bin/sleep 3 & }")
    with closing(RunningCommand(slurm.time_left_command(HERE))) as asked:
        assert 184 == slurm.parse_time_left(until(asked.poll_result))


def test_a_question_without_an_answer_is_ended(fakes):
    """Nothing is left behind."""
    fakes.say("squeue", after="/bin/sleep 60")
    asked = RunningCommand(["squeue"], limit_s=0.1)
    child = asked._child
    time.sleep(0.15)
    with pytest.raises(SchedulerSilent):
        asked.poll_result()
    assert child.returncode == -9


def test_the_end_is_asked_for_at_most_once_a_minute(fakes, monkeypatch):
    """The environment first, then squeue; what is unlimited has no end."""
    monkeypatch.setattr(watch, "FIRST_S", 0)
    fakes.say("squeue", "1:00:00\n")
    ends = watch.JobWatch(HERE)
    assert ends.end_s is None
    assert abs(until(lambda: ends.poll_answers() or ends.end_s) - time.time() - 3600) < 5
    for _ in range(200):
        ends.poll_answers()
    assert 1 == len(fakes.calls)
    ends._questions = [each._replace(due_s=0) for each in ends._questions]
    fakes.say("squeue", "UNLIMITED\n")
    until(lambda: ends.poll_answers() or ends.end_s is None)
    fakes.say("squeue", err="no", code=1)
    ends._questions = [each._replace(due_s=0) for each in ends._questions]
    until(lambda: ends.poll_answers() or ends._questions[0].due_s > time.monotonic() + 50)  # what fails is asked again
    assert 9e9 == watch.JobWatch(HERE, {"SLURM_JOB_END_TIME": "9000000000"}).end_s


def test_only_one_process_of_a_job_asks_and_only_what_is_there(fakes, monkeypatch):
    """Slurm's own count, and those of launchers inside one task. Without squeue there is no end and no error."""
    monkeypatch.setattr(watch, "FIRST_S", 0)
    absent = watch.JobWatch(HERE)
    absent.poll_answers()
    assert (None, []) == (absent.end_s, absent._questions)  # it is not tried again and again
    fakes.say("squeue", "1:00:00\n")
    ranks: list[tuple[Any, dict[str, str]]] = [
        (HERE._replace(process=1), {}),
        (HERE, {"RANK": "3"}),
        (HERE, {"PMIX_RANK": "1"}),
        (None, {}),
    ]
    for here, environment in ranks:
        ends = watch.JobWatch(here, environment)
        for _ in range(50):
            ends.poll_answers()
    assert [] == fakes.calls


def test_the_grace_is_asked_for_once(fakes, monkeypatch):
    """KillWait of the cluster, GraceTime of the partition."""
    monkeypatch.setattr(watch, "FIRST_S", 0)
    fakes.say(
        "scontrol show config", "Configuration data as of now\nKillWait                = 30 sec\nLicenses = (null)\n"
    )
    fakes.say(
        "scontrol show partition spot",
        "PartitionName=spot\n   Default=NO QoS=N/A\n   DefaultTime=NONE GraceTime=10 Hidden=NO\n",
    )
    grace = watch.JobWatch(HERE, {"SLURM_JOB_PARTITION": "spot"})
    until(lambda: grace.poll_answers() or grace.preempt_s)
    assert (30, 10) == (grace.kill_wait_s, grace.preempt_s)
    grace.poll_answers()
    assert ["scontrol show config", "scontrol show partition spot"] == fakes.calls


# -- carrying on ----------------------------------------------------------------------------------------------------


class Lines:
    """A journal that a test can look into."""

    def __init__(self, *, error=None):
        self.events, self.error = [], error

    def record(self, event, /, **facts):
        if self.error is not None:
            raise self.error
        self.events.append((event, facts["cause"]))


def carried(lines, heard="SIGTERM", here=HERE, **options):
    return Requeue(here, StopNotice(heard, NOW), lines.record, **{"patience_s": 0, **options}).continue_job()


def besides(fakes):
    """What was called but to look at the job."""
    return [call for call in fakes.calls if not call.startswith("scontrol show job")]


TASK = job({"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "16", "SLURM_ARRAY_TASK_ID": "3"})
LIMIT = {"JobState": "COMPLETING", "Reason": "TimeLimit"}
WRITE = "scontrol write batch_script 120 -"
SCRIPT = "#!/bin/bash\n#SBATCH -p spot\n#SBATCH --job-name=mine\nexec x\n"
TYPE = "To go on, type: scontrol requeue 120 || sbatch --chdir=/home/a /home/a/job.sh"
REQUEUED, LEFT = [("requeued", "time limit")], "not_requeued"
NOTICE = {"heard": "SIGUSR1"}
ENDS: dict[str, tuple[Any, ...]] = {
    # what: (the job, answers, "!" before a refusal, options, how and why, how the line ends, lines of the journal,
    #        calls that only look at the job apart)
    "a time limit": (
        LIMIT,
        {"scontrol requeue 120": ""},
        {},
        ("requeued", "time limit"),
        "job 120: time limit; requeued",
        REQUEUED,
        ["scontrol requeue 120"],
    ),
    "a task of an array: the bare id would requeue all of them": (
        LIMIT,
        {"scontrol requeue 16_3": ""},
        {"here": TASK},
        ("requeued", "time limit"),
        "requeued",
        REQUEUED,
        ["scontrol requeue 16_3"],
    ),
    "below the cap": (
        LIMIT,
        {"scontrol requeue 120": ""},
        {"requeues": 6, "limit": 7},
        ("requeued", "time limit"),
        "requeued",
        REQUEUED,
        ["scontrol requeue 120"],
    ),
    "at the cap": (
        LIMIT,
        {},
        {"requeues": 7, "limit": 7},
        ("limit", "time limit"),
        f"job 120 is not requeued: it was requeued 7 times, and 7 are the most. {TYPE}",
        [(LEFT, "time limit")],
        [],
    ),
    "cancelled": (
        {"JobState": "COMPLETING"},
        {},
        {},
        ("cancelled", "cancelled"),
        f"job 120 was cancelled, and is not requeued. {TYPE}",
        [(LEFT, "cancelled")],
        [],
    ),
    "by slurm": (
        {"JobState": "COMPLETING", "Restarts": 1},
        {},
        {},
        ("by slurm", "requeued"),
        "job 120: Slurm starts it again by itself",
        [(LEFT, "requeued")],
        [],
    ),
    "unclear": (
        {},
        {WRITE: "#!/bin/sh\n"},
        {},
        ("unclear", "unclear"),
        f"why SIGTERM came is unclear (state RUNNING, reason None), so it is not requeued. {TYPE}",
        [(LEFT, "unclear")],
        [WRITE],
    ),
    "a notice within the lead that the script asks for": (
        {"EndTime": NOW + 900},
        {WRITE: "#!/bin/sh\n#SBATCH --signal=B:USR1@900\n", "scontrol requeue 120": ""},
        NOTICE,
        ("requeued", "time limit"),
        "requeued",
        REQUEUED,
        [WRITE, "scontrol requeue 120"],
    ),
    "a notice that the script does not ask for": (
        {"EndTime": NOW + 900},
        {WRITE: "#!/bin/sh\n#SBATCH --signal=B:USR2@900\n"},
        NOTICE,
        ("unclear", "unclear"),
        TYPE,
        [(LEFT, "unclear")],
        [WRITE],
    ),
    "refused: the script as Slurm has it follows, with the options that it does not say itself": (
        LIMIT | {"Requeue": 0, "TimeLimit": "01:00:00"},
        {"scontrol requeue": "!120: Requested operation is presently disabled\n", WRITE: SCRIPT, "sbatch": "121;one\n"},
        {},
        ("submitted", "time limit"),
        "presently disabled. Job 121 goes on after it",
        [*REQUEUED, ("submitted", "time limit")],
        ["scontrol requeue 120", WRITE, "sbatch --parsable --dependency=afterany:120 --time=01:00:00 --chdir=/home/a"],
    ),
    "a successor of a task is that task": (
        LIMIT,
        {"scontrol requeue": "!disabled", "sbatch": "121\n"},
        {"here": TASK, "successor": "/runs/x/job.sh"},
        ("submitted", "time limit"),
        "Job 121 goes on after it",
        [*REQUEUED, ("submitted", "time limit")],
        [
            "scontrol requeue 16_3",
            "sbatch --parsable --dependency=afterany:16_3 --array=3 /runs/x/job.sh",
        ],
    ),
    "an interactive job has nothing to requeue": (
        LIMIT | {"BatchFlag": 0, "Command": "bash"},
        {"scontrol requeue": "!Only batch jobs are accepted or processed", WRITE: "!job script retrieval failed"},
        {},
        ("failed", "time limit"),
        "To go on, start it again as you did",
        [*REQUEUED, (LEFT, "time limit")],
        [
            "scontrol requeue 120",
            WRITE,
            "sbatch --parsable --dependency=afterany:120 --job-name=job.sh --partition=long --chdir=/home/a bash",
        ],
    ),
}


@pytest.mark.parametrize("what", ENDS)
def test_a_job_ends_by_its_cause_and_is_journalled_before(fakes, what, monkeypatch):
    """The room may be fenced as soon as the call is made. Left alone, the line says what to type."""
    facts, answers, options, outcome, said, events, calls = ENDS[what]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")
    fakes.job(**facts)
    fakes.say("sbatch", err="there is no such script", code=1)
    for command, answer in answers.items():
        refused, words = answer.startswith("!"), answer.removeprefix("!")
        fakes.say(command, *([] if refused else [words]), err=words * refused, code=int(refused))
    done = carried(lines := Lines(), **options)
    assert (outcome, events, calls) == (done[:2], lines.events, besides(fakes))
    assert done.line.endswith(said), done.line
    if said.startswith("presently"):
        assert SCRIPT == fakes.stdin("sbatch")


def test_a_refusal_because_slurm_was_faster_is_none(fakes):
    """Preempted between the look and the call."""
    fakes.job(JobState="RUNNING", EndTime=NOW + 20)
    fakes.say("scontrol write", "#!/bin/sh\n")
    requeued = fakes.place.parent / "requeued"
    requeued.write_text(record(JobState="PENDING", Restarts=1))
    swap = f"/bin/cp {requeued} {fakes.place.parent}/out-0"
    fakes.say("scontrol requeue", err="Job is pending execution", code=1, after=swap)
    assert ("by slurm", "requeued") == carried(Lines(), "deadline")[:2]


def test_what_is_cancelled_while_the_journal_is_written_stays_cancelled(fakes):
    """A full NFS server takes seconds for a line: the evidence from before it is old."""
    fakes.job(JobState="RUNNING", EndTime=NOW + 20)
    fakes.say("scontrol write", "#!/bin/sh\n")
    lines = Lines()

    def slowly(event, /, **facts):
        lines.record(event, **facts)
        fakes.job(JobState="COMPLETING")

    done = Requeue(HERE, StopNotice("SIGUSR1", NOW), slowly, patience_s=0).continue_job()
    assert ("cancelled", "cancelled") == done[:2]
    assert [("requeued", "time limit"), ("not_requeued", "cancelled")] == lines.events
    assert [] == [call for call in fakes.calls if "requeue" in call]
    assert "scontrol show job 120" == fakes.calls[-1]


def test_what_is_cancelled_between_the_refusal_and_a_successor_has_none(fakes):
    """A successor would go on with what the user has ended."""
    fakes.job(JobState="RUNNING", EndTime=NOW + 20)
    cancelled = fakes.place.parent / "cancelled"
    cancelled.write_text(record(JobState="COMPLETING"))
    swap = f"/bin/cp {cancelled} {fakes.place.parent}/out-0"
    fakes.say("scontrol requeue", err="Requested operation is presently disabled", code=1, after=swap)
    fakes.say("sbatch", "121\n")
    assert ("cancelled", "cancelled") == carried(Lines(), "deadline")[:2]
    assert [] == [call for call in fakes.calls if call.startswith("sbatch")]


def test_when_nothing_works_the_user_is_told_what_to_type(fakes):
    """Exactly that."""
    fakes.job(JobState="COMPLETING", Reason="TimeLimit")
    fakes.say("scontrol requeue", err="Access/permission denied", code=1)
    fakes.say("scontrol write", "#!/bin/sh\n")
    fakes.say("sbatch", err="sbatch: error: Invalid account or account/partition combination specified", code=1)
    lines = Lines()
    done = carried(lines)
    assert "failed" == done.how
    assert "Access/permission denied" in done.line
    assert "Invalid account" in done.line
    assert done.line.endswith("To go on, type: scontrol requeue 120 || sbatch --chdir=/home/a /home/a/job.sh")
    assert ["requeued", "not_requeued"] == [event for event, _ in lines.events]


def test_on_hold_the_line_to_type_can_be_pasted_as_it_is(fakes, tmp_path):
    """From any folder; and where a run is on hold and cannot be released, nothing is started."""
    place, script = tmp_path / "on hold", tmp_path / "its own/job.sh"
    place.mkdir()
    (place / HOLD).touch()
    again = "{ scontrol requeue 120 || sbatch --chdir='/home/a b' /home/a/job.sh; }"
    for facts, successor, ways in (
        ({"WorkDir": "/home/a b"}, None, again),
        ({}, script, f"holdfast submit --continue '{script.parent}'"),  # as `holdfast status` says
        ({"Requeue": 0}, None, "sbatch --chdir=/home/a /home/a/job.sh"),
    ):
        fakes.job(**LIMIT | facts)
        done = carried(Lines(), places=[tmp_path / "nothing", place], successor=successor)
        assert "held" == done.how
        assert done.line.endswith(f"is on hold. To go on, type: holdfast release '{place}' && {ways}")
    assert [] == besides(fakes)


@pytest.mark.parametrize("lost", [False, True], ids=["away", "its answer was lost"])
def test_a_controller_that_was_away_is_asked_again(fakes, monkeypatch, lost):
    """One line at the first failure; then the job is requeued once: the restart count tells whether it was already."""
    monkeypatch.setattr(requeue, "FIRST_WAIT_S", 0.1)
    fakes.job(**LIMIT)
    silent = "scontrol requeue" if lost else "scontrol show job"
    fakes.say(silent, err="Unable to contact slurm controller (connect failure)", code=1)
    said = []

    def warn(line):
        said.append(line)
        fakes.job(**LIMIT | {"Restarts": int(lost)})
        if not lost:
            fakes.say("scontrol requeue 120")

    monkeypatch.setattr(requeue, "warn", warn)
    assert ("by slurm" if lost else "requeued") == carried(Lines(), patience_s=20).how
    assert ["scontrol requeue 120"] == besides(fakes)
    assert 1 == len(said)
    assert "trying again. To go on, type: scontrol requeue 120" in said[0]


def test_a_controller_that_stays_away_ends_with_the_line_to_type(fakes, monkeypatch):
    """Not before the patience is over."""
    monkeypatch.setattr(requeue, "FIRST_WAIT_S", 0.02)
    fakes.say("scontrol show job", err="Unable to contact slurm controller (connect failure)", code=1)
    done = carried(lines := Lines(), patience_s=0.4)
    assert ("failed", [("not_requeued", "unclear")]) == (done.how, lines.events)
    assert "Unable to contact" in done.line
    assert len(fakes.calls) > 2


def test_a_ghost_requeues_nothing(fakes):
    """Its journal is gone: the requeue would end its successor, which has the same id."""
    fakes.job(**LIMIT)
    done = carried(Lines(error=Superseded("attempt 1 was superseded")))
    assert "superseded" == done.how
    assert ["scontrol show job 120"] == fakes.calls


def test_no_trouble_of_ours_raises_or_keeps_a_job_from_going_on(fakes):
    """Whatever is on PATH; on a full disk the journal misses a line; another scheduler's number means nothing."""
    assert "failed" == carried(Lines()).how
    fakes.say("scontrol show job", "nonsense")
    assert "failed" == carried(Lines()).how
    assert "failed" == carried(Lines(error=Superseded("gone"))).how
    fakes.job(**LIMIT)
    fakes.say("scontrol requeue 120")
    before = fakes.calls
    assert "unclear" == carried(Lines(), here=HERE._replace(scheduler="pbs")).how
    assert before == fakes.calls
    assert "requeued" == carried(Lines(error=NoSpace("full"))).how


# -- who speaks -----------------------------------------------------------------------------------------------------


def test_a_supervisor_is_known_from_the_environment_and_from_its_file(tmp_path):
    """The file serves children with an environment of their own: only of this very start of the job."""
    around = {"SLURM_JOB_ID": "120", "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_RESTART_COUNT": "2"}
    assert job_leader.supervisor_directory(around) is None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in around.items():
            patch.setenv(name, value)
        with job_leader.announcing_supervisor(tmp_path / "x") as environment:
            assert {"HOLDFAST_SUPERVISOR": str(tmp_path / "x"), "HOLDFAST_SUPERVISOR_JOB": "120:2"} == environment
            assert tmp_path / "x" == job_leader.supervisor_directory(environment)  # a container's own environment
            assert tmp_path / "x" == job_leader.supervisor_directory(around | environment)
            assert tmp_path / "x" == job_leader.supervisor_directory(around)
            assert job_leader.supervisor_directory({**around, "SLURM_RESTART_COUNT": "3"}) is None
            assert job_leader.supervisor_directory({**around, "SLURM_JOB_ID": "121"}) is None
            assert job_leader.supervisor_directory({}) is None
        assert job_leader.supervisor_directory(around) is None
    assert [] == list(tmp_path.iterdir())


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """This process is in a job."""
    for name, value in {"SLURM_JOB_ID": "120", "SLURM_SUBMIT_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)


def test_of_supervisors_side_by_side_only_process_0_is_announced(tmp_path, inside, monkeypatch):
    """`srun --ntasks=2 holdfast run`: had rank 1 come first, rank 0 would take it for the one that speaks."""
    monkeypatch.setenv("SLURM_PROCID", "1")
    with job_leader.announcing_supervisor(tmp_path / "one"):
        assert job_leader.supervisor_directory({**os.environ, "SLURM_PROCID": "0"}) is None


def test_a_supervisor_inside_of_another_leaves_the_announcement_alone(tmp_path, inside):
    """Also when it ends first."""
    with job_leader.announcing_supervisor(tmp_path / "outer"):
        with job_leader.announcing_supervisor(tmp_path / "inner") as environment:
            assert str(tmp_path / "inner") == environment["HOLDFAST_SUPERVISOR"]
            assert tmp_path / "outer" == job_leader.supervisor_directory()
        assert tmp_path / "outer" == job_leader.supervisor_directory()


def test_a_supervisor_that_was_killed_does_not_speak_for_the_job(tmp_path, inside):
    """Its file stays behind, and a cluster that lost its state counts jobs from 1 again."""
    child = os.fork()
    if not child:
        with job_leader.announcing_supervisor(tmp_path / "killed"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert (tmp_path / ".holdfast" / "job-120.json").exists()
    assert job_leader.supervisor_directory() is None
    with job_leader.announcing_supervisor(tmp_path / "next"):
        assert tmp_path / "next" == job_leader.supervisor_directory()
    assert [] == list(tmp_path.iterdir())


def test_a_submit_directory_that_cannot_be_written_leaves_the_environment(tmp_path, monkeypatch):
    """It is enough for most."""
    monkeypatch.setenv("SLURM_JOB_ID", "120")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with job_leader.announcing_supervisor(tmp_path) as environment:
        assert tmp_path == job_leader.supervisor_directory(environment)


def test_a_run_tells_its_supervisor_where_it_lives(tmp_path):
    """The last one counts; a directory that is gone is no reason to fail."""
    assert job_leader.reported_run_path(tmp_path) is None
    job_leader.report_run_path(tmp_path, tmp_path / "runs" / "a")
    job_leader.report_run_path(tmp_path, tmp_path / "runs" / "b")
    assert tmp_path / "runs" / "b" == job_leader.reported_run_path(tmp_path)
    job_leader.report_run_path(tmp_path / "gone", tmp_path)


@pytest.mark.parametrize(
    ("left_s", "option", "lead_s"), [(40, None, 10), (3600, None, 60), (40, 30.0, 30), (None, None, 60)]
)
def test_a_short_job_is_not_told_to_stop_as_it_starts(left_s, option, lead_s):
    """By default three quarters of it are left to the command, also when most of its time is over."""
    here = limits.TimeLimits(None, None, option)
    here.watch.end_s = None if left_s is None else time.time() + left_s
    assert here.lead_s() == pytest.approx(lead_s, abs=1)
    if left_s is not None:
        due_s = here.stop_due_s()
        assert due_s is not None
        assert due_s - time.monotonic() == pytest.approx(left_s - lead_s, abs=1)
        here.watch.end_s = time.time() + 5
        assert here.lead_s() == pytest.approx(lead_s, abs=1)
