"""Generators: copies the states of random generators that a program tracks,
and copies them back.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from ..legible import key_text
from . import codec

_KINDS = {
    "random.Random",
    "numpy.Generator",
    "numpy.RandomState",
    "numpy.SeedSequence",
    "torch.Generator",
}
_LONGEST = 1000  # items of a list that is searched
_DEEPEST = 8


def find_generators(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the generators that `value` is or holds in dicts and lists, by their paths."""
    if _is_generator(value):
        yield name, value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for key, each in value.items():
            yield from find_generators(f"{name}/{key_text(key)}", each, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list | tuple | deque) and len(value) <= _LONGEST:
        for place, each in enumerate(value):
            yield from find_generators(f"{name}/{place}", each, depth + 1)


def copy_generator(generator: Any) -> Any:
    """Return a new generator in the same state."""
    if hasattr(generator, "device"):  # torch's
        twin = type(generator)(device=generator.device)
        twin.set_state(generator.get_state())
        return twin
    twin = copy.deepcopy(generator)
    if hasattr(twin, "bit_generator"):  # NumPy 1.26 gives a copy another seed sequence
        refill_generator(twin, generator)
    return twin


def refill_generator(live: Any, stored: Any) -> None:
    """Give a generator the state of another one, if both are of one kind."""
    if type(live) is type(stored) is random.Random:
        live.setstate(stored.getstate())
    elif type(live) is type(stored):
        codec.import_adapter(str(codec.framework_of(type(live)))).refill_generator(live, stored)


def _is_generator(value: Any) -> bool:
    kind = type(value)
    return f"{kind.__module__.partition('.')[0]}.{kind.__name__}" in _KINDS
