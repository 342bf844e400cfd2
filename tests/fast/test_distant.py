"""Leaves that do not lie in host memory in C order are gathered where their bytes go, and exist nowhere twice."""

import itertools
import os
import threading
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Last, Store, bulk, pages
from holdfast.bulk import MemoryRun as Pieces
from holdfast.state import codec, tree
from holdfast.state.snapshot import Arena, FileImage, Snapshot
from holdfast.stateful.tracked import digest_state
from holdfast.store import format
from holdfast.torch import items, leaves, staging, stored
from kept import Kept, bits, random_bits, raw
from stores import in_a_child

BITS = "bfloat16 float16 float32 float64 complex32 complex64 complex128 float8_e5m2 bool int8 int64"
BITS += "".join(f" {name}" for name in ("float4_e2m1fn_x2", "bcomplex32") if hasattr(torch, name))  # since 2.8, 2.14
LAYOUTS = {
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 3),
    "permuted": lambda t: t.permute(2, 0, 3, 1),
    "every other": lambda t: t[..., ::2],
    "a window": lambda t: t[:, 1:3, 2:],
    "expanded": lambda t: t[:1].expand(4, -1, -1, -1),
    "one column": lambda t: t[0, 0, :, 1],
}


def tensor_of(dtype, shape=(3, 4, 5, 6)):
    return random_bits(dtype, int(np.prod(shape))).reshape(shape)


def in_layout(name, tensor):
    """The tensor in a layout; some dtypes are copied by torch as integers only."""
    carrier = {1: torch.uint8, 2: torch.int16}.get(tensor.element_size())
    return LAYOUTS[name](tensor) if carrier is None else LAYOUTS[name](tensor.view(carrier)).view(tensor.dtype)


def conjugated(shape=(3, 4, 5), dtype=torch.complex64):
    return torch.randn(*shape, dtype=dtype).transpose(0, 2).conj()


LAZY = {
    "transposed": conjugated,
    "of 16 bytes": lambda: conjugated(dtype=torch.complex128),
    "in C order": lambda: torch.randn(4, 6, dtype=torch.complex64).conj(),
    "negated": lambda: conjugated().imag,
    "0-d": lambda: torch.tensor(1 + 2j).conj(),
    "0-d, negated": lambda: torch.tensor(1 + 2j).conj().imag,
    "of 4 bytes": lambda: torch.randn(4, 6, dtype=torch.complex64).to(torch.complex32).t().conj(),
}


