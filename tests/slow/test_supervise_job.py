"""`holdfast run` inside a job: when the command stops, the last act requeues the job or leaves it, and says so.

The scheduler is a handful of fakes on PATH; tests/test_slurm_submit.py asks a real one.
"""

import os
import signal
import sys
import time

import pytest

from driven import driven, kept, uninterrupted
from fakes import Fakes, record
from holdfast import journal, owner
from holdfast.supervise import place
from supervised import TRAINS, Supervised, python, steered, supervised, train, until

JOB = {"SLURM_JOB_ID": "120", "SLURM_JOB_PARTITION": "long"}
CONFIG = "KillWait                = 30 sec\n"
SAVES = """
import signal, sys, time
def stop(number, frame):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGUSR1, stop)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    fakes = Fakes(tmp_path, monkeypatch)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path))
    fakes.say("scontrol show config", CONFIG)
    fakes.say("scontrol show partition", "PartitionName=long GraceTime=0\n")
    fakes.say("squeue", "UNLIMITED\n")
    fakes.say("scontrol requeue")
    fakes.job(**limit())
    return fakes


def limit():
    """What Slurm says of a job whose time is up."""
    return {"JobState": "COMPLETING", "Reason": "TimeLimit", "EndTime": str(int(time.time()))}


def told(place, name="TERM", *options, command=None, code=75, **environment):
    """See a supervisor to its end that is told to stop once its command is ready."""
    return steered(place, command or python(SAVES), "\n", name, code=code, options=options, **environment)


def requeues(fakes):
    return [call for call in fakes.calls if call.startswith("scontrol requeue")]


UNAWARE = python("import time; print('ready', flush=True); time.sleep(600)")
NESTED = [sys.executable, "-m", "holdfast", "run", "--run", "inner", "--", *python(SAVES)]
CARRIED = {
    # what: (facts of the job, signal, options, whether it is requeued, what is said of that)
    "a time limit": (limit, "TERM", (), True, "run me again\nholdfast: job 120: time limit; requeued\n"),
    "a notice when the end is near": (lambda: {"EndTime": str(int(time.time()) + 100)}, "USR1", (), True, "requeued"),
    "what was cancelled": (
        lambda: {"JobState": "COMPLETING"},
        "TERM",
        (),
        False,
        "job 120 was cancelled, and is not requeued. To go on, type: scontrol requeue 120",
    ),
    "a signal by hand": (dict, "USR1", (), False, "why SIGUSR1 came is unclear"),
    "--no-requeue": (limit, "TERM", ("--no-requeue",), False, "job 120 is not requeued: --no-requeue\n"),
}


@pytest.mark.parametrize("what", CARRIED)
def test_a_stop_is_requeued_by_its_cause_after_the_last_word(tmp_path, fakes, what):
    """The command saves, exit 75; the journal says stop, then what becomes of the job; then it is done, and said."""
    facts, name, options, expected, said = CARRIED[what]
    fakes.job(**facts())
    it = told(tmp_path, name, *options)
    assert ["scontrol requeue 120"] * expected == requeues(fakes) == (fakes.calls[-1:] if expected else [])
    (found,) = tmp_path.glob(".holdfast/*-120")
    story = [event["event"] for event in journal.read(found / "supervisor.jsonl")]
    assert (True, expected) == ("stop" in story[-2:], story[-1] == "requeued")
    assert said in it.said


def test_a_directory_that_is_held_meanwhile_is_not_requeued(tmp_path, fakes):
    """The line says how to allow it again."""
    fakes.job(**limit())
    with Supervised(tmp_path, python(SAVES), "--run", "held") as it:
        until(lambda: "ready" in it.printed)
        (tmp_path / "held" / "hold").touch()
        it.send("TERM")
        assert 75 == it.end()
    assert [] == requeues(fakes)
    assert "on hold. To go on, type: holdfast release" in it.said


@pytest.mark.parametrize(
    ("command", "code"), [(UNAWARE, 143), (NESTED, 75), (train, 75)], ids=["unaware", "nested", "a run"]
)
def test_only_the_outermost_process_requeues_once(tmp_path, fakes, command, code):
    """Whatever is inside: a run, another supervisor, or a command that knows no signals (the end of the time is not its
    fault, and the cap on requeues ends what never gets anywhere).
    """
    it = told(tmp_path, command=command(tmp_path) if callable(command) else command, code=code)
    assert ["scontrol requeue 120"] == requeues(fakes)
    assert 1 == it.said.count("requeued")


@pytest.mark.parametrize("rank", [{"SLURM_PROCID": "1"}, {"OMPI_COMM_WORLD_RANK": "3"}])
def test_only_process_0_speaks_for_the_job(tmp_path, fakes, rank):
    told(tmp_path, **rank)
    assert [] == fakes.calls


def test_requeues_have_a_cap(tmp_path, fakes):
    """Counted over all starts of the job, in the supervisor's journal."""
    for start in range(3):
        fakes.job(**limit(), Restarts=start)
        it = told(tmp_path, "TERM", "--run", "place", "--max-requeues", 2, SLURM_RESTART_COUNT=str(start))
    assert 2 == len(requeues(fakes))
    assert "job 120 is not requeued: it was requeued 2 times, and 2 are the most" in it.said


