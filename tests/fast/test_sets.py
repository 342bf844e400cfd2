"""The order of a set: its hash table comes back, with all that was removed from it."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Every, Run, Store
from holdfast.state import tables, tree
from toy import Cut


def changed(luck, made, count, spread):
    """Change a set in every way that leaves a trace in its table. Return what `pop()` gave."""
    taken = []
    for _ in range(count):
        what = luck.random()
        if what < 0.5 or not made:
            made.add(
                luck.choice([luck.randrange(spread) * 8, -luck.randrange(spread), luck.random(),
                             2.0 ** luck.randrange(99), (luck.randrange(9), (True, 0.5 * luck.randrange(9)))])
            )  # fmt: skip
        elif what < 0.7:
            taken.append(made.pop())
        elif what < 0.9:
            made.discard(luck.choice(list(made)))
        elif what < 0.94:
            made |= {luck.randrange(spread) for _ in range(luck.randrange(40))}
        elif what < 0.98:
            made -= set(list(made)[: luck.randrange(5)])
        else:
            made.clear()
    return taken, list(made)


def read_back(saved):
    flat = tree.flatten(saved)
    return tree.unflatten(flat.tree, lambda key: bytes(flat.leaves[key].data))


@settings(max_examples=2 * settings.default.max_examples, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 300), st.sampled_from([5, 50, 1000, 10**9, 2**61]), st.booleans())
def test_a_set_goes_on_as_the_one_that_was_saved(seed, count, spread, in_place):
    """Whatever its history: the same walk, the same pop(), also after many more changes."""
    luck = random.Random(seed)
    saved: set = set()
    changed(luck, saved, count, spread)
    found = read_back(saved)
    if in_place:
        found, stored = set(range(seed % 9)), found
        tables.refill_set(found, stored)
    assert list(found) == list(saved)
    assert list(map(type, found)) == list(map(type, saved))
    assert changed(random.Random(seed), found, 200, spread) == changed(random.Random(seed), saved, 200, spread)
    assert tree.flatten(found) == tree.flatten(saved) or not found


@pytest.mark.parametrize("in_place", [False, True])
def test_of_two_numbers_that_collide_the_first_stays_the_first(in_place):
    """Both sets fill the same slots, and only one of them is walked in the order of its members' JSON."""
    for saved in (set([261, 637]), set([637, 261])):  # noqa: C405  a literal is made in another order
        found = read_back(saved)
        if in_place:
            found, stored = {1}, found
            tables.refill_set(found, stored)
        assert list(found) == list(saved)
        assert found.pop() == saved.pop()


@pytest.mark.parametrize("how", ["state", "list", "vars"])
def test_a_search_that_takes_from_a_set_ends_as_an_uninterrupted_one(tmp_path, how):
    """A frontier of numbers and one of pairs, killed twice."""

    def search(path, cut):
        luck, total = random.Random(0), [1]
        numbers, pairs = set(), {(0, 0)}
        state, variables = {"luck": luck, "total": total, "pairs": pairs}, {}
        if how == "vars":
            variables = {"numbers": numbers}
        else:
            state["numbers"] = [numbers] if how == "list" else numbers
        with Run(path, state, vars=variables, every=Every(steps=3), background=False) as run:
            for step in run.steps(60):
                if step == cut:
                    raise Cut
                numbers.add(luck.randrange(1000) * 8)
                pairs.add((luck.randrange(9), luck.randrange(9)))
                if len(numbers) > 6:
                    total[0] = (total[0] * 31 + numbers.pop() + sum(pairs.pop())) % 1000003
        return total, list(numbers), list(pairs)

    whole = search(tmp_path / "whole", None)
    for cut in (20, 41):
        with pytest.raises(Cut):
            search(tmp_path / "cut", cut)
    assert whole == search(tmp_path / "cut", None)


def test_the_law_above_can_fail(tmp_path, monkeypatch):
    """Where no table can be read, the order is that of a new set."""
    monkeypatch.setattr(tables, "_CAN_READ", False)
    saved = {8, 16, 24, 0}
    for number in range(0, 800, 8):
        saved.add(number)
        if len(saved) > 6:
            saved.pop()
    assert list(saved) != list(tree.unflatten(tree.flatten(saved).tree, {}.get))


def test_a_set_without_a_history_is_saved_as_before(tmp_path):
    """Sets of text, of other objects, and of numbers that a new set holds in the same order."""
    state = {"text": {"a", "b"}, "grown": {*range(100)}, "mixed": {1, "a", None}, "nan": {float("nan"), 1.0}}
    assert all("set" in node for node in tree.flatten(state).tree["dict"].values())
    store = Store(tmp_path)
    store.save(state, step=1)
    assert (tmp_path / "checkpoints/step-000000001/manifest.json").read_bytes().startswith(b'{"holdfast": 1,')
    state["grown"].pop()
    store.save(state, step=2)
    assert (tmp_path / "checkpoints/step-000000002/manifest.json").read_bytes().startswith(b'{"holdfast": 6,')
    assert list(state["grown"]) == list(store.load()["grown"])


def test_a_large_set_keeps_its_table_in_a_leaf(tmp_path):
    """And a table of another size than its members need, or none, is no table of theirs."""
    saved = {int(each) for each in np.random.default_rng(0).integers(0, 10**9, 5000)}
    for _ in range(2000):
        saved.pop()
    flat = tree.flatten({"seen": saved})
    assert [*flat.leaves] == ["seen"]
    assert list(tree.unflatten(flat.tree, lambda key: bytes(flat.leaves[key].data))["seen"]) == list(saved)
    for slots, finger in ((b"", 0), (b"\1" * 7, 0), (b"\1\0" * 8, 2**62), (b"\1" * 8, 3), (b"\2" * 8, 1)):
        assert {1, 2} == tables.rebuild_set([1, 2], tables.HashTable(slots, finger))
