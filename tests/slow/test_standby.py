"""`holdfast run --standby`: the next start's imports are done in advance; nothing else differs from a cold start."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.supervise import standby
from holdfast.supervise.standby import Standby
from supervised import PATIENCE_S, Supervised, bash, supervised, train, until
from toy import launch, script

KILLS = 5
READY = "a standby has done the imports, and waits; it holds "
LONG = """
    import decimal, numpy
    with new_run(RUN, toy, every=Every(steps=5), keep=Last(3)) as run:
        for epoch in run.epochs(3):
            for x in run.batches(range(100)):
                toy.learn(x + int(numpy.ones(3).sum()))
                if "PLAIN" not in os.environ and not os.path.exists("enough"):
                    time.sleep(0.01 if run.step < 150 else 0.3)
    print("value", toy.value, flush=True)
"""
# What a script can see of its process; it then trains until it is killed, the last time until it fails.
SEES = """
    import json, inspect, multiprocessing, random, resource, threading
    import numpy, odd
    def twice(x):
        return 2 * x
    if __name__ == "__main__":
        spawned = multiprocessing.get_context("spawn").Pool(1)
        seen = {
            "argv": sys.argv, "orig": sys.orig_argv, "path": sys.path, "file": __file__, "frames": len(inspect.stack()),
            "main": sorted(vars()), "flags": str(sys.flags), "threads": threading.active_count(), "cwd": os.getcwd(),
            "environment": sorted(f"{k}={v}" for k, v in os.environ.items()), "site": "sitecustomize" in sys.modules,
            "nice": os.getpriority(os.PRIO_PROCESS, 0), "group": os.getpgid(0) == os.getpid(),
            "signals": [str(signal.getsignal(n)) for n in range(1, 32)], "mask": sorted(signal.pthread_sigmask(0, ())),
            "limits": resource.getrlimit(resource.RLIMIT_NOFILE), "umask": os.umask(0o22),
            "spawn": spawned.map(twice, [21]),
            "fds": sorted(os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2)),
            "cmdline": open("/proc/self/cmdline").read(),
            "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering, sys.stdout.encoding],
        }
        spawned.terminate(); spawned.join()
        draws = [float(numpy.random.random()), hash("a")]
        with new_run(RUN, toy, every=Every(steps=5)) as run:
            print(json.dumps({"seen": seen, "draws": draws}), flush=True)
            for epoch in run.epochs(1):
                for x in run.batches(range(10**6)):
                    toy.learn(x)
                    time.sleep(0.01)
                    if os.path.exists("fail"):
                        raise ValueError("as a cold start would say it")
"""


def killed(it, count):
    """Kill the command once its standby is ready."""
    until(lambda: it.said.count(READY) == count, "a standby", 3 * PATIENCE_S)
    it.strike(signal.SIGKILL)
    until(lambda: len(it.events("start")) == count + 1, "the next start")


def warm(it):
    return [bool(event.get("standby")) for event in it.events("start")]


def test_a_run_that_is_killed_again_and_again_has_the_same_value(tmp_path):
    """Each start but the first was a standby; the value is that of a run that nobody disturbs, to the bit."""
    whole = tmp_path / "whole"
    whole.mkdir()
    expected = launch(script(whole, LONG), PLAIN="1").out.splitlines()[-1]
    with Supervised(tmp_path, train(tmp_path, LONG), "--standby", "--retries", 9) as it:
        for number in range(1, KILLS + 1):
            killed(it, number)
        (tmp_path / "enough").touch()
        assert 0 == it.end(), it.said
    assert [False, *KILLS * [True]] == warm(it)
    assert expected == it.printed.splitlines()[-1]
    assert f"done at step 300 after {KILLS + 1} starts ({KILLS} killed by SIGKILL)" in it.said


@pytest.fixture
def packages(tmp_path):
    """A folder of installed packages with one module, which prints when it is imported."""
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "odd.py").write_text("print('odd is imported', flush=True)\n")
    return place


def test_a_start_from_a_standby_sees_what_a_cold_one_sees(tmp_path, packages):
    """Arguments, paths, frames, signals, descriptors, priority, `spawn` workers, a traceback. Its draws are new."""
    command = [*train(tmp_path, SEES), "--lr", "0.1"]
    with Supervised(tmp_path, command, "--standby", "--retries", 2, PYTHONPATH=str(packages)) as it:
        killed(it, 1)
        until(lambda: it.printed.count('"seen"') == 2, "the second start")
        assert 4 == it.printed.count("odd is imported")  # by each and its worker: what a standby prints is kept back
        killed(it, 2)
        until(lambda: it.printed.count('"seen"') == 3, "the third start")
        (tmp_path / "fail").touch()
        assert 8 == it.end(), it.said
    assert [False, True, True] == warm(it)[:3]
    cold, *others = (json.loads(line) for line in it.printed.splitlines() if line.startswith("{"))
    for each in others:
        assert cold["seen"] == each["seen"]
    assert 2 * (1 + len(others)) == len({draw for each in (cold, *others) for draw in each["draws"]})
    traceback = it.said[it.said.index("Traceback") :].split("holdfast:")[0]
    assert "sitecustomize" not in traceback
    assert traceback.splitlines()[1].startswith(f'  File "{command[1]}", line ')


CHANGES = {
    "decimal would come from": lambda place: (place / "decimal.py").write_text("from _decimal import *\n"),
    "odd.py has changed": lambda place: (place / "site-packages/odd.py").write_text("print('new')\n"),
    "odd.py is gone": lambda place: (place / "site-packages/odd.py").unlink(),
    "new.pth is new": lambda place: (place / "site-packages/new.pth").write_text("\n"),
    "an import draws random numbers": lambda place: None,
    "": lambda place: (place / "site-packages/odd.py").touch(),  # other times, the same content
}
IMPORTS = f"""
    import decimal
    try:
        import odd
    except ImportError:
        pass
    {LONG.strip()}
