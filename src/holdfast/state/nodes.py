"""Nodes: read the tree of a manifest directly. This builds no values, and needs no types or
frameworks.

Malformed nodes raise Damaged, except in `leaf_keys` and `user_types`, which skip them. A tree may
be large or hostile, so every function takes only a few steps for each of its nodes.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import quote

from ..errors import Damaged
from .codec import UNSOUND
from .values import MAKERS

NAMED = ("enum", "flag", "dataclass", "namedtuple", "custom")  # content: [type's name, value]
LEAVES = ("leaf", "view")
# of containers within each other; up to 4 JSON levels each, and Python's own stack ends at 1,000
MAX_DEPTH = 100


def leaf_keys(tree: Any) -> set[str]:
    """Return the leaves that `tree` refers to."""
    return {content for tag, content in _walk_tags(tree) if tag == "leaf" and type(content) is str}


def user_types(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield tags and names of the user's types in `tree`."""
    for tag, content in _walk_tags(tree):
        if tag in NAMED and type(content) is list and content and type(content[0]) is str:
            yield tag, content[0]


def _walk_tags(tree: Any) -> Iterator[tuple[str, Any]]:
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
                    rest += _inner_nodes(tag, content)


def _inner_nodes(tag: str, content: Any) -> Iterable[Any]:
    """Yield nodes under a tag.
    The names of a dict's members and of fields are the user's, not tags.
    """
    if tag in ("ordered_with", "dataclass") and type(content) is list and len(content) == 2:
        return [content[0], *_inner_nodes("dict", content[1])]
    return content.values() if tag == "dict" and type(content) is dict else [content]


def quote_key(text: str) -> str:
    """Return `text`, quoted as a part of a leaf's key."""
    if is_safe(text):
        return text
    # quote() leaves these alone besides letters, digits and "_.-"
    return quote(text, safe="", errors="surrogatepass").replace("~", "%7E") or "%"


is_safe = re.compile(r"[A-Za-z0-9_.-]+").fullmatch


def unused_key(key: str, taken: Mapping[str, Any]) -> str:
    """Return `key`, with a number appended if it is in `taken`: 1 and "1" are quoted alike. "~" is
    never in a quoted key.
    """
    number, chosen = 1, key
    while chosen in taken:
        number += 1
        chosen = f"{key}~{number}"
    return chosen


class ParsedNode(NamedTuple):
    """A parsed node: its kind, and its members by the names that leaf keys use."""

    kind: str  # "dict", "tuple", "dataclass Hyper", ...
    members: Mapping[str, Any] | None  # None: a value without members
    keys: Mapping[str, Any] = {}  # members whose key is not text -> that key

    @property
    def containers(self) -> list[tuple[str, Any]]:
        """The members that may have members of their own; the others are plain."""
        return [
            (part, node)
            for part, node in (self.members or {}).items()
            if type(node) in (list, dict)
        ]


class _Indexed(Mapping[str, Any]):
    """Nodes of an array by their index as text.
    The names of millions are made when they are asked for.
    """

    def __init__(self, nodes: list[Any]) -> None:
        if type(nodes) is not list:
            raise TypeError
        self.nodes = nodes

    def __getitem__(self, part: str) -> Any:
        if len(part) > 18 or not part.isdecimal() or int(part) >= len(self.nodes):
            raise KeyError(part)
        return self.nodes[int(part)]

    def __iter__(self) -> Iterator[str]:
        return map(str, range(len(self.nodes)))

    def __len__(self) -> int:
        return len(self.nodes)

    def items(self) -> Any:
        return zip(map(str, count()), self.nodes, strict=False)


def parse_node(node: Any, depth: int = 0) -> ParsedNode:
    """Return the node's kind and members. `depth`: the number of containers around it.

    Raises:
        Damaged: it is no such node, or lies deeper than any that is ever saved.
    """
    if depth > MAX_DEPTH:
        raise _too_deep()
    try:
        return _parse_tagged(*split_tag(node), depth)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise _malformed(node) from error


