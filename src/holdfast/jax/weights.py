"""Reads a tree's leaves from another run,
or from a checkpoint of Orbax; names those that do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from ..run.weights import rename_leaf
from . import orbax
from .tree import FACTS, Tree, leaf_difference


class TreeMatch(NamedTuple):
    """Which leaves fit a tree, by the tree's names; `unexpected` names those that the tree does not
    have.
    """

    loaded: list[str]
    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]


def is_model(target: object) -> TypeGuard[Tree[Any]]:
    return isinstance(target, Tree)


def match_weights(
    tree: Tree[Any], stored: Mapping[str, Any], rename: Mapping[str, str]
) -> TreeMatch:
    """Return which leaves of `stored` fit the tree after renaming; nothing is changed or read."""
    live, there = tree.leaves(), _renamed(stored, rename)
    both = [name for name in live if name in there]
    mismatched = [name for name in both if leaf_difference(live[name], there[name])]
    return TreeMatch(
        loaded=[name for name in both if name not in mismatched],
        missing=[name for name in live if name not in there],
        unexpected=[name for name in there if name not in live],
        mismatched=mismatched,
    )


def read_matching(tree: Tree[Any], stored: Mapping[str, Any], rename: Mapping[str, str]) -> None:
    """Read the leaves that fit, sharded like the live ones; the others stay."""
    there = _renamed(stored, rename)
    tree.set_leaves({name: there[name] for name in match_weights(tree, stored, rename).loaded})


def read_foreign(path: Path, name: str) -> dict[str, Any] | None:
    """Return the leaves of an Orbax checkpoint of a tree at `path`, or of its item `name`; None if
    there is none.
    """
    return orbax.read_foreign(path, name)


def _renamed(stored: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    return {rename_leaf(name, rename): value for name, value in stored.items() if name != FACTS}
