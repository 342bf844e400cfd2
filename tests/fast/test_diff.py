"""In what two checkpoints differ: everything that makes up the state, nothing else, and how far."""

import math
import random
import struct
import sys
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from command_runs import flip
from holdfast.errors import Damaged
from holdfast.inspect import distance as distances
from holdfast.inspect.diff import compare, same_state
from holdfast.inspect.distance import FORMATS, measure_distance, ulps
from holdfast.store.store import ManifestFields, Store


@dataclass
class Hyper:
    lr: float


def saved(root, state, step=1, facts=None):
    with closing(Store(root)) as store:
        return store.save(state, step=step, facts=facts)


def differences(tmp_path, a, b):
    return compare(saved(tmp_path / "a", a), saved(tmp_path / "b", b), read=True)


W = torch.arange(6, dtype=torch.float32).reshape(2, 3)
NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]

# values under the key x of two states; the kind of the difference, and what follows x in its place
CASES: dict[str, tuple[Any, ...]] = {
    "a leaf's bytes": (W, W + 1, "bytes"),
    "the sign of zero": (torch.zeros(2), -torch.zeros(2), "bytes"),
    "a dtype": (W, W.double(), "dtype"),
    "a framework": (W, W.numpy(), "dtype"),
    "a shape": (W, W.reshape(3, 2), "shape"),
    "a memory layout": (W.t(), W.t().contiguous(), "layout"),
    "a flag of a parameter": (W, W.clone().requires_grad_(), "layout"),
    "a leaf too many": ({"m": W, "n": W + 1}, {"m": W}, "only in a", "/n"),
    "a leaf too few": ({"m": W}, {"m": W, "n": W + 1}, "only in b", "/n"),
    "an int": (1, 2, "value"),
    "a large int": (2**70, 2**70 + 1, "value"),
    "an int and a float": (1, 1.0, "value"),
    "an int and a boolean": (1, True, "value"),
    "a float's last bit": (0.1, math.nextafter(0.1, 1), "value"),
    "a float's zero": (0.0, -0.0, "value"),
    "a NaN's payload": (math.nan, NAN, "value"),
    "text": ("a", "b", "value"),
    "None": (None, 0, "value"),
    "bytes": (b"a", b"b", "value"),
    "long bytes": (b"a" * 5000, b"b" * 5000, "bytes"),
    "a set": ({1, 2}, {1, 3}, "value"),
    "a kind of container": ([1], (1,), "type"),
    "a list's length": ([1], [1, 2], "only in b", "/1"),
    "deep inside": ([{"y": (1, 2)}], [{"y": (1, 3)}], "value", "/0/y/1"),
    "a key that is no text": ({1: 1}, {"1": 1}, "type", "/1"),
    "a key of two kinds": ({1: 1}, {1.0: 1}, "only in a", "/1"),
    "an ordered mapping's order": (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), "order"),
    "a dataclass's field": (Hyper(0.1), Hyper(0.2), "value", "/lr"),
    "a NumPy scalar": (np.float32(1), np.float32(2), "value", "/1"),
    "tensors tied in one only": ([W, W], [W, W.clone()], "ties", "/1"),
}


def test_whatever_makes_up_the_state_is_told_when_it_differs(tmp_path):
    """Each kind of difference is found, in both directions, by the name of its place; and none in equal states."""
    for name, (a, b, kind, *below) in CASES.items():
        roots = (("a", a), ("b", b), ("c", a))
        one, other, again = (saved(tmp_path / name / root, {"x": value}) for root, value in roots)
        assert ("".join(["x", *below]), kind) in [each[:2] for each in compare(one, other, read=True)], name
        assert [] != compare(other, one, read=True), name
        assert [] == compare(one, again, read=True), name


def test_plain_mappings_are_equal_in_any_order(tmp_path):
    """As in Python: the order of a dict is no state, that of an OrderedDict is."""
    assert [] == differences(tmp_path, {"x": {"a": 1, "b": 2}, "m": W}, {"m": W, "x": {"b": 2, "a": 1}})


