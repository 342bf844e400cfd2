"""In what two checkpoints differ: everything that makes up the state, nothing else, and how far."""

import math
import random
import struct
import sys
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import Damaged
from holdfast.inspect import distance as distances
from holdfast.inspect.diff import compare, same_state
from holdfast.inspect.distance import FORMATS, distance, ulps
from holdfast.store.store import Facts, Store


@dataclass
class Hyper:
    lr: float


def saved(root, state, step=1, facts=None):
    store = Store(root)
    try:
        return store.save(state, step=step, facts=facts)
    finally:
        store.close()


def differences(tmp_path, a, b):
    return compare(saved(tmp_path / "a", a), saved(tmp_path / "b", b), read=True)


def told(tmp_path, a, b):
    return [(each.where, each.kind) for each in differences(tmp_path, a, b)]


W = torch.arange(6, dtype=torch.float32).reshape(2, 3)
NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]

CASES = {
    "a leaf's bytes": ({"m": W}, {"m": W + 1}, ("m", "bytes")),
    "the sign of zero": ({"m": torch.zeros(2)}, {"m": -torch.zeros(2)}, ("m", "bytes")),
    "a dtype": ({"m": W}, {"m": W.double()}, ("m", "dtype")),
    "a framework": ({"m": W}, {"m": W.numpy()}, ("m", "dtype")),
    "a shape": ({"m": W}, {"m": W.reshape(3, 2)}, ("m", "shape")),
    "a memory layout": ({"m": W.t()}, {"m": W.t().contiguous()}, ("m", "layout")),
    "a flag of a parameter": ({"m": W}, {"m": W.clone().requires_grad_()}, ("m", "layout")),
    "a leaf too many": ({"m": W, "n": W + 1}, {"m": W}, ("n", "only in a")),
    "a leaf too few": ({"m": W}, {"m": W, "n": W + 1}, ("n", "only in b")),
    "an int": ({"x": 1}, {"x": 2}, ("x", "value")),
    "a large int": ({"x": 2**70}, {"x": 2**70 + 1}, ("x", "value")),
    "an int and a float": ({"x": 1}, {"x": 1.0}, ("x", "value")),
    "an int and a boolean": ({"x": 1}, {"x": True}, ("x", "value")),
    "a float's last bit": ({"x": 0.1}, {"x": math.nextafter(0.1, 1)}, ("x", "value")),
    "a float's zero": ({"x": 0.0}, {"x": -0.0}, ("x", "value")),
    "a NaN's payload": ({"x": math.nan}, {"x": NAN}, ("x", "value")),
    "text": ({"x": "a"}, {"x": "b"}, ("x", "value")),
    "None": ({"x": None}, {"x": 0}, ("x", "value")),
    "bytes": ({"x": b"a"}, {"x": b"b"}, ("x", "value")),
    "long bytes": ({"x": b"a" * 5000}, {"x": b"b" * 5000}, ("x", "bytes")),
    "a set": ({"x": {1, 2}}, {"x": {1, 3}}, ("x", "value")),
    "a kind of container": ({"x": [1]}, {"x": (1,)}, ("x", "type")),
    "a list's length": ({"x": [1]}, {"x": [1, 2]}, ("x/1", "only in b")),
    "deep inside": ({"x": [{"y": (1, 2)}]}, {"x": [{"y": (1, 3)}]}, ("x/0/y/1", "value")),
    "a key that is no text": ({"x": {1: 1}}, {"x": {"1": 1}}, ("x/1", "type")),
    "a key of two kinds": ({"x": {1: 1}}, {"x": {1.0: 1}}, ("x/1", "only in a")),
    "an ordered mapping's order": (
        {"x": OrderedDict(a=1, b=2)},
        {"x": OrderedDict(b=2, a=1)},
        ("x", "order"),
    ),
    "a dataclass's field": ({"x": Hyper(0.1)}, {"x": Hyper(0.2)}, ("x/lr", "value")),
    "a NumPy scalar": ({"x": np.float32(1)}, {"x": np.float32(2)}, ("x/1", "value")),
    "tensors tied in one only": ({"m": W, "n": W}, {"m": W, "n": W.clone()}, ("n", "ties")),
    "the library's position": (
        {"holdfast": {"position": {"step": 1}}},
        {"holdfast": {"position": {"step": 2}}},
        ("holdfast/position/step", "value"),
    ),
}


@pytest.mark.parametrize(("a", "b", "expected"), CASES.values(), ids=CASES)
def test_whatever_makes_up_the_state_is_told_when_it_differs(tmp_path, a, b, expected):
    """Each kind of difference is found, in both directions, under the name of its place."""
    assert expected in told(tmp_path / "1", a, b)
    assert [] != told(tmp_path / "2", b, a)


@pytest.mark.parametrize(("a", "b", "expected"), CASES.values(), ids=CASES)
def test_a_state_is_identical_to_itself(tmp_path, a, b, expected):
    """No false alarm: the same state saved twice, in other directories, differs in nothing."""
    del b, expected
    assert [] == differences(tmp_path, a, a)