def test_without_requeue_the_submitted_script_follows(tmp_path, fakes):
    """The batch script of `holdfast submit` lies in the supervisor's directory."""
    fakes.say("scontrol requeue", err="Requested operation is presently disabled\n", code=1)
    fakes.say("sbatch", "121\n")
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "job.sh").write_text("#!/bin/bash\n")
    it = told(tmp_path, "TERM", "--run", "place")
    assert f"sbatch --parsable --dependency=afterany:120 {tmp_path / 'place' / 'job.sh'}" == fakes.calls[-1]
    assert "Job 121 goes on after it" in it.said


def test_a_crash_and_an_end_ask_nothing(tmp_path, fakes):
    """A failure is a failure: exit 8, and no requeue that would repeat it."""
    assert 8 == supervised(tmp_path, python("raise SystemExit(3)")).code
    assert 0 == supervised(tmp_path, python("pass")).code
    assert [] == [call for call in fakes.calls if "show job" in call or "requeue" in call]


def test_signals_that_come_after_the_stop_do_not_keep_the_job_from_its_requeue(tmp_path, fakes):
    """Slurm ends a job that it requeues: us, and the very command that asked for it."""
    fakes.say("scontrol requeue", after="kill -TERM $PPID $$; kill -INT $PPID $$; echo done > done")
    told(tmp_path)
    assert "done\n" == (tmp_path / "done").read_text()


def test_the_command_is_stopped_before_the_end_of_the_job(tmp_path, fakes):
    """Nobody sends a signal: the environment says when the time is up, and --lead how long before to stop."""
    end = int(time.time()) + 9
    fakes.job(EndTime=str(end))
    it = supervised(tmp_path, python(SAVES), "--lead", 6, SLURM_JOB_END_TIME=str(end))
    assert (75, "ready\nsaved\n") == (it.code, it.printed)
    assert time.time() < end
    assert "the job's time is nearly up: the command is told to stop" in it.said
    assert ["scontrol requeue 120"] == requeues(fakes)