def _parse_tagged(tag: str, content: Any, depth: int) -> ParsedNode:
    if tag == "packed":
        return ParsedNode("list", _packed_members(content))
    if tag == "deque" and type(content[1]) is dict:
        kind = tag if content[0] is None else f"deque(maxlen={_abbreviate(content[0])})"
        return ParsedNode(kind, _packed_members(content[1]["packed"]))
    if tag == "tuple" and type(content) is dict:
        return ParsedNode(tag, _packed_members(content["packed"]))
    if tag in ("list", "tuple", "set", "frozenset"):
        return ParsedNode(tag, _Indexed(content))
    if tag == "set_table":
        return ParsedNode("set", _Indexed(content[0]))
    if tag == "dict":
        return ParsedNode(tag, _members_by_name(content))
    if tag in ("items", "ordered", "counter"):
        return _parse_mapping("dict" if tag == "items" else tag, content, depth)
    if tag == "ordered_with":
        pairs, attributes = content
        kind, members, keys = _parse_mapping("ordered", pairs, depth)
        return ParsedNode(kind, {**(members or {}), **_members_by_name(attributes, ".")}, keys)
    if tag in ("defaultdict", "defaultdict_of"):
        return _parse_mapping(f"defaultdict({_abbreviate(content[0])})", content[1], depth)
    if tag == "deque":
        return ParsedNode(
            tag if content[0] is None else f"deque(maxlen={_abbreviate(content[0])})",
            _Indexed(content[1]),
        )
    if tag in NAMED:
        name, inner = content
        members = (
            _members_by_name(inner)
            if tag == "dataclass"
            else _Indexed(inner)
            if tag == "namedtuple"
            else {"value": inner}
        )
        return ParsedNode(f"{tag} {name}", members)
    return ParsedNode(tag, _Indexed(content) if isinstance(content, list) else None)


def _packed_members(parts: list[Any]) -> dict[str, Any]:
    """The columns of packed rows, each under the name that its leaf has,
    and the rows that are not packed.
    """
    members: dict[str, Any] = {}
    start = 0
    for rows, content in parts:
        if rows is None:
            members |= {str(start + at): node for at, node in enumerate(content)}
            start += len(content)
        else:
            members |= _column_members(f"{start}-{start + rows}", content)
            start += rows
    return members


def _column_members(name: str, column: Any, depth: int = 0) -> dict[str, Any]:
    ((tag, content),) = column.items()
    if depth > MAX_DEPTH:
        raise _too_deep()
    if tag == "leaf":
        return {name: column}
    if tag in ("floats", "ints", "bools", "scalars", "same"):
        return {name: content}
    inner: list[tuple[str, Any]] = []
    if tag == "tuple":
        inner = [(f"{name}.{at}", each) for at, each in enumerate(content)]
    elif tag == "namedtuple":
        inner = [(f"{name}.{at}", each) for at, each in enumerate(content[1])]
    elif tag == "custom":
        inner = [(name, content[1])]
    elif tag == "dict":
        inner = [(f"{name}.{quote_key(key)}", each) for key, each in content.items()]
    elif tag in ("list", "tuples"):
        inner = [(f"{name}._", content[1])]
    elif tag == "kinds":
        inner = [(f"{name}-{at}", each) for at, each in enumerate(content[1])]
    else:
        return {name: content}
    found = {
        key: node
        for part, each in inner
        for key, node in _column_members(part, each, depth + 1).items()
    }
    if tag == "kinds":
        found[f"{name}.kind"] = content[0]
    if tag in ("list", "tuples") and type(content[0]) is dict:
        found[f"{name}.len"] = content[0]
    return found


def split_tag(node: Any) -> tuple[str, Any]:
    """Return the node's tag and what is under it. Nodes without a tag have "list" (arrays) or ""
    (others).

    Raises:
        Damaged: it is no such node.
    """
    if isinstance(node, list):
        return "list", node
    if isinstance(node, dict):
        tag, content = next(iter(node.items()), ("", None))
        if tag == "long_str" and len(node) == 1:  # shown as the leaf that has its bytes
            return split_tag(content)
        key = content.get("leaf") if tag == "view" and isinstance(content, dict) else content
        if len(node) != 1 or (tag in LEAVES and type(key) is not str):
            raise _malformed(node)
        return str(tag), content
    return "", node


def _malformed(node: Any) -> Damaged:
    return Damaged(f"the tree holds {_abbreviate(node)}, which is no node")


def _abbreviate(value: Any) -> str:
    """Return a few words of any JSON, however large it is."""
    text = value if type(value) is str else reprlib.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _members_by_name(content: Mapping[str, Any], mark: str = "") -> dict[str, Any]:
    return {mark + quote_key(name): node for name, node in content.items()}


def _parse_mapping(kind: str, pairs: list[Any], depth: int) -> ParsedNode:
    members: dict[str, Any] = {}
    keys: dict[str, Any] = {}
    for key, node in pairs:
        text = scalar_value(key)
        part = unused_key(
            quote_key(text if isinstance(text, str) else format_node(key, depth=depth + 1)), members
        )
        members[part] = node
        if not isinstance(text, str):
            keys[part] = key
    return ParsedNode(kind, members, keys)


def scalar_value(node: Any) -> Any:
    """Return the node's null, boolean, number or string; otherwise the node itself."""
    if isinstance(node, dict) and len(node) == 1:
        ((tag, content),) = node.items()
        if tag in ("int", "float", "str"):
            try:
                return MAKERS[tag](content)
            except UNSOUND:
                return node
    return node


def is_scalar(value: Any) -> bool:
    """Whether the node is a null, boolean, number or string."""
    return value is None or isinstance(value, bool | int | float | str)