"""


@pytest.mark.parametrize("why", CHANGES)
def test_a_standby_that_would_now_import_something_else_is_discarded(tmp_path, packages, why):
    """With a line, and a cold start; a file that was only touched is the same."""
    if "draws" in why:
        (packages / "odd.py").write_text("import random\nrandom.random()\n")
    with Supervised(tmp_path, train(tmp_path, IMPORTS), "--standby", "--retries", 2, PYTHONPATH=str(packages)) as it:
        if "draws" in why:
            until(lambda: it.begun and it.events("standby"), "a standby")
            until(lambda: it.events("standby")[0]["pid"] not in it.left(), "its end")
            it.strike(signal.SIGKILL)
        else:
            until(lambda: READY in it.said, "a standby")
            CHANGES[why](tmp_path)
            killed(it, 1)
        (tmp_path / "enough").touch()
        assert 0 == it.end(), it.said
    assert [False, not why] == warm(it)
    discarded = [event["why"] for event in it.events("standby_discarded")]
    assert (1 if why else 0) == len(discarded)
    assert all(why in each for each in discarded)
    assert ("the next start is a cold one" in it.said) == bool(why)


def test_a_script_that_sets_a_variable_before_its_imports_gets_cold_starts(tmp_path):
    """What it sets may decide what an import does, as MKL_CBWR does."""
    body = LONG.replace("import decimal", 'os.environ["MKL_CBWR"] = "COMPATIBLE"\n    import decimal')
    with Supervised(tmp_path, train(tmp_path, body), "--standby", "--retries", 2) as it:
        until(lambda: it.begun and it.events("standby"), "a standby")
        until(lambda: not any(pid == it.events("standby")[0]["pid"] for pid in it.left()), "its end")
        it.strike(signal.SIGKILL)
        until(lambda: len(it.events("start")) == 2, "the next start")
        (tmp_path / "enough").touch()
        assert 0 == it.end(), it.said
    assert [False, False] == warm(it)
    assert "the standby is discarded: the script changes the environment: MKL_CBWR" in it.said


def test_a_standby_does_not_outlive_its_supervisor(tmp_path):
    """Killed, told to stop, or done."""
    for how in ("kill", "TERM", "done"):
        place = tmp_path / how
        place.mkdir()
        with Supervised(place, train(place, LONG), "--standby") as it:
            until(lambda it=it: READY in it.said, "a standby")
            if how == "kill":
                it.kill()
                assert [] == it.left()
                continue
            if how == "TERM":
                it.send("TERM")
            else:
                (place / "enough").touch()
            assert it.end() == (75 if how == "TERM" else 0)


def test_only_a_script_of_python_may_have_a_standby(tmp_path):
    """Exit 2 and one line; nothing is started."""
    for command in (
        bash("true"),
        [sys.executable, "-c", "0"],
        [sys.executable, "-m", "x"],
        [sys.executable, "-S", "a.py"],
    ):
        it = supervised(tmp_path, command, "--standby")
        assert (2, 1) == (it.code, len(it.said.splitlines()) - it.said.count("done")), it.said
        assert "--standby is for commands like `python train.py`" in it.said
        (tmp_path / "err").unlink()


def test_a_standby_for_other_words_or_without_memory_is_discarded(tmp_path, monkeypatch, capsys):
    """As is one whose machine has no room for it any more; its size is said."""
    (tmp_path / "a.py").write_text("print('ran', flush=True)\n")
    asked = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2] / 'src')!r})\nimport os, xxhash\n"
    asked += "from holdfast.run import alive; alive.write_import_list(); print(os.getpid(), flush=True); input()"
    command, environment = (
        [sys.executable, str(tmp_path / "a.py")],
        {**os.environ, "HOLDFAST_IMPORTS": str(tmp_path / "imports.json")},
    )
    for change in ("words", "variable", "memory", "none"):
        pipe = subprocess.PIPE
        told = subprocess.Popen([sys.executable, "-c", asked], env=environment, stdin=pipe, stdout=pipe)
        pid = int(told.stdout.readline())
        notes = []
        it = Standby(tmp_path, "a.py", lambda event, notes=notes, **_: notes.append(event))
        until_s = time.monotonic() + PATIENCE_S
        said = ""
        while READY not in said and time.monotonic() < until_s:
            it.start_or_discard(pid, command, environment)
            said += capsys.readouterr().err
        told.communicate(b"\n")
        with monkeypatch.context() as inside:
            if change == "memory":
                inside.setattr(standby, "SHARE", 2.0)
                it.start_or_discard(pid, command, environment)
                assert "memory is short, and it holds " in capsys.readouterr().err
            words, variables = [*command, "--lr"] if change == "words" else command, dict(environment)
            variables |= {"NEW": "1"} if change == "variable" else {}
            taken = it.take_start(words, variables)
        assert (taken is not None) == (change == "none")
        assert (["standby"] if change == "none" else ["standby", "standby_discarded"]) == notes
        if taken is not None:
            with taken.output, taken.child as child:
                until(lambda child=child: child.update() or child.gone, "its end")
                assert 0 == child.code
