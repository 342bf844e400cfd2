"""`holdfast run` around scripts that use `Run`: what their journals say counts, whatever became of the exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import journal
from holdfast.cluster import job_leader
from holdfast.store.store import Store
from supervised import PATIENCE_S, TRAINS, Supervised, bash, python, steered, supervised, train, until
from toy import launch, script

# As torchrun does: the process of rank 0 is its child, signals are handed on, and whatever comes becomes 1.
LAUNCHER = """
import signal, subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]], start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
sys.exit(1 if child.wait() else 0)
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The value at the end of a run that nobody disturbs."""
    place = tmp_path_factory.mktemp("undisturbed")
    return value(launch(script(place, TRAINS)).out)


def value(printed):
    (line,) = (line for line in printed.splitlines() if line.startswith("value "))
    return line


def stepped(it, count=8):
    until(lambda: it.printed.count("step") >= count, "a step")


def last_of(run):
    return journal.logs(run)[-1].events[-1]


def launched(place, body=TRAINS):
    return python(LAUNCHER, str(script(place, body)))


def in_a_shell(place):
    """It exits with 0 after a stop, as `python train.py; echo done` does."""
    return bash(f"trap : TERM; {sys.executable} {script(place, TRAINS)} & wait; wait; echo over; exit 0")


def nested(place):
    return [sys.executable, "-m", "holdfast", "run", "--run", "inner", "--", *train(place)]


STOPS = [(train, "TERM"), (train, "USR1"), (train, "USR2"), (train, "INT"), (launched, "TERM"), (in_a_shell, "TERM")]


@pytest.mark.parametrize(("command", "name"), [*STOPS, (nested, "TERM")])
def test_a_stopped_run_says_75_and_goes_on_when_it_is_run_again(tmp_path, undisturbed, command, name):
    """The same value as without the interruption, also under a launcher or a shell that eats the exit code."""
    it = steered(tmp_path, command(tmp_path), "step 8\n", name, code=75)
    assert "stop" == last_of(tmp_path / "run")["event"] == it.story()[-1]
    again = supervised(tmp_path, command(tmp_path))
    assert (0, undisturbed) == (again.code, value(again.printed))
    assert "end" == last_of(tmp_path / "run")["event"] == again.story()[-1]


def test_a_run_that_somebody_else_has_stopped_is_started_again(tmp_path, undisturbed):
    """The signal came to the program alone: it goes on, here and now."""
    with Supervised(tmp_path, train(tmp_path)) as it:
        for count in (1, 2):
            stepped(it, 6 * count)
            until(lambda: len(it.events("start")) == count)  # noqa: B023  asked at once
            it.strike()
            until(lambda: len(it.events("start")) == count + 1)  # noqa: B023
        assert 0 == it.end()
    assert undisturbed == value(it.printed)
    assert [75, 75, 0] == [event["code"] for event in it.events("exit")]
    assert 2 * ["SIGTERM"] == [event["reason"] for event in it.events("exit")][:2]


def test_a_launcher_that_fails_is_a_failure(tmp_path):
    """No stop in the journal: 1 is 1."""
    body = TRAINS.replace('print("step"', 'assert run.step < 7; print("step"')
    it = supervised(tmp_path, launched(tmp_path, body))
    assert 8 == it.code
    assert "AssertionError" in it.said
    assert "failed" == last_of(tmp_path / "run")["event"]


def test_a_run_that_is_killed_is_a_crash(tmp_path, undisturbed):
    """SIGKILL, as the kernel sends it for want of memory: only --retries starts it again, from its last checkpoint."""
    for retries, code in ((0, 8), (1, 0)):
        with Supervised(tmp_path, train(tmp_path), "--retries", retries) as it:
            done = it.printed.count("step")
            stepped(it, done + 8)
            it.strike(signal.SIGKILL)
            assert code == it.end()
    assert undisturbed == value(it.printed)


def test_a_crash_that_comes_again_at_the_same_step_is_given_up(tmp_path):
    """However many retries there are: so many attempts got no further."""
    body = TRAINS.replace('print("step"', 'os._exit(3) if run.step == 12 else None; print("step"')
    it = supervised(tmp_path, train(tmp_path, body), "--retries", 99, "--max-no-progress", 3)
    assert (8, 4) == (it.code, len(it.events("start")))
    assert "exit 3: 3 attempts in a row got no further; it ended with\n" in it.said
    assert [True, False, False, False] == [event["progressed"] for event in it.events("exit")]
    assert tmp_path / "run" == job_leader.reported_run_path(
        it.home
    )  # where it is, relative to the script's own directory


def test_a_deadline_of_the_scripts_own_is_no_reason_to_start_again(tmp_path):
    """It has stopped by its own clock: exit 75, and whoever runs it again does so later."""
    body = TRAINS.replace("keep=Last(3)", "keep=Last(3), deadline=time.time() + 1.5")
    it = supervised(tmp_path, train(tmp_path, body))
    assert (75, 1) == (it.code, len(it.events("start")))
    assert it.said.endswith("stopped by deadline; run me again\n")


def test_a_run_that_ctrl_c_has_killed_is_not_called_saved(tmp_path):
    """It can be run again, from its last checkpoint; how the command ended is said."""
    asleep = tmp_path / "asleep"
    pause = f"(open({str(asleep)!r}, 'w').close(), time.sleep(60)) if run.step > 8 else time.sleep(0.02)"
    with Supervised(tmp_path, train(tmp_path, TRAINS.replace("time.sleep(0.02)", pause))) as it:
        until(asleep.exists, "a step that takes long")
        it.send("INT")
        until(lambda: it.events("handed"), "the first one")
        it.send("INT")
        assert 75 == it.end()
    assert it.said.endswith(": stopped by SIGINT (killed by SIGKILL); run me again\n"), it.said
    assert "saved" not in it.said


def test_a_signal_during_the_restore_is_heard(tmp_path, undisturbed):
    """At any moment of a second start, import included: nothing is lost, and the code says run me again."""
    command = train(tmp_path)
    it = steered(tmp_path, command, "step 8\n", "TERM", code=75)
    for _ in range(4):
        before = len(it.events("start"))
        with Supervised(tmp_path, command) as it:
            until(lambda: len(it.events("start")) > before)  # noqa: B023  asked at once
            it.send("USR1")
            assert 75 == it.end()
    again = supervised(tmp_path, command)
    assert (0, undisturbed) == (again.code, value(again.printed))
    assert not list((tmp_path / "run" / "quarantine").iterdir())


def test_ctrl_c_while_python_leaves_a_run_that_has_ended_is_done(tmp_path):
    """The whole group hears it, and Python dies of it; the run had nothing left to do."""
    body = TRAINS.replace('print("value"', 'print("leaving", flush=True); time.sleep(60); print("value"')
    it = steered(tmp_path, train(tmp_path, body), "leaving", "INT", code=0)
    assert "end" == last_of(tmp_path / "run")["event"]
    assert "train.py: its run had ended when SIGINT came: done" in it.said
    assert "end" == it.story()[-1]


def test_a_save_that_fails_is_told_as_a_failure(tmp_path):
    """Told to stop, it could not save: exit 8, and its own words."""
    body = TRAINS.replace('print("step"', 'Store.commit = full if run.step == 6 else Store.commit; print("step"')
    full = """
    from holdfast.errors import NoSpace
    from holdfast.store.store import Store

    def full(*_, **__):
        raise NoSpace("no space left")
    """
    it = steered(tmp_path, train(tmp_path, full + body), "step 8\n", "TERM", code=8)
    assert "exit 1: while it was told to stop; it ended with" in it.said
    assert "NoSpace: no space left" in it.said


def test_the_drill_proves_a_supervised_script(tmp_path):
    """Killed and stopped from outside, with the supervisor in between: the same bits."""
    body = TRAINS.replace("time.sleep(0.02)", "time.sleep(0.01)")
    command = [sys.executable, "-m", "holdfast", "run", "--run", tmp_path / "place", "--", *train(tmp_path, body)]
    words = [sys.executable, "-m", "holdfast", "drill", "--kills", "2", "--", *map(str, command)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False)
    assert 0 == done.returncode, done.stdout + done.stderr


# Hold and release ------------------------------------------------------------------------------------------------


def hold(word, place, *more):
    words = [sys.executable, "-m", "holdfast", word, str(place), *more]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_a_held_run_is_not_started_again_until_it_is_released(tmp_path, undisturbed):
    """It goes on as long as it can, and says how it goes on."""
    paced = (
        "time.sleep(0.02 if os.path.exists('fast') else 0.6)"  # on a busy machine, too, it is at work when it is held
    )
    command = train(tmp_path, TRAINS.replace("time.sleep(0.02)", paced))
    with Supervised(tmp_path, command) as it:
        stepped(it, 2)
        done = hold("hold", tmp_path / "run")
        run = tmp_path / "run"
        told = f"{run}: held: once it stops it is neither started again nor requeued, until `holdfast release {run}`\n"
        assert (0, told) == (done.returncode, done.stdout)
        it.strike()
        assert 75 == it.end()
    assert f"stopped, and on hold: `holdfast release {tmp_path / 'run'}`, then run me again\n" in it.said
    assert 0 == hold("release", tmp_path / "run").returncode
    with Supervised(tmp_path, command) as it:
        stepped(it, it.printed.count("step") + 2)
        it.strike()
        (tmp_path / "fast").touch()
        assert 0 == it.end()
    assert undisturbed == value(it.printed)


def test_what_begins_on_hold_says_so_once(tmp_path):
    """The supervisor's own directory, for commands that have no run; and a run, with or without a supervisor."""
    supervised(tmp_path, ["true"], "--run", "place")
    assert 0 == hold("hold", tmp_path / "place").returncode
    it = supervised(tmp_path, bash("echo begun; exit 75"), "--run", "place")
    assert (75, "begun\n") == (it.code, it.printed)
    of = f"{tmp_path}/place"
    told = f"holdfast: {of} is on hold: it runs until it stops, and is not started again; holdfast release {of}"
    assert told == it.said.splitlines()[0]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/hold").touch()
    it = supervised(tmp_path, train(tmp_path, TRAINS.replace("time.sleep(0.02)", "pass")), "--run", "other")
    assert (0, 1) == (it.code, it.said.count(f"{tmp_path}/run is on hold: it runs until it stops"))