def test_the_measured_save_of_a_run_is_part_of_the_lead(tmp_path, fakes):
    """A save of two seconds needs three and a bit, whatever --lead says; the run's journal knows how long they take."""
    slow = "def slow(self, kept=Toy.state_dict):\n        time.sleep(2)\n        return kept(self)\n"
    slow += "    Toy.state_dict = slow\n"
    command = train(
        tmp_path, f"    {slow}{TRAINS.replace('steps=5', 'steps=1000').replace('range(10)', 'range(1000)')}"
    )
    told(tmp_path, "INT", "--run", "place", command=command)
    end = int(time.time()) + 8
    fakes.job(EndTime=str(end))
    it = supervised(tmp_path, command, "--run", "place", "--lead", 0, SLURM_JOB_END_TIME=str(end))
    assert 75 == it.code
    assert end - 5 < it.events("signal")[-1]["time"] < end - 3.5
    assert ["scontrol requeue 120"] == requeues(fakes)


def test_a_program_that_stops_by_itself_near_the_end_is_not_started_again(tmp_path, fakes, monkeypatch):
    """It was given the time that is left, and exits with 0 although it is not done: the job is carried on."""
    end = str(int(time.time()) + 88)
    fakes.job(EndTime=end)
    monkeypatch.setenv("SLURM_JOB_END_TIME", end)
    it = driven(tmp_path, 10_000, "--max-s", 1, lead_s=60)
    assert (75, 1) == (it.code, it.printed.count("from"))
    assert "stopped by the job's end being near; run me again\nholdfast: job 120: time limit; requeued\n" in it.said
    assert kept(tmp_path)


def test_far_from_the_end_it_is_started_again(tmp_path, fakes, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 7000))
    it = driven(tmp_path, 60, "--max-s", 0.7)
    assert (0, uninterrupted(60)) == (it.code, it.printed.splitlines()[-1])
    assert it.printed.count("from") > 1
    assert [] == requeues(fakes)


def test_a_command_that_hangs_is_killed_in_time_for_the_requeue(tmp_path, fakes):
    """Slurm kills all, and us, KillWait seconds after SIGTERM: we are done before."""
    fakes.say("scontrol show config", "KillWait                = 8 sec\n")
    hangs = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('ready', flush=True)"
    hangs += "\nwhile True: time.sleep(1)"
    with Supervised(tmp_path, python(hangs)) as it:
        until(lambda: "scontrol show config" in fakes.calls)
        until(lambda: "ready" in it.printed)
        time.sleep(0.5)  # the answer is on its way to the supervisor
        began = time.monotonic()
        it.send("TERM")
        assert 137 == it.end()
    assert 3 < time.monotonic() - began
    (killed,), (heard,) = it.events("killed"), it.events("signal")
    assert killed["time"] - heard["time"] < 7  # Slurm's 8, less what is needed to requeue
    assert ["scontrol requeue 120"] == requeues(fakes)


BROKEN = """import sys; sys.exit("cat: /scratch/x: Input/output error")"""


@pytest.mark.parametrize("others", ["n2|idle|(null)|4|900|(null)\n", ""])
def test_two_deaths_by_the_nodes_fault_requeue_the_job_without_it(tmp_path, fakes, others):
    """With the default of no retries. On a node without any other like it, the second death is final."""
    fakes.job()
    fakes.say("sinfo", "n1|mixed|(null)|4|900|(null)\n" + others)
    fakes.say("scontrol update")
    it = supervised(tmp_path, python(BROKEN), SLURMD_NODENAME="n1")
    assert [1, 2 * bool(others)] == [event["node_deaths"] for event in it.events("exit")]
    calls = [call for call in fakes.calls if call.startswith(("scontrol requeue", "scontrol update"))]
    assert ["scontrol requeue 120", "scontrol update JobId=120 ExcNodeList=n1"] * bool(others) == calls
    line = "requeued without n1, where" if others else "too few others are left"
    assert (1, 1) == (it.code if others else it.code - 7, it.said.count(line)), it.said


def preempted():
    return {"StartTime": str(int(time.time()) - 100), "PreemptTime": str(int(time.time()))}