def all_parts(data, expected):
    """Every slice of it is that slice of the expected bytes, gathered when it is asked for."""
    assert isinstance(data, pages.DistantBytes)
    size = len(expected)
    assert size == data.nbytes
    assert expected == bytes(data)
    edges = sorted({*range(min(size, 20)), size // 2, size // 2 + 1, *range(max(0, size - 20), size + 1)})
    for start, stop in itertools.pairwise(edges):
        assert expected[start:stop] == bytes(data[start:stop])
    for start, stop in itertools.combinations(edges[::4], 2):
        assert expected[start:stop] == bytes(data[start:stop])
        assert expected[start:stop][3:9] == bytes(data[start:stop][3:9])


# What they are -------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:(ComplexHalf|BComplex32):UserWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_part_of_a_tensor_in_any_layout_is_its_bytes_in_c_order(layout):
    """Of every item size, from the middle of an item as well."""
    for name in BITS.split():
        tensor = in_layout(layout, tensor_of(getattr(torch, name)))
        all_parts(codec.encode_leaf(tensor).data, raw(tensor))


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_conjugated_and_negated_views_are_gathered_as_the_numbers_they_stand_for():
    """0-d ones too."""
    for make in LAZY.values():
        tensor = make()
        all_parts(codec.encode_leaf(tensor).data, raw(tensor))


ARRAYS = {
    "Fortran": np.asfortranarray(np.arange(210.0).reshape(5, 6, 7)),
    "sliced": np.arange(300, dtype="int16").reshape(10, 30)[::2, 3::5],
    "backwards": np.arange(100, dtype="float32")[::-1],
    "records": np.asfortranarray(
        np.frombuffer(bytes(range(256)) * 13, np.dtype([("a", "<i4"), ("b", "S5"), ("c", "<f4")])).reshape(4, 64)
    ),
    "padded records": np.frombuffer(bytes(range(192)), np.dtype([("a", "<i1"), ("b", "<f8")], align=True))
    .reshape(3, 4)
    .T,
    "text of 13 bytes": np.array([[b"thirteen byte", b"x"], [b"", b"yy"], [b"z" * 13, b"w"]]).T,
    "big-endian": np.arange(24, dtype=">f8").reshape(4, 6).T,
    "broadcast": np.broadcast_to(np.arange(5, dtype="int64"), (3, 5)),
    "times": np.arange(12).astype("datetime64[s]").reshape(3, 4).T,
}


def test_any_part_of_an_array_is_its_bytes_in_c_order():
    """Items of 13 bytes and padding between fields included."""
    for array in ARRAYS.values():
        items = array.view(f"V{array.itemsize}").reshape(-1)
        all_parts(codec.encode_leaf(array).data, b"".join(item.tobytes() for item in items))


def test_what_lies_in_c_order_is_its_own_memory_and_what_is_empty_is_nothing():
    """Distant bytes are for what memory cannot show."""
    plain = [torch.zeros(3, 4), torch.zeros(4, 1, 1, 3).to(memory_format=torch.channels_last), np.zeros((3, 4))]
    empty = [torch.zeros(0, 4).t(), np.zeros((0, 4)).T, torch.zeros(0, dtype=torch.complex64).conj()]
    for leaf in [*plain, *empty]:
        assert isinstance(codec.encode_leaf(leaf).data, memoryview)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.permutations(range(4)),
    st.data(),
    st.sampled_from([1, 2, 8]),
)
def test_slabs_one_after_another_are_the_items_in_c_order(shape, order, data, item):
    """Whatever the shape, from any item to any other."""
    order = [axis for axis in order if axis < len(shape)]
    array = np.arange(np.prod(shape), dtype=f"int{8 * item}").reshape(shape).transpose(order)
    start = data.draw(st.integers(0, array.size))
    stop = data.draw(st.integers(start, array.size))
    found = [int(number) for slab in pages.slabs(array, start, stop) for number in slab.reshape(-1)]
    assert array.reshape(-1)[start:stop].tolist() == found


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_what_is_put_into_a_part_is_there_and_nowhere_else(data):
    """The way of a restore: into any layout, in pieces that may end in the middle of an item."""
    name = data.draw(st.sampled_from(["float32", "bfloat16", "complex128"]))
    layout = data.draw(st.sampled_from(["channels_last", "transposed", "permuted", "every other", "a window"]))
    tensor = in_layout(layout, tensor_of(getattr(torch, name)))
    view = items.tensor_data(tensor, items.DeviceMoments())
    expected = bytearray(raw(tensor))
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    new = bytearray(os.urandom(stop - start))
    pages.copy_over(view[start:stop], memoryview(new))
    expected[start:stop] = new
    assert bytes(expected) == raw(tensor)


def test_an_array_takes_what_is_put_into_it():
    """As a tensor does."""
    array = np.zeros((3, 4), "int32").T
    pages.copy_over(codec.encode_leaf(array).data, memoryview(bytearray(np.arange(12, dtype="int32").tobytes())))
    assert array.reshape(-1).tolist() == list(range(12))


def test_two_threads_may_have_the_two_halves_of_an_item():
    """Neither takes the other's away."""
    tensor = torch.zeros(64, 64, dtype=torch.float64).t()
    view, new = items.tensor_data(tensor, items.DeviceMoments()), bytearray(os.urandom(8 * 64 * 64))

    def fill(first):
        for start in range(first * 5, len(new), 15):
            pages.copy_over(view[start : start + 5], memoryview(new)[start : start + 5])

    threads = [threading.Thread(target=fill, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bytes(new) == raw(tensor)


# Where they are asked ------------------------------------------------------------------------------------------------


def test_samples_digests_and_comparisons_are_those_of_the_bytes(monkeypatch):
    """Piece by piece or at once."""
    monkeypatch.setattr(pages, "PIECE_BYTES", 104)
    tensor = in_layout("channels_last", tensor_of(torch.float32))
    data, plain = codec.encode_leaf(tensor).data, memoryview(bytearray(raw(tensor)))
    assert pages.sample_bytes(plain) == pages.sample_bytes(data)
    assert format.digest(plain) == format.digest(data)
    assert max(piece.nbytes for piece in pages.byte_pieces(data)) == 104
    assert pages.is_equal(data, plain)
    assert pages.is_equal(plain, data)
    for place in (0, 103, 104, 777, len(plain) - 1):
        plain[place] ^= 1
        assert not pages.is_equal(data, plain)
        assert not pages.is_equal(plain, data)
        plain[place] ^= 1


def test_what_identifies_a_state_does_not_depend_on_its_layout():
    """The same numbers have the same digest."""
    tensor = torch.randn(2, 3, 4, 5)
    found = [digest_state({"m": {"w": each}}).of["m/w"] for each in (tensor, in_layout("channels_last", tensor))]
    assert found[0] == found[1]


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["plain", *LAYOUTS]), min_size=1, max_size=6), st.integers(0, 50), st.booleans())
def test_a_file_of_distant_leaves_is_their_bytes_and_the_digests_are_theirs(tmp_path, kinds, lead, direct):
    """Gathered into the chunks on their way to the disk, which may end in the middle of an item."""
    tensors = [tensor_of(torch.float64, (8, 8, 16, 16)) for _ in kinds]
    subjects = [t if kind == "plain" else LAYOUTS[kind](t) for kind, t in zip(kinds, tensors, strict=True)]
    runs = [Pieces(memoryview(bytes(lead)), [lead])]
    runs += [Pieces(data := codec.encode_leaf(each).data, [data.nbytes]) for each in subjects]
    before = bulk.CHUNK_BYTES, bulk.DIRECT_BYTES
    bulk.CHUNK_BYTES, bulk.DIRECT_BYTES = 8192, 0 if direct else 1 << 30
    try:
        expected = [bytes(run.data) for run in runs]
        digests = bulk.write(tmp_path / "file", runs, sum(map(len, expected)), xxhash.xxh3_128)
    finally:
        bulk.release_chunks()
        bulk.CHUNK_BYTES, bulk.DIRECT_BYTES = before
    assert b"".join(expected) == (tmp_path / "file").read_bytes()
    assert [xxhash.xxh3_128(each).hexdigest() for each in expected] == digests
    (tmp_path / "file").unlink()


