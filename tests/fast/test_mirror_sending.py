"""What is sent is what was committed: every byte of every file, and nothing of a file that differs."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Damaged, NotFound, StoreError
from holdfast.mirror import sending
from holdfast.pages import PAGE
from holdfast.store import format
from holdfast.store.format import MANIFEST
from holdfast.store.store import Store
from stores import flip, having

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = ["one-process", "two-ranks", "divided", "directory"]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """One checkpoint of each kind; of small blocks and pieces, so that files have several."""
    base = tmp_path_factory.mktemp("sending")
    found = {}
    for kind in KINDS[:-1]:
        (golden,) = (GOLDEN / kind).iterdir()
        found[kind] = shutil.copytree(golden, base / kind / golden.name)
    with in_small("directory"), Store(base / "run").directory(step=3) as path:
        for name, size in {"a/b/c": 20_000, "whole": 4 * PAGE, "empty": 0, "one": 1}.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(os.urandom(size))
    return found | {"directory": base / "run/checkpoints/step-000000003"}


@contextmanager
def in_small(kind):
    """Files have several pieces, and those that are no shards several blocks; a part of a rank is never so long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "PIECE_BYTES", PAGE)
        if kind == "directory":
            patch.setattr(format, "BLOCK_BYTES", 2 * PAGE)
        yield


def sent(path):
    wanted = sending.read_local_contents(path)
    return {name: b"".join(sending.read_pieces(path, wanted, name)) for name in wanted.files}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_sent_is_what_lies_there(checkpoints, kind):
    """Of one process and of several, of divided leaves, and of any files."""
    path = checkpoints[kind]
    there = {each.relative_to(path).as_posix(): each.read_bytes() for each in path.rglob("*") if each.is_file()}
    wanted = sending.read_local_contents(path)
    with in_small(kind):
        assert sent(path) | {MANIFEST: wanted.raw} == there
    assert wanted.size_bytes == sum(map(len, there.values())) - len(wanted.raw)
    assert wanted.name == path.name


def test_files_of_several_pieces_are_among_them(checkpoints):
    path = checkpoints["directory"]
    with in_small("directory"):
        assert len([*sending.read_pieces(path, sending.read_local_contents(path), "a/b/c")]) > 3


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_flipped_bit_is_damage_before_the_file_is_complete(checkpoints, kind, data):
    """And a flipped bit of the manifest, or of a rank's part, before any file is sent."""
    with in_small(kind):
        _flip_a_bit(checkpoints[kind], data)


def _flip_a_bit(path, data):
    known = sending.read_local_contents(path)
    name = data.draw(st.sampled_from([MANIFEST, *(name for name, file in known.files.items() if file.size_bytes)]))
    size = (path / name).stat().st_size
    place, bit = data.draw(st.integers(0, size - 1)), 1 << data.draw(st.integers(0, 7))
    flip(path / name, place, bit)
    try:
        with pytest.raises(StoreError if name == MANIFEST else Damaged):
            sent(path)
        if name != MANIFEST:
            passed = 0
            with pytest.raises(Damaged):
                for piece in sending.read_pieces(path, known, name):
                    passed += len(piece)
            assert passed < size
    finally:
        flip(path / name, place, bit)
    assert sending.read_local_contents(path) == known


@pytest.mark.parametrize("harm", ["short", "long", "missing", "linked"])
def test_another_size_or_kind_is_damage(tmp_path, harm):
    path = having(tmp_path / "run", 1).latest().path
    wanted = sending.read_local_contents(path)
    name = max(wanted.files, key=lambda each: wanted.files[each].size_bytes)
    data = (path / name).read_bytes()
    (path / name).unlink()
    if harm == "linked":
        (tmp_path / "else").write_bytes(data)
        (path / name).symlink_to(tmp_path / "else")
    elif harm != "missing":
        (path / name).write_bytes(data[:-1] if harm == "short" else data + b"x")
    with pytest.raises(Damaged):
        list(sending.read_pieces(path, wanted, name))


def test_a_missing_file_in_a_folder_is_damage_and_not_a_removed_checkpoint(checkpoints, tmp_path):
    path = shutil.copytree(checkpoints["directory"], tmp_path / "step-000000003")
    wanted = sending.read_local_contents(path)
    (path / "a/b/c").unlink()
    with pytest.raises(Damaged, match="missing"):
        list(sending.read_pieces(path, wanted, "a/b/c"))
    (path / MANIFEST).unlink()
    with pytest.raises(NotFound):
        list(sending.read_pieces(path, wanted, "a/b/c"))
    with pytest.raises(NotFound):
        sending.read_local_contents(path)


def test_damage_is_found_at_its_leaf(tmp_path):
    """The rest of a big file is not sent for nothing."""
    path = having(tmp_path / "run", 1).latest().path
    wanted = sending.read_local_contents(path)
    name, leaves = max(wanted.leaves.items(), key=lambda each: wanted.files[each[0]].size_bytes)
    flip(path / name, min(leaf.offset for leaf in leaves))
    passed = 0
    with in_small("run"), pytest.raises(Damaged):
        for piece in sending.read_pieces(path, wanted, name):
            passed += len(piece)
    assert passed <= wanted.files[name].size_bytes - 2 * PAGE
