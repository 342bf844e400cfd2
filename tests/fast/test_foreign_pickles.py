"""Pickles as data: what they describe is found without an import and without a call."""

import io
import os
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import foreign_corpus as corpus
from holdfast.errors import Damaged, StoreError
from holdfast.foreign import pickles, trees
from holdfast.foreign.known import KNOWN
from holdfast.foreign.pt import imported_names, refuse_storage
from holdfast.foreign.trees import TreeBuilder
from holdfast.state.nodes import format_node, to_json
from holdfast.state.tree import flatten


def described(data):
    tree = TreeBuilder(Path("a pickle"), KNOWN, refuse_storage)
    return tree.build_node(pickles.read(io.BytesIO(data), "a pickle")), tree.leaves


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=64) | st.complex_numbers()
)
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(KEYS, inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
        | st.frozensets(st.integers())
        | st.lists(inner).map(deque)
    ),
    max_leaves=12,
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_pickle_of_plain_data_has_the_tree_of_its_value(value, protocol):
    """Whatever the protocol: the node is the one with which we save the value."""
    node, leaves = described(pickle.dumps(value, protocol))
    assert repr(to_json(flatten(value).tree)) == repr(to_json(node))
    assert not leaves


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_common_containers_and_numbers_of_numpy_are_known(protocol):
    """They occur in most checkpoints."""
    value: dict[str, Any] = {
        "default": defaultdict(list, a=[1]),
        "counter": Counter("abca"),
        "set": {1, 2},
        "scalar": np.float32(1.5),
        "long": b"x" * 2000,
        "c": np.arange(6, dtype=np.int16).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    }
    node, leaves = described(pickle.dumps(value, protocol))
    for name in ("default", "counter", "set", "scalar"):
        assert flatten(value[name]).tree == node["dict"][name], name
    for name in ("c", "fortran"):
        assert value[name].tobytes() == bytes(leaves[name].read())
        assert value[name].shape == leaves[name].shape
    assert value["long"] == bytes(leaves["long"].read())


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_that_a_pickle_names_is_called_or_imported(tmp_path, protocol):
    """What it would call is shown by name, with the arguments."""
    harm = tmp_path / "harm"
    data = pickle.dumps([corpus.Calls(os.mkdir, str(harm)), corpus.Calls(print, "x")], protocol)
    before = {*sys.modules}
    node, _ = described(data)
    assert not harm.exists()
    assert not {name for name in {*sys.modules} - before if not name.startswith("encodings.")}  # of Python's own text
    assert "posix.mkdir" in format_node(node)
    assert str(harm) in format_node(node)
    assert ["posix.mkdir", "print"] == imported_names(pickles.read(io.BytesIO(data), ""))["would import"]
    pickle.loads(data)
    assert harm.exists()  # the pickle was one that does harm


def test_a_module_that_exists_nowhere_is_named():
    """The opcode that names it in the oldest protocol, too."""
    assert "no.such.module.Thing" in format_node(described(b"cno.such.module\nThing\n(S'a'\ntR.")[0])
    assert "no.such.module.Thing" in format_node(described(b"(S'a'\nino.such.module\nThing\n.")[0])


def test_a_billion_laughs_are_refused(monkeypatch):
    """A few bytes that stand for very many values cost little time and memory."""
    monkeypatch.setattr(trees, "VALUES", 10_000)
    with pytest.raises(StoreError, match="more than 10,000 values"):
        described(corpus.laughs())


def test_nesting_without_end_is_refused():
    """Also where the pickle's own depth is beyond Python's stack."""
    with pytest.raises(StoreError, match="deep in each other"):
        described(corpus.deep())


def test_what_contains_itself_is_shown_once():
    """A cycle ends where it begins."""
    assert "what contains it" in format_node(described(corpus.itself())[0])


def test_a_number_of_a_million_digits_is_not_printed():
    """Its length is."""
    assert "bits" in format_node(described(pickle.dumps(1 << 4_000_000))[0])


@given(st.binary(max_size=200))
def test_random_bytes_are_damage(data):
    """Never another error."""
    try:
        described(b"\x80\x02" + data)
    except (Damaged, StoreError):
        return


@given(VALUES, st.data())
def test_a_cut_or_changed_pickle_is_damage_or_another_value(value, data):
    """Never another error, whatever byte is changed."""
    whole = bytearray(pickle.dumps(value, data.draw(st.integers(0, 5))))
    place = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(Damaged):
        described(bytes(whole[:place]))
    whole[place] ^= data.draw(st.integers(1, 255))
    try:
        described(bytes(whole))
    except (Damaged, StoreError):
        return
