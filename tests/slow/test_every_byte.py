"""Every byte of a checkpoint is covered: flipped, zeroed, cut, lengthened, swapped or missing, it is found out."""

import random
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults import scratched
from holdfast.errors import Damaged, NotFound, StoreError
from holdfast.store import format, problems, reading
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.store import ManifestFields, Store
from stores import flip

FLIPS = 1100  # `make prove` tries ten thousand
PAGE_BYTES = 4096


def state_of(seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "model": {"weight": draw.random((40, 40), dtype=np.float32), "bias": draw.random(40), "scale": np.int8(seed)},
        "optimizer": {"step": seed, "moments": [draw.random(300, dtype=np.float32) for _ in range(3)]},
        "text": draw.bytes(5000),
        "empty": np.empty((0, 3)),
    }


def build(root: Path) -> list[Checkpoint]:
    """Two checkpoints of equal sizes, and one of plain files."""
    store = Store(root)
    for step in (1, 2):
        facts = ManifestFields(
            document={"host": "a", "nested": {"versions": ["1.0", "2.0"]}}, metrics={"acc": 0.5}, note="é  x"
        )
        store.save(state_of(step), step=step, facts=facts)
    with store.directory(step=3, note="files") as path:
        (path / "sub").mkdir()
        (path / "sub" / "a.bin").write_bytes(random.Random(3).randbytes(9000))
        (path / "b.txt").write_text("b" * 100)
    return store.checkpoints()


def found_out(path: Path) -> bool:
    """Whether both `load` and `problems` say that the checkpoint is damaged."""
    try:
        Checkpoint(path).load()
    except Damaged:
        return any(True for _ in Checkpoint(path).problems())
    except StoreError as error:  # of an unknown version the manifest's own digest is not looked at
        return "version" in str(error)
    return False


@contextmanager
def changed(path: Path, data: bytes) -> Iterator[None]:
    """`path` holds `data` for a while: in place, so that its identity and its cached pages stay."""
    was = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(was)


def strata(checkpoint: Checkpoint) -> dict[str, list[tuple[Path, int]]]:
    """Every byte's place, by what it is part of."""
    found: dict[str, list[tuple[Path, int]]] = {}

    def put(kind: str, path: Path, places: Any) -> None:
        found.setdefault(kind, []).extend((path, place) for place in places)

    manifest = checkpoint.path / format.MANIFEST
    text = manifest.read_bytes()
    head = text.index(b"\n")
    put("manifest: first line", manifest, range(head))
    marks = bytearray(len(text))
    for kind, pattern in enumerate((rb'"(?:[^"\\]|\\.)*"(?=\s*:)', rb'"(?:[^"\\]|\\.)*"|[-\w.+]+', rb"\s+"), 1):
        for match in re.finditer(pattern, text[head:]):
            for place in range(head + match.start(), head + match.end()):
                marks[place] = marks[place] or kind
    for kind, name in enumerate(("signs", "keys", "values", "white space")):
        put(f"manifest: {name}", manifest, [place for place in range(head, len(text)) if marks[place] == kind])
    put("tails", manifest, range(len(text) - 4, len(text)))
    for name in checkpoint.manifest.files:
        path = checkpoint.path / name
        data = path.read_bytes()
        if not name.endswith(".safetensors"):
            put("plain files", path, range(len(data)))
            continue
        end = 8 + int.from_bytes(data[:8], "little")
        padding = end - len(data[8:end].rstrip(b" "))
        put("shard: length of the header", path, range(8))
        put("shard: header", path, range(8, end))
        put("shard: padding of the header", path, range(8 + len(data[8:end].rstrip(b" ")), end))
        assert padding >= 0
        put("shard: tensor data", path, range(end, len(data)))
        put("tails", path, range(len(data) - 16, len(data)))
    return found


def flips(base: Path, number: int, seed: int = 2) -> tuple[Counter[str], list[str]]:
    """Flip so many single bits; how many of each kind, and which were not found out."""
    draw = random.Random(seed)
    places: dict[str, list[tuple[Path, int]]] = {}
    for checkpoint in build(base / "run"):
        for kind, these in strata(checkpoint).items():
            places.setdefault(kind, []).extend(these)
    kinds = [kind for kind in sorted(places) if places[kind]]
    tried: Counter[str] = Counter()
    missed = []
    for index in range(number):
        kind = kinds[index % len(kinds)]
        path, place = draw.choice(places[kind])
        bit = 1 << draw.randrange(8)
        directory = next(parent for parent in path.parents if format.parse_name(parent.name))
        flip(path, place, bit)
        if not found_out(directory):
            missed.append(f"{kind}: {path.name} byte {place} bit {bit}")
        flip(path, place, bit)
        tried[kind] += 1
    return tried, missed


def test_no_flipped_bit_goes_unnoticed():
    """One bit flipped, anywhere: restoring refuses and verifying tells."""
    with scratched("flips") as base:
        tried, missed = flips(base, FLIPS)
        assert all(found_out(checkpoint.path) is False for checkpoint in Store(base / "run").checkpoints())
    print(dict(tried))
    assert missed == []
    assert tried.total() == FLIPS
    assert len(tried) == 11
    assert min(tried.values()) >= FLIPS // 11


