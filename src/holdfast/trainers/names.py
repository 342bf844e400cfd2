"""Foreign names: what an adapter wraps of a framework, and what follows where that is not as known.

A version number says little: a patch release may rename a private method, and most releases leave all of them alone. So
each name is looked at itself, before anything is wrapped. One that is gone is refused. Where only what it does has
changed, the run is saved at the ends of its epochs until a drill has proven it (`run/unproven.py`).
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..data.promise import Unproven
from ..errors import UsageError

_MOST_TOLD = 3  # so many names of changed functions a line has


class Name(NamedTuple):
    """A function, class or attribute of a framework that an adapter relies on."""

    path: str  # "lightning.pytorch.loops.fit_loop:_FitLoop.advance": module, colon, name in it
    parameters: tuple[str, ...] | None = None  # of a function: the names that it must have, in their order
    sources: frozenset[str] = frozenset()  # `digest` of each source that the tests were run with; empty: any


def require(framework: str, names: Iterable[Name]) -> Unproven | None:
    """Return what of `names` has changed since the tests were run, with its version; None: nothing has.

    Raises:
        UsageError: a name is gone, or takes other parameters.
    """
    changed: dict[str, str] = {}
    for name in names:
        if why := unlike(name):
            raise UsageError(
                f"holdfast.{framework} does not fit this {framework}: {name.path} {why}. Install a version that "
                "docs/frameworks.md lists, or a newer Holdfast"
            )
        if found := changed_to(name):
            changed[name.path] = found
    if not changed:
        return None
    packages = dict.fromkeys(path.partition(":")[0].partition(".")[0] for path in changed)
    kind = " and ".join(f"{each} {getattr(sys.modules[each], '__version__', '')}".strip() for each in packages)
    code = hashlib.sha256(f"{kind} {sorted(changed.items())}".encode()).hexdigest()[:32]
    return Unproven(code, kind, _told([path.partition(":")[2] for path in changed]))


def _told(changed: list[str]) -> str:
    shown, more = changed[:_MOST_TOLD], len(changed) - _MOST_TOLD
    said = [*shown, f"{more} more"] if more > 0 else shown
    return f"{' and '.join(said)} {'has' if len(changed) == 1 else 'have'} changed"


def unlike(name: Name) -> str:
    """In which way the installed `name` cannot be wrapped; empty if it can."""
    try:
        found = lookup(name.path)
    except (KeyError, AttributeError):
        return "does not exist"
    if name.parameters is not None:
        parameters = tuple(inspect.signature(found).parameters)
        if parameters != name.parameters:
            return f"takes ({', '.join(parameters)}) and not ({', '.join(name.parameters)})"
    return ""


def changed_to(name: Name) -> str:
    """Return the digest of the installed `name` if its source is none that the tests were run with; otherwise ""."""
    found = digest(lookup(name.path)) if name.sources else ""
    return "" if found in name.sources else found


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
