"""Nodes: read the tree of a manifest directly. This builds no values, and needs no types or frameworks.

The reader refuses what is malformed. `leaf_keys` and `named` pass over it; everything else here raises Damaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from ..errors import Damaged
from .codec import UNSOUND
from .values import MAKERS

NAMED = ("enum", "flag", "dataclass", "namedtuple", "custom")  # content: [type's name, value]
LEAVES = ("leaf", "view")


def leaf_keys(tree: Any) -> set[str]:
    """Return the leaves that `tree` refers to."""
    return {content for tag, content in _tags(tree) if tag == "leaf" and type(content) is str}


def named(tree: Any) -> Iterator[tuple[str, str]]:
    """Return tags and names of the user's types in `tree`."""
    for tag, content in _tags(tree):
        if tag in NAMED and type(content) is list and content and type(content[0]) is str:
            yield tag, content[0]


def _tags(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield every tag in `tree` with its content."""
    rest = [tree]
    while rest:
        node = rest.pop()
        if type(node) is list:
            rest += node
        elif type(node) is dict:
            for tag, content in node.items():
                yield tag, content
                if type(content) is not str:
                    rest += _inside(tag, content)


def _inside(tag: str, content: Any) -> Iterable[Any]:
    """Yield nodes under a tag. The names of a dict's members and of fields are the user's, not tags."""
    if tag in ("ordered_with", "dataclass") and type(content) is list and len(content) == 2:
        return [content[0], *_inside("dict", content[1])]
    return content.values() if tag == "dict" and type(content) is dict else [content]


def quoted(text: str) -> str:
    """Return `text` as a part of a leaf's key."""
    if is_safe(text):
        return text
    # quote() leaves these alone besides letters, digits and "_.-"
    return quote(text, safe="", errors="surrogatepass").replace("~", "%7E") or "%"


is_safe = re.compile(r"[A-Za-z0-9_.-]+").fullmatch


def unused(key: str, taken: Mapping[str, Any]) -> str:
    """Return `key`, with a number if it is taken: 1 and "1" are quoted alike. "~" is never in a quoted key."""
    number, chosen = 1, key
    while chosen in taken:
        number += 1
        chosen = f"{key}~{number}"
    return chosen


class Opened(NamedTuple):
    """A parsed node: its kind, and its members by the names that leaf keys use."""

    kind: str  # "dict", "tuple", "dataclass Hyper", ...
    members: dict[str, Any] | None  # None: a value without members
    keys: Mapping[str, Any] = {}  # members whose key is not text -> that key


def opened(node: Any) -> Opened:
    """Return the node's kind and members.

    Raises:
        Damaged: it is no such node.
    """
    try:
        return _opened(*tagged(node))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise _no_node(node) from error


def _opened(tag: str, content: Any) -> Opened:
    if tag in ("list", "tuple", "set", "frozenset"):
        return Opened(tag, _indexed(content))
    if tag == "dict":
        return Opened(tag, _members_by_name(content))
    if tag in ("items", "ordered", "counter"):
        return _keyed("dict" if tag == "items" else tag, content)
    if tag == "ordered_with":
        pairs, attributes = content
        kind, members, keys = _keyed("ordered", pairs)
        return Opened(kind, {**(members or {}), **_members_by_name(attributes, ".")}, keys)
    if tag == "defaultdict":
        return _keyed(f"defaultdict({content[0]})", content[1])
    if tag == "deque":
        return Opened(tag if content[0] is None else f"deque(maxlen={content[0]})", _indexed(content[1]))
    if tag in NAMED:
        name, inner = content
        members = (
            _members_by_name(inner)
            if tag == "dataclass"
            else _indexed(inner)
            if tag == "namedtuple"
            else {"value": inner}
        )
        return Opened(f"{tag} {name}", members)
    return Opened(tag, _indexed(content) if isinstance(content, list) else None)


def tagged(node: Any) -> tuple[str, Any]:
    """The node's tag (of what stands for itself: "list" or "") and what is under it.

    Raises:
        Damaged: it is no such node.
    """
    if isinstance(node, list):
        return "list", node
    if isinstance(node, dict):
        tag, content = next(iter(node.items()), ("", None))
        if len(node) != 1 or (tag == "view" and not (isinstance(content, dict) and "leaf" in content)):
            raise _no_node(node)
        return str(tag), content
    return "", node


def _no_node(node: Any) -> Damaged:
    return Damaged(f"the tree holds {str(node)[:80]!r}, which is no node")


def _indexed(nodes: list[Any]) -> dict[str, Any]:
    return {str(index): node for index, node in enumerate(nodes)}


def _members_by_name(content: Mapping[str, Any], mark: str = "") -> dict[str, Any]:
    return {mark + quoted(name): node for name, node in content.items()}


def _keyed(kind: str, pairs: list[Any]) -> Opened:
    members: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    for key, node in pairs:
        text = value(key)
        part = unused(quoted(text if isinstance(text, str) else spelled(key)), members)
        members[part] = node
        if not isinstance(text, str):
            keys[part] = key
    return Opened(kind, members, keys)


def value(node: Any) -> Any:
    """Return the node's null, boolean, number or string; otherwise the node itself."""
    if isinstance(node, dict) and len(node) == 1:
        ((tag, content),) = node.items()
        if tag in ("int", "float", "str"):
            try:
                return MAKERS[tag](content)
            except UNSOUND:
                return node
    return node


def is_plain(value: Any) -> bool:
    """Whether the node is a null, boolean, number or string."""
    return value is None or isinstance(value, bool | int | float | str)


def spelled(node: Any) -> str:
    """Return the node as one line, similar to Python's repr; unavailable types appear by name."""
    simple = value(node)
    if is_plain(simple):
        return repr(simple)
    kind, members, _ = opened(node)
    if members is None:
        import json

        return f"<{kind} {json.dumps(tagged(node)[1])}>"
    if kind in ("dict", "ordered"):
        return "{" + ", ".join(f"{part}: {spelled(member)}" for part, member in members.items()) + "}"
    inner = ", ".join(map(spelled, members.values()))
    brackets = {"list": "[]", "tuple": "()", "set": "{}"}.get(kind)
    return f"{brackets[0]}{inner}{brackets[1]}" if brackets else f"<{kind} {inner}>"


def plain(node: Any) -> Any:
    """Return the node for JSON: mappings and lists unchanged; an unavailable type becomes an object that names it."""
    simple = value(node)
    if is_plain(simple):
        return simple
    kind, members, _ = opened(node)
    if members is None:
        return {kind: tagged(node)[1]}
    if kind in ("list", "tuple", "set"):
        return [*map(plain, members.values())]
    inner = {part: plain(member) for part, member in members.items()}
    return inner if kind in ("dict", "ordered") else {kind: inner}


def at(node: Any, *parts: str) -> Any:
    """Return the node under `parts`; null when there is none."""
    for part in parts:
        node = (opened(node).members or {}).get(part)
    return node


def ends(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every leaf, view and value in `node` that has no members, with its path; parts are quoted as in leaf keys."""
    members = None if tagged(node)[0] in LEAVES else opened(node).members
    if members is None:
        yield path, node
    for part, member in (members or {}).items():
        yield from ends(member, (*path, part))


def described(node: Any) -> list[tuple[str, str]]:
    """Yield names and values of the members of `node`, each as one line."""
    return [(part, spelled(member)) for part, member in (opened(node).members or {}).items()]


def values(node: Any) -> list[tuple[str, str]]:
    """Paths and values of everything in `node` that is neither a leaf nor a container of others, each in a line."""
    return list(_values(node, ""))


def _values(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if tagged(node)[0] in LEAVES:
        return
    kind, members, _ = opened(node)
    inner = (members or {}).items()
    in_a_row = kind == "list" and not any(isinstance(each, list | dict) for _, each in inner)
    compact = not inner or kind in ("tuple", "set", "frozenset") or in_a_row
    if compact and not any(tagged(each)[0] in LEAVES for _, each in ends(node)):
        yield path or "state", spelled(node)
        return
    for part, member in inner:
        yield from _values(member, f"{path}/{part}" if path else part)