STRUCK = {
    # what: (facts of the job, the command, whether we are told as well, exit code, starts, what is said at the end)
    "a signal to all processes, and the command hears it first": (
        limit,
        lambda _: python(SAVES),
        True,
        75,
        1,
        "requeued",
    ),
    "a preemption with grace, of which only srun's tasks hear at first": (
        preempted,
        train,
        False,
        75,
        1,
        "stopped by what ends the job; run me again\nholdfast: job 120: preempted; requeued\n",
    ),
    "somebody else, by `scancel --signal` or kill": (dict, train, False, 0, 2, ""),
}


@pytest.mark.parametrize("what", STRUCK)
def test_a_command_that_was_told_before_us_goes_on_unless_the_job_ends(tmp_path, fakes, what):
    """It is started again in a job that has time left, and requeued with a job that Slurm ends."""
    facts, command, both, code, starts, said = STRUCK[what]
    fakes.job(**facts())
    with Supervised(tmp_path, command(tmp_path)) as it:
        until(lambda: it.printed)
        it.strike()
        if both:
            time.sleep(0.3)
            it.send("TERM")
        assert code == it.end()
    assert starts == len(it.events("start"))
    assert ["scontrol requeue 120"] * (starts == 1) == requeues(fakes)
    assert said in it.said


# A later start of the same job ----------------------------------------------------------------------------------

ALONE = """
import os, signal, sys, time
def stop(number, frame):
    time.sleep(1)
    os.remove("alone")
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
open("alone", "x").close()
print("ready", flush=True)
while not os.path.exists("enough"):
    time.sleep(0.05)
os.remove("alone")
"""


def test_a_later_start_waits_until_the_one_on_a_lost_node_has_left(tmp_path, fakes):
    """Slurm has given its node up, and it works on: both would write the same files. It is asked to leave, and does."""
    fakes.job(JobState="RUNNING", Restarts="1")
    command = python(ALONE)
    with Supervised(tmp_path, command, "--run", "d") as first:
        until(lambda: "ready" in first.printed, "the first")
        with Supervised(tmp_path, command, "--run", "d", SLURM_RESTART_COUNT="1") as second:
            until(lambda: 2 == second.printed.count("ready"), "the second")
            assert 75 == first.end()
            (tmp_path / "enough").touch()
            assert 0 == second.end()
    assert "an earlier start of this job may still be at work" in second.said
    assert "Slurm gave this node up and has started the job elsewhere" in first.said
    assert [] == requeues(fakes)
    assert [] == [path.name for path in (tmp_path / "d").iterdir() if path.name.startswith(("alive", "leave"))]


def test_a_start_without_a_sign_of_life_is_waited_for_no_longer(tmp_path, fakes, monkeypatch):
    """Its machine is gone, or cannot write here any more. One that was told to stop meanwhile does not wait on."""
    monkeypatch.setattr(place, "SILENT_S", 2.0)
    with Supervised(tmp_path, python(ALONE), "--run", "d") as first:
        until(lambda: "ready" in first.printed and any((tmp_path / "d").glob("alive-*")), "its sign")
        first.process.send_signal(signal.SIGSTOP)
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        began_s = time.monotonic()
        place.wait_for_earlier_starts(tmp_path / "d", lambda: "SIGTERM")
        assert time.monotonic() < began_s + 1
        place.wait_for_earlier_starts(tmp_path / "d", lambda: None)
        assert time.monotonic() > began_s + 2
        first.process.send_signal(signal.SIGCONT)


def test_a_start_that_wakes_beside_a_later_one_is_killed_and_writes_nothing(tmp_path, fakes, monkeypatch):
    """It was suspended for longer than the later one has waited. Neither its files nor its journal are its own."""
    monkeypatch.setattr(place, "SILENT_S", 2.0)
    with Supervised(tmp_path, python(SAVES), "--run", "d") as first:
        until(lambda: "ready" in first.printed and any((tmp_path / "d").glob("alive-*")), "its sign")
        asleep = [first.process.pid, *(pid for pid in first.left() if pid != first.process.pid)]
        for pid in asleep:
            os.kill(pid, signal.SIGSTOP)
        monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
        place.wait_for_earlier_starts(tmp_path / "d", lambda: None)
        before = (tmp_path / "d/supervisor.jsonl").read_bytes()
        for pid in reversed(asleep):
            os.kill(pid, signal.SIGCONT)
        assert 137 == first.end()
    assert "saved" not in first.printed
    assert before == (tmp_path / "d/supervisor.jsonl").read_bytes()
    assert "a later start of this job has gone on without this one: killed" in first.said
    assert [] == requeues(fakes)