def test_where_and_when_it_was_made_is_not_compared(tmp_path):
    """Host, command, document, metrics, note, attempt and parent are no state."""
    a = saved(tmp_path / "a", {"m": W}, facts=ManifestFields(metrics={"loss": 1.0}, note="one", document={"host": "a"}))
    saved(tmp_path / "b", {"m": W}, step=0)
    b = saved(tmp_path / "b", {"m": W}, facts=ManifestFields(metrics={"loss": 2.0}, note="two", document={"host": "b"}))
    assert [] == same_state(a, b)


def test_a_step_a_phase_and_an_epoch_are_position(tmp_path):
    """Without a run's own position, the manifest's is compared."""
    a = saved(tmp_path / "a", {"m": W}, step=1, facts=ManifestFields(epoch=0))
    b = saved(tmp_path / "b", {"m": W}, step=2, facts=ManifestFields(phase="end", epoch=1))
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
    assert [("holdfast/rng/numpy", "rng"), ("holdfast/rng/python", "rng")] == [each[:2] for each in found]
    assert "'python'" in str(found[1])


def test_every_flipped_bit_of_a_state_is_a_difference(tmp_path):
    """Each with one bit of one leaf turned over: every one is told, at its leaf."""
    generator = random.Random(7)
    leaves = {f"p{index}": torch.randn(50) for index in range(4)}
    original = saved(tmp_path / "a", leaves)
    store = Store(tmp_path / "b")
    for step in range(30):
        key, place, bit = generator.choice(list(leaves)), generator.randrange(200), 1 << generator.randrange(8)
        changed = leaves[key].clone()
        changed.view(torch.uint8)[place] ^= bit
        found = compare(original, store.save({**leaves, key: changed}, step=step), exempt=["position"])
        assert [(key, "bytes")] == [each[:2] for each in found]
    store.close()


@pytest.mark.parametrize("place", [-1, 20], ids=["tensor data", "header"])
def test_identical_is_said_of_bytes_that_were_read(tmp_path, place):
    """Equal digests in two manifests prove nothing about the disk: damage is an error, not "identical"."""
    a, b = saved(tmp_path / "a", {"m": W}), saved(tmp_path / "b", {"m": W})
    flip(next(b.path.glob("*.safetensors")), place)
    assert [] == compare(a, b)
    with pytest.raises(Damaged):
        same_state(a, b)


def test_exempt_places_are_left_out_with_all_below(tmp_path):
    """A place, or a pattern; nothing else is left out by it."""
    a = saved(tmp_path / "a", {"optimizer": {"state": {"exp_avg": W}}, "model": W + 2})
    b = saved(tmp_path / "b", {"optimizer": {"state": {"exp_avg": W + 1}}, "model": W + 3})
    for pattern in ("optimizer", "optimizer/state", "optimizer/*", "*/exp_avg"):
        assert ["model"] == [each.where for each in compare(a, b, [pattern])], pattern


def test_files_that_a_caller_wrote_are_compared(tmp_path):
    """A checkpoint may hold no leaves at all."""
    found = []
    for root in "ab":
        with closing(Store(tmp_path / root)) as store, store.directory(step=1) as path:
            for name, text in (("same", "same"), ("other", root), (root, "")):
                (path / name).write_text(text)
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


