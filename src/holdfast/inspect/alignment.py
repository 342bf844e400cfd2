"""Alignment: which tensors of two checkpoints belong together, when their names begin differently. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

_MOST_PARTS = 8  # of a name, that may be a part of its beginning
_JOINT = re.compile(r"[/.]")


class Beginnings(NamedTuple):
    """What the names of common tensors begin with in each checkpoint: `model/` here, `state_dict/model.` there."""

    a: str
    b: str


def alignment(a: Collection[str], b: Collection[str]) -> list[Beginnings]:
    """Return the beginnings without which most names are equal; of several such pairs the shortest.

    Further pairs follow where all of the other names under two beginnings are the same. No name is in two pairs.
    """
    found: list[Beginnings] = []
    while pair := _best(a, b):
        under = {name[len(pair.a) :] for name in a if name.startswith(pair.a)}
        beside = {name[len(pair.b) :] for name in b if name.startswith(pair.b)}
        if found and under != beside:
            break
        found.append(pair)
        a = {name for name in a if not name.startswith(pair.a)}
        b = {name for name in b if not name.startswith(pair.b)}
    return found


def _best(a: Collection[str], b: Collection[str]) -> Beginnings | None:
    ends: dict[str, list[str]] = {}
    for name in a:
        for cut in _cuts(name):
            ends.setdefault(name[cut:], []).append(name[:cut])
    found = Counter[Beginnings]()
    for name in b:
        for cut in _cuts(name):
            found.update(Beginnings(each, name[:cut]) for each in ends.get(name[cut:], ())[:_MOST_PARTS])
    return min(found, key=lambda pair: (-found[pair], len(pair.a) + len(pair.b), pair), default=None)


def _cuts(name: str) -> Iterator[int]:
    yield 0
    yield from (match.end() for match in islice(_JOINT.finditer(name), _MOST_PARTS))
