"""The commands as processes: exit codes, pipes, terminals, interrupts, and no need of torch or NumPy."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
import torch

from command_runs import finished, flip
from holdfast.cli import commands
from holdfast.store.store import Store

WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "numpy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
from holdfast.cli import main
main()
"""


@pytest.fixture
def run(tmp_path, tmp_path_factory):
    return finished(tmp_path, tmp_path_factory)


MODULE = [sys.executable, "-m", "holdfast"]
SCRIPT = Path(sys.executable).with_name("holdfast")


def process(*words, code=None):
    command = [*([sys.executable, "-c", code] if code else MODULE), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def running(*words, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen([*MODULE, *words], **options)


def note(run, text):
    store = Store(run)
    store.save({"x": 1}, step=40, note=text)
    store.close()


def test_the_program_exits_as_its_commands_do(run, tmp_path):
    """`python -m holdfast`, and the script that pip installs."""
    found = [process(*words).returncode for words in (["ls", run], ["ls"], ["ls", tmp_path / "absent"], [], ["--help"])]
    assert [0, 2, 3, 2, 0] == found
    flip(run / "checkpoints/step-000000030/model.safetensors", -1)
    done = subprocess.run([SCRIPT, "verify", run], capture_output=True, text=True, check=False)
    assert (4, "") == (done.returncode, done.stderr)
    assert "holdfast" in process("--version").stdout


def test_every_command_works_without_torch_and_numpy(run, tmp_path):
    """What .pt files hold is written without torch, too."""
    asking = f"""\
        ls {run}
        show {run}
        show {run} --json
        verify {run}
        diff {run} {run}
        prune {run} --keep Last(2)
        pin {run} --step 20
        unpin {run} --step 20
        export {run} -o {tmp_path}/m.safetensors
        export {run} -o {tmp_path}/m.pt
        export {run} --part optimizer -o {tmp_path}/m.npz"""
    for words in asking.splitlines():
        done = process(*words.split(), code=WITHOUT)
        assert (0, "") == (done.returncode, done.stderr), words
    assert 1 == process("diff", f"{run}@20", f"{run}@30", code=WITHOUT).returncode
    assert torch.load(tmp_path / "m.pt", weights_only=True)


def test_help_imports_no_framework_and_no_command():
    """So that it is quick; and it names every command."""
    code = "import sys, holdfast.cli as c\ntry: c.main()\nfinally: print(*sys.modules, file=sys.stderr)"
    done = process("--help", code=code)
    loaded = set(done.stderr.split())
    assert not loaded & {"torch", "numpy", "rich", "holdfast.cli.ls", "holdfast.inspect.diff"}
    assert all(f"  {name} " in done.stdout for name in commands.list_commands(None))


def test_completion_knows_the_commands(run):
    """What `eval "$(_HOLDFAST_COMPLETE=bash_source holdfast)"` asks on each press of the key."""

    def complete(mode, *words):
        asking = {"_HOLDFAST_COMPLETE": mode, "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
        return subprocess.run([SCRIPT], env=os.environ | asking, capture_output=True, text=True, check=False).stdout

    assert "plain,prune\nplain,pin\n" == complete("bash_complete", "holdfast", "p")
    assert "dir," in complete("bash_complete", "holdfast", "ls", str(run))
    assert "_HOLDFAST_COMPLETE=bash_complete" in complete("bash_source")


def test_a_closed_pipe_ends_it_quietly(run):
    """`holdfast show RUN | head -1` prints no traceback."""
    with running("show", run, "--json") as child:
        child.stdout.close()
        assert (141, b"") == (child.wait(60), child.stderr.read())


def test_an_interrupt_ends_it_with_130(run):
    """Ctrl-C while it waits for a slow reader: what it has to say is more than a pipe holds."""
    note(run, "long " * 200_000)
    with running("show", run, "--json") as child:
        os.read(child.stdout.fileno(), 1)  # it is writing
        child.send_signal(signal.SIGINT)
        _, told = child.communicate(timeout=60)
        assert (130, b"interrupted" in told, b"Traceback" in told) == (child.returncode, True, False)


def on_a_terminal(*words, width, **variables):
    """What a command prints on a terminal so wide."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | variables
    with running(*map(str, words), stdout=slave, stderr=None, env=environment) as child:
        os.close(slave)
        text = b""
        try:
            while piece := os.read(master, 65536):
                text += piece
        except OSError:  # Linux's way to say that the other end is closed
            pass
        assert 0 == child.wait(60)
    os.close(master)
    return text.decode().replace("\r\n", "\n")


def without_ages(text):
    return re.sub(r" +(\d+ s|AGE)\b", " AGE", text)


@pytest.mark.parametrize(
    "variables", [{}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}], ids=str
)
def test_a_table_is_the_same_on_a_terminal_and_in_a_pipe(run, variables):
    """No cell is folded or coloured; brackets in a note stay brackets."""
    note(run, "[red]a[/red]")
    wide = on_a_terminal("ls", run, width=300, **variables)
    assert without_ages(process("ls", run).stdout) == without_ages(wide)
    assert "[red]a[/red]" in wide


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_narrow_terminal_leaves_columns_out_from_the_right_and_names_them(run, width):
    """What remains is what a wide one shows: each row has one line, and each name is whole."""
    note(run, "a note that is as long as a terminal is wide. " * 5)
    table, _, below = on_a_terminal("ls", run, width=width).partition("not shown, for want of width: ")
    wide = process("ls", run).stdout.split("\n")
    lines = table.splitlines()
    pairs = zip(without_ages(table).splitlines(), without_ages("\n".join(wide)).splitlines(), strict=False)
    assert all(whole.startswith(line) for line, whole in pairs)
    assert [f"step-{step:09d}" for step in (10, 20, 30, 40)] == [line.split()[0] for line in lines[1:]]
    assert max(map(len, lines)) <= width
    assert wide[0].split("  ")[-1].strip() == below.split("\n")[0].split(", ")[-1] == "NOTE"
