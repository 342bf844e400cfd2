"""A place whose real file system is full, or may only be read, again and again beside a training."""

import os
import subprocess
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from holdfast import Every, Last, Run, Store
from mirrored import copies, names_at
from needed import missing, needs
from stores import mounted
from toy import events, waited_for

pytestmark = needs("mount", "umount", root=True)
TIMES = 4


@contextmanager
def full(place):
    """Not a byte is left; the error that the file system gives."""
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as error:
                told = error.strerror
    try:
        yield told
    finally:
        ballast.unlink()


@contextmanager
def read_only(place):
    frozen = ["mount", "-o", "remount,ro", place]
    waited_for(lambda: subprocess.run(frozen, check=False).returncode == 0)  # busy while a file is being written
    try:
        with pytest.raises(OSError, match="Read-only") as told:
            (place / "probe").touch()
        yield told.value.strerror
    finally:
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)


class Harm(threading.Thread):
    """Makes a fault, waits until the run has told of it, ends it, and waits until the run has caught up."""

    def __init__(self, run, place, fault):
        super().__init__()
        self.run_path, self.place, self.fault = run, place, fault
        self.struck, self.over = 0, threading.Event()

    def run(self):
        try:
            for _ in range(TIMES):
                failed, back = self._told("mirror_failed"), self._told("mirror_back")
                with self.fault(self.place) as told:
                    assert self._until(lambda n=failed: self._told("mirror_failed") > n), "the run has told nothing"
                    assert told in events(self.run_path, "mirror_failed")[-1]["error"]
                    self.struck += 1
                assert self._until(lambda n=back: self._told("mirror_back") > n), "the run has not caught up"
        finally:
            self.over.set()

    def _told(self, kind):
        found = events(self.run_path, kind) if self.run_path.exists() else []
        return len([each for each in found if "not removed" not in each.get("error", "")])  # which is no outage

    @staticmethod
    def _until(said, limit_s=30):
        ends = time.monotonic() + limit_s
        while not said():
            if time.monotonic() > ends:
                return False
            time.sleep(0.02)
        return True


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
@pytest.mark.parametrize("fault", [full, read_only])
def test_a_full_or_frozen_place_never_stops_training_and_is_caught_up(tmp_path, record_property, fault, kind):
    """Told each time, in the words of the file system; the loop waits for none of it; no half of a copy counts."""
    if kind == "ext4" and (reason := missing("mkfs.ext4")):
        pytest.skip(reason)
    image, options = tmp_path / "image", ["-t", "tmpfs", "-o", "size=8m", "holdfast"]
    if kind == "ext4":
        with image.open("wb") as file:
            file.truncate(8 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "^has_journal", image], check=True)
        options = ["-o", "loop", image]
    run_path, state, waits = tmp_path / "run", {"w": np.zeros(40_000)}, []
    with mounted(tmp_path / "mnt", *options) as mount:
        harm, rule = Harm(run_path, mount, fault), Last(2) | Every(steps=100)
        with Run(run_path, state, every=Every(steps=10), keep=rule, mirror={mount / "place": rule}) as run:
            harm.start()
            ended = time.perf_counter()
            for _ in run.steps(100_000):
                waits.append(time.perf_counter() - ended)
                state["w"] += 1
                time.sleep(0.01)
                if harm.over.is_set():
                    break
                ended = time.perf_counter()
        harm.join()
        assert (harm.struck, max(waits) < 5) == (TIMES, True)
        due = {each.name for each in Store(run_path).facts() if each.step % 100 == 0}
        newest = Store(run_path).latest().path.name
        assert due | {newest} <= {*names_at(mount / "place")}
        assert len(copies(mount / "place")) <= len(due) + 3
        assert not [name for name in os.listdir(mount) if name not in {"place", "lost+found"}]
    line = f"{kind:<6} {fault.__name__:<10} tried {TIMES}  struck {harm.struck}  survived {harm.struck}"
    record_property("table: faults of mirrors, file systems", line)
