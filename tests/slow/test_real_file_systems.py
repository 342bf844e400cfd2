"""Real file systems, made for the test: full ones, and one that may only be read."""

import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from faults import requests
from holdfast import Every, Run, bulk, disk
from holdfast.errors import NoSpace, StoreError
from holdfast.rules import Best, Last
from holdfast.store.store import Store
from needed import missing, needs
from stores import listing, mounted, put, steps, whole
from toy import events
from unchanged import Frozen

pytestmark = needs("mount", "umount", root=True)

NUMBERS = r"need ([\d,]+) bytes, and ([\d,]+) are free"


@contextmanager
def small_disk(place: Path, kind: str):
    if kind == "tmpfs":
        with mounted(place, "-t", "tmpfs", "-o", "size=16m", "holdfast"):
            yield place
        return
    image = place.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with mounted(place, "-o", "loop", str(image)):
        yield place


@pytest.mark.parametrize(
    ("kind", "told"), [("tmpfs", "beforehand"), ("tmpfs", "by preallocation"), ("ext4", "by a request")]
)
def test_a_full_disk_is_told_and_the_store_is_as_it_was(tmp_path, monkeypatch, kind, told):
    """Told beforehand, before the first request or in the middle of one:
    NoSpace; after a prune the next save succeeds."""
    if kind == "ext4" and (reason := missing("mkfs.ext4")):
        pytest.skip(reason)
    if told != "beforehand":
        monkeypatch.setattr(disk, "free_bytes", lambda path: 1 << 50)
    if told == "by a request":
        monkeypatch.setattr(bulk, "_fallocate", None)
    with small_disk(tmp_path / "small", kind) as place, requests(1 << 16, 3):
        store, saved = Store(place / "run"), 0
        weights = np.random.default_rng(1).integers(0, 256, 5 << 20, "uint8")
        with pytest.raises(NoSpace):
            for step in range(1, 9):
                before = listing(store.root)
                store.save({"w": weights + np.uint8(step)}, step=step)
                saved = step
        assert saved >= 1
        assert list(range(1, saved + 1)) == steps(store)
        assert before == listing(store.root)
        assert [store.attempt.journal.name] == [path.name for path in store.attempt.room.iterdir()]
        assert all(not list(checkpoint.problems(cold=True)) for checkpoint in store.checkpoints())
        store.prune(Last(1))
        store.save({"w": weights}, step=99)
        assert (store.load()["w"] == weights).all()
        store.close()


def test_a_read_only_mount_is_read_and_never_written(tmp_path):
    """Everything that reads works; everything that writes is refused with one clear error."""
    store = Store(tmp_path / "run", keep=Best("acc", max) | Last(3))
    for step in (1, 2, 3):
        put(store, step)
    store.close()
    with mounted(tmp_path / "ro", "-o", "bind,ro", str(store.root)) as place:
        frozen = Store(place, keep=Last(1))
        assert whole(frozen.load(), 3)
        assert whole(frozen.load("best"), 2)
        assert not list(frozen.latest().problems(cold=True))
        assert [checkpoint.step for checkpoint in frozen.prunable(Last(1))] == [1, 2]
        for write in (
            lambda: put(frozen, 4),
            lambda: frozen.prune(Last(1)),
            lambda: frozen.quarantine(frozen[1], "x"),
            lambda: frozen.pin(1),
        ):
            with pytest.raises(StoreError, match="ead-only"):
                write()


def filled(place):
    """Use up what is left."""
    with pytest.raises(OSError, match="No space"), open(place / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    return place / "filler"


def without_inodes(place):
    """Use up all inodes."""
    folder = place / "filler"
    folder.mkdir()
    with pytest.raises(OSError, match="No space"):
        for number in range(10**6):
            (folder / str(number)).touch()
    return folder


@pytest.mark.parametrize(("fill", "lacks"), [(filled, "bytes"), (without_inodes, "inodes")])
def test_when_space_returns_saving_resumes_by_itself(tmp_path, capsys, fill, lacks):
    """Training goes on meanwhile. The numbers that are told are those of the file system."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=16m,nr_inodes=200", "holdfast") as place:
        fillers, told = [], []
        with Run(place / "run", {"toy": Frozen()}, every=Every(steps=2), keep=Last(2)) as run:
            for _ in run.steps(12):
                if run._session.saves.flight is not None:
                    run._session.saves.writer._ended.wait()
                told.append(capsys.readouterr().err)
                if run.step == 3:
                    fillers = [fill(place)]
                if run.step == 7:
                    (shutil.rmtree if fillers[0].is_dir() else os.remove)(fillers.pop())
        assert [2, 8, 10, 12] == [event["step"] for event in events(place / "run", "saved")]
        assert [4, 6] == [event["step"] for event in events(place / "run", "save_failed")]
        assert not list(Store(place / "run").latest().problems(cold=True))
    said = "".join(told)
    if lacks == "inodes":
        assert re.search(r"no space left to save: [\d,]+ bytes are free, and no inodes: each file needs one", said)
    else:
        need, free = (int(number.replace(",", "")) for number in re.search(NUMBERS, said).groups())
        assert need > free == 0


def test_the_numbers_of_a_save_that_does_not_fit_agree(tmp_path):
    """What is needed is more than what is free, and what is free is what the file system says."""
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=4m", "holdfast") as place:
        store = Store(place / "run")
        store.save({"w": bytes(1000)}, step=1)
        state = {"w": bytes((3 << 20) + (1 << 19))}  # it would fit, without anything to spare
        with pytest.raises(NoSpace) as told:
            store.save(state, step=2)
        need, free = (int(number.replace(",", "")) for number in re.search(NUMBERS, str(told.value)).groups())
        facts = os.statvfs(place)
        assert need > free == facts.f_bavail * facts.f_frsize > len(state["w"])
        store.close()