def test_plain_mappings_are_equal_in_any_order(tmp_path):
    """As in Python: the order of a dict is no state, that of an OrderedDict is."""
    assert [] == differences(tmp_path, {"x": {"a": 1, "b": 2}, "m": W}, {"m": W, "x": {"b": 2, "a": 1}})


def test_where_and_when_it_was_made_is_not_compared(tmp_path):
    """Host, command, document, metrics, note, attempt and parent are no state."""
    a = saved(tmp_path / "a", {"m": W}, facts=Facts(metrics={"loss": 1.0}, note="one", document={"host": "a"}))
    saved(tmp_path / "b", {"m": W}, step=0)
    b = saved(tmp_path / "b", {"m": W}, facts=Facts(metrics={"loss": 2.0}, note="two", document={"host": "b"}))
    assert [] == same_state(a, b)


def test_a_step_a_phase_and_an_epoch_are_position(tmp_path):
    """Without a run's own position, the manifest's is compared."""
    a = saved(tmp_path / "a", {"m": W}, step=1, facts=Facts(epoch=0))
    b = saved(tmp_path / "b", {"m": W}, step=2, facts=Facts(phase="end", epoch=1))
    found = same_state(a, b)
    assert ["position/epoch", "position/phase", "position/step"] == [each.where for each in found]
    assert {"position"} == {each.area for each in found}


def test_a_random_generator_is_told_by_name_and_once(tmp_path):
    """Which of a generator's 625 words differ says nothing; which generator does."""
    states = []
    for seed in (1, 2):
        rng = {"python": random.Random(seed).getstate(), "numpy": np.random.RandomState(seed).get_state()}
        states.append({"holdfast": {"rng": rng}})
    found = differences(tmp_path, *states)
    assert [("holdfast/rng/numpy", "rng"), ("holdfast/rng/python", "rng")] == [
        (each.where, each.kind) for each in found
    ]
    assert "'python'" in str(found[1])


@pytest.mark.slow
def test_every_flipped_bit_of_a_state_is_a_difference(tmp_path):
    """200 states, each with one bit of one leaf turned over: every one is told, at its leaf."""
    generator = random.Random(7)
    leaves = {f"p{index}": torch.randn(50) for index in range(4)}
    original = saved(tmp_path / "a", leaves)
    store = Store(tmp_path / "b")
    for step in range(200):
        key, place, bit = generator.choice(list(leaves)), generator.randrange(200), 1 << generator.randrange(8)
        changed = leaves[key].clone()
        changed.view(torch.uint8)[place] ^= bit
        found = compare(original, store.save({**leaves, key: changed}, step=step), exempt=["position"])
        assert [(key, "bytes")] == [(each.where, each.kind) for each in found]
    store.close()


