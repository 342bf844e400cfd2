"""Runs with mirrors, for tests: what lies at a place, and what the run's journal tells of it."""

import json
import os
import shutil
import signal
import sys
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from holdfast.mirror.client import WorkerClient
from holdfast.mirror.folder import FolderPlace
from holdfast.mirror.remote import RemoteRun
from holdfast.run import mirror_start
from holdfast.store.checkpoint import Checkpoint
from toy import events, waited_for


def look(place):
    return RemoteRun(FolderPlace(Path(place))).read_state()


def copies(place):
    """(attempt, name) of each whole copy, in order; every byte of each is read."""
    found = [(copy.attempt, copy.name) for copy in look(place).copies]
    for attempt, name in found:
        folder = Path(place) / "checkpoints" / f"{attempt:06d}" / name
        assert not list(Checkpoint(folder).problems(cold=True)), folder
    return found


def names_at(place):
    return sorted({name for _, name in copies(place)})


def steps_at(place):
    return [int(name.split("-")[1]) for name in names_at(place)]


def toy_at(place, step):
    """The toy's value in the copies of that step, each read without anything but the copy."""
    paths = Path(place).glob(f"checkpoints/*/step-{step:09d}/manifest.json")
    return {Checkpoint(path.parent).load("toy")["value"] for path in paths}


def mirrored(run, place=None):
    """The names that the journal says were copied, in order."""
    return [each["checkpoint"] for each in events(run, "mirrored") if place in (None, each["place"])]


def await_copy(place, name):
    """Return when the place has that checkpoint, or a later one: a slow worker copies only the newest."""
    waited_for(lambda: any(path.parent.name >= name for path in Path(place).glob("checkpoints/*/*/manifest.json")))


def workers():
    """The processes of mirrors that this process has started, by /proc."""
    return [pid for pid in children(os.getpid()) if b"holdfast.mirror" in command(pid)]


def changed_worker(code, tmp_path, monkeypatch):
    """From now on the workers of runs run this code before their own."""
    (tmp_path / "worker.py").write_text(f"{code}\nfrom holdfast.mirror import __main__\n")
    python = [sys.executable, str(tmp_path / "worker.py")]
    monkeypatch.setattr(mirror_start, "WorkerClient", partial(WorkerClient, python=python))


def children(parent):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@contextmanager
def suspended(pid):
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def vanished(place):
    """The file system of a folder is not mounted: its parent is not there."""
    parent = Path(place).parent
    hidden = parent.with_name(parent.name + ".away")
    parent.rename(hidden)
    try:
        yield
    finally:
        if parent.exists():
            shutil.rmtree(parent)
        hidden.rename(parent)


def flip(path, at=-1):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def claim(place, attempt, owner, *, ended=False, origin=None):
    """Claim a place as another process would."""
    remote = RemoteRun(FolderPlace(Path(place)))
    run_json = (Path(place) / "run.json").read_text()
    remote.claim(attempt, run_json, owner, None)
    if origin is not None:
        remote.note_origin(attempt, origin)
    if ended:
        remote.note_end(attempt)


def run_id(place):
    return json.loads((Path(place) / "run.json").read_text())["run"]