def measured(dtype, a, b):
    """The distance, about which both ways of computing it agree."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numpy", None)
        by_hand = measure_distance(dtype, len(a), [(a, b)])
    found = measure_distance(dtype, len(a), [(a, b)])
    assert by_hand == found, (dtype, bytes(a), bytes(b))
    return found


KNOWN = [
    ("float64", "d", 1.0, math.nextafter(1, 2), 2.0**-52, 1),
    ("float64", "d", -5e-324, -1e-323, 5e-324, 1),
    ("float64", "d", -5e-324, 5e-324, 1e-323, None),
    ("float32", "f", -0.0, 0.0, 0.0, None),
    ("float16", "e", 1.0, 1.5, 0.5, 512),
    ("bfloat16", "H", 0x3F80, 0x3F81, 2.0**-7, 1),
    ("float8_e4m3fn", "B", 0x38, 0x39, 0.125, 1),
    ("float8_e5m2", "B", 0x3C, 0x3D, 0.25, 1),
    ("int64", "q", 2**62, 2**62 + 1, 1.0, None),
    ("uint64", "Q", 0, 2**64 - 1, 2.0**64, None),
    ("int64", "q", -(2**63), 2**63 - 1, 2.0**64, None),
    ("float32", "f", math.nan, 1.0, None, None),
    ("float32", "f", math.inf, 1.0, math.inf, 0x7F800000 - 0x3F800000),
]


def test_distances_are_exact():
    """Known pairs, for both ways of computing."""
    for dtype, code, a, b, largest, steps in KNOWN:
        found = measured(dtype, struct.pack(f"<{code}", a), struct.pack(f"<{code}", b))
        assert (1, 1, largest, steps) == found[:4], (dtype, a, b)


@settings(max_examples=4 * settings.default.max_examples, deadline=None)
@given(dtype=st.sampled_from(sorted(FORMATS)), data=st.data())
def test_with_and_without_numpy_the_answer_is_the_same(dtype, data):
    """Any bytes of any dtype: both ways count, subtract and rank alike."""
    size = struct.calcsize(FORMATS[dtype].code) * data.draw(st.integers(1, 9))
    measured(dtype, *(data.draw(st.binary(min_size=size, max_size=size)) for _ in "ab"))


def test_steps_are_counted_where_the_sign_is_the_same():
    """Between two signs lies every tiny number there is: how many differ in sign is told, and no steps between them."""
    pairs = ((-1e-9, -0.0, 2.0, math.nan, 3.0), (1e-9, 0.0, 2.0 + 2**-22, -math.nan, 3.0))
    found = measured("float32", *(struct.pack("<5f", *numbers) for numbers in pairs))
    assert (4, 5, 1, 2) == (found.differing, found.of, found.ulps, found.signs)
    told = "4 of 5 values differ, 2 of them in sign, largest difference 2.38e-07 (1 ULP where the sign is the same)"
    assert told == str(found)


@pytest.mark.parametrize(("dtype", "code", "nan"), [("float32", "f", math.nan), ("float8_e5m2", "B", 0x7F)])
def test_numbers_that_are_nan_on_one_side_only_are_counted(dtype, code, nan):
    """They have no distance: the largest difference is that of the others, and says nothing about them."""
    sides = ((nan, nan, 1, 1, 1, nan), (1, 1, nan, 2, 1, nan))
    found = measured(dtype, *(struct.pack(f"<6{code}", *numbers) for numbers in sides))
    assert (4, 2, 1) == (found.differing, found.nan_in_a, found.nan_in_b)
    assert str(found).startswith("4 of 6 values differ, 2 of them NaN in a only, 1 of them NaN in b only, largest diff")
    none = measured(dtype, *(struct.pack(f"<1{code}", number) for number in (1, 2)))
    assert "NaN" not in str(none)


def test_nans_of_other_bits_are_nan_on_both_sides():
    found = measured("float32", *(struct.pack("<f", number) for number in (math.nan, -math.nan)))
    assert (1, 0, 0) == (found.differing, found.nan_in_a, found.nan_in_b)


def test_what_was_not_looked_at_is_said(monkeypatch):
    """Without NumPy a huge leaf is looked at in part, and the answer says so."""
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setattr(distances, "MOST_VALUES", 1)
    found = measure_distance("float32", 16, [(bytes(8), b"\x01" * 8)] * 2)
    assert (2, 4, 2) == (found.differing, found.of, found.looked_at)
    assert "only the first 2 were looked at" in str(found)


def test_numbers_in_the_tree_tell_their_ulps(tmp_path):
    """A learning rate that went another way by one rounding is told so."""
    (found,) = differences(tmp_path, {"lr": 0.1}, {"lr": math.nextafter(0.1, 1)})
    assert "0.1 in a, 0.10000000000000002 in b (1 ULP apart)" == found.what
    assert 2 == ulps(-5e-324, -1.5e-323)


def test_numbers_of_two_signs_in_the_tree_are_told_so(tmp_path):
    """No steps between them, also not none."""
    for number, (a, b) in enumerate([(0.0, -0.0), (1e-9, -1e-9), (-1.0, math.inf)]):
        (found,) = differences(tmp_path / str(number), {"lr": a}, {"lr": b})
        assert found.what.endswith(" in b (the signs differ)")
        assert ulps(a, b) is None