def test_a_start_that_wakes_while_it_is_given_up_is_waited_for(tmp_path, fakes, monkeypatch):
    """Its sign of life came after the last look: the later one looks once more after it has said that it goes on."""
    monkeypatch.setattr(place, "SILENT_S", 0.5)
    begin, leave, woke = {"event": "begin", "supervisor": "a", "time": 1.0}, tmp_path / "leave-a", []
    (tmp_path / place.JOURNAL).write_bytes(journal.encode_events([begin]))
    (tmp_path / "alive-a").touch()

    def sign(_):
        woke.extend([leave.read_bytes()] if leave.read_bytes() else [])
        return b"2" if woke else b"1"

    monkeypatch.setattr(place, "_read_content", sign)
    place._wait_for_start(tmp_path, begin, lambda: woke and not leave.read_bytes())
    assert ([place.TAKEN], b"") == (woke, leave.read_bytes())


def test_a_job_that_was_killed_as_a_whole_is_gone_on_with(tmp_path, fakes):
    """Its supervisor wrote no last line, on another machine: Slurm says that the job is over. While it is not, no."""
    (tmp_path / "d").mkdir()
    elsewhere = {
        **owner.describe_this_process(),
        "host": "n9",
        "boot": "b",
        "machine": "m",
        "job": {"id": "17", "restart_count": 0},
    }
    line = {"event": "begin", "supervisor": "a", "owner": elsewhere, "time": time.time()}
    (tmp_path / "d/supervisor.jsonl").write_bytes(journal.encode_events([line]))
    fakes.say("scontrol show job 17", record(JobState="RUNNING"))
    refused = supervised(tmp_path, python("pass"), "--run", "d")
    assert (2, 1) == (refused.code, refused.said.count("may still be running there"))
    fakes.say("scontrol show job 17", record(JobState="FAILED"))
    assert 0 == supervised(tmp_path, python("pass"), "--run", "d").code


@pytest.mark.parametrize(
    ("facts", "starts"),
    [({"JobState": "PREEMPTED"}, 2), ({"Restarts": 1}, 2), ({"JobState": "TIMEOUT"}, 3)],
    ids=["preempted", "requeued by Slurm", "a time limit"],
)
def test_a_job_that_is_done_and_started_once_more_after_a_preemption_runs_nothing(tmp_path, fakes, facts, starts):
    """Slurm 24.05 and later do so with PreemptMode=REQUEUE and a grace. What was requeued otherwise runs again."""
    ends = python("import os\nif os.path.exists('first'): print('again'), exit(0)\nopen('first', 'w')\n" + SAVES)
    fakes.job(**facts)
    told(tmp_path, "TERM", "--run", "place", command=ends)
    for count in ("1", "2"):
        with Supervised(tmp_path, ends, "--run", "place", SLURM_RESTART_COUNT=count) as it:
            assert 0 == it.end()
    assert starts - 1 == it.printed.count("again")
    assert (starts == 2) == ("nothing is left to do" in it.said)
    assert ["begin", "end"] == [each["event"] for each in journal.read(tmp_path / "place/supervisor.jsonl")][
        -2:
    ] or starts > 2
    with Supervised(tmp_path, ends, "--run", "place", SLURM_JOB_ID="121") as it:  # another job was wanted
        assert 0 == it.end()
    assert starts == it.printed.count("again")
