"""Random numbers go on where they were, and a scope leaves no trace."""

import random
import subprocess
import sys
import timeit
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from holdfast.errors import Damaged
from holdfast.state import rng, tree, values
from kept import round_trip, stored_of


def drawn():
    """Numbers from every global generator; the normal ones come in pairs, of which one is kept in reserve."""
    theirs = np.random.rand(), np.random.standard_normal(), torch.rand(()), torch.randn(())
    return [random.random(), random.gauss(0, 1), *map(float, theirs)]


@pytest.fixture(autouse=True)
def _elsewhere():
    """Other tests' generators are left alone."""
    before = rng.capture()
    yield
    rng.restore(before)


def test_a_restored_state_repeats_what_followed_the_capture():
    """Python, NumPy and torch, between the two halves of a pair of normal numbers too; read or not yet."""
    for _ in range(3):
        states = [stored_of(rng.capture(), handles=handles) for handles in (True, False)]
        expected = [drawn() for _ in range(3)]
        for state in states:
            assert [] == rng.restore(state)
            assert expected == [drawn() for _ in range(3)]


def test_a_capture_is_not_changed_by_later_draws():
    """It is a copy, and so are its bytes."""
    flat = tree.flatten(rng.capture())
    held = lambda: {key: bytes(block.data) for key, block in flat.leaves.items()}
    before = held()
    drawn()
    assert before == held()


def test_numpys_state_is_captured_anew_whenever_it_has_changed():
    """By draws, halves of pairs, seeds, states that are set, and another bit generator; each has its own array."""
    own = np.random.get_bit_generator()  # type: ignore[attr-defined]
    earlier: list[Any] = []
    acts: list[Callable[[], Any]] = [
        lambda: None,
        np.random.rand,
        np.random.standard_normal,
        lambda: np.random.seed(3),
        lambda: earlier.append(np.random.get_state(legacy=False)),
        lambda: np.random.set_state(random.choice(earlier)) if earlier else None,
        lambda: np.random.set_bit_generator(np.random.PCG64(1)),  # type: ignore[attr-defined]
        lambda: np.random.set_bit_generator(np.random.MT19937(1)),  # type: ignore[attr-defined]
        lambda: np.random.set_bit_generator(own),  # type: ignore[attr-defined]
    ]
    captured = []
    try:
        for _ in range(1000):
            act = random.choice(acts)
            with suppress(ValueError, TypeError):  # the other kind of bit generator has no such state, or seed
                act()
            expected, found = np.random.get_state(legacy=False), rng.capture()["numpy"]
            assert spelled(expected) == spelled(found)
            captured.append((found, spelled(found)))
        assert all(content == spelled(found) for found, content in captured)
        arrays = [found["state"]["key"] for found, _ in captured if "key" in found["state"]]
        assert len({id(each) for each in arrays}) == len(arrays)
    finally:
        np.random.set_bit_generator(own)  # type: ignore[attr-defined]


def test_numpys_state_that_has_not_changed_costs_little():
    """A loop over batches that are replayed asks for it in each step."""
    expected = np.random.get_state(legacy=False)
    anew = min(timeit.repeat(lambda: np.random.get_state(legacy=False), number=200, repeat=9))
    assert min(timeit.repeat(rng.SOURCES["numpy"].capture, number=200, repeat=9)) < anew / 2
    assert spelled(expected) == spelled(rng.SOURCES["numpy"].capture())


def spelled(state: dict[str, Any]) -> str:
    return repr({**state, "state": {name: np.array(each).tolist() for name, each in state["state"].items()}})


def test_a_scope_is_a_function_of_its_seed_and_leaves_no_trace():
    """The same numbers inside for the same seed, and outside as if it had never been; an exception too."""
    state = rng.capture()
    expected = drawn()
    rng.restore(state)
    inside = []
    for seed in (7, 8, 7, 2**70 + 7):
        with rng.seeded_scope(seed):
            inside.append(drawn())
    with pytest.raises(ZeroDivisionError), rng.seeded_scope(7):
        _ = drawn()[0] / 0
    assert inside[0] == inside[2] != inside[1]
    assert expected == drawn()


def test_seed_seeds_every_generator():
    """As many numbers as there are sources, all repeated."""
    rng.seed(3)
    expected = drawn()
    rng.seed(3)
    assert expected == drawn()


def test_what_this_process_lacks_is_told():
    """Unknown packages and missing devices are skipped by name; the rest is restored."""
    state = rng.capture()
    expected = random.random()
    state["jax"] = {"key": 1}
    missing = torch.cuda.device_count()
    state["torch"]["cuda"] = [*torch.cuda.get_rng_state_all(), torch.zeros(16, dtype=torch.uint8)]
    told = rng.restore(state)
    assert expected == random.random()
    assert len(told) == 2
    assert "jax: this Holdfast does not know its generators" in told
    assert any(line.startswith(f"cuda:{missing}:") for line in told)


def test_a_package_that_is_not_installed_is_told(monkeypatch):
    """A state from a machine with torch, on one without."""
    state = rng.capture()
    monkeypatch.delitem(rng.SOURCES, "torch")
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "holdfast.torch.rng")
    assert rng.restore(state) == ["torch: it is not installed"]


UNSOUND = [
    {"python": 3},
    {"python": [3, b"", None]},
    {"numpy": {}},
    {"numpy": {"bit_generator": "MT19937"}},
    {"torch": {"cpu": 3, "cuda": []}},
    {"torch": {"cpu": torch.zeros(3, dtype=torch.uint8), "cuda": []}},
    {"torch": []},
]


def test_a_state_that_is_none_is_damage():
    """Never a bare TypeError from inside a framework."""
    for state in UNSOUND:
        with pytest.raises(Damaged, match="random state"):
            pytest.fail(f"{state} is taken: {rng.restore(state)}")


def test_another_global_bit_generator_is_told():
    """`numpy.random.set_bit_generator` before the save and not after it."""
    before = mtrand.get_bit_generator()
    try:
        mtrand.set_bit_generator(np.random.PCG64(3))
        state = round_trip(rng.capture())
        expected = np.random.rand()
        assert rng.restore(state) == []
        assert expected == np.random.rand()
        np.random.standard_normal()
        assert rng.restore(rng.capture()) == ["numpy: the second half of a pair of normal numbers"]
    finally:
        mtrand.set_bit_generator(before)
    assert "PCG64" in rng.restore(state)[0]


def test_only_imported_packages_are_captured():
    """A script without NumPy and torch pays for neither; a state of them imports them when it is restored."""
    code = "import sys; from holdfast.state import rng; say = lambda: print(list(rng.capture()))"
    code += "; say(); exec(sys.argv[1]); say()"
    done = subprocess.run([sys.executable, "-c", code, "import numpy"], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["['python']", "['python', 'numpy']"]


def test_python_state_packs_and_unpacks():
    """625 words in 2,500 bytes."""
    state = random.getstate()
    packed = values.random_state(state)
    assert len(packed[1]) == 2500
    assert state == values.python_state(packed)
