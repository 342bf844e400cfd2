"""The demo's own training, killed by SIGKILL inside its saves: before a write, fsync, rename, link and removal.

Most of its saves are in the background, on the writer's thread and the engine's; the last one, at the drill's limit, is
not. The script dies at the nth call of a kind that has to do with a save, whichever thread makes it; a dry run counts.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from holdfast.drill.evidence import generator_of
from holdfast.inspect.diff import same_state
from holdfast.store.store import Store
from toy import events

TRAIN = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
STEPS = 30  # six saves; the fourth is the first that prunes, and the stop may interrupt that of the fifth
UNSEEDED = {"numpy", "python"}  # generators that nobody seeds or draws from: each process has its own
# kind of call -> which of those that a run makes; the last write is in the last save, the last removals may not come
KINDS = {"allocate": 0.7, "write": 1, "fsync": 0.7, "rename": 0.7, "symlink": 0.7, "unlink": 0.5}

DYING = """
import json, os, runpy, signal, sys, threading
from collections import Counter
from pathlib import Path
tests, train, kind, number, log = sys.argv[1:]
sys.path.insert(0, tests)
from faults import door, requests

counts, alone = Counter(), threading.Lock()

def of_a_save(call):
    path = call.path or os.readlink(f"/proc/self/fd/{call.descriptor}")
    return any(f"/attempts/1/{what}-" in path for what in ("step", "deleting", "link"))

def act(call, perform):
    if of_a_save(call):
        with alone:
            counts[call.name] += 1
            if (call.name, counts[call.name]) == (kind, int(number)):
                Path(log).write_text(threading.current_thread().name)
                os.kill(os.getpid(), signal.SIGKILL)
    return perform()

sys.path[0] = str(Path(train).parent)
sys.argv = [train]
try:
    with door(act), requests(1 << 14, 2):
        runpy.run_path(train, run_name="__main__")
finally:
    Path(log).write_text(json.dumps(counts))
"""


def train(root, *command):
    """The demo's script as the drill runs it, for STEPS steps with a save every five; its exit code."""
    asked = json.dumps({"steps": STEPS, "save_every_steps": 5})
    environment = {**os.environ, "HOLDFAST_RUN_DIR": str(root), "HOLDFAST_DRILL": asked}
    with subprocess.Popen(
        [sys.executable, "-B", *(command or (str(TRAIN),))],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        child.communicate(timeout=300)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # workers whose parent was killed
        return child.returncode


def die(root, kind, number):
    """The exit code, and what the script noted last: the thread in which it died, or how often it was asked."""
    log = root.with_suffix(".log")
    code = train(root, "-c", DYING, str(Path(__file__).parents[1]), str(TRAIN), kind, str(number), str(log))
    return code, log.read_text()


def test_the_demo_killed_at_a_call_of_each_kind_inside_a_save_ends_with_the_same_bits(tmp_path, tally):
    """In a save in flight and in the last one: whole after the kill, nothing durable lost, identical in the end."""
    assert train(tmp_path / "reference") == 75  # the drill's limit of steps is a stop
    code, counts = die(tmp_path / "dry", "none", 0)
    assert code == 75
    threads = set()
    for kind, part in KINDS.items():
        root, number = tmp_path / kind, int(part * json.loads(counts)[kind])
        code, thread = die(root, kind, number)
        assert code == -signal.SIGKILL
        threads.add(thread)
        store = Store(root)
        assert store.load(placeholders=True)
        assert store.latest().step >= max(event["step"] for event in events(root, "saved"))
        assert train(root) == 75
        found = same_state(Store(tmp_path / "reference").latest(), store.latest())
        assert [] == [each.where for each in found if generator_of(each.where) not in UNSEEDED]
    assert {"holdfast", "MainThread"} <= threads
    tally("The example is killed inside a save", tried=len(KINDS))
