"""`holdfast watch`: what is new of a run is read from the end of its journal; keys; lines without a terminal."""

import fcntl
import io
import json
import math
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time

import pytest
from rich.console import Console

from histories import History, line
from holdfast import owner
from holdfast.cli.watch import Watched, _table
from holdfast.report.live import TAIL_BYTES, LiveRun, process_facts, sparkline
from holdfast.supervise import status
from stores import asked, invoke


@pytest.fixture
def place(tmp_path):
    """A run whose only attempt is this process, with nothing but its first line."""
    run = History(tmp_path, 1, supervised=False).run
    (run / "attempts/1").mkdir()
    facts = owner.describe_this_process()
    write(run, line(time.time() - 100, "begin", attempt=1, run="0" * 32, owner=facts))
    return run


def write(run, *lines, attempt=1):
    with (run / f"attempts/{attempt}/attempt-{attempt}.jsonl").open("a") as file:
        file.write("".join(lines))


def steps(first, last, began_s, per_s=10.0, epoch=0):
    at = {"phase": "step", "epoch": epoch}
    return [
        line(began_s + step / per_s, "metrics", step=step, values={"loss": 1 / step}, **at)
        for step in range(first, last + 1)
    ]


def pipes():
    return {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def live(run):
    (found,) = status.find_runs(run)
    return LiveRun(found)


def test_a_look_reads_what_is_new_and_tells_pace_and_time_left(place):
    """Step, pace and the time to the end of the loop; a look without news says so."""
    run, began_s = live(place), time.time() - 90
    write(place, line(began_s, "loop", kind="steps", total=1000))
    write(place, line(began_s, "restored", step=0, phase="step", checkpoint=None), *steps(1, 200, began_s))
    assert run.refresh(None, time.time())
    assert (200, "running") == (run.step, run.status.state)
    assert run.steps_per_s == pytest.approx(10, rel=0.01)
    assert run.left_s == pytest.approx(80, rel=0.01)
    assert not run.refresh(None, time.time())
    saved = {"checkpoint": "step-000000210", "stall_s": 0.25, "save_s": 2.0, "size_bytes": 1}
    write(place, *steps(201, 210, began_s), line(began_s + 22, "saved", step=210, phase="step", **saved))
    assert run.refresh(None, time.time())
    assert (210, 210, 0.25) == (run.step, run.saved.step, run.saved.stall_s)
    assert run.metrics["loss"][-1] == 1 / 210


def test_a_loop_of_epochs_ends_by_the_length_of_one_that_was_seen(place):
    """Unknown until a whole epoch was seen."""
    run, began_s = live(place), time.time() - 90
    write(place, line(began_s, "loop", kind="epochs", total=10), *steps(1, 30, began_s))
    run.refresh(None, time.time())
    assert run.left_s is None
    write(place, *steps(31, 60, began_s, epoch=1), *steps(61, 70, began_s, epoch=2))
    run.refresh(None, time.time())
    assert run.left_s == pytest.approx((300 - 70) / 10, rel=0.02)


def test_a_long_journal_is_read_from_its_end(place):
    """The loop's total stands at its beginning, the newest step at its end; between them nothing is read."""
    began_s = time.time() - 210
    write(place, line(began_s, "loop", kind="steps", total=27_000))
    write(place, *steps(1, 20_000, began_s, per_s=100))
    path = place / "attempts/1/attempt-1.jsonl"
    assert path.stat().st_size > 4 * TAIL_BYTES
    run = live(place)
    run.refresh(None, time.time())
    assert 20_000 == run.step
    assert run.left_s == pytest.approx(70, rel=0.01)


def test_a_new_attempt_and_a_dead_process_are_noticed(place):
    """The pace begins anew; a run that fell silent is looked at again, and is killed if its process is gone."""
    run, began_s = live(place), time.time() - 90
    write(place, line(began_s, "restored", step=0, phase="step"), *steps(1, 100, began_s))
    run.refresh(None, time.time())
    code = "import json, sys; from holdfast import owner; print(json.dumps(owner.describe_this_process()), flush=True)"
    child = subprocess.Popen([sys.executable, "-c", f"{code}; sys.stdin.read()"], **pipes())
    theirs = json.loads(child.stdout.readline())
    (place / "attempts/1/attempt-1.jsonl").rename(place / "history/attempt-1.jsonl")
    (place / "attempts/1").rmdir()
    (place / "attempts/2").mkdir()
    write(place, line(began_s + 20, "begin", attempt=2, run="0" * 32, owner=theirs), attempt=2)
    write(place, line(began_s + 21, "restored", step=90, phase="step"), attempt=2)
    assert run.refresh(None, time.time())
    assert 90 == run.step
    assert run.steps_per_s is None
    assert "running" == run.status.state
    assert not run.refresh(None, time.time() + 60)
    child.communicate()
    assert run.refresh(None, time.time() + 120)
    assert "killed" == run.status.state


def test_a_run_that_was_removed_is_left_out_and_another_in_its_place_is_read(place, tmp_path):
    """Also between two looks; a folder that was emptied is no error while it is watched."""
    began_s = time.time() - 90
    facts = owner.describe_this_process()
    write(place, line(began_s, "restored", step=0, phase="step"), *steps(1, 200, began_s))
    watched = Watched([tmp_path])
    watched.look()
    assert [200] == [run.step for run in watched.runs.values()]
    (place / "attempts/1/attempt-1.jsonl").unlink()
    begin = line(time.time(), "begin", attempt=1, run="1" * 32, owner=facts)
    write(place, begin, line(began_s, "restored", step=0, phase="step"), *steps(1, 3, began_s))
    for _ in range(2):
        watched.look()
    assert [3] == [run.step for run in watched.runs.values()]
    place.rename(tmp_path.parent / "elsewhere")
    watched.look()
    assert watched.runs == {}
    assert watched.over


def test_each_row_has_the_name_of_its_run_however_narrow_the_window_is(place, tmp_path):
    """A long name is cut; its state stands beside it."""
    began_s = time.time() - 90
    write(place, line(began_s, "restored", step=0, phase="step"), *steps(1, 200, began_s))
    place.rename(tmp_path / ("long-" * 20))
    watched = Watched([tmp_path])
    watched.look()
    shown = io.StringIO()
    console = Console(width=40, height=12, file=shown)
    console.print(_table(watched.sorted_by("name"), 0, console, 0))
    assert "long-long-" in shown.getvalue()
    assert "running" in shown.getvalue()


def test_lines_without_a_terminal_end_with_what_became_of_all(tmp_path):
    """One line a run, then the states; several folders can be given."""
    for seed in range(2):
        History(tmp_path / str(seed), seed, supervised=False).write(3, 50)
    text = invoke("watch", tmp_path / "0/run", tmp_path / "1/run").stdout
    assert 2 == len(re.findall(r"^\d\d:\d\d:\d\d  run: done, step 50", text, re.MULTILINE))
    assert text.endswith("nothing runs or waits: 2 runs, 2 done\n")
    found = asked("watch", tmp_path / "0/run")
    assert ("done", 50, 1 / 50) == (found["state"], found["step"], found["metrics"]["loss"])
    refused = invoke("watch", tmp_path / "nowhere")
    assert 0 != refused.exit_code
    assert "no run is there" in refused.stderr


def test_a_sparkline_shows_extremes_and_what_is_no_number():
    """Of equal values the lowest bar; a cross for nan and inf."""
    assert "▁▄█" == sparkline([0.0, 0.45, 1.0], 10)
    assert "▁▁" == sparkline([5.0, 5.0], 10)
    assert "▁×█" == sparkline([9.0, 0.0, math.nan, 1.0], 3)
    assert "××" == sparkline([math.inf, math.nan], 3)


def test_the_memory_of_a_process_is_told_on_its_own_node():
    """Nothing of a process elsewhere or of one that is gone."""
    pytest.importorskip("psutil")
    here = owner.describe_this_process()
    assert re.search(r"process [\d.]+ [kMG]B, node \d+% of", process_facts(here))
    assert "" == process_facts(here | {"host": "elsewhere"}) == process_facts({})


def test_keys_sort_open_and_quit(place, tmp_path):
    """In a terminal: a table, a run with its metrics, and the last lines after q."""
    began_s = time.time() - 90
    write(place, line(began_s, "restored", step=0, phase="step"), *steps(1, 200, began_s))
    History(tmp_path / "other", 3, supervised=False).write(2, 40)
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(sys.executable, [sys.executable, "-m", "holdfast", "watch", str(place), str(tmp_path / "other/run")])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    shown = b""

    def read_until(*wanted):
        nonlocal shown
        until_s = time.monotonic() + 60
        while not all(each.encode() in shown for each in wanted):
            assert time.monotonic() < until_s, shown
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 1 << 16)

    read_until("RUN", "running", "done", "by name")
    for key, wanted in ((b"s", "by state"), (b"\n", "start 1: on"), (b"\x1b", "by state")):
        shown = b""
        os.write(terminal, key)
        read_until(wanted)
    shown = b""
    os.write(terminal, b"q")
    read_until("step 200")
    assert 0 == os.waitpid(child, 0)[1]
    os.close(terminal)