def odd_state():
    base = torch.arange(4000.0)
    weight = in_layout("channels_last", tensor_of(torch.float32, (64, 32, 8, 9)))
    return {
        "text": ARRAYS["text of 13 bytes"],  # what follows it lies at odd addresses
        "weight": weight,
        "tied": weight,
        "views": [base[100:900].view(20, 40).t(), base[500:1300]],
        "half": in_layout("transposed", tensor_of(torch.bfloat16, (33, 5, 7, 64))),
        "conj": conjugated((30, 40, 50)),
        "fortran": ARRAYS["Fortran"],
        "packed": in_layout("permuted", tensor_of(getattr(torch, "float4_e2m1fn_x2", torch.float8_e5m2))),
        "empty": torch.zeros(0, 3).t(),
        "plain": torch.randn(1000),
    }


def test_a_save_gathers_and_a_load_gives_it_back(tmp_path):
    """Ties, views and layouts are kept as ever."""
    with closing(Store(tmp_path)) as store:
        state = odd_state()
        store.save(state, step=1)
        found = store.load()
        assert bits(state) == bits(found)
        assert found["tied"] is found["weight"]
        found["views"][1][0] = -5
        assert (found["views"][0] == -5).sum() == 1


def test_a_snapshot_is_of_its_moment(tmp_path):
    """Leaves in any layout are copied into the arena, by however many threads, and changed afterwards."""
    with closing(Store(tmp_path)) as store:
        state, arena = odd_state(), Arena()
        for step in (1, 2):
            expected = {key: bytes(block.data) for key, block in tree.flatten(state).leaves.items()}
            staged = store.stage(state, arena)
            assert all(isinstance(block.data, memoryview) for block in staged.leaves.values())
            for key in ("weight", "half", "conj", "plain"):
                state[key].zero_()
            store.commit(staged, step=step)
            found = tree.flatten(store.load()).leaves
            assert expected == {key: bytes(block.data) for key, block in found.items()}


def test_large_leaves_are_shared_out_among_threads(monkeypatch):
    """From any page on; items of 13 bytes end on none."""
    monkeypatch.setattr("holdfast.state.snapshot._THREADS_PAY_BYTES", 1 << 14)
    text = np.frombuffer(np.random.default_rng(0).bytes(13 * 9000), "V13").reshape(90, 100).T
    blocks = {
        "text": codec.encode_leaf(text),
        "weight": codec.encode_leaf(in_layout("channels_last", tensor_of(torch.float32, (16, 16, 16, 16)))),
    }
    for threads in (1, 2, 3):
        monkeypatch.setattr("holdfast.state.snapshot.COPY_THREADS", threads)
        taken = Snapshot(Arena(), [FileImage(b"lead", list(blocks))], blocks)
        taken.copy()
        expected = {key: bytes(block.data) for key, block in blocks.items()}
        assert expected == {key: bytes(block.data) for key, block in taken.blocks.items()}, threads
        assert (taken.images[0] or b"")[:4] == b"lead"


