"""What reaches a terminal, tried on a real one (a pty), and what does not."""

import itertools
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest

from holdfast import terminal

DEADLINE_S = 30
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(script, *, stdout=None, columns=100, **environment):
    """What `script` writes to a terminal; its stdout goes there too unless given."""
    ours, theirs = pty.openpty()
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    env = {**inherited, "TERM": "xterm-256color", "COLUMNS": str(columns), **environment}
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=theirs,
        stdout=theirs if stdout is None else stdout,
        stderr=theirs,
        env=env,
    )
    os.close(theirs)
    chunks, until = [], time.monotonic() + DEADLINE_S
    while time.monotonic() < until and select.select([ours], [], [], DEADLINE_S)[0]:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # EIO is how a pty says that its last writer is gone
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    assert child.wait(DEADLINE_S) == 0, b"".join(chunks).decode()
    return b"".join(chunks).decode()


def screen(written):
    """The lines that a person sees after `written`: a minimal terminal."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.|\n", written, re.DOTALL):
        if token == "\x1b[2K":
            lines[row] = ""
        elif token.startswith("\x1b"):
            assert token.endswith("m"), f"only colours and erasing a line are expected, not {token!r}"
        elif token == "\r":
            column = 0
        elif token == "\n":
            lines.append("")
            row, column = row + 1, 0
        else:
            lines[row] = lines[row].ljust(column)[:column] + token + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


LOOP = """
import time
from holdfast.terminal import ProgressLine, say
with ProgressLine() as progress:
    for step in range(1, 31):
        progress.update(step=step, total=30, epoch=step // 10, epochs=4, metrics={"loss": 1 / step})
        PRINTS
        time.sleep(0.01)
print("done")
"""


def drawn(prints="pass", **options):
    """What a loop with a progress line writes to a terminal; `prints`: what it does in each step besides."""
    return on_a_terminal(LOOP.replace("PRINTS", prints), **options)


def test_a_line_says_who_speaks(capsys):
    """Every line of ours begins with our name, and goes to stderr."""
    from holdfast.terminal import say, warn

    say("resumes at step 3")
    warn("2 replays")
    written = capsys.readouterr()
    assert ("holdfast: resumes at step 3\nholdfast: warning: 2 replays\n", "") == (written.err, written.out)


@pytest.mark.parametrize(
    "spoil",
    [
        "sys.stderr.close()",
        "os.close(2)",
        "sys.stderr = None",
        "sys.stderr = open(os.devnull)",
        "sys.stderr = open('/dev/full', 'w')",
    ],
)
def test_saying_never_raises(spoil):
    """A training loop does not die because nobody listens."""
    script = f"""
import os, sys
from holdfast.terminal import ProgressLine, say
{spoil}
say("unheard")
with ProgressLine() as progress:
    progress.update(step=1)
sys.stderr = None
os._exit(0)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=DEADLINE_S).returncode == 0


def test_progress_is_drawn_on_a_terminal_and_gone_at_the_end():
    """A person sees epoch, step and metrics while it runs, and a clean screen after it."""
    written = drawn()
    seen = ESCAPES.sub("", written)
    assert "epoch 1/4" in seen
    assert "step 1/30" in seen
    assert "loss 1" in seen
    assert ["done", ""] == screen(written)


def test_progress_is_drawn_at_most_five_times_a_second():
    """The loop pays for five drawings a second, however fast its steps are."""
    started = time.monotonic()
    written = drawn()
    seconds = time.monotonic() - started
    assert 1 <= written.count("step ") <= 5 * seconds + 1


def test_the_programs_own_prints_stay_whole():
    """Whatever the program prints while the line is shown is on the screen as if it had not been."""
    prints = 'print(f"line {step}"); print("half", end=""); time.sleep(0.25 if step == 9 else 0)'
    prints += '; print(" whole"); say("saved")'
    written = drawn(prints)
    expected = [line for step in range(1, 31) for line in (f"line {step}", "half whole", "holdfast: saved")]
    assert [*expected, "done", ""] == screen(written)


def test_stdout_that_is_no_terminal_is_left_alone(tmp_path):
    """`python train.py > log` gets its own words into the log, and nothing else; the line stays on the terminal."""
    log = tmp_path / "log"
    with log.open("w") as stdout:
        written = drawn('print("mine")', stdout=stdout)
    assert "mine\n" * 30 + "done\n" == log.read_text()
    assert "step 1/30" in ESCAPES.sub("", written)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_progress_is_silent_where_it_would_be_noise(environment):
    """No line in CI, none on a terminal that cannot erase, and rich is not even imported."""
    script = LOOP.replace("PRINTS", "pass") + "import sys; assert 'rich' not in sys.modules"
    assert ["done", ""] == screen(on_a_terminal(script, **environment))


def test_progress_is_silent_without_a_terminal():
    """A pipe, a file, a notebook: no byte of progress, and the streams are the program's own."""
    script = LOOP.replace("PRINTS", "import sys; assert sys.stdout is sys.__stdout__ and sys.stderr is sys.__stderr__")
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=DEADLINE_S)
    assert (b"done\n", b"") == (done.stdout, done.stderr)


