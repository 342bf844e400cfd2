"""The global random generators: captured last, restored last."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
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


def _capture_numpy() -> dict[str, Any]:
    import numpy as np

    state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 -- the global generator is the point
    return dict(state)


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
    "numpy": GeneratorSource(_capture_numpy, _restore_numpy, _seed_numpy, _check_numpy),
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