def test_unchanged_leaves_in_another_order_are_linked(tmp_path):
    """By their digests, as any others; a change of one number in the midst is seen."""
    frozen, moving = in_layout("channels_last", torch.randn(64, 64, 9, 9)), torch.randn(100, 100).t()
    with closing(Store(tmp_path, keep=Last(9))) as store:
        for step in range(1, 5):
            moving += 1
            store.save({"model": {"frozen": frozen, "moving": moving}}, step=step)
        files = {path.name: path.stat().st_nlink for path in store.latest().path.glob("*.safetensors")}
        assert 2 <= files["model-steady.safetensors"]
        frozen[7, 3, 2, 1] += 1
        store.save({"model": {"frozen": frozen, "moving": moving}}, step=5)
        assert bits(frozen) == bits(store.load()["model"]["frozen"])


def test_a_forked_child_reads_what_is_distant_to_it_too():
    """A worker may hold leaves; nothing in gathering needs the parent's threads."""
    tensor = in_layout("channels_last", tensor_of(torch.float32))
    expected = raw(tensor)

    def law():
        assert bytes(codec.encode_leaf(tensor).data) == expected

    assert 0 == in_a_child(law)


# Devices -------------------------------------------------------------------------------------------------------------


class Cuda:
    """What stands for torch.cuda: it notes what is asked of it, and a stream does its copies when it is waited for."""

    def __init__(self, refuses=False):
        self.log, self.late, self.within, self.refuses = [], [], [None], refuses
        self.pinned = {}

    def current_stream(self, device):
        return SimpleNamespace(record_event=lambda: self.log.append("event") or "event")

    def Stream(self, device):  # noqa: N802
        def synchronize():
            self.log.append("synchronize")
            while self.late:
                self.late.pop(0)()

        return SimpleNamespace(wait_event=lambda event: self.log.append(f"wait for {event}"), synchronize=synchronize)

    def stream(self, stream):
        self.log.append("copy")
        return closing(SimpleNamespace(close=lambda: None))

    def set_device(self, device):
        self.log.append(f"on {device} in {threading.current_thread().name}")

    def cudart(self):
        return self

    def cudaHostRegister(self, place, size, flags):  # noqa: N802
        assert flags == 1
        if self.refuses == "loudly":
            raise RuntimeError("no driver")
        if self.refuses:
            return 2
        self.pinned[place] = size
        return 0

    def cudaHostUnregister(self, place):  # noqa: N802
        del self.pinned[place]
        return 0


@pytest.fixture
def cuda(request, monkeypatch):
    """Tensors of the host that are treated as a device's."""
    fake = Cuda(getattr(request, "param", False))
    monkeypatch.setattr(staging, "cuda", fake)
    monkeypatch.setattr(staging, "_streams", {})

    def data(tensor, now):
        moment = now.moment(tensor.device)
        copied = moment.copy

        def later(target, source):
            wait = copied(torch.empty_like(target), source)
            fake.late.append(lambda: target.copy_(source.resolve_conj().resolve_neg()))
            return wait

        return pages.DistantBytes(
            items.TensorItems(tensor, later), tensor.nbytes, pin=lambda memory: staging.pin(memory, tensor.device)
        )

    monkeypatch.setattr(leaves, "tensor_data", data)
    return fake


def described(tensor, now):
    """Its bytes as leaves.py sees them, by way of the fake device where there is one."""
    return vars(leaves)["tensor_data"](tensor, now)


def device_blocks():
    now = items.DeviceMoments()
    tensors = {
        "weight": in_layout("channels_last", tensor_of(torch.float32)),
        "plain": torch.randn(1000),
        "conj": conjugated(),
        "half": tensor_of(torch.bfloat16),
    }
    blocks = {
        key: codec.Block("torch", leaves.NAMES[t.dtype], tuple(t.shape), described(t, now), {})
        for key, t in tensors.items()
    }
    return blocks, {key: raw(tensor) for key, tensor in tensors.items()}