@pytest.mark.parametrize("columns", [10, 20, 40])
def test_the_line_fits_a_narrow_terminal(columns):
    """A line that wrapped could not be erased."""
    written = drawn(columns=columns)
    lines = [ESCAPES.sub("", piece).split("\n")[-1] for piece in written.split("\r")]
    assert max(map(len, lines)) < columns
    assert ["done", ""] == screen(written)


def test_the_streams_come_back():
    """After the block sys.stdout and sys.stderr are what they were, and what somebody else put there stays."""
    script = """
import io, sys
from holdfast.terminal import ProgressLine
out, err = sys.stdout, sys.stderr
with ProgressLine() as progress:
    progress.update(step=1)
    assert sys.stdout is not out and sys.stdout.fileno() == 1 and sys.stdout.isatty()
    progress.close()
    progress.close()
    assert sys.stdout is out and sys.stderr is err
with ProgressLine() as progress:
    sys.stdout = mine = io.StringIO()
assert sys.stdout is mine and sys.stderr is err
"""
    on_a_terminal(script)


AT_A_PACE = """
import time
from holdfast import terminal
began = time.monotonic()
with terminal.ProgressLine() as progress:
    for batch in range(1, 31):
        progress.update(batch=batch, batches=44, epoch=1, epochs=4, saved_s=began, metrics={"loss": 2.05})
        time.sleep(0.05)
"""


def test_progress_tells_the_place_in_the_epoch_the_pace_the_end_and_the_last_save():
    """The length of the loader is known, so that the line says when the run will end."""
    seen = ESCAPES.sub("", on_a_terminal(AT_A_PACE, columns=120)).split("\r")
    form = r"epoch 2/4  [━╸]+─+  \d+/44  (\d+(\.\d+)?)/s  ends \d\d:\d\d  loss 2.05  saved 1 s ago"
    found = [match for line in seen if (match := re.fullmatch(form, line))]
    assert found
    assert all(10 < float(match[1]) < 21 for match in found)


def test_without_a_terminal_a_line_comes_every_ten_minutes():
    """Here every 0.3 s: without colours and bar, through the logger."""
    script = AT_A_PACE.replace("began =", "terminal.LOG_S = 0.3\nbegan =")
    found = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=DEADLINE_S
    )
    lines = found.stderr.splitlines()
    assert 3 <= len(lines) <= 6
    assert all(re.fullmatch(r"holdfast: epoch 2/4  \d+/44.*  loss 2.05  saved \d s ago", line) for line in lines)


def test_a_new_epoch_begins_at_its_first_batch_and_another_loader_has_its_own_pace(monkeypatch, capsys):
    """The batches of the epoch before, or of a validation, count neither as place nor for pace and end."""
    monkeypatch.setattr(terminal, "LOG_S", 0.0)
    monkeypatch.setattr(terminal, "REFRESH_S", 0.0)
    monkeypatch.setattr(time, "monotonic", itertools.count(1.0).__next__)
    progress = terminal.ProgressLine()
    for epoch in range(2):
        progress.update(epoch=epoch, epochs=2)
        for batch in range(1, 5):
            progress.update(batch=batch, batches=4)
        for batch in range(1, 3):
            progress.update(batch=batch, batches=2)
    lines = [line.removeprefix("holdfast: ") for line in capsys.readouterr().err.splitlines()]
    places = [f"{batch}/{batches}" for batches in (4, 2) for batch in range(1, batches + 1)]
    assert [f"epoch {epoch}/2" for epoch in (1, 2) for _ in range(7)] == [line[:9] for line in lines]
    assert [*places, "0/2", *places] == [line.split("  ")[1] for line in lines[1:]]
    paces = {line.split("  ")[2] for line in lines if line.count("  ") > 1}
    assert paces == {"1 s each", "2 s each"}  # the begin of an epoch takes a second as well, and no pass


ROUTED = """
import logging
BEFORE
from holdfast import terminal
AFTER
terminal.say("starts")
terminal.warn("slow")
"""


@pytest.mark.parametrize(
    ("before", "after", "environment", "expected"),
    [
        ("", "", {}, "holdfast: starts\nholdfast: warning: slow\n"),
        ("", "", {"HOLDFAST_QUIET": "1"}, "holdfast: warning: slow\n"),
        ("", "logging.getLogger('holdfast').setLevel('ERROR')", {}, ""),
        ("logging.getLogger('holdfast').addHandler(logging.NullHandler())", "", {}, ""),
        (
            "",
            (
                "logging.basicConfig(level=0, format='%(name)s %(levelname)s %(message)s')\n"
                "logging.getLogger('holdfast').addHandler(logging.NullHandler())"
            ),
            {},
            "holdfast INFO starts\nholdfast WARNING slow\n",
        ),
    ],
)
def test_lines_go_through_a_logger_that_a_service_can_route_or_silence(before, after, environment, expected):
    """Its name is "holdfast"; by default its lines look as ever, and stand once, also beside a root logger."""
    script = ROUTED.replace("BEFORE", before).replace("AFTER", after)
    env = {**os.environ, **environment}
    found = subprocess.run(
        [sys.executable, "-c", script], check=True, env=env, capture_output=True, text=True, timeout=60
    )
    assert expected == found.stderr
