"""Reads a tree's leaves from another run,
or from a checkpoint of Orbax; names those that do not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from ..run.weights import Report, match_by_name, rename_leaf
from . import orbax
from .tree import FACTS, Tree, leaf_difference


def is_model(target: object) -> TypeGuard[Tree[Any]]:
    return isinstance(target, Tree)


def match_weights(tree: Tree[Any], stored: Mapping[str, Any], rename: Mapping[str, str]) -> Report:
    """Return which leaves of `stored` fit the tree after renaming; nothing is changed or read."""
    live, there = tree.leaves(), _renamed(stored, rename)
    return match_by_name(live, there, lambda name: leaf_difference(live[name], there[name]))


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
