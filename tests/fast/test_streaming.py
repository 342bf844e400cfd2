"""A leaf's bytes a chunk at a time are its bytes, in however many pieces it lies; and damage is found on the way."""

import itertools

import pytest

import hostile_stores
from holdfast.errors import Damaged
from holdfast.store import streaming
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.stored import StoredPieces, leaves_of
from stores import flip


@pytest.mark.parametrize(
    ("build", "size"),
    [
        *((build, size) for build in (hostile_stores.valid, hostile_stores.two_ranks) for size in (7, 64, 1 << 20)),
        (hostile_stores.divided, 100_000),  # it is larger
    ],
)
def test_the_chunks_of_a_leaf_are_its_bytes(build, size, tmp_path, monkeypatch):
    """Each chunk but the last is full; of two ranks' pieces, too, whichever way they were cut."""
    monkeypatch.setattr(streaming, "CHUNK_BYTES", size)
    monkeypatch.setattr(streaming, "_AHEAD_BYTES", size // 2 + 1)
    leaves = Checkpoint(build(tmp_path)).leaves()
    for key, leaf in leaves.items():
        chunks = [bytes(chunk) for chunk in streaming.chunks(leaf)]
        assert leaf.read() == b"".join(chunks), key
        assert {size} >= {len(chunk) for chunk in chunks[:-1]}
    assert any(isinstance(leaf, StoredPieces) for leaf in leaves.values()) == (build != hostile_stores.valid)


def test_bytes_are_read_from_any_place(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "CHUNK_BYTES", 7)
    leaf = Checkpoint(hostile_stores.valid(tmp_path)).leaf("model/w")
    whole, at = leaf.read(), streaming.RandomAccess(leaf)
    for start, stop in itertools.combinations(range(len(whole) + 1), 2):
        assert whole[start:stop] == b"".join(at(start, stop - start))


@pytest.mark.parametrize("build", [hostile_stores.valid, hostile_stores.two_ranks, hostile_stores.divided])
def test_a_changed_byte_or_a_short_file_is_damage(build, tmp_path):
    """It is told at the end of the piece at the latest."""
    folder = build(tmp_path)
    for key, leaf in Checkpoint(folder).leaves().items():
        piece = leaves_of(leaf)[-1]
        if not piece.size_bytes:
            continue
        flip(piece.path, piece.offset)
        with pytest.raises(Damaged, match="changed since commit"):
            pytest.fail(f"{key}: {[*streaming.chunks(leaf)]}")
        flip(piece.path, piece.offset)
    last = max(leaves_of(leaf), key=lambda piece: piece.offset)
    with open(last.path, "r+b") as file:
        file.truncate(last.offset + last.size_bytes - 1)
    with pytest.raises(Damaged, match="ends before byte"):
        pytest.fail(f"{[*streaming.chunks(leaf)]}")
