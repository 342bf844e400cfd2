"""The real thing: a process is killed by the kernel at each system call with which a save changes the file system.

strace delivers SIGKILL at the Nth call of a class. A dry run first counts the calls, so that only those after the
marker, which the script writes when the interpreter has started, are aimed at.
"""

import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from faults import scratched
from holdfast.errors import NotFound
from holdfast.store.store import Facts, Store

pytestmark = [
    pytest.mark.slow,
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed; .ci/run brings it"),
]

CLASSES = {
    "write": ("write", "pwrite64", "writev"),
    "fsync": ("fsync", "fdatasync"),
    "rename": ("rename", "renameat", "renameat2"),
    "link": ("link", "linkat", "symlink", "symlinkat"),
    "unlink": ("unlink", "unlinkat", "rmdir"),
    "mkdir": ("mkdir", "mkdirat"),
}
MOST_OF_A_CLASS = 40

SCRIPT = """
import os, sys
from holdfast.rules import Last
from holdfast.store.store import Facts, Store

def save(store, step):
    state = {"model": {"w": bytes([step]) * 70_000}, "text": bytes([step]) * 2000, "step": step}
    store.save(state, step=step, facts=Facts(document={"by": "a script"}))
    os.write(1, b"saved %d\\n" % step)

store = Store(sys.argv[1], keep=Last(2))
os.write(1, b"MARKER\\n")
for step in (3, 4, 5):
    save(store, step)
store.quarantine(store[5], "tried")
os.write(1, b"aside 5\\n")
save(store, 5)
store.prune(Last(1))
store.close()
"""


def state_of(step: int) -> dict:
    return {"model": {"w": bytes([step]) * 70_000}, "text": bytes([step]) * 2000, "step": step}


def prepare(root: Path) -> None:
    """Two checkpoints, saved by an attempt that said good-bye."""
    store = Store(root)
    for step in (1, 2):
        store.save(state_of(step), step=step, facts=Facts(document={"by": "a test"}))
    store.close()


def traced(root: Path, *options: str) -> subprocess.CompletedProcess:
    """The script under strace, with its own address layout and nothing left to compile."""
    command = ["strace", "-f", "-qq", *options, sys.executable, "-B", "-c", SCRIPT, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def among(names: tuple[str, ...]) -> str:
    return ",".join(f"?{name}" for name in names)


def count(base: Path) -> dict[str, range]:
    """For each class, which of its calls come after the marker; strace counts each name apart."""
    prepare(base / "dry")
    log = base / "dry.log"
    every = tuple(name for names in CLASSES.values() for name in names)
    finished = traced(base / "dry", "-o", str(log), "-e", f"trace={among(every)}")
    assert finished.returncode == 0, finished.stderr
    before, seen, marked = Counter(), Counter(), False
    for line in log.read_text().splitlines():
        match = re.match(r"\d+\s+(\w+)\(", line)
        if match is None:
            continue
        seen[match[1]] += 1
        if not marked:
            before[match[1]] += 1
        marked = marked or "MARKER" in line
    assert marked
    return {name: range(before[name] + 1, seen[name] + 1) for name in every if seen[name] > before[name]}


def sampled(numbers: range) -> list[int]:
    """All of a few, evenly chosen of many."""
    stride = max(1, -(-len(numbers) // MOST_OF_A_CLASS))
    return [*numbers][::stride]


def kill(root: Path, name: str, number: int) -> None:
    """Kill the script at that call, then ask the law of what is left."""
    prepare(root)
    killed = traced(root, "-o", "/dev/null", "-e", f"trace={name}", "-e", f"inject={name}:signal=KILL:when={number}")
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), (name, number, killed)
    assert "MARKER" in killed.stdout or (name, "MARKER") == ("write", "MARKER")
    done = [line.split() for line in killed.stdout.splitlines() if line.startswith(("saved", "aside"))]
    floor = max([int(step) for what, step in done if what == "saved"], default=2)
    if ["aside", "5"] in done or floor == 5:  # step 5 was on its way to quarantine, or is there
        floor = 5 if done[-2:] == [["aside", "5"], ["saved", "5"]] else 4
    store = Store(root)  # no take_over: the kernel says that its owner is gone
    newest = store.load()
    assert newest == state_of(newest["step"])
    assert floor <= newest["step"] <= 5
    assert all(not list(checkpoint.problems()) for checkpoint in store.checkpoints())
    following = newest["step"] + 1
    store.save(state_of(following), step=following, facts=Facts(document={"by": "a test"}))
    assert store.load() == state_of(following)
    assert [path.name for path in store.attempt.room.iterdir()] == [store.attempt.journal.name]
    for path in (root / "attempts").iterdir():
        assert path == store.attempt.room or not any(file.read_bytes() for file in path.iterdir())  # no first line yet
    with pytest.raises(NotFound):
        store["step-000000099"]


def test_sigkill_at_any_call_leaves_a_whole_store(record_property):
    """Write, fsync, rename, link, unlink, mkdir: the newest acknowledged checkpoint is there, and the run goes on."""
    with scratched("kill") as base:
        aims = [(name, number) for name, numbers in count(base).items() for number in sampled(numbers)]
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(lambda aim: kill(base / f"{aim[0]}-{aim[1]}", *aim), aims):
                pass
    hit = Counter(kind for name, _ in aims for kind, names in CLASSES.items() if name in names)
    record_property("kills", dict(hit))
    print(dict(hit), Counter(name for name, _ in aims))
    assert all(hit[kind] for kind in CLASSES)
