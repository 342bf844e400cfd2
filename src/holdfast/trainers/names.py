"""Foreign names: the names of a framework that an adapter wraps, and checks that they are as
expected.

A version number says little: a patch release may rename a private method, and most releases change
none of them. So each name itself is checked before anything is wrapped. A missing name is refused.
If only its source has changed, the run saves at the ends of its epochs until a drill has proven it
(`run/deferred_saves.py`).
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..data.promise import UnprovenCode
from ..errors import UsageError

_MOST_TOLD = 3  # the most names of changed functions in a line


class ForeignName(NamedTuple):
    """A function, class or attribute of a framework that an adapter relies on."""

    path: str  # "lightning.pytorch.loops.fit_loop:_FitLoop.advance": module, colon, name in it
    # of a function: the names that it must have, in their order
    parameters: tuple[str, ...] | None = None
    # `digest` of each source that the tests were run with; empty: any
    sources: frozenset[str] = frozenset()


def require(framework: str, names: Iterable[ForeignName]) -> UnprovenCode | None:
    """Return which of `names` have changed since the tests were run, with the framework's version;
    None if none has.

    Raises:
        UsageError: a name is gone, or takes other parameters.
    """
    changed: dict[str, str] = {}
    for name in names:
        if why := why_not_wrapped(name):
            raise UsageError(
                f"holdfast.{framework} does not fit this {framework}: "
                f"{name.path} {why}. Install a version that "
                "docs/frameworks.md lists, or a newer Holdfast"
            )
        if found := unknown_digest(name):
            changed[name.path] = found
    if not changed:
        return None
    packages = dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in changed)
    kind = " and ".join(
        f"{each} {getattr(sys.modules[each], '__version__', '')}".strip() for each in packages
    )
    code = hashlib.sha256(f"{kind} {sorted(changed.items())}".encode()).hexdigest()[:32]
    return UnprovenCode(code, kind, _describe_changes([path.partition(":")[2] for path in changed]))


def _describe_changes(changed: list[str]) -> str:
    shown, more = changed[:_MOST_TOLD], len(changed) - _MOST_TOLD
    said = [*shown, f"{more} more"] if more > 0 else shown
    return f"{' and '.join(said)} {'has' if len(changed) == 1 else 'have'} changed"


def why_not_wrapped(name: ForeignName) -> str:
    """Return why the installed `name` cannot be wrapped; empty if it can."""
    try:
        found = lookup(name.path)
    except (KeyError, AttributeError):
        return "does not exist"
    if name.parameters is not None:
        parameters = tuple(inspect.signature(found).parameters)
        if parameters != name.parameters:
            return f"takes ({', '.join(parameters)}) and not ({', '.join(name.parameters)})"
    return ""


def unknown_digest(name: ForeignName) -> str:
    """Return the digest of the installed `name` if the tests were never run with this source;
    otherwise "".
    """
    found = source_digest(lookup(name.path)) if name.sources else ""
    return "" if found in name.sources else found


def lookup(path: str) -> Any:
    module, _, name = path.partition(":")
    found: Any = sys.modules[module]  # the adapter has imported it
    for part in name.split("."):
        found = (
            inspect.getattr_static(found, part) if inspect.isclass(found) else getattr(found, part)
        )
    return found.fget if isinstance(found, property) else getattr(found, "__func__", found)


def source_digest(function: Any) -> str:
    """Return 16 hexadecimal digits of the source of a function or class, without comments,
    docstrings and layout.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    for node in ast.walk(tree):
        if isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ) and ast.get_docstring(node):
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.unparse(tree).encode()).hexdigest()[:16]