def test_a_job_that_begins_on_hold_does_nothing(tmp_path):
    """Put back into the queue by hand, or before: with a supervisor or without, in its directory or in the run."""
    for held, words in {"place": bash("touch begun"), "run": train(tmp_path, TRAINS)}.items():
        (tmp_path / held).mkdir()
        (tmp_path / held / "hold").touch()
        it = supervised(tmp_path, words, "--run", "place", SLURM_JOB_ID="7", SLURM_RESTART_COUNT="1")
        assert 75 == it.code
        assert f"{tmp_path}/{held} is on hold, so it is not started: holdfast release {tmp_path}/{held}" in it.said
        (tmp_path / "place/hold").unlink(missing_ok=True)
    assert not (tmp_path / "begun").exists()
    assert "step" not in it.printed


def test_hold_and_release_do_what_they_say_once(tmp_path):
    """Twice does no harm; JSON says whether anything changed."""
    Store(tmp_path / "run").save({"x": 1}, step=1)
    answers = [hold(word, tmp_path / "run", "--json").stdout for word in ("hold", "hold", "release", "release")]
    assert ["true", "false", "true", "false"] == [answer.split('"changed": ')[1].split("\n")[0] for answer in answers]
    assert f"{tmp_path / 'run'}: was not held\n" == hold("release", tmp_path / "run").stdout
    done = hold("hold", tmp_path)
    assert 3 == done.returncode
    assert "or one in which `holdfast run` has left a supervisor.jsonl" in done.stderr
    assert not Path(tmp_path / "hold").exists()


