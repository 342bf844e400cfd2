"""The global random generators: captured last, restored last."""

from __future__ import annotations

import copy
import ctypes
import importlib.util
import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from .fill import read_whole
from .validation import errors_as_damage, is_printable_number
from .values import python_state, random_state


class GeneratorSource(NamedTuple):
    """How to capture, restore, seed and check the global generators of one package."""

    capture: Callable[[], Any]  # a state that can be flattened
    restore: Callable[[Any], list[str]]  # returns the skipped parts, and why
    seed: Callable[[int], None]
    # raises one of UNSOUND if a state is not valid for them
    check: Callable[[Any], object] = lambda _: None


class _NumpyReader:
    """Reads NumPy's global generator, whose words NumPy lists in 50 us: a loop asks in each step.

    Where the generator's memory is the same as the last time, so is its state. Only the memory of a
    Mersenne Twister is known.
    """

    _TWISTER_BYTES = 4 * 625  # its words, and the place of the next one

    def __init__(self) -> None:
        import numpy as np

        self._random: Any = np.random
        bits = np.random.MT19937(0)
        trial = np.random.RandomState(bits)
        before = self._memory(trial, bits)
        trial.standard_normal()  # draws a pair, and keeps the second half
        changes = map(operator.ne, before, self._memory(trial, bits))
        self._global: Any = getattr(np.random.get_state, "__self__", None)
        is_known = type(self._global) is np.random.RandomState
        self._can_compare = sys.implementation.name == "cpython" and is_known and all(changes)
        self._last: tuple[bytes, bytes] | None = None
        self._state: dict[str, Any] = {}

    def state(self) -> dict[str, Any]:
        memory = self._now()
        if memory is None or memory != self._last:
            self._state = self._random.get_state(legacy=False)
            # another thread may have drawn meanwhile
            self._last = memory if memory == self._now() else None
        found = dict(self._state)
        if memory is not None:  # each with an array of its own: one in two places would be one leaf
            found["state"] = {name: copy.copy(each) for name, each in found["state"].items()}
        return found

    def _now(self) -> tuple[bytes, bytes] | None:
        bits = self._random.get_bit_generator()
        known = self._can_compare and type(bits) is self._random.MT19937
        return self._memory(self._global, bits) if known else None

    def _memory(self, random: Any, bits: Any) -> tuple[bytes, bytes]:
        head = object.__basicsize__  # with the count of references
        own = ctypes.string_at(id(random) + head, type(random).__basicsize__ - head)
        return own, ctypes.string_at(bits.ctypes.state_address, self._TWISTER_BYTES)


_numpy_reader = cache(_NumpyReader)


def _restore_numpy(state: Any) -> list[str]:
    import numpy as np

    here: Any = np.random.get_bit_generator()  # type: ignore[attr-defined]
    name = state["bit_generator"]
    if name != type(here).__name__:
        return [f"numpy: its global bit generator was a {name} and is a {type(here).__name__}"]
    if name == "MT19937":
        np.random.set_state(state)  # noqa: NPY002
        return []
    here.state = {key: value for key, value in state.items() if key not in ("has_gauss", "gauss")}
    return ["numpy: the second half of a pair of normal numbers"] if state["has_gauss"] else []


def _seed_numpy(number: int) -> None:
    import numpy as np

    np.random.seed(number % 2**32)  # noqa: NPY002


def _check_numpy(state: Any) -> None:
    import numpy as np

    from .numpy_leaves import require_bit_state

    pair = state["has_gauss"], state["gauss"]
    if not isinstance(state["bit_generator"], str):
        raise TypeError("it names no bit generator")
    if state["bit_generator"] == "MT19937":
        np.random.RandomState(0).set_state(state)
    else:
        require_bit_state(
            {key: value for key, value in state.items() if key not in ("has_gauss", "gauss")}
        )
    if not all(map(is_printable_number, pair)):
        raise ValueError(f"{pair!r} is no half of a pair of numbers")


def _restore_python(state: Any) -> list[str]:
    random.setstate(python_state(state))
    return []


def _check_python(state: Any) -> None:
    random.Random().setstate(python_state(state))  # noqa: S311


SOURCES: dict[str, GeneratorSource] = {
    "python": GeneratorSource(
        lambda: random_state(random.getstate()), _restore_python, random.seed, _check_python
    ),
    "numpy": GeneratorSource(
        lambda: _numpy_reader().state(), _restore_numpy, _seed_numpy, _check_numpy
    ),
}
_ELSEWHERE = {"torch": "holdfast.torch.rng"}  # package -> our module with its SOURCE


@contextmanager
def with_sources(sources: Mapping[str, GeneratorSource]) -> Iterator[None]:
    """Within this block, capture and restore the generators of these packages as well.

    A trainer's adapter uses it: an imported package alone does not show that the program draws from
    it.
    """
    before = {name: SOURCES[name] for name in sources if name in SOURCES}
    SOURCES.update(sources)
    try:
        yield
    finally:
        for name in sources:
            SOURCES.pop(name, None)
        SOURCES.update(before)


def _source(name: str) -> GeneratorSource:
    if name not in SOURCES:
        SOURCES[name] = importlib.import_module(_ELSEWHERE[name]).SOURCE
    return SOURCES[name]


def _sources_in_use() -> dict[str, GeneratorSource]:
    names = [*(name for name in SOURCES if name not in _ELSEWHERE), *_ELSEWHERE]
    return {name: _source(name) for name in names if name == "python" or name in sys.modules}


def capture() -> dict[str, Any]:
    """Return the states of Python's generator and of those packages that are imported."""
    return {name: source.capture() for name, source in _sources_in_use().items()}


def restore(states: Mapping[str, Any]) -> list[str]:
    """Restore the generators; return a line for each that this process lacks.

    Raises:
        Damaged: a state is none of its generator.
    """
    return [line for name, state in states.items() for line in _restore(name, state)]


def require_valid(several: Iterable[Mapping[str, Any]]) -> None:
    """Check the stored states of random generators; change no live generator.

    Raises:
        Damaged: a state is none of its generator.
    """
    for states in several:
        for name, state in states.items():
            if not _why_missing(name):
                with errors_as_damage(f"the random state of {name}"):
                    _source(name).check(read_whole(state))


def _restore(name: str, state: Any) -> list[str]:
    if missing := _why_missing(name):
        return [f"{name}: {missing}"]
    with errors_as_damage(f"the random state of {name}"):
        return _source(name).restore(read_whole(state))


def _why_missing(name: str) -> str:
    """Return why this process cannot restore that package's generators; empty if it can."""
    if name not in SOURCES and name not in _ELSEWHERE:
        return "this Holdfast does not know its generators"
    return (
        "it is not installed" if name != "python" and importlib.util.find_spec(name) is None else ""
    )


def seed(number: int) -> None:
    """Seed Python's generator and those of the packages that are imported."""
    for source in _sources_in_use().values():
        source.seed(number)


@contextmanager
def seeded_scope(number: int) -> Iterator[None]:
    """Run a block under generators seeded from `number`;
    afterwards they continue where they were.
    """
    sources = _sources_in_use()
    before = {name: source.capture() for name, source in sources.items()}
    try:
        for source in sources.values():
            source.seed(number)
        yield
    finally:
        for name, source in sources.items():
            source.restore(before[name])
