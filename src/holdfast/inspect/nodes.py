"""Nodes: the tree of a manifest as it stands there, for readers that want no types and build no values (`show`, `diff`)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..errors import Damaged
from ..state.tree import quoted

_PAIRS = {"items", "ordered", "counter"}  # content: [[key, value], ...]
_ITEMS = {"tuple", "set", "frozenset"}  # content: [value, ...]
_NAMED = {"dataclass", "namedtuple", "custom", "enum", "flag"}  # content: [type's name, value]
LEAVES = ("leaf", "view")


class Opened(NamedTuple):
    """A node taken apart: what it is, and its members by the names that leaf keys use."""

    kind: str  # "dict", "tuple", "dataclass Hyper", ...
    members: Mapping[str, Any] | None  # None: a value without members
    keys: Mapping[str, Any] = {}  # of members whose own key is no text: what it is


def opened(node: Any) -> Opened:
    """The node's kind and members.

    Raises:
        Damaged: it is no such node.
    """
    try:
        return _opened(node)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise Damaged(f"the tree holds {str(node)[:80]!r}, which is no node") from error


def _opened(node: Any) -> Opened:
    tag, content = tagged(node)
    if tag == "list":
        return Opened("list", _indexed(content))
    if tag == "dict":
        return Opened("dict", {quoted(key): value for key, value in content.items()})
    if tag in _ITEMS:
        return Opened(tag, _indexed(content))
    if tag in _PAIRS:
        return _keyed("dict" if tag == "items" else tag, content)
    if tag == "ordered_with":
        pairs, attributes = content
        keyed = _keyed("ordered", pairs)
        return keyed._replace(
            members={**(keyed.members or {}), **{f".{quoted(name)}": node for name, node in attributes.items()}}
        )
    if tag == "defaultdict":
        return _keyed(f"defaultdict({content[0]})", content[1])
    if tag == "deque":
        return Opened("deque" if content[0] is None else f"deque(maxlen={content[0]})", _indexed(content[1]))
    if tag in _NAMED:
        return Opened(f"{tag} {content[0]}", _inside(tag, content[1]))
    return Opened(tag, None if not isinstance(content, list) else _indexed(content))


def _inside(tag: str, content: Any) -> Mapping[str, Any] | None:
    if tag == "dataclass":
        return {quoted(name): value for name, value in content.items()}
    if tag == "namedtuple":
        return _indexed(content)
    return {"value": content}


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
            raise Damaged(f"the tree holds {str(node)[:80]!r}, which is no node")
        return str(tag), content
    return "", node


def _indexed(nodes: list[Any]) -> dict[str, Any]:
    return {str(index): node for index, node in enumerate(nodes)}


def _keyed(kind: str, pairs: list[Any]) -> Opened:
    members: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    for key, node in pairs:
        text = value(key)
        name = quoted(text if isinstance(text, str) else spelled(key))
        number, part = 1, name
        while part in members:  # 1 and "1"
            number += 1
            part = f"{name}~{number}"
        members[part] = node
        if not isinstance(text, str):
            keys[part] = key
    return Opened(kind, members, keys)


_SHORT: Mapping[str, Callable[[Any], Any]] = {
    "": lambda content: content,
    "int": lambda content: int(content, 16),
    "float": lambda content: struct.unpack(">d", bytes.fromhex(content))[0],
    "str": lambda content: bytes.fromhex(content).decode("utf-8", "surrogatepass"),
}


def value(node: Any) -> Any:
    """The null, boolean, number or string that the node is; of anything else the node itself."""
    tag, content = tagged(node) if not isinstance(node, dict) or len(node) == 1 else ("?", node)
    try:
        return _SHORT[tag](content) if tag in _SHORT else node
    except (TypeError, ValueError, struct.error):
        return node


def spelled(node: Any) -> str:
    """The node in a line, about as Python would write it; types that are not at hand are named."""
    plain = value(node)
    if plain is None or isinstance(plain, bool | int | float | str):
        return repr(plain)
    kind, members, _ = opened(node)
    if members is None:
        return f"<{kind} {json.dumps(tagged(node)[1])}>"
    if kind in ("dict", "ordered"):
        return "{" + ", ".join(f"{part}: {spelled(member)}" for part, member in members.items()) + "}"
    inner = ", ".join(map(spelled, members.values()))
    brackets = {"list": "[]", "tuple": "()", "set": "{}"}.get(kind)
    return f"{brackets[0]}{inner}{brackets[1]}" if brackets else f"<{kind} {inner}>"


def plain(node: Any) -> Any:
    """The node for JSON: mappings and lists as such; a type that is not at hand becomes an object that names it."""
    simple = value(node)
    if isinstance(simple, float) and simple - simple != 0:
        return str(simple)
    if simple is None or isinstance(simple, bool | int | float | str):
        return simple
    kind, members, _ = opened(node)
    if members is None:
        return {kind: tagged(node)[1]}
    if kind in ("list", "tuple", "set"):
        return [plain(member) for member in members.values()]
    inner = {part: plain(member) for part, member in members.items()}
    return inner if kind in ("dict", "ordered") else {kind: inner}


def at(node: Any, *parts: str) -> Any:
    """The node under `parts`; null when there is none."""
    for part in parts:
        members = opened(node).members
        if members is None or part not in members:
            return None
        node = members[part]
    return node


class NodePlace(NamedTuple):
    """Where the tree refers to a leaf, whole or as a view of it."""

    path: tuple[str, ...]  # quoted, as in leaf keys
    key: str
    view: Mapping[str, Any] | None


def places(node: Any, path: tuple[str, ...] = ()) -> Iterator[NodePlace]:
    """Every reference to a leaf below `node`, in the tree's order."""
    if not isinstance(node, list | dict):
        return
    tag, content = tagged(node)
    if tag == "leaf":
        yield NodePlace(path, str(content), None)
    elif tag == "view":
        yield NodePlace(path, str(content["leaf"]), content)
    else:
        for part, member in (opened(node).members or {}).items():
            yield from places(member, (*path, part))