# The real launcher -----------------------------------------------------------------------------------------------

RANKED = """
    assert os.environ["RANK"] == "0"
    with new_run(RUN, toy, every=Every(steps=20), keep=Last(3)) as run:
        for step in run.steps(120):
            toy.learn(step)
            print("step", step, flush=True)
            time.sleep(0.05)
    print("value", toy.value, flush=True)
"""


def test_a_real_torchrun_is_seen_through(tmp_path):
    """SIGUSR1 would kill it: it gets SIGTERM and says 1, we say 75. Stopped by somebody else it is started again."""
    expected = value(launch(script(tmp_path, RANKED), RANK="0").out)
    (tmp_path / "run").rename(tmp_path / "undisturbed")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", script(tmp_path, RANKED)]
    steered(tmp_path, torchrun, "step 8\n", "USR1", code=75)
    with Supervised(tmp_path, torchrun) as it:
        stepped(it, it.printed.count("step") + 5)
        owner = journal.logs(tmp_path / "run")[-1].owner
        os.kill(owner["pid"], signal.SIGTERM)
        assert 0 == it.end()
    assert expected == value(it.printed)
    assert [(1, "stopped"), (1, "stopped"), (0, "done")] == [(e["code"], e["verdict"]) for e in it.events("exit")]


def test_a_place_that_another_commands_run_has_used_tells_nothing_of_this_one(tmp_path):
    """The run that was told there is not this command's: nobody can say whether it got further."""
    supervised(tmp_path, train(tmp_path), "--run", "place")
    it = supervised(
        tmp_path,
        ["bash", "-c", "n=$(cat n || echo 0); echo $((n+1)) > n; sleep 1; [ $n -ge 1 ] || exit 75"],
        "--run",
        "place",
    )
    assert 0 == it.code
    assert [None, None] == [event.get("progressed") for event in it.events("exit")][-2:]


BEHIND = """
import os, signal
from holdfast import Run
from toy import Toy

toy = Toy()
with Run("run", {"toy": toy}) as run:
    for _ in run.epochs(2):
        for batch in run.batches(range(8)):
            toy.learn(batch)
            last = batch
            if run.step == 7 and not os.path.exists("hit"):
                open("hit", "w").close()
                os.kill(os.getpid(), signal.SIGTERM)
        print("epoch", last, flush=True)
print("value", toy.value, flush=True)
"""


def test_a_failure_behind_a_last_batch_costs_no_retry(tmp_path):
    """The stop lay between the loop and code that reads what its body sets; the next start begins before that."""
    it = supervised(tmp_path, train(tmp_path, BEHIND))
    assert 0 == it.code, it.said
    assert [75, 1, 0] == [event["code"] for event in it.events("exit")]
    assert "it goes on from the beginning" in it.said