@pytest.mark.parametrize("cuda", [False, True, "loudly"], indirect=True, ids=["pinned", "refused", "without a driver"])
def test_a_snapshot_of_a_device_is_there_when_it_returns(cuda):
    """Every copy is begun, after what was under way, before one is waited for; refused memory works as well."""
    blocks, expected = device_blocks()
    arena = Arena()
    snapshot = Snapshot(arena, [FileImage(b"", list(blocks))], blocks)
    snapshot.copy()
    assert expected == {key: bytes(block.data) for key, block in snapshot.blocks.items()}
    assert cuda.log[0] == "event"
    asked = [line for line in cuda.log if line.startswith("on ")]
    assert ["on cpu in holdfast-pin"] == asked
    begun = [line for line in cuda.log[1:] if line not in asked]
    assert ["wait for event", "copy"] * 4 + ["synchronize"] == begun
    assert bool(cuda.pinned) == (not cuda.refuses)
    Snapshot(arena, [FileImage(b"", list(blocks))], blocks).copy()
    assert len([line for line in cuda.log if line.startswith("on ")]) == 1
    arena.release()
    assert cuda.pinned == {}


def test_memory_that_is_warmed_is_pinned_beside_the_loop(cuda):
    """After it was touched, and given back before it goes; a larger one is pinned anew."""
    blocks, _ = device_blocks()
    arena = Arena()
    arena.warm_up(1 << 20, next(iter(blocks.values())).data.pin)
    while arena.is_warming:
        pass
    assert [arena.size_bytes] == list(cuda.pinned.values())
    arena.reserve(4 << 20, next(iter(blocks.values())).data.pin)
    assert [arena.size_bytes] == list(cuda.pinned.values())
    arena.release()
    assert cuda.pinned == {}


def test_without_another_thread_memory_is_pinned_and_unpinned_in_this_one(cuda, monkeypatch):
    """The system gives none."""

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    memory = pages.allocate_pages(1 << 20)
    unpin = staging.pin(memory, torch.device("cpu"))
    assert [memory.nbytes] == list(cuda.pinned.values())
    assert unpin is not None
    unpin()
    assert cuda.pinned == {}


def test_a_forked_child_unpins_nothing(cuda):
    """CUDA is not there in a child."""
    blocks, _ = device_blocks()
    arena = Arena()
    Snapshot(arena, [FileImage(b"", list(blocks))], blocks).copy()

    def law():
        arena.release()
        assert cuda.pinned

    assert 0 == in_a_child(law)
    arena.release()


def test_a_copy_that_fails_waits_for_those_that_were_begun(cuda):
    """Their memory may be given back when the error is out."""
    blocks, _ = device_blocks()

    def refuse(start, target):
        raise MemoryError("the device is full")

    bad = pages.DistantBytes(SimpleNamespace(itemsize=1, gather=refuse), 100)
    blocks["bad"] = codec.Block("torch", "uint8", (100,), bad, {})
    with pytest.raises(MemoryError):
        Snapshot(Arena(), [FileImage(b"", list(blocks))], blocks).copy()
    assert cuda.log[-1] == "synchronize"
    assert cuda.late == []


def test_a_leaf_that_fails_in_the_middle_waits_for_its_first_parts():
    """The device has no memory to put more of them in order."""
    asked = []

    def copied(target, source):
        asked.append("begun" if not asked else "failed")
        if len(asked) > 1:
            raise torch.OutOfMemoryError
        return lambda: asked.append("waited for")

    data = pages.DistantBytes(items.TensorItems(in_layout("a window", tensor_of(torch.float32)), copied), 400)
    with pytest.raises(torch.OutOfMemoryError):
        data[4:].gather(memoryview(bytearray(396)))
    assert ["begun", "failed", "waited for"] == asked


def test_a_restore_onto_a_device_goes_by_way_of_pieces(cuda):
    """After what was under way there, and complete when it returns."""
    tensor = in_layout("channels_last", tensor_of(torch.float32))
    kept = Kept("w", codec.Block("torch", "float32", tuple(tensor.shape), memoryview(raw(tensor)), {}))
    live = torch.zeros_like(tensor)
    pages.copy_over(described(live, items.DeviceMoments()), memoryview(bytearray(kept.data)))
    assert raw(tensor) == raw(live)
    assert ["event", "wait for event", "copy", "synchronize"] == cuda.log


def test_what_no_leaf_adapter_can_write_to_is_filled_by_way_of_a_copy():
    """Conjugated live tensors, and those of which several items lie in one place."""
    for live in (torch.zeros(3, 4, dtype=torch.complex64).conj(), torch.zeros(3, 4, dtype=torch.complex64).t().conj()):
        expected = torch.randn(live.shape, dtype=torch.complex64)
        kept = Kept("w", codec.encode_leaf(expected))
        filling = stored.TensorRestore()
        filling.read_into(live, kept)
        filling.read_all()
        assert torch.equal(expected, live)