def test_the_flips_would_show_a_weaker_check(monkeypatch):
    """Without the leaves' digests, without the header's, without the manifest's own: some flips are missed."""
    weaker = {
        "shard: tensor data": lambda patch: patch.setattr(reading._LeafRead, "check", lambda *_: None),
        "shard: padding of the header": lambda patch: patch.setattr(problems, "_header_problems", lambda *_: iter(())),
        "manifest: values": lambda patch: patch.setattr(format, "digest", lambda *_: "0" * 32),
        "plain files": lambda patch: patch.setattr(problems, "layout_problems", lambda *_, **__: iter(())),
    }
    for kind, weaken in weaker.items():
        with scratched("weaker") as base, monkeypatch.context() as patch:
            weaken(patch)
            assert kind in {each.rpartition(": ")[0] for each in flips(base, 330)[1]}


@pytest.fixture(scope="module")
def run():
    with scratched("bytes") as base:
        build(base / "run")
        yield base / "run"


def files_of(run: Path) -> list[tuple[Path, Path]]:
    """(checkpoint, file) for every file of every checkpoint."""
    return [
        (checkpoint.path, checkpoint.path / name)
        for checkpoint in Store(run).checkpoints()
        for name in (format.MANIFEST, *checkpoint.manifest.files)
    ]


def test_a_zeroed_page_is_found_out(run):
    """A page of zeros, as a file system leaves it after a crash, wherever it lies."""
    for checkpoint, path in files_of(run):
        data = path.read_bytes()
        for start in range(0, len(data), PAGE_BYTES):
            hole = bytes(min(PAGE_BYTES, len(data) - start))
            with changed(path, data[:start] + hole + data[start + len(hole) :]):
                assert found_out(checkpoint)


def test_a_file_of_another_length_is_found_out(run):
    """Cut anywhere, emptied, or one byte longer."""
    draw = random.Random(5)
    for checkpoint, path in files_of(run):
        data = path.read_bytes()
        lengths = {0, 1, 7, 8, len(data) // 2, len(data) - 1, *(draw.randrange(len(data)) for _ in range(10))}
        for shorter in lengths - {len(data)}:
            with changed(path, data[:shorter]):
                assert found_out(checkpoint)
        for more in (b"\0", b" ", b"\n", data[-1:], data):
            with changed(path, data + more):
                assert found_out(checkpoint)


def test_a_missing_file_is_found_out(run):
    """A shard or a plain file that is gone; without its manifest no checkpoint is there at all."""
    for checkpoint, path in files_of(run):
        path.rename(run / "aside")
        if path.name == format.MANIFEST:
            with pytest.raises(NotFound):
                Checkpoint(checkpoint).load()
            assert checkpoint not in [each.path for each in Store(run).checkpoints()]
        else:
            assert found_out(checkpoint)
        (run / "aside").rename(path)


def test_what_is_left_of_a_checkpoint_does_not_block_its_step():
    """Without its manifest it is none: its step can be saved again, and the remains are moved aside, not deleted."""
    with scratched("remains") as base:
        store = Store(base / "run")
        store.save(state_of(1), step=1)
        (store[1].path / format.MANIFEST).unlink()
        store.save(state_of(2), step=1)
        assert store.load(1)["optimizer"]["step"] == 2
        assert [path.name for path in (base / "run" / "quarantine").iterdir()] == ["step-000000001-no-manifest"]


def test_swapped_files_and_directories_are_found_out(run):
    """Shards of two steps, two shards of one step, and whole checkpoints in each other's place."""
    one, two, _ = (checkpoint.path for checkpoint in Store(run).checkpoints())
    names = sorted(path.name for path in one.glob("*"))
    assert names == sorted(path.name for path in two.glob("*"))
    pairs = [(one / name, two / name) for name in names]
    pairs += [(one / first, one / second) for first in names for second in names if first < second]
    for first, second in pairs:
        if first.read_bytes() == second.read_bytes():
            assert first.name.startswith("state")  # a shard whose leaves did not change between the steps
            continue
        with changed(first, second.read_bytes()):
            assert found_out(first.parent)
    aside = run / "aside"
    for source, target in ((one, aside), (two, one), (aside, two)):
        source.rename(target)
    assert found_out(one)
    assert found_out(two)
    for source, target in ((two, aside), (one, two), (aside, one)):
        source.rename(target)
    assert not found_out(one)


def test_what_a_checkpoint_never_held_is_no_damage(run):
    """A file that somebody put beside the shards is not part of the checkpoint."""
    checkpoint = Store(run)[1].path
    (checkpoint / "thumbs.db").write_bytes(b"x")
    assert not found_out(checkpoint)
    (checkpoint / "thumbs.db").unlink()


def test_damage_is_told_with_its_file_and_bytes(run):
    """`problems` names the file and the range, so that somebody can look at it."""
    checkpoint = Store(run)[2]
    leaf = checkpoint.manifest.leaves["model/weight"]
    path = checkpoint.path / leaf.shard
    flip(path, leaf.offset + 5)
    (problem,) = Checkpoint(checkpoint.path).problems()
    flip(path, leaf.offset + 5)
    assert (problem.path, problem.start, problem.end) == (path, leaf.offset, leaf.offset + leaf.size_bytes)
