"""Many leaves are read at once: right from every file system, whole or Damaged, in little memory; and maps of them."""

import errno
import gc
import itertools
import os
import random
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from faults import scratched
from holdfast import disk
from holdfast.errors import Damaged, NotFound
from holdfast.pages import DistantBytes, address
from holdfast.state import codec
from holdfast.store import format, reading, source
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.store import Store
from holdfast.torch import stored
from kept import bits
from stores import flip

SMALL_PIECE = 8192
SIZES = {
    "none": [],
    "one": [5],
    "empty": [0, 3, 0],
    "small": [7] * 1100,  # more than the kernel takes at once
    "pages": [4096, 8192, 4096],
    "giant": [1_000_003],
    "mixed": [1, 0, 50_000, 4095, 4097, 12, 300_000, 0, 16, 8191],
}


class At(NamedTuple):
    """A leaf's place."""

    path: Path
    offset: int
    size_bytes: int
    digest: str
    key: str


def write(path: Path, sizes: list[int], lead: int = 136, seed: int = 0) -> tuple[list[At], list[bytes]]:
    """A file of such leaves, after `lead` other bytes."""
    draw = random.Random(seed)
    contents = [draw.randbytes(size) for size in sizes]
    path.write_bytes(bytes(lead) + b"".join(contents))
    offsets = [lead + sum(sizes[:index]) for index in range(len(sizes))] if len(sizes) < 100 else []
    offsets = offsets or [lead + index * sizes[0] for index in range(len(sizes))]
    places = [
        At(path, offset, len(data), format.digest(data), f"{path.name}/{index}")
        for index, (offset, data) in enumerate(zip(offsets, contents, strict=True))
    ]
    return places, contents


def memories(places: list[At]) -> list[memoryview]:
    return [memoryview(bytearray(place.size_bytes)) for place in places]


def filled(places: list[At]) -> list[bytes]:
    targets = memories(places)
    reading.read_leaves(list(zip(places, targets, strict=True)))
    return [bytes(target) for target in targets]


def spoil(place: At, at: int = -1) -> None:
    flip(place.path, place.offset + at % place.size_bytes, 4)


def cool(path: Path) -> bool:
    """Drop its cached pages; whether that is possible here."""
    with open(path, "rb") as file:
        os.fdatasync(file)  # os.fsync does nothing here
        disk.drop_cached(path)
        try:
            os.preadv(file.fileno(), [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


@pytest.fixture(params=["disk", "memory"])
def place(request, tmp_path) -> Iterator[Path]:
    """A directory on a disk, and one on a file system without any."""
    if request.param == "disk":
        yield tmp_path
        return
    with scratched("reading") as path:
        yield path


@pytest.fixture
def _in_small_pieces(monkeypatch):
    """So that small files go the ways of large ones."""
    monkeypatch.setattr(reading, "PIECE_BYTES", SMALL_PIECE)
    monkeypatch.setattr(source, "DIRECT_BYTES", 1)
    monkeypatch.setattr(reading, "ALONE_BYTES", 0)


def refused_at_open(monkeypatch):
    real = disk.open_plain

    def open_plain(path, *, direct=False, **named):
        if direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))
        return real(path, **named)

    monkeypatch.setattr(disk, "open_plain", open_plain)


def refused_at_read(monkeypatch):
    monkeypatch.setattr(
        reading, "allocate_pages", lambda size: memoryview(bytearray(size + 1))[1:]
    )  # at an odd address


WAYS = {"as it comes": lambda _: None, "no O_DIRECT": refused_at_open, "no O_DIRECT after all": refused_at_read}


