"""The real torchrun: what its own restarts, its signals and its exit codes mean for a run."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast import journal
from holdfast.cluster.script import JobRequest
from holdfast.cluster.script import script_text as batch_script
from supervised import Supervised, until
from toy import launch, script

TRAINS = """
    with new_run(RUN, toy, every=Every(steps=20), keep=Last(3)) as run:
        for step in run.steps(60):
            toy.learn(step)
            print("step", step, flush=True)
            time.sleep(0.05)
    print("value", toy.value, flush=True)
"""


def torchrun(place, *options, body=TRAINS):
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", *options, str(script(place, body))]


def told(run):
    """The last word of each attempt."""
    return [log.last["event"] if log.closed else None for log in journal.logs(run)]


def test_a_stopped_run_does_not_go_on_when_torchrun_starts_it_again(tmp_path):
    """Its machine is being taken away: each restart leaves at once, with 75 again, and the next launch goes on."""
    place = torchrun(tmp_path, "--max-restarts", "2")
    with subprocess.Popen(place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launched:
        for line in launched.stdout:
            if line.startswith("step 7"):
                os.kill(journal.logs(tmp_path / "run")[-1].owner["pid"], signal.SIGTERM)
                break
        rest = launched.stdout.read()
    assert 1 == launched.returncode
    assert ["stop"] * 3 == told(tmp_path / "run")
    steps = {log.last["step"] for log in journal.logs(tmp_path / "run")}
    assert 1 == len(steps)
    assert 2 == rest.count("does not go on here; run me again")
    done = subprocess.run(place, check=True, capture_output=True, text=True)
    assert launch(script(tmp_path, TRAINS.replace("RUN", repr(str(tmp_path / "elsewhere"))))).out.endswith(
        done.stdout.splitlines()[-1] + "\n"
    )


def test_a_run_whose_rank_was_killed_goes_on_when_torchrun_starts_it_again(tmp_path):
    """A failure is no stop: one launch sees it through."""
    place = torchrun(tmp_path, "--max-restarts", "1")
    with subprocess.Popen(place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as launched:
        for line in launched.stdout:
            if line.startswith("step 30"):
                os.kill(journal.logs(tmp_path / "run")[-1].owner["pid"], signal.SIGKILL)
                break
        rest = launched.stdout.read()
    assert 0 == launched.returncode
    assert [None, "end"] == told(tmp_path / "run")
    assert "resumes at step 20" in rest


def test_the_supervisor_carries_a_launch_on_that_has_used_up_its_restarts_on_a_stop(tmp_path):
    """1 of torchrun, and a run whose last word is stop: started again, and done."""
    with Supervised(tmp_path, torchrun(tmp_path, "--max-restarts", "1")) as it:
        until(lambda: it.printed.count("step") > 7, "steps")
        os.kill(journal.logs(tmp_path / "run")[-1].owner["pid"], signal.SIGTERM)
        assert 0 == it.end()
    assert ["stop", "stop", "end"] == told(tmp_path / "run")
    assert [(1, "stopped"), (0, "done")] == [(e["code"], e["verdict"]) for e in it.events("exit")]


def _naps(pid):
    """How often the process's main thread has slept; torchrun naps between two looks at its workers."""
    (naps,) = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(naps)


def test_with_what_the_script_exports_torchrun_hands_the_notice_on_and_waits(tmp_path):
    """Its own default is to die of SIGUSR2; and of what it does hand on, to kill 30 s later."""
    (tmp_path / "train.py").write_text(
        "import signal, sys, time\n"
        "told = []\n"
        "signal.signal(signal.SIGUSR2, lambda *_: told.append(1))\n"
        "open('up', 'w').close()\n"
        "while not told: time.sleep(0.02)\n"
        "open('saved', 'w').close()\n"
    )
    order = JobRequest(["torchrun", "train.py"], "d", lead_s=120)
    (exports,) = (line for line in batch_script(order).splitlines() if line.startswith("export PET"))

    def sent_usr2(setting):
        words = [Path(sys.executable).parent / "torchrun", "--standalone", "--nproc-per-node=1", "train.py"]
        command = f"{setting}\nexec {shlex.join(map(str, words))}"
        launcher = subprocess.Popen(
            ["bash", "-c", command], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not (tmp_path / "up").exists():
            time.sleep(0.1)
        begun = _naps(launcher.pid)
        until(
            lambda: _naps(launcher.pid) > begun + 30, "the launcher looks after its worker"
        )  # it may be slower than that
        launcher.send_signal(signal.SIGUSR2)
        code = launcher.wait(timeout=60)
        return code, (tmp_path / "saved").exists()

    code, saved = sent_usr2(exports)
    assert saved
    assert code != -signal.SIGUSR2
    assert "PET_SHUTDOWN_TIMEOUT=120" in exports
