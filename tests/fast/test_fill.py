"""Live values take a stored state's content, and keep their identity wherever type and position are the same."""

import copy
import operator
import random
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_tree import Pair, Settings

from holdfast.errors import Mismatch
from holdfast.state.captured import MUTABLE
from holdfast.state.fill import InPlaceRestore
from kept import bits
from kept import stored_of as stored_with

ARRAYS = st.builds(
    lambda length, kind, seed: np.random.default_rng(seed).normal(size=(length,)).astype(kind),
    st.integers(0, 3),
    st.sampled_from(["f4", "f8", ">f8", "i2"]),
    st.integers(0, 3),
)
TENSORS = st.builds(
    lambda rows, kind, seed: torch.randn(rows, 2, generator=torch.Generator().manual_seed(seed)).to(kind),
    st.integers(0, 2),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(0, 3),
)
ATOMS = st.integers(-3, 3) | st.floats() | st.text(max_size=2) | st.none() | st.booleans() | st.binary(max_size=3)
KEYS = st.sampled_from(["a", "b", "c", 1])


def containers(inner):
    lists, mappings = st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)
    return st.one_of(
        lists,
        lists.map(tuple),
        mappings,
        mappings.map(OrderedDict),
        mappings.map(Counter),
        mappings.map(lambda found: defaultdict(list, found)),
        lists.map(deque),
        st.builds(Pair, inner, inner),
        st.builds(Settings, inner, lists),
    )


VALUES = st.recursive(
    ATOMS | ARRAYS | TENSORS | st.sets(ATOMS, max_size=3) | st.binary(max_size=3).map(bytearray),
    containers,
    max_leaves=10,
)
MANY = settings(deadline=None)


stored_of = partial(stored_with, types=[Pair, Settings])


def filled(live, stored):
    fill = InPlaceRestore()
    put = fill.plan("", live, stored)
    fill.read_leaves()
    return put()


def is_leaf(value):
    return isinstance(value, np.ndarray | torch.Tensor)


def members(value):
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | tuple | deque):
        return dict(enumerate(value))
    return dict(vars(value)) if isinstance(value, Settings) else {}


def kept(path, live, wanted):
    """Each value of `live` that has to stay the object it is: same type at the same place as in `wanted`."""
    if type(live) is not type(wanted):
        return
    if is_leaf(live):
        if (live.dtype, live.shape) == (wanted.dtype, wanted.shape):
            yield path, live
        return
    if type(live) in MUTABLE or isinstance(live, Settings):
        yield path, live
    there = members(wanted)
    for key, member in members(live).items():
        if key in there:
            yield from kept((*path, key), member, there[key])


def at(value, path):
    for key in path:
        value = members(value)[key]
    return value


@MANY
@given(VALUES, VALUES, st.booleans())
def test_the_content_is_the_stored_one_and_what_fits_stays_the_object_it_is(live, wanted, handles):
    """For any two values, whether leaves are read straight into memory or were decoded before."""
    live = copy.deepcopy(live)
    staying = list(kept((), live, wanted))
    result = filled(live, stored_of(wanted, handles=handles))
    assert bits(wanted) == bits(result)
    for path, value in staying:
        assert value is at(result, path), path


@MANY
@given(VALUES, st.booleans())
def test_a_value_filled_from_itself_is_itself(value, handles):
    """A restore into untouched objects changes no identity and no bit."""
    wanted = copy.deepcopy(value)
    for path, part in list(kept((), value, wanted)):
        assert part is at(filled(value, stored_of(value, handles=handles)), path)
    assert bits(wanted) == bits(value)


def test_what_is_shared_here_stays_shared_if_it_is_alike_there_and_comes_apart_if_not():
    """A list or an array in two places is filled once; what differs gets an object of its own: no content is lost."""
    inner, array, same = [1], np.zeros(2), np.full(2, 7.0)
    live = {"a": inner, "b": inner, "c": array, "d": np.ones(2)}
    result = filled(live, stored_of({"a": [2, 3], "b": [2, 3], "c": same, "d": same}, handles=True))
    assert result["a"] is result["b"] is inner
    assert result["c"] is result["d"] is array
    assert ([2, 3], [7.0, 7.0]) == (inner, array.tolist())
    wanted = [[2], [3], np.ones(2), np.full(2, 2.0)]
    result = filled([inner, inner, array, array], stored_of(wanted, handles=True))
    assert bits(wanted) == bits(result)
    assert result[0] is inner
    assert result[2] is array