@pytest.mark.parametrize("place", [-1, 20], ids=["tensor data", "header"])
def test_identical_is_said_of_bytes_that_were_read(tmp_path, place):
    """Equal digests in two manifests prove nothing about the disk: damage is an error, not "identical"."""
    a, b = saved(tmp_path / "a", {"m": W}), saved(tmp_path / "b", {"m": W})
    shard = next(b.path.glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[place] ^= 1
    shard.write_bytes(data)
    assert [] == compare(a, b)
    with pytest.raises(Damaged):
        same_state(a, b)


@pytest.mark.parametrize("pattern", ["optimizer", "optimizer/state", "optimizer/*", "*/exp_avg"])
def test_exempt_places_are_left_out_with_all_below(tmp_path, pattern):
    """A place, or a pattern; nothing else is left out by it."""
    a = saved(tmp_path / "a", {"optimizer": {"state": {"exp_avg": W}}, "model": W + 2})
    b = saved(tmp_path / "b", {"optimizer": {"state": {"exp_avg": W + 1}}, "model": W + 3})
    assert ["model"] == [each.where for each in compare(a, b, [pattern])]


def test_files_that_a_caller_wrote_are_compared(tmp_path):
    """A checkpoint may hold no leaves at all."""
    found = []
    for root, text in (("a", "1"), ("b", "2")):
        store = Store(tmp_path / root)
        with store.directory(step=1) as path:
            (path / "same").write_text("same")
            (path / "other").write_text(text)
            (path / root).write_text("")
        store.close()
        found.append(store.latest())
    assert [("a", "only in a"), ("b", "only in b"), ("other", "bytes")] == [e[:2] for e in same_state(*found)]


# How far ----------------------------------------------------------------------------------------------------------


def test_the_largest_difference_and_its_ulps_are_told(tmp_path):
    """One value moved to the next float32: one ULP, and its absolute size."""
    moved = W.clone()
    moved[1, 2] = torch.nextafter(moved[1, 2], torch.tensor(math.inf))
    (found,) = differences(tmp_path, {"m": W}, {"m": moved})
    assert "1 of 6 values differ, largest difference 4.77e-07 (1 ULP)" == found.what
    assert 2.0**-21 == found.distance.largest


@pytest.mark.parametrize(
    ("dtype", "a", "b", "largest", "steps"),
    [
        ("float64", struct.pack("<d", 1.0), struct.pack("<d", math.nextafter(1, 2)), 2.0**-52, 1),
        ("float64", struct.pack("<d", -5e-324), struct.pack("<d", -1e-323), 5e-324, 1),
        ("float64", struct.pack("<d", -5e-324), struct.pack("<d", 5e-324), 1e-323, None),
        ("float32", struct.pack("<f", -0.0), struct.pack("<f", 0.0), 0.0, None),
        ("float16", struct.pack("<e", 1.0), struct.pack("<e", 1.5), 0.5, 512),
        ("bfloat16", b"\x80\x3f", b"\x81\x3f", 2.0**-7, 1),
        ("float8_e4m3fn", b"\x38", b"\x39", 0.125, 1),
        ("float8_e5m2", b"\x3c", b"\x3d", 0.25, 1),
        ("int64", struct.pack("<q", 2**62), struct.pack("<q", 2**62 + 1), 1.0, None),
        ("uint64", struct.pack("<Q", 0), struct.pack("<Q", 2**64 - 1), 2.0**64, None),
        ("int64", struct.pack("<q", -(2**63)), struct.pack("<q", 2**63 - 1), 2.0**64, None),
        ("float32", struct.pack("<f", math.nan), struct.pack("<f", 1.0), None, None),
        ("float32", struct.pack("<f", math.inf), struct.pack("<f", 1.0), math.inf, 0x7F800000 - 0x3F800000),
    ],
)
@pytest.mark.parametrize("hidden", [False, True], ids=["with NumPy", "by hand"])
def test_distances_are_exact(monkeypatch, hidden, dtype, a, b, largest, steps):
    """Known pairs, for both ways of computing."""
    if hidden:
        monkeypatch.setitem(sys.modules, "numpy", None)
    found = distance(dtype, memoryview(a), memoryview(b))
    assert (1, 1, largest, steps) == found[:4]


@pytest.mark.parametrize("dtype", FORMATS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_with_and_without_numpy_the_answer_is_the_same(dtype, data):
    """Any bytes of any dtype: both ways count, subtract and rank alike."""
    width = struct.calcsize(FORMATS[dtype].code)
    count = data.draw(st.integers(1, 9))
    a, b = (memoryview(data.draw(st.binary(min_size=count * width, max_size=count * width))) for _ in "ab")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numpy", None)
        by_hand = distance(dtype, a, b)
    assert by_hand == distance(dtype, a, b)


@pytest.mark.parametrize("hidden", [False, True], ids=["with NumPy", "by hand"])
def test_steps_are_counted_where_the_sign_is_the_same(monkeypatch, hidden):
    """Between two signs lies every tiny number there is: how many differ in sign is told, and no steps between them."""
    if hidden:
        monkeypatch.setitem(sys.modules, "numpy", None)
    a, b = (
        memoryview(struct.pack("<5f", *numbers))
        for numbers in ((-1e-9, -0.0, 2.0, math.nan, 3.0), (1e-9, 0.0, 2.0 + 2**-22, -math.nan, 3.0))
    )
    found = distance("float32", a, b)
    assert (4, 5, 1, 2) == (found.differing, found.of, found.ulps, found.signs)
    told = "4 of 5 values differ, 2 of them in sign, largest difference 2.38e-07 (1 ULP where the sign is the same)"
    assert told == str(found)


def test_what_was_not_looked_at_is_said(monkeypatch):
    """Without NumPy a huge leaf is looked at in part, and the answer says so."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(distances, "MOST_VALUES", 1)
    monkeypatch.setattr(distances, "PIECE_BYTES", 8)
    found = distance("float32", memoryview(bytes(16)), memoryview(b"\x01" * 16))
    assert (2, 4, 2) == (found.differing, found.of, found.looked_at)
    assert "only the first 2 were looked at" in str(found)


def test_numbers_in_the_tree_tell_their_ulps(tmp_path):
    """A learning rate that went another way by one rounding is told so."""
    (found,) = differences(tmp_path, {"lr": 0.1}, {"lr": math.nextafter(0.1, 1)})
    assert "0.1 in a, 0.10000000000000002 in b (1 ULP apart)" == found.what
    assert 2 == ulps(-5e-324, -1.5e-323)


@pytest.mark.parametrize(("a", "b"), [(0.0, -0.0), (1e-9, -1e-9), (-1.0, math.inf)])
def test_numbers_of_two_signs_in_the_tree_are_told_so(tmp_path, a, b):
    """No steps between them, also not none."""
    (found,) = differences(tmp_path, {"lr": a}, {"lr": b})
    assert found.what.endswith(" in b (the signs differ)")
    assert ulps(a, b) is None