# Every way ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_in_small_pieces")
@pytest.mark.parametrize("way", WAYS)
def test_every_leaf_comes_into_its_memory(way, place, monkeypatch):
    """Of any size, from several files, in any order, cached or not, with O_DIRECT and where that is refused."""
    WAYS[way](monkeypatch)
    for number, (kind, sizes) in enumerate(SIZES.items()):
        monkeypatch.setattr(reading, "THREADS", (1, 5)[number % 2])
        lead = (136, 8192)[number // 2 % 2]
        files = [write(place / f"{kind} {seed}", sizes, lead, seed) for seed in range(2)]
        pairs = [(at, data) for places, contents in files for at, data in zip(places, contents, strict=True)]
        random.Random(3).shuffle(pairs)
        for prepare in (Path.read_bytes, cool):
            for seed in range(2):
                prepare(place / f"{kind} {seed}")
            assert [data for _, data in pairs] == filled([at for at, _ in pairs]), kind
            for cold in (False, True):
                assert [] == list(reading.find_damaged([at for at, _ in pairs], cold=cold)), kind


@pytest.mark.usefixtures("_in_small_pieces")
def test_only_some_leaves_of_a_file_are_read(tmp_path):
    """What lies between them stays where it is; a leaf that is wanted in two places comes into both."""
    places, contents = write(tmp_path / "a", SIZES["mixed"] * 3)
    some = [*range(0, len(places), 2), 2, 2, 6]
    assert [contents[index] for index in some] == filled([places[index] for index in some])


def test_what_is_cached_is_told_from_what_is_not(tmp_path):
    """By looking, not by reading."""
    places, _ = write(tmp_path / "a", [6 << 20])
    file = source.FileReader(tmp_path / "a", cold=False, large=True)
    assert not file.is_uncached(136, 6 << 20)
    if not cool(tmp_path / "a"):
        pytest.skip("nothing is forgotten on this file system")
    assert file.is_uncached(136, 6 << 20)
    assert not file.is_uncached(136, 100)  # not worth it
    filled(places)
    assert file.is_uncached(136, 6 << 20)  # it came past the cache
    file.close()


def test_a_file_that_is_cached_in_part_is_judged_by_its_larger_part(tmp_path):
    """By a few pages, wherever the part lies."""
    write(tmp_path / "a", [8 << 20])
    if not cool(tmp_path / "a"):
        pytest.skip("nothing is forgotten on this file system")
    file = source.FileReader(tmp_path / "a", cold=False, large=True)
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no page more than is read
    os.pread(file.descriptor, 6 << 20, 0)
    assert not file.is_uncached(136, 8 << 20)
    assert not file.is_uncached(0, 2 << 20)
    assert file.is_uncached(6 << 20, 2 << 20)
    assert file.is_uncached(11 << 19, 5 << 19)
    file.close()


@pytest.mark.usefixtures("_in_small_pieces")
@pytest.mark.parametrize("lead", [136, 8192, 8191])
def test_only_a_leaf_that_needs_more_than_a_piece_is_divided(lead, tmp_path):
    """Then few threads wait for another one's digest. Pieces follow each other, and their pages fit into a buffer."""
    places, _ = write(tmp_path / "a", SIZES["mixed"] * 3, lead)
    leaves = [reading._LeafRead(place, None) for place in places]
    pieces = [*reading._file_ranges(leaves)]
    ends = [piece.offset + piece.size for piece in pieces]
    assert (lead, sum(SIZES["mixed"]) * 3 + lead) == (pieces[0].offset, ends[-1])
    assert ends[:-1] == [piece.offset for piece in pieces[1:]]
    assert all(piece.offset % 4096 + piece.size <= SMALL_PIECE for piece in pieces)
    assert [piece.size for piece in pieces] == [sum(stop - start for _, start, stop in piece.parts) for piece in pieces]
    within = Counter(id(leaf) for piece in pieces for leaf, _, _ in piece.parts)
    divided = [leaf.size for leaf in leaves if within[id(leaf)] > 1]
    assert 24 == len(within)
    assert {50_000, 300_000} <= {*divided} <= {50_000, 300_000, 8191, 4097}


def test_memory_of_another_size_is_refused(tmp_path):
    """Before anything is read."""
    places, _ = write(tmp_path / "a", [10])
    with pytest.raises(Damaged, match="10 bytes long, not 9"):
        reading.read_leaves([(places[0], memoryview(bytearray(9)))])


def test_a_little_is_read_without_a_thread(tmp_path, monkeypatch):
    """A thread costs more than a few pages."""
    started = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    places, contents = write(tmp_path / "a", [1000] * 500)
    assert contents == filled(places)
    assert [] == started


@pytest.mark.usefixtures("_in_small_pieces")
def test_where_no_thread_is_to_be_had_one_does_all(tmp_path, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    places, contents = write(tmp_path / "a", SIZES["mixed"])
    assert contents == filled(places)


@pytest.mark.usefixtures("_in_small_pieces")
def test_nothing_stays_open(tmp_path):
    """No descriptor and no thread, also after damage."""
    places, _ = write(tmp_path / "a", SIZES["mixed"])
    filled(places)
    gc.collect()
    before, threads = len(os.listdir("/proc/self/fd")), {*threading.enumerate()}
    filled(places)
    list(reading.find_damaged(places, cold=True))
    spoil(places[2])
    with pytest.raises(Damaged):
        filled(places)
    gc.collect()
    assert before == len(os.listdir("/proc/self/fd"))
    assert {*threading.enumerate()} <= threads  # one of another test may end meanwhile


def test_more_files_than_may_be_open_are_read(tmp_path):
    """Each is closed when its last piece is there."""
    files = [write(tmp_path / str(number), [100], seed=number) for number in range(300)]
    code = (
        "import pathlib, resource, sys; from types import SimpleNamespace as At; from holdfast.store import reading;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64));"
        "places = [At(path=pathlib.Path(p), offset=int(o), size_bytes=int(s), digest=d, key=k)"
        " for p, o, s, d, k in map(str.split, sys.stdin)];"
        "reading.read_leaves([(each, memoryview(bytearray(100))) for each in places]);"
        "assert not list(reading.find_damaged(places, cold=True))"
    )
    text = "\n".join(" ".join(map(str, places[0])) for places, _ in files)
    subprocess.run([sys.executable, "-c", code], input=text, text=True, check=True)


# Damage ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_in_small_pieces")
@pytest.mark.parametrize("way", WAYS)
def test_a_flipped_bit_is_damage_of_its_leaf_alone(way, place, monkeypatch):
    """Small, large or giant; the message names file, bytes and leaf; the others come whole."""
    WAYS[way](monkeypatch)
    places, contents = write(place / "a", SIZES["mixed"])
    for victim, at in zip((0, 2, 3, 4, 6, 9, 2, 6), itertools.cycle((0, 9000, -1)), strict=False):
        hurt = places[victim]
        spoil(hurt, at)
        end = hurt.offset + hurt.size_bytes
        with pytest.raises(Damaged) as raised:
            filled(places)
        assert str(raised.value) == f"{hurt.path}: bytes {hurt.offset}..{end}: leaf {hurt.key!r} changed since commit"
        for cold in (False, True):
            assert [hurt] == list(reading.find_damaged(places, cold=cold))
        rest = [index for index in range(len(places)) if index != victim]
        assert [contents[index] for index in rest] == filled([places[index] for index in rest])
        spoil(hurt, at)


@pytest.mark.usefixtures("_in_small_pieces")
def test_damage_is_told_in_the_order_of_the_question(tmp_path):
    """Whatever order the threads finish in."""
    places, _ = write(tmp_path / "a", SIZES["mixed"] * 4)
    hurt = [places[index] for index in (32, 2, 16, 39, 6)]
    for each in hurt:
        spoil(each)
    order = [*reversed(places)]
    expected = [each for each in order if each in hurt]
    for cold in (False, True):
        assert expected == list(reading.find_damaged(order, cold=cold))
    with pytest.raises(Damaged, match=f"leaf '{expected[0].key}'"):
        filled(order)


@pytest.mark.usefixtures("_in_small_pieces")
def test_what_the_medium_holds_is_no_damage(tmp_path, monkeypatch):
    """A mismatch is read again: only what differs twice has changed."""
    places, contents = write(tmp_path / "a", SIZES["mixed"])
    real, wrong = reading._LeafRead.check, []

    def once_wrong(self, digest):
        real(self, "0" * 32 if self.stored.key in wrong and not wrong.clear() else digest)

    monkeypatch.setattr(reading._LeafRead, "check", once_wrong)
    for index in (0, 2, 6):
        wrong.append(places[index].key)
        assert contents == filled(places)
        assert wrong == []
        wrong.append(places[index].key)
        assert [] == list(reading.find_damaged(places, cold=False))
        assert wrong == []


@pytest.mark.usefixtures("_in_small_pieces")
@pytest.mark.parametrize("way", WAYS)
def test_a_file_that_was_cut_is_damage(way, place, monkeypatch):
    """Also where a leaf in many pieces ends early; the leaves before the cut are read."""
    WAYS[way](monkeypatch)
    places, contents = write(place / "a", SIZES["mixed"])
    for left in ((place / "a").stat().st_size - 1, 200_000, 60_000, 136, 100, 0):
        os.truncate(place / "a", left)
        whole = [index for index, at in enumerate(places) if not at.size_bytes or at.offset + at.size_bytes <= left]
        gone = [at for index, at in enumerate(places) if index not in whole]
        end, reached = gone[0].offset + gone[0].size_bytes, max(left, gone[0].offset)
        with pytest.raises(Damaged, match=f"a: ends at byte {reached}, {end - reached} before its time"):
            filled(places)
        assert gone == list(reading.find_damaged(places, cold=False))
        assert [contents[index] for index in whole] == filled([places[index] for index in whole])


def test_an_empty_leaf_has_a_digest_too(tmp_path):
    (at,), _ = write(tmp_path / "a", [0])
    assert [b""] == filled([at])
    with pytest.raises(Damaged):
        filled([at._replace(digest="0" * 32)])


def test_a_missing_file_is_damage_and_a_missing_checkpoint_is_none(tmp_path):
    """As for one leaf, so for many."""
    places, _ = write(tmp_path / "a", [10, 20])
    (tmp_path / "a").unlink()
    with pytest.raises(NotFound, match="no checkpoint is there"):
        filled(places)
    (tmp_path / format.MANIFEST).touch()
    with pytest.raises(Damaged, match="the file is missing"):
        filled(places)
    os.mkfifo(tmp_path / "a")
    with pytest.raises(Damaged, match="not a plain file"):
        filled(places)


@pytest.mark.usefixtures("_in_small_pieces")
def test_an_interrupt_ends_the_reading_and_its_threads(tmp_path, monkeypatch):
    """Nobody writes into the memory any more when it is told."""
    places, _ = write(tmp_path / "a", SIZES["mixed"] * 5)
    real, before, interrupted = source.FileReader.read, {*threading.enumerate()}, threading.Event()

    def read(self, views, offset):
        if threading.current_thread() is threading.main_thread():
            interrupted.set()
            raise KeyboardInterrupt
        assert interrupted.wait(60)
        return real(self, views, offset)

    monkeypatch.setattr(source.FileReader, "read", read)
    with pytest.raises(KeyboardInterrupt):
        filled(places)
    assert {*threading.enumerate()} <= before


@pytest.mark.usefixtures("_in_small_pieces")
def test_an_error_of_the_disk_is_itself(tmp_path, monkeypatch):
    """Not damage: whoever reads again may be luckier."""

    def read(self, views, offset):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(source.FileReader, "read", read)
    monkeypatch.setattr(source.FileReader, "read_direct", read)
    with pytest.raises(OSError, match="Input/output"):
        filled(write(tmp_path / "a", SIZES["mixed"])[0])


@pytest.mark.usefixtures("_in_small_pieces")
def test_a_reading_that_is_ended_leaves_no_file_open(tmp_path):
    """Nor holds its memory, in a program in which nobody looks for cycles: they are ended again and again."""
    places, _ = write(tmp_path / "a", [300_000])
    pieces = iter(range(5))

    def before_each():
        if next(pieces, None) is None:
            raise InterruptedError

    def opened():
        return [link for link in os.scandir("/proc/self/fd") if os.path.realpath(link.path) == str(tmp_path / "a")]

    gc.disable()
    try:
        with pytest.raises(InterruptedError):
            list(reading.find_damaged(places, cold=True, before_each=before_each))
        assert [] == opened()
    finally:
        gc.enable()


# Whole checkpoints ----------------------------------------------------------------------------------------------------


def state():
    draw = np.random.default_rng(1)
    base = torch.arange(24.0)
    return {
        "torch": {
            "plain": torch.randn(300, 40),
            "parameter": torch.nn.Parameter(torch.randn(5)),
            "strided": torch.randn(4, 5).t(),
            "channels": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
            "half": torch.randn(7).to(torch.bfloat16),
            "flags": torch.tensor([True, False, True]),
            "empty": torch.empty(0, 3),
            "scalar": torch.tensor(3.5),
            "views": [base[:16], base[8:]],
            "odd": torch.tensor([1, 2, 3], dtype=torch.uint8),
        },
        "numpy": {
            "plain": draw.random((30, 40)),
            "fortran": np.asfortranarray(draw.random((3, 4))),
            "swapped": np.arange(3, dtype=">i4"),
            "fields": np.array([(1, 2.0)], dtype=[("a", "i1"), ("b", "<f8")]),
            "empty": np.empty((0, 2)),
            "odd": np.arange(5, dtype=np.int8),
        },
        "bytes": draw.bytes(5000),
        "number": 3,
    }


@pytest.fixture
def saved(tmp_path):
    store = Store(tmp_path / "run")
    expected = state()
    return store, expected, store.save(expected, step=1)


@pytest.mark.usefixtures("_in_small_pieces")
@pytest.mark.parametrize("mmap", [False, True])
def test_a_state_comes_back_read_or_mapped(saved, mmap):
    """Value, dtype, layout, ties; also one part of it alone."""
    store, expected, checkpoint = saved
    assert bits(expected) == bits(store.load(mmap=mmap))
    assert bits(expected) == bits(store.load(1, mmap=mmap))
    assert bits(expected["numpy"]) == bits(checkpoint.load("numpy", mmap=mmap))
    views = store.load(mmap=mmap)["torch"]["views"]
    views[0][8] = -1
    assert -1 == views[1][0]


def test_live_tensors_of_any_layout_are_filled_and_few_exist_twice(tmp_path, monkeypatch):
    """A tensor that has a place for each item, in any order, is read into directly, all of them at once.

    Of the others, a few at a time are read aside.
    """
    store = Store(tmp_path / "run")
    expected = {str(number): torch.randn(10, 10) for number in range(9)}
    store.save(expected, step=1)
    kinds = [
        lambda: torch.zeros(10, 10),
        lambda: torch.zeros(10, 10).t(),
        lambda: torch.zeros(10, 10, dtype=torch.complex64).conj().imag,
    ]
    live = {name: kinds[int(name) % 3]() for name in expected}
    real, batches = codec.read_into_memory, []

    def read_all(wanted):
        places = {tensor.data_ptr() for tensor in live.values()}
        batches.append(["distant" if isinstance(data, DistantBytes) else address(data) in places for _, data in wanted])
        real(wanted)

    monkeypatch.setattr(stored, "read_into_memory", read_all)
    monkeypatch.setattr(stored, "AROUND_BYTES", 1000)
    filling, versions = stored.TensorRestore(), {name: tensor._version for name, tensor in live.items()}
    for name, handle in store.latest().handles().items():
        filling.read_into(live[name], handle)
    filling.read_all()
    assert all(torch.equal(expected[name], tensor) for name, tensor in live.items())
    assert all(tensor._version > versions[name] for name, tensor in live.items())
    assert [[True, "distant"] * 3, [False] * 2, [False]] == batches


def test_a_part_reads_nothing_of_the_others(saved):
    """Damage elsewhere does not matter to it."""
    _, expected, checkpoint = saved
    spoil(checkpoint.leaf("torch/plain"))
    assert bits(expected["numpy"]) == bits(Checkpoint(checkpoint.path).load("numpy"))
    with pytest.raises(Damaged, match="torch/plain"):
        Checkpoint(checkpoint.path).load("torch")


def test_writing_to_a_mapped_leaf_changes_no_file(saved):
    """It is a copy that costs memory only where it is written to."""
    store, _, checkpoint = saved
    before = {name: (checkpoint.path / name).read_bytes() for name in checkpoint.manifest.files}
    mapped = store.load(mmap=True)
    mapped["torch"]["plain"].zero_()
    mapped["numpy"]["plain"][:] = 0
    mapped["torch"]["parameter"].data += 1
    assert before == {name: (checkpoint.path / name).read_bytes() for name in checkpoint.manifest.files}
    assert not list(checkpoint.problems(cold=True))


def test_a_mapped_leaf_outlives_its_checkpoint(saved):
    """The map is there as long as any leaf of it."""
    store, expected, checkpoint = saved
    mapped = store.load(mmap=True)
    leaf, array = mapped["torch"]["plain"], mapped["numpy"]["plain"]
    shutil.rmtree(checkpoint.path)
    del mapped, store, checkpoint
    gc.collect()
    assert bits(expected["torch"]["plain"]) == bits(leaf)
    assert bits(expected["numpy"]["plain"]) == bits(array)


def test_a_map_reads_nothing_and_so_verifies_nothing(saved):
    """A flipped bit shows in the numbers; a file of another length or with another header is refused all the same."""
    store, expected, checkpoint = saved
    place = checkpoint.leaf("torch/plain")
    spoil(place)
    assert not torch.equal(expected["torch"]["plain"], store.load(1, mmap=True)["torch"]["plain"])
    with pytest.raises(Damaged):
        store.load(1)
    with open(place.path, "r+b") as file:
        file.seek(20)
        file.write(b"#")
    with pytest.raises(Damaged, match="header"):
        store.load(1, mmap=True)
    os.truncate(place.path, place.offset)
    with pytest.raises(Damaged, match="bytes long"):
        store.load(1, mmap=True)


def test_what_lies_askew_is_read_instead(tmp_path):
    """A map needs each number at a multiple of its size."""
    data = memoryview(bytearray(range(25)))
    block = codec.encode_leaf(torch.zeros(3))

    class Stored:
        key, kind, dtype, shape, attrs, size_bytes = "x", block.kind, block.dtype, block.shape, {}, 12

    assert codec.build_mapped_leaf(Stored(), data[4:16]) is not None
    assert codec.build_mapped_leaf(Stored(), data[5:17]) is None
    Stored.kind = "numpy"
    assert codec.build_mapped_leaf(Stored(), data[4:16]) is not None
    assert codec.build_mapped_leaf(Stored(), data[5:17]) is None


@pytest.mark.usefixtures("_in_small_pieces")
def test_problems_are_the_same_cold_and_warm(saved):
    """In the order of the files and of the bytes in them."""
    checkpoint = saved[2]
    for key in ("torch/plain", "numpy/plain", "numpy/odd", "torch/half", "bytes"):
        spoil(checkpoint.leaf(key))
    warm = list(Checkpoint(checkpoint.path).problems())
    assert warm == list(Checkpoint(checkpoint.path).problems(cold=True))
    assert 5 == len(warm)
    assert all((one.path.name, one.start) < (two.path.name, two.start) for one, two in itertools.pairwise(warm))


def test_plain_files_are_checked_cold_too(tmp_path, monkeypatch):
    """Piece by piece, of any length."""
    monkeypatch.setattr(format, "BLOCK_BYTES", 8192)
    store = Store(tmp_path / "run")
    with store.directory(step=1) as path:
        for size in (0, 1, 8191, 8192, 8193, 50_000):
            (path / f"{size}.bin").write_bytes(random.Random(size).randbytes(size))
    assert [] == list(store[1].problems(cold=True))
    victim = store[1].path / "50000.bin"
    spoil(At(victim, 0, 50_000, "", ""), 30_000)
    for cold in (False, True):
        assert [victim] == [problem.path for problem in store[1].problems(cold=cold)]


def test_collecting_goes_on_after_a_load(saved):
    """Also after one that failed; what was off stays off."""
    _, _, checkpoint = saved
    checkpoint.load()
    assert gc.isenabled()
    spoil(checkpoint.leaf("torch/plain"))
    with pytest.raises(Damaged):
        checkpoint.load()
    assert gc.isenabled()
    gc.disable()
    try:
        checkpoint.handles()
        assert not gc.isenabled()
    finally:
        gc.enable()
