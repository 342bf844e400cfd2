"""System calls of a real process that fail: strace puts the errors in, anywhere in a start, saves and prunes.

The script saves without a thread beside the loop: strace counts the calls of each thread by themselves.
"""

import os
import re
import subprocess
import sys

import pytest

from holdfast import Store
from needed import needs
from toy import ENDS_S, events

pytestmark = needs("strace")

SCRIPT = """
import random, sys
from holdfast import Every, Last, Run
from unchanged import Frozen
from faults import links
random.seed(1)
frozen = Frozen()
with links(), Run(sys.argv[1], {"toy": frozen}, every=Every(steps=2), keep=Last(2), background=False) as run:
    for step in run.steps(12):
        frozen.small += random.random()
        run.log(loss=frozen.small[0])
print(frozen.small.tolist())
"""
INJECTED = [
    *((call, "EIO", when) for call in ("fsync", "renameat2", "mkdir", "unlink") for when in (2, 7)),
    *((call, "EIO", when) for call in ("linkat", "rmdir") for when in (1, 2)),
    ("fsync", "ENOSPC", 9),
    ("fsync", "EDQUOT", 12),
    ("fallocate", "ENOSPC", 3),
    ("fallocate", "EINTR", 2),
    ("renameat2", "ESTALE", 9),
    ("renameat2", "EROFS", 12),
    ("fsync", "EIO", "6..25"),
    ("renameat2,linkat,mkdir,symlink", "EROFS", "4..30"),
    ("close", "EIO", "1+"),
]


def run(place, *strace):
    """The script's exit code, what it printed and what it said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*strace, sys.executable, "-c", SCRIPT, str(place)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    code, printed, said = run(tmp_path_factory.mktemp("undisturbed") / "run")
    assert code == 0, said
    return printed


@pytest.mark.parametrize(("calls", "code", "when"), INJECTED, ids=str)
def test_a_system_call_that_fails_ends_in_the_same_bits(tmp_path, wanted, calls, code, when):
    """The run goes on, or fails with one line and the next start goes on; each saved step is told truly."""
    place, log = tmp_path / "run", tmp_path / "strace.log"
    only = ["-P", str(place / "attempts/1/attempt-1.jsonl")] if calls == "close" else []
    inject = f"inject={calls}:error={code}:when={when}"
    ended, printed, said = run(
        place, "strace", "-f", "-qq", "-o", log, *only, "-e", f"trace={calls}", "-e", inject, "--"
    )
    assert "(INJECTED)" in log.read_text()
    if ended != 0:
        assert ended == 1, said
        lines = [line for line in said.splitlines() if line.startswith("holdfast.errors.")]
        assert len(lines) == 1, said
        assert re.match(r"holdfast\.errors\.(DiskError|NoSpace): .*; ", lines[0]), said
        ended, printed, said = run(place)
    assert (0, wanted) == (ended, printed), said
    assert events(place, "saved")


def test_prune_refuses_when_the_disk_fails_below_the_pins(tmp_path):
    """The kernel itself returns EIO: one line says where, and every checkpoint stays."""
    root, store = tmp_path / "run", Store(tmp_path / "run")
    for step in (1, 2, 3):
        store.save({"step": step}, step=step)
    store.pin(1)
    store.close()
    trace = ["strace", "-f", "-o", os.devnull, "-P", root / "pins", "-e", "inject=getdents64:error=EIO"]
    command = [sys.executable, "-m", "holdfast", "prune", root, "--keep", "Last(1)"]
    ended = subprocess.run([*trace, *command], capture_output=True, text=True, check=False, timeout=ENDS_S)
    assert (1, "", f"holdfast: {root / 'pins'}: Input/output error\n") == (ended.returncode, ended.stdout, ended.stderr)
    assert [1, 2, 3] == [each.step for each in Store(root).checkpoints()]
    assert ["step-000000001"] == os.listdir(root / "pins")