def test_views_are_filled_in_the_memory_that_they_show():
    """Not contiguous, reversed or of a part: whoever holds the base sees the numbers."""
    base = np.zeros((4, 3))
    live = [base[1:3, ::2], base.T[0][::-1]]
    wanted = [np.arange(4.0).reshape(2, 2), np.arange(5.0, 9.0)]
    wanted[1][[2, 1]] = wanted[0][:, 0]  # where the two show the same places
    result = filled(live, stored_of(wanted, handles=True))
    assert result is live
    assert [[0, 1], [2, 3]] == base[1:3, ::2].tolist()
    flat = torch.zeros(6)
    filled([flat[2:4]], stored_of([torch.tensor([1.0, 2.0])], handles=True))
    assert [0, 0, 1, 2, 0, 0] == flat.tolist()


def test_what_cannot_be_written_is_replaced():
    """Read-only and broadcast arrays, tensors with a graph, made in inference mode, or on the meta device."""
    still = np.zeros(2)
    still.flags.writeable = False
    with torch.inference_mode():
        frozen = torch.zeros(2)
    before = (still, np.broadcast_to(np.zeros(1), 2), torch.zeros(2, requires_grad=True) * 2, frozen)
    wanted = [np.ones(2), np.ones(2), torch.ones(2), torch.ones(2)]
    for handles in (True, False):
        result = filled([*before], stored_of(wanted, handles=handles))
        assert bits(wanted) == bits(result)
        assert not any(map(operator.is_, result, before))


def test_a_leaf_that_requires_gradients_is_filled_in_place():
    """Optimizers go on holding it. A tensor with a graph comes back without one: it is no such leaf."""
    weight = torch.zeros(2, requires_grad=True)
    live = {"weight": weight, "hidden": None}
    wanted = torch.ones(2, requires_grad=True)
    filled(live, stored_of({"weight": wanted, "hidden": wanted * 2}, handles=True))
    assert live["weight"] is weight
    assert ([1.0, 1.0], True, False) == (weight.tolist(), weight.requires_grad, live["hidden"].requires_grad)


def test_a_live_deque_keeps_its_bound():
    """One that is too short for what is stored is a misfit."""
    live = deque([1], maxlen=3)
    filled([live], [deque([1, 2, 3], maxlen=9)])
    assert deque([1, 2, 3], maxlen=3) == live
    assert 3 == live.maxlen
    fill = InPlaceRestore()
    fill.plan("queue", live, deque([1, 2, 3, 4]))
    assert ["queue: 4 items in the checkpoint, a deque with maxlen=3 here"] == fill.misfits
    assert 3 == len(live)


def test_generators_go_on_in_the_same_object():
    """Python's, both of NumPy's and torch's; one of another kind is replaced."""

    def made(seed):
        torch_made = torch.Generator().manual_seed(seed)
        bits = np.random.PCG64(np.random.SeedSequence(7))
        bits.advance(seed)
        return [random.Random(seed), np.random.Generator(bits), np.random.RandomState(seed), torch_made]

    live, wanted = made(1), made(2)
    before = list(live)
    filled(live, stored_of(wanted, handles=True))
    assert all(map(operator.is_, live, before))
    draw = lambda found: [*(each.uniform(0, 1) for each in found[:3]), torch.rand(1, generator=found[3]).item()]
    assert draw(made(2)) == draw(live)
    (other,) = filled([np.random.default_rng(3)], stored_of([np.random.default_rng(4)], handles=True))
    assert np.random.default_rng(4).random() == other.random()


def test_a_long_list_of_numbers_is_filled_at_once():
    """A million numbers make no million plans."""
    live, numbers = [], list(range(10**6))
    fill = InPlaceRestore()
    put = fill.plan("", live, numbers)
    assert put() is live
    assert numbers == live


def test_leaves_that_share_memory_here_and_held_other_numbers_are_a_mismatch():
    """Whichever is filled last would overwrite the other: that is said, not done in silence."""
    base = np.zeros(4)
    wanted = [np.arange(3.0), np.arange(10.0, 13.0)]
    for live, stored in (
        ([base[:3], base[1:]], stored_of(wanted, handles=True)),
        ([base[:3], base[1:]], stored_of(wanted, handles=False)),
        ([base[:3], torch.from_numpy(base)[1:]], stored_of([wanted[0], torch.from_numpy(wanted[1])], handles=True)),
    ):
        with pytest.raises(Mismatch, match="shares memory with another one here"):
            filled(live, stored)
