"""References: the leaves and the user's types that a tree names, found without building a value.

`INSIDE` says for each tag where the nodes in its content are. A tag without an entry has one node, its content.
What is malformed has no nodes here: the reader refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

NAMED = ("enum", "flag", "dataclass", "namedtuple", "custom")  # content: [type's name, value]

_Nodes = list[Any]


def _none(_: Any) -> _Nodes:
    return []


def _items(content: Any) -> _Nodes:
    """[node, ...]"""
    return content if type(content) is list else []


def _fields(content: Any) -> _Nodes:
    """{name: node, ...}: the names are the user's, and no tags."""
    return list(content.values()) if type(content) is dict else []


def _pairs(content: Any) -> _Nodes:
    """[[key, value], ...]"""
    return [node for pair in _items(content) for node in _items(pair)]


def _second(inner: Callable[[Any], _Nodes]) -> Callable[[Any], _Nodes]:
    """[something that is no node, what `inner` looks into]"""
    return lambda content: inner(content[1]) if type(content) is list and len(content) == 2 else []


def _ordered_with(content: Any) -> _Nodes:
    """[pairs, fields]"""
    return _pairs(content[0]) + _second(_fields)(content) if type(content) is list and content else []


INSIDE: Mapping[str, Callable[[Any], _Nodes]] = {
    "int": _none,
    "float": _none,
    "str": _none,
    "bytes": _none,
    "leaf": _none,
    "view": _none,
    "tuple": _items,
    "set": _items,
    "frozenset": _items,
    "dict": _fields,
    "items": _pairs,
    "ordered": _pairs,
    "ordered_with": _ordered_with,
    "defaultdict": _second(_pairs),
    "counter": _pairs,
    "deque": _second(_items),
    "enum": _none,
    "flag": _none,
    "dataclass": _second(_fields),
    "namedtuple": _second(_items),
    "custom": _second(lambda content: [content]),
}


def leaf_keys(tree: Any) -> set[str]:
    """The leaves that `tree` refers to."""
    keys = set()
    for tag, content in _tagged(tree):
        key = content.get("leaf") if tag == "view" and type(content) is dict else content
        if tag in ("leaf", "view") and type(key) is str:
            keys.add(key)
    return keys


def named(tree: Any) -> Iterator[tuple[str, str]]:
    """Tags and names of the user's types in `tree`."""
    for tag, content in _tagged(tree):
        if tag in NAMED and type(content) is list and content and type(content[0]) is str:
            yield tag, content[0]


def _tagged(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every node below `tree` that is a tag with its content."""
    rest = [tree]
    while rest:
        node = rest.pop()
        if type(node) is list:
            rest += node
        elif type(node) is dict:
            for tag, content in node.items():
                yield tag, content
                rest += INSIDE[tag](content) if tag in INSIDE else [content]
