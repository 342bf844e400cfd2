"""Aligns the tensors of two checkpoints whose names begin differently. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import islice
from typing import NamedTuple

_MOST_PARTS = 8  # parts of a name that its prefix may have
_JOINT = re.compile(r"[/.]")


class PrefixPair(NamedTuple):
    """The prefixes of common tensors' names in each checkpoint: `model/` here, `state_dict/model.`
    there.
    """

    a: str
    b: str


class Alignment(NamedTuple):
    """The tensors that are compared: their names in each checkpoint, and the name that is shown,
    spelled as in checkpoint a.
    """

    pairs: list[PrefixPair]
    a: dict[str, str]
    b: dict[str, str]


def align(a: Collection[str], b: Collection[str]) -> Alignment:
    """Remove the pair of prefixes without which most names are equal; of several such pairs the
    shortest.

    Further pairs follow if all other names under two prefixes are the same. Names without a
    counterpart are compared, too, if they have a prefix of one of the pairs.
    """
    pairs: list[PrefixPair] = []
    left, beside, in_a, in_b = {*a}, {*b}, dict[str, str](), dict[str, str]()
    while pair := _best_prefixes(left, beside):
        rests, others = _names_under(pair.a, left), _names_under(pair.b, beside)
        if pairs and rests != others:
            break
        pairs.append(pair)
        in_a |= {pair.a + rest: pair.a + rest for rest in rests & others}
        in_b |= {pair.b + rest: pair.a + rest for rest in rests & others}
        left, beside = left - in_a.keys(), beside - in_b.keys()
    for pair in pairs or [PrefixPair("", "")]:
        in_a |= {pair.a + rest: pair.a + rest for rest in _names_under(pair.a, left)}
        in_b = {pair.b + rest: pair.a + rest for rest in _names_under(pair.b, beside)} | in_b
    return Alignment(pairs or [PrefixPair("", "")], in_a, in_b)


def _names_under(beginning: str, names: Collection[str]) -> set[str]:
    return {name[len(beginning) :] for name in names if name.startswith(beginning)}


def _best_prefixes(a: Collection[str], b: Collection[str]) -> PrefixPair | None:
    ends: dict[str, list[str]] = {}
    for name in a:
        for cut in _prefix_lengths(name):
            ends.setdefault(name[cut:], []).append(name[:cut])
    found = Counter[PrefixPair]()
    for name in b:
        for cut in _prefix_lengths(name):
            found.update(
                PrefixPair(each, name[:cut]) for each in ends.get(name[cut:], ())[:_MOST_PARTS]
            )
    return min(
        found, key=lambda pair: (-found[pair], len(pair.a) + len(pair.b), pair), default=None
    )


def _prefix_lengths(name: str) -> Iterator[int]:
    yield 0
    yield from (match.end() for match in islice(_JOINT.finditer(name), _MOST_PARTS))
