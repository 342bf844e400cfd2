"""The real thing: a process is killed by the kernel at each system call with which a save changes the file system.

strace delivers SIGKILL at the Nth call of a class. A dry run first counts the calls, so that only those after the
marker, which the script writes when the interpreter has started, are aimed at. It counts each thread apart: the
engine's threads, new ones for each file, begin at one, so the script is told in which of its saves they are used.
"""

import re
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest

from faults import scratched
from holdfast.errors import NotFound
from holdfast.store.store import ManifestFields, Store
from needed import needs

pytestmark = needs("strace")

CLASSES = {
    "write": ("write", "pwrite64", "writev"),
    "allocate": ("fallocate",),
    "fsync": ("fsync", "fdatasync"),
    "rename": ("rename", "renameat", "renameat2"),
    "link": ("link", "linkat", "symlink", "symlinkat"),
    "unlink": ("unlink", "unlinkat", "rmdir"),
    "mkdir": ("mkdir", "mkdirat"),
}
MOST_OF_A_CLASS = 40

SCRIPT = """
import os, sys
from holdfast import bulk
from holdfast.rules import Last
from holdfast.store import lineage, shards
from holdfast.store.store import ManifestFields, Store

bulk.CHUNK_BYTES, bulk.THREADS = 1 << 14, 1
lineage.LINK_BYTES = shards.LINK_BYTES = 4000

def save(store, step):
    bulk.DIRECT_BYTES = 0 if step >= int(sys.argv[2]) else 1 << 30
    model = {"w": bytes([step]) * 70_000, "still": b"s" * 5000}
    state = {"model": model, "text": bytes([step]) * 2000, "step": step}
    store.save(state, step=step, facts=ManifestFields(document={"by": "a script"}))
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


def state_of(step):
    model = {"w": bytes([step]) * 70_000, "still": b"s" * 5000}
    return {"model": model, "text": bytes([step]) * 2000, "step": step}


def prepare(root):
    """Two checkpoints, saved by an attempt that said good-bye."""
    store = Store(root)
    for step in (1, 2):
        store.save(state_of(step), step=step, facts=ManifestFields(document={"by": "a test"}))
    store.close()


def traced(root, engine_from, *options):
    """The script under strace, with its own address layout and nothing left to compile."""
    command = ["strace", "-f", "-qq", *options, sys.executable, "-B", "-c", SCRIPT, str(root), str(engine_from)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def among(names):
    return ",".join(f"?{name}" for name in names)


class Aim(NamedTuple):
    """The call at which the script dies."""

    name: str
    number: int
    engine_from: int = 3  # the first save whose files the engine's threads write


def aims(base):
    """Calls after the marker: of the main thread, of which a few of each name are chosen, and all of the engine's."""
    prepare(base / "dry")
    log = base / "dry.log"
    every = tuple(name for names in CLASSES.values() for name in names)
    finished = traced(base / "dry", 3, "-o", str(log), "-e", f"trace={among(every)}")
    assert finished.returncode == 0, finished.stderr
    before, seen, others, marked = Counter(), Counter(), Counter(), False
    lines = log.read_text().splitlines()
    main = lines[0].split()[0]
    for line in lines:
        thread, name = re.match(r"(\d+)\s+(\w*)", line).groups()
        if thread == main:
            seen[name] += 1
            before[name] += not marked
            marked = marked or "MARKER" in line
        elif name:
            others[thread, name] += 1
    assert marked
    found = [Aim(name, number) for name in every for number in sampled(range(before[name] + 1, seen[name] + 1))]
    for name in every:
        most = max([number for (_, other), number in others.items() if other == name], default=0)
        found += [Aim(name, number, step) for number in range(before[name] + 1, most + 1) for step in (3, 4, 5)]
    return found


def sampled(numbers):
    """All of a few, evenly chosen of many."""
    stride = max(1, -(-len(numbers) // MOST_OF_A_CLASS))
    return [*numbers][::stride]


def kill(root, aim):
    """Kill the script at that call, then ask the law of what is left."""
    prepare(root)
    inject = f"inject={aim.name}:signal=KILL:when={aim.number}"
    killed = traced(root, aim.engine_from, "-o", "/dev/null", "-e", f"trace={aim.name}", "-e", inject)
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), (aim, killed)
    assert "MARKER" in killed.stdout
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
    store.save(state_of(following), step=following, facts=ManifestFields(document={"by": "a test"}))
    assert store.load() == state_of(following)
    assert [path.name for path in store.attempt.room.iterdir()] == [store.attempt.journal.name]
    for path in (root / "attempts").iterdir():
        assert path == store.attempt.room or not any(file.read_bytes() for file in path.iterdir())  # no first line yet
    with pytest.raises(NotFound):
        store["step-000000099"]


def test_sigkill_at_any_call_leaves_a_whole_store(tally):
    """Write, fsync, rename, link, unlink, mkdir: the newest acknowledged checkpoint is there, and the run goes on."""
    with scratched("kill") as base:
        found = aims(base)
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(lambda each: kill(base / f"{each[0]}-{each[1].name}", each[1]), enumerate(found)):
                pass
    hit = Counter(kind for aim in found for kind, names in CLASSES.items() if aim.name in names)
    print(dict(hit), Counter(aim.name for aim in found))
    assert all(hit[kind] for kind in CLASSES)
    for kind, count in hit.items():
        tally(f"SIGKILL by the kernel at a call of {kind} in a save", tried=count)
    assert {3, 4, 5} == {aim.engine_from for aim in found if aim.name == "pwrite64"}
