"""What a start says of a place that cannot be used, or that does not answer at once."""

import errno
import os
import shutil
import time

import pytest

from holdfast import journal
from holdfast.errors import DiskError, StoreError, UsageError
from holdfast.inspect.mirrors import mirrors_of_run
from holdfast.mirror.records import ResumeOrigin
from holdfast.run import mirror_start
from mirrored import changed_worker, claim, look, names_at, vanished
from stores import flip
from toy import Toy, names, new_run

NO_PACKAGE = """
import sys
sys.modules["paramiko"] = None
"""


def started(path, **options):
    with new_run(path, Toy(), **options) as run:
        for _ in run.steps(2):
            pass


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("s4://bucket/run", "fsspec knows no such kind of place"),
        ("s3://", "write s3://BUCKET/PATH"),
        ("sftp://", "write sftp://USER@HOST/PATH"),
        ("sftp://host/run", "paramiko is missing; install holdfast[sftp]"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(tmp_path, monkeypatch, address, says):
    """At once and as wrong use, also where the run's directory could begin without it: nothing can lie there."""
    if "missing" in says:
        changed_worker(NO_PACKAGE, tmp_path, monkeypatch)
    began = time.monotonic()
    with pytest.raises(UsageError) as refused:
        started(tmp_path / "run", mirror=[tmp_path / "place", address], allow_fresh=True)
    assert time.monotonic() - began < 15
    text = str(refused.value)
    assert says in text
    assert "without=" not in text
    assert "\n" not in text
    assert 2 == refused.value.exit_code
    assert [] == names(tmp_path / "run")


NOT_ATOMIC = """
from holdfast.mirror import folder
real = folder.FolderPlace.create
def create(self, *args):
    self.atomic = False
    real(self, *args)
folder.FolderPlace.create = create
"""


def test_a_place_without_an_exclusive_write_is_told_once(tmp_path, monkeypatch, capsys):
    """Of several places it is named; and the run goes on."""
    changed_worker(NOT_ATOMIC, tmp_path, monkeypatch)
    started(tmp_path / "run", mirror=tmp_path / "place")
    assert 1 == capsys.readouterr().err.count(f"{tmp_path / 'place'} knows no exclusive write")
    assert "step-000000002" in names_at(tmp_path / "place")


def test_a_place_that_is_asked_again_is_told_once(tmp_path, monkeypatch, capsys):
    """With the reason. A start that goes on within moments says nothing."""
    monkeypatch.setattr(mirror_start, "TOLD_S", 0.5)
    monkeypatch.setattr(mirror_start, "LOOK_S", 2.5)
    place = tmp_path / "mnt" / "place"
    with pytest.raises(StoreError, match="does not begin"):
        started(tmp_path / "run", mirror=place)
    told = [line for line in capsys.readouterr().err.splitlines() if "again" in line]
    assert 1 == len(told), told
    assert told[0].startswith(f"holdfast: {tmp_path / 'run'}: asks {place} again: ")
    assert str(tmp_path / "mnt") in told[0].rpartition("again: ")[2]
    place.parent.mkdir()
    started(tmp_path / "run", mirror=place)
    assert "again" not in capsys.readouterr().err


def test_an_empty_directory_never_begins_anew_while_its_place_is_away(tmp_path, monkeypatch):
    """Unless it is told to, by `allow_fresh`. Nothing was saved, and the next start goes on from the place."""
    place = tmp_path / "mnt" / "place"
    place.parent.mkdir()
    started(tmp_path / "run", mirror=place)
    monkeypatch.setattr(mirror_start, "LOOK_S", 0.5)
    shutil.rmtree(tmp_path / "run")
    for _ in range(2):
        with vanished(place), pytest.raises(StoreError, match=r"does not begin.*allow_fresh=True"):
            started(tmp_path / "run", mirror=place)
        assert [] == names(tmp_path / "run")
    monkeypatch.undo()
    with new_run(tmp_path / "run", Toy(), mirror=place) as run:
        assert 2 == run.step
    monkeypatch.setattr(mirror_start, "LOOK_S", 0.5)
    with vanished(place), new_run(tmp_path / "other", Toy(), mirror=place, allow_fresh=True) as run:
        assert 0 == run.step


def test_half_copies_of_attempts_that_are_gone_are_removed(tmp_path):
    """After the first copy; never those of an attempt that may live, or that the present does not come from."""
    place = tmp_path / "place"
    started(tmp_path / "run", mirror=place)
    claim(place, 2, {"host": "elsewhere", "pid": 1}, origin=ResumeOrigin(1, "step-000000002"))
    for attempt in (1, 2, 7):
        half = place / "checkpoints" / f"{attempt:06d}" / "step-000000003" / "half.safetensors"
        half.parent.mkdir(parents=True)
        half.write_bytes(b"half")
    with new_run(tmp_path / "run", Toy(), mirror=place, take_over=True) as run:
        for _ in run.steps(4):
            pass
    assert [(2, "step-000000003"), (7, "step-000000003")] == [(each.attempt, each.name) for each in look(place).rests]
    assert {"step-000000002", "step-000000004"} <= {*names_at(place)}
    (facts,) = mirrors_of_run(journal.logs(tmp_path / "run"))
    assert names_at(place) == facts.checkpoints


@pytest.mark.parametrize("broken", ["history", "checkpoints"])
def test_a_disk_that_cannot_be_listed_is_told_in_one_line(tmp_path, monkeypatch, broken):
    """Not as an error of Python's: what, where, and what to do next."""
    path, place, real = tmp_path / "run", tmp_path / "place", os.listdir
    started(path, mirror=place)

    def listed(folder=".", *rest):
        if str(folder) == str(path / broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(folder))
        return real(folder, *rest)

    monkeypatch.setattr(os, "listdir", listed)
    with pytest.raises(DiskError, match=f"{path}.*Input/output error"):
        started(path, mirror=place)
    monkeypatch.undo()
    started(path, mirror=place)


def test_a_copy_whose_manifest_is_damaged_is_told_before_an_older_one_is_taken(tmp_path, capsys):
    """It counts for nothing, and nothing else says why the run goes on from an older one."""
    path, place = tmp_path / "run", tmp_path / "place"
    with new_run(path, Toy(), mirror=place) as run:
        for step in run.steps(2):
            until_s = time.monotonic() + 60
            while step == 1 and not [*place.glob("checkpoints/*/step-000000001/manifest.json")]:
                assert time.monotonic() < until_s, "a busy worker may copy the newest alone"
                time.sleep(0.05)
    (manifest,) = place.glob("checkpoints/*/step-000000002/manifest.json")
    flip(manifest, -8)
    shutil.rmtree(path)
    capsys.readouterr()
    started(path, mirror=place)
    said = capsys.readouterr().err
    assert "resumes at step 1" in said
    assert 1 == said.count(f"{manifest}: bytes 0..")
    assert "counts for nothing" in said
