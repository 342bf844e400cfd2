"""Foreign names: what an adapter wraps of a framework, and the refusal where that is not as known.

A version number says little: a patch release may rename a private method, and most releases leave all of them alone. So
each name is looked at itself, before anything is wrapped.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..errors import UsageError


class Name(NamedTuple):
    """A function, class or attribute of a framework that an adapter relies on."""

    path: str  # "lightning.pytorch.loops.fit_loop:_FitLoop.advance": module, colon, name in it
    parameters: tuple[str, ...] | None = None  # of a function: the names that it must have, in their order
    sources: frozenset[str] = frozenset()  # `digest` of each source that the tests were run with; empty: any


def require(framework: str, names: Iterable[Name]) -> None:
    """
    Raises:
        UsageError: a name is gone, or is not as the adapter knows it.
    """
    for name in names:
        if why := unlike(name):
            raise UsageError(
                f"holdfast.{framework} does not fit this {framework}: {name.path} {why}. Install a version that "
                "docs/frameworks.md lists, or a newer Holdfast"
            )


def unlike(name: Name) -> str:
    """In which way the installed `name` is not as known; empty if it is."""
    try:
        found = lookup(name.path)
    except (KeyError, AttributeError):
        return "does not exist"
    if name.parameters is not None:
        parameters = tuple(inspect.signature(found).parameters)
        if parameters != name.parameters:
            return f"takes ({', '.join(parameters)}) and not ({', '.join(name.parameters)})"
    if name.sources and digest(found) not in name.sources:
        return "has another source"
    return ""


def lookup(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = sys.modules[module]  # the adapter has imported it
    for part in name.split("."):
        found = inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
    return found.fget if isinstance(found, property) else getattr(found, "__func__", found)


def digest(function: Any) -> str:
    """Return 16 hexadecimal digits of the source of a function or class, without comments, docstrings and layout."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]