def format_node(node: Any, most: int | None = None, depth: int = 0) -> str:
    """Return the node as one line, similar to Python's repr; unavailable types appear by name.

    Of more than `most` characters, return the first ones and "...".
    """
    pieces: list[str] = []
    room = most
    for piece in _format_pieces(node, most, depth):
        pieces.append(piece)
        if room is not None and (room := room - len(piece)) < 0:
            return "".join(pieces)[: (most or 0) - 3] + "..."
    return "".join(pieces)


def _format_pieces(node: Any, most: int | None, depth: int) -> Iterator[str]:
    simple = scalar_value(node)
    if is_scalar(simple):
        yield _format_scalar(simple, most)
        return
    kind, members, _ = parse_node(node, depth)
    if members is None:
        yield f"<{kind} {_format_text(split_tag(node)[1])}>"
        return
    mapping = kind in ("dict", "ordered")
    before, after = ("{", "}") if mapping else _BRACKETS.get(kind, (f"<{kind} ", ">"))
    for part, member in members.items():
        yield f"{before}{part}: " if mapping else before
        yield from _format_pieces(member, most, depth + 1)
        before = ", "
    yield after if members else before + after


_BRACKETS = {"list": ("[", "]"), "tuple": ("(", ")"), "set": ("{", "}")}


def _format_scalar(simple: Any, most: int | None) -> str:
    if isinstance(simple, str) and most is not None:
        simple = simple[: most + 1]
    return str(printable_number(simple)) if type(simple) is int else repr(simple)


def printable_number(value: int) -> int | str:
    """Return `value`; if Python spells no decimal number of that length, the text of its
    hexadecimal digits.

    Source: Python's integer string conversion length limitation, 4,300 digits if nobody changes it.
    """
    try:
        str(value)
    except ValueError:
        return hex(value)
    return value


def _format_text(content: Any) -> str:
    import json  # imported late: few starts need it

    try:
        return json.dumps(content)
    except RecursionError as error:
        raise _too_deep() from error


def _too_deep() -> Damaged:
    return Damaged(f"the tree is more than {MAX_DEPTH} containers deep")


def to_json(node: Any, depth: int = 0) -> Any:
    """Return the node for JSON: mappings and lists unchanged; an unavailable type becomes an object
    that names it.

    Numbers are as `number` returns them.
    """
    simple = scalar_value(node)
    if is_scalar(simple):
        return printable_number(simple) if type(simple) is int else simple
    kind, members, _ = parse_node(node, depth)
    if members is None:
        return {kind: split_tag(node)[1]}
    if kind in ("list", "tuple", "set"):
        return [
            to_json(member, depth + 1) if type(member) in (list, dict) else member
            for member in members.values()
        ]
    inner = {part: to_json(member, depth + 1) for part, member in members.items()}
    return inner if kind in ("dict", "ordered") else {kind: inner}


def node_at(node: Any, *parts: str) -> Any:
    """Return the node under `parts`; null when there is none."""
    for part in parts:
        node = (parse_node(node).members or {}).get(part)
    return node


class PathEnds(NamedTuple):
    """The leaves and views of a node with their paths, and the number of other values."""

    # leaves and views, each with its path; parts are quoted as in leaf keys
    leaves: list[tuple[tuple[str, ...], Any]]
    values: int  # how many others there are


def find_path_ends(node: Any) -> PathEnds:
    """Find every leaf and view in `node`, in order, and count the values that have no members."""
    leaves: list[tuple[tuple[str, ...], Any]] = []
    values = 0
    rest: list[tuple[tuple[str, ...], Any]] = [((), node)]
    while rest:
        path, each = rest.pop()
        if split_tag(each)[0] in LEAVES:
            leaves.append((path, each))
            continue
        found = parse_node(each, len(path))
        inner = found.containers
        values += 1 if found.members is None else len(found.members) - len(inner)
        rest += [((*path, part), member) for part, member in reversed(inner)]
    return PathEnds(leaves, values)


def describe_members(node: Any, most: int | None) -> Iterator[tuple[str, str]]:
    """Yield names and values of the members of `node`, each as one line of at most `most`
    characters.
    """
    for part, member in (parse_node(node).members or {}).items():
        yield part, format_node(member, most, 1)


def iterate_values(node: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield paths and nodes of everything in `node` that is neither a leaf nor a container of
    others.
    """
    if split_tag(node)[0] in LEAVES:
        return
    found = parse_node(node, depth)
    compact = not found.members or found.kind in ("tuple", "set", "frozenset")
    in_a_row = found.kind == "list" and not found.containers
    if in_a_row or (compact and not any(tag in LEAVES for tag, _ in _walk_tags(node))):
        yield path or "state", node
        return
    for part, member in (found.members or {}).items():
        place = f"{path}/{part}" if path else part
        if type(member) in (list, dict):
            yield from iterate_values(member, place, depth + 1)
        else:
            yield place, member
