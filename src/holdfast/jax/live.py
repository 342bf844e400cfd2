"""Captures, compares and restores `Tree`, as `stateful/objects.py` asks of each framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from ..errors import UsageError
from .tree import Tree


def handles(target: object) -> TypeGuard[Tree[Any]]:
    return isinstance(target, Tree)


def capture(target: Tree[Any]) -> Any:
    return target.capture()


def differences(target: Tree[Any], stored: Any) -> list[str]:
    return target.differences(stored)


def restore(target: Tree[Any], stored: Any) -> None:
    target.restore(stored)


def why_unused(target: Tree[Any]) -> str:
    """Return why the loop seems not to use the tree; empty if it does."""
    return target.why_unused()


def overridden_options(_: Tree[Any], __: Any) -> list[str]:
    """Return []: a tree has no options."""
    return []


def override(target: Tree[Any], changes: Mapping[str, Any], _: Iterable[object]) -> list[str]:
    raise UsageError(
        f"overrides: {target!r} has no options to set; {', '.join(changes)} belong into the script"
    )


def class_name(target: Tree[Any]) -> str:
    return repr(target)


def parameter_count(_: Tree[Any]) -> None:
    """Return None: which of its leaves are parameters is not known."""
