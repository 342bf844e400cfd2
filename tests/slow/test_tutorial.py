"""docs/tutorial.md: its program is run, stopped and killed as the page says, and prints what the page shows."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from causes import TORCH

README = (Path(__file__).parents[2] / "README.md").read_text()
PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
PROGRAM = re.findall(r"^```python program\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)[0]
WHOLE, STOPPED, KILLED, FINISHED, _ = re.findall(
    r"^```console\n\$ (?:python|holdfast) (.*?)^```", PAGE, re.DOTALL | re.MULTILINE
)
NUMBERS = re.compile(r"step-\d+(?:-end)?|\d+(?:\.\d+)?(?:e[-+]\d+)?|[\w./-]*runs/first")


def attempt(python, folder, until=None, kind=signal.SIGINT):
    """Run the program, with `kind` sent to it once it prints `until`: its lines and its exit status."""
    with subprocess.Popen(
        [*python, "train.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        lines = []
        for line in child.stdout:
            lines.append(line.rstrip())
            if until and line.startswith(until):
                child.send_signal(kind)
    assert until is None or any(line.startswith(until) for line in lines), lines
    return lines, child.returncode


def shown(section):
    """The program's lines in a console block, without the command and what the shell says."""
    lines = section.partition("\n")[2].partition("\n$ ")[0].splitlines()
    return [masked(line) for line in lines if line != "Killed"]


def masked(line):
    """A line without its numbers and paths: they differ between machines, and a signal may find an epoch at its end."""
    return NUMBERS.sub("#", line)


def test_the_tutorial_prints_what_the_page_shows(tmp_path, zygotes):
    """Uninterrupted; stopped by Ctrl-C; killed; finished, with the same sum and means as without interruption."""
    (tmp_path / "train.py").write_text(PROGRAM)
    python = zygotes(*TORCH)
    whole, code = attempt(python, tmp_path)
    assert ([masked(line) for line in whole], code) == (shown(WHOLE), 0)
    (tmp_path / "runs").rename(tmp_path / "before")

    stopped, code = attempt(python, tmp_path, "epoch 1", signal.SIGINT)
    assert ([masked(line) for line in stopped], code) == (shown(STOPPED), 75)
    killed, code = attempt(python, tmp_path, "epoch 3", signal.SIGKILL)
    assert ([masked(line) for line in killed], code) == (shown(KILLED), -signal.SIGKILL)
    finished, code = attempt(python, tmp_path)
    assert (masked(finished[0]), code) == (shown(FINISHED)[0], 0)
    assert finished[-1] == whole[-1]
    told = {line for line in [*stopped, *killed, *finished] if line.startswith("epoch")}
    assert told == {line for line in whole if line.startswith("epoch")}


def test_the_readmes_script_runs_as_it_stands_and_is_drilled(tmp_path, zygotes):
    """What a newcomer copies first: the whole script, and the drill that stands below it."""
    [program] = re.findall(r"^```python program\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(program)
    options = "--kills", "1", "--steps", "40", "--no-flip"
    words = [sys.executable, "-m", "holdfast", "drill", *options, "--", *zygotes(*TORCH), "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert (0, "identical") == (done.returncode, done.stdout.splitlines()[-1]), done.stderr
