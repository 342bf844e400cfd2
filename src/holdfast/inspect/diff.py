"""Diff: how the states of two checkpoints differ. Nothing is rounded, and there is no tolerance.

Compared: step, phase and epoch; the tree with every value in it, bit for bit; every leaf's kind,
dtype, shape, layout and bytes; which leaves are tied; files that a caller wrote. Plain mappings are
equal in any order, as in Python. Not compared: when, where, by which command and attempt they were
made, their parents, notes, metrics and documents.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec

from ..errors import Damaged, UsageError
from ..foreign.checkpoint import ForeignCheckpoint
from ..state import nodes
from ..store import reading, streaming
from ..store.checkpoint import Checkpoint
from ..store.parts import own_key, top_members
from ..store.stored import Stored, StoredPieces, leaves_of
from .alignment import Alignment, align
from .distance import Distance, in_ulps, measure_distance, ulps
from .tensors import Tensor, select_tensors

RNG = "holdfast/rng/"
POSITION = "holdfast/position"
MOST_LETTERS = 60  # of a value
_ITSELF = {"device", "parameter"}  # attributes of a leaf's former location, not of its content


_OF_RANK = re.compile(r"@\d+/")  # precedes what belongs to one rank only


class Difference(NamedTuple):
    """One difference between checkpoints `a` and `b`."""

    where: str  # a leaf's key, or the place in the tree spelled like one
    kind: (
        # "only in a", "only in b", "type", "dtype", "shape", "layout", "bytes", "value", "order",
        # "ties" or "rng"
        str
    )
    what: str
    distance: Distance | None = None

    @property
    def area(self) -> str:
        """The kind of state in which to look: "rng", "position" or "state"."""
        where = _OF_RANK.sub("", self.where)
        if where.startswith(RNG):
            return "rng"
        return "position" if where.startswith(("position/", POSITION)) else "state"

    def __str__(self) -> str:
        label = "" if self.area == "state" or self.kind == "rng" else f"{self.area}: "
        return f"{self.where}: {label}{self.what}"


def compare(
    a: Checkpoint, b: Checkpoint, exempt: Iterable[str] = (), *, read: bool = False
) -> list[Difference]:
    """Return the differences, sorted by place. Leaves are compared by recorded digests, or with
    `read` by their bytes.

    `exempt` names places to leave out, with all below them; `*` stands for any text.

    Raises:
        Damaged: bytes that had to be read are not what was committed, or another program's
            checkpoint is not whole.
        StoreError: the values of another program's checkpoint are not read.
        UsageError: there is nothing that could be compared.
    """
    exempt = tuple(exempt)
    for checkpoint in (a, b):
        if isinstance(checkpoint, ForeignCheckpoint):
            checkpoint.require_whole()
    leaves = _leaf_handles(a), _leaf_handles(b)
    for checkpoint, handles in zip((a, b), leaves, strict=True) if read else ():
        checkpoint.check_layout()
        _verify_all(handles.values())
        checkpoint.check_unread()
    shared = align_tensors(a, b)
    if shared is None:
        found = [
            *_position_differences(a, b),
            *_tree_differences(a, b),
            *_leaf_differences(*leaves, checked=read),
            *_file_differences(a, b),
        ]
    elif not shared.a and not shared.b:
        raise UsageError(
            f"{a.path} and {b.path}: only tensors could be compared, and neither holds one"
        )
    else:
        found = [
            *_member_differences(_tensors(a, shared.a), _tensors(b, shared.b), _tensor_differences)
        ]
    return _merge_generators(each for each in found if not _is_exempt(each.where, exempt))


def align_tensors(a: Checkpoint, b: Checkpoint) -> Alignment | None:
    """Return which tensors belong together if only tensors can be compared; None: everything can
    be.
    """
    if not isinstance(a, ForeignCheckpoint) and not isinstance(b, ForeignCheckpoint):
        return None
    mine, other = _all_tensors(a), _all_tensors(b)
    shared = align(mine, other)
    if not (
        isinstance(a, ForeignCheckpoint)
        and isinstance(b, ForeignCheckpoint)
        and a.content.format == b.content.format
    ):
        return shared
    by_keys, by_names = a.leaves().keys() & b.leaves().keys(), mine.keys() & other.keys()
    return None if shared.pairs == [("", "")] and len(by_keys) >= len(by_names) else shared


def _all_tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    if all(leaf.kind == "bytes" for leaf in checkpoint.leaves().values()):
        return {}
    return {tensor.name: tensor for tensor in select_tensors(checkpoint, None).tensors}


def _tensors(checkpoint: Checkpoint, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the tensors with these names, by the names that a difference gets."""
    return {
        names[name]: tensor for name, tensor in _all_tensors(checkpoint).items() if name in names
    }


def _tensor_differences(name: str, a: Tensor, b: Tensor) -> Iterator[Difference]:
    if a.dtype != b.dtype:
        yield Difference(name, "dtype", f"{a.dtype} in a, {b.dtype} in b")
    if a.shape != b.shape:
        yield Difference(name, "shape", f"{list(a.shape)} in a, {list(b.shape)} in b")
    if (a.dtype, a.shape) == (b.dtype, b.shape):
        yield from _value_differences(name, a.dtype, a.size_bytes, lambda: _paired_chunks(a, b))


def _paired_chunks(a: Tensor, b: Tensor) -> Iterable[tuple[bytearray, bytearray]]:
    return zip(streaming.rechunk(a.chunks()), streaming.rechunk(b.chunks()), strict=True)


def same_state(a: Checkpoint, b: Checkpoint, exempt: Iterable[str] = ()) -> list[Difference]:
    """Return the differences, RNG and position included; every byte of both is read. Empty: they
    are identical.

    Raises:
        Damaged: a byte of either is not what was committed.
    """
    return compare(a, b, exempt, read=True)


def compared_places(
    a: Checkpoint, b: Checkpoint, exempt: Iterable[str], shared: Alignment | None
) -> set[str]:
    """Return the leaves that `compare` compares, or the tensors by the names that are shown."""
    sides = (
        (_leaf_handles(a), _leaf_handles(b))
        if shared is None
        else (_tensors(a, shared.a), _tensors(b, shared.b))
    )
    exempt = tuple(exempt)
    return {each for side in sides for each in side if not _is_exempt(each, exempt)}


def _is_exempt(where: str, exempt: tuple[str, ...]) -> bool:
    return any(
        where.startswith(f"{each}/") or fnmatchcase(where, each) or fnmatchcase(where, f"{each}/*")
        for each in exempt
    )


def _merge_generators(found: Iterable[Difference]) -> list[Difference]:
    """Return one line for each random generator: which of its hundreds of words differs is not
    useful.
    """
    told: dict[str, Difference] = {}
    for each in found:
        rank = (_OF_RANK.match(each.where) or [""])[0]
        source = "/".join(each.where[len(rank) :].split("/")[:3]) if each.area == "rng" else ""
        if source:
            what = f"the state of the random generator {source[len(RNG) :]!r} differs"
            told.setdefault(rank + source, Difference(rank + source, "rng", what))
        else:
            # a leaf and its place in the tree often have the same name
            told[f"{each.where}\0{each.kind}"] = each
    return sorted(told.values(), key=lambda each: (each.where, each.kind))


def _position_differences(a: Checkpoint, b: Checkpoint) -> Iterator[Difference]:
    mine, other = a.manifest, b.manifest
    if isinstance(a, ForeignCheckpoint) or (_has_position(a) and _has_position(b)):
        return  # reported at its place in the tree
    for name in ("step", "phase", "epoch"):
        if getattr(mine, name) != getattr(other, name):
            what = f"{getattr(mine, name)!r} in a, {getattr(other, name)!r} in b"
            yield Difference(f"position/{name}", "value", what)


def _has_position(checkpoint: Checkpoint) -> bool:
    tree = checkpoint.tree
    return isinstance(tree, dict) and nodes.node_at(tree, *POSITION.split("/")) is not None


def _tree_differences(a: Checkpoint, b: Checkpoint) -> Iterator[Difference]:
    try:
        yield from _node_differences("", a.tree, b.tree)
        for rank in range(1, min(a.world, b.world)):
            yield from _rank_tree_differences(
                f"@{rank}", a, b, a.as_rank(rank).tree, b.as_rank(rank).tree
            )
    except RecursionError as error:
        raise Damaged(f"{a.path} or {b.path}: the tree is nested too deeply") from error


def _rank_tree_differences(
    where: str, a: Checkpoint, b: Checkpoint, mine: Any, other: Any
) -> Iterator[Difference]:
    """Return the differences in another rank's tree. Parts that equal rank 0's on both sides are
    already compared.
    """
    first, second, in_a, in_b = (
        top_members(a.tree),
        top_members(b.tree),
        top_members(mine),
        top_members(other),
    )
    if first is None or second is None or in_a is None or in_b is None:
        yield from _node_differences(where, mine, other)
        return
    both = in_a.keys() & in_b.keys()
    told = {
        part for part in both if (in_a[part], in_b[part]) == (first.get(part), second.get(part))
    }
    rests = (
        {"dict": {part: node for part, node in each.items() if part not in told}}
        for each in (in_a, in_b)
    )
    yield from _node_differences(where, *rests)


def _node_differences(where: str, a: Any, b: Any) -> Iterator[Difference]:
    (tag_a, in_a), (tag_b, in_b) = nodes.split_tag(a), nodes.split_tag(b)
    if tag_a in nodes.LEAVES and tag_b in nodes.LEAVES:
        if (tag_a, in_a) != (tag_b, in_b):
            yield Difference(
                where, "ties", f"{_leaf_reference(in_a)} in a, {_leaf_reference(in_b)} in b"
            )
        return
    plain_a, plain_b = nodes.scalar_value(a), nodes.scalar_value(b)
    if nodes.is_scalar(plain_a) or nodes.is_scalar(plain_b):
        if not _is_same(plain_a, plain_b):
            yield Difference(
                where,
                "value",
                f"{_abbreviate(a)} in a, {_abbreviate(b)} in b{_step_text(plain_a, plain_b)}",
            )
        return
    if msgspec.json.encode(a) == msgspec.json.encode(b):
        return
    yield from _container_differences(
        where, nodes.parse_node(a), nodes.parse_node(b), lambda: a == b
    )


def _container_differences(
    where: str, a: nodes.ParsedNode, b: nodes.ParsedNode, same: Callable[[], bool]
) -> Iterator[Difference]:
    mine, other = a.members, b.members
    if a.kind != b.kind:
        yield Difference(where, "type", f"{_truncate(a.kind)} in a, {_truncate(b.kind)} in b")
    elif mine is None or other is None or a.kind in ("set", "frozenset"):
        if not same():
            yield Difference(where, "value", f"one {_truncate(a.kind)} in a, another in b")
    else:
        yield from _member_differences(mine, other, _node_differences, where)
        for part in a.keys.keys() | b.keys.keys():
            if part in mine and part in other and a.keys.get(part) != b.keys.get(part):
                yield Difference(f"{where}/{part}", "type", "its key is of another type")
        if a.kind == "ordered" and mine.keys() == other.keys() and [*mine] != [*other]:
            yield Difference(where, "order", "the same keys in another order")


def _member_differences(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    pair: Callable[[str, Any, Any], Iterable[Difference]],
    where: str = "",
) -> Iterator[Difference]:
    """Yield the results of `pair` for each common member,
    and the members that only one side has.
    """
    for part, mine in a.items():
        other = b.get(part, _ABSENT)
        if other is _ABSENT:
            yield Difference(_join_path(where, part), "only in a", "only in a")
        elif not _is_equal_scalar(mine, other):
            yield from pair(_join_path(where, part), mine, other)
    for part in b:
        if part not in a:
            yield Difference(_join_path(where, part), "only in b", "only in b")


_ABSENT = object()


def _join_path(where: str, part: str) -> str:
    return f"{where}/{part}" if where else part


def _is_equal_scalar(a: Any, b: Any) -> bool:
    """Return whether both are the same text or integer: a fast answer for most of what a tree
    holds.
    """
    return type(a) is type(b) and type(a) in (str, int) and bool(a == b)


def _leaf_reference(content: Any) -> str:
    return (
        f"leaf {content!r}"
        if isinstance(content, str)
        else f"a view of leaf {content.get('leaf')!r}"
    )


def _is_same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    return struct.pack("<d", a) == struct.pack("<d", b) if isinstance(a, float) else bool(a == b)


def _abbreviate(node: Any) -> str:
    return nodes.format_node(node, MOST_LETTERS)


def _truncate(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


def _step_text(a: Any, b: Any) -> str:
    if not isinstance(a, float) or not isinstance(b, float) or math.isnan(a) or math.isnan(b):
        return ""
    apart = ulps(a, b)
    return " (the signs differ)" if apart is None else f" ({in_ulps(apart)} apart)"


def _leaf_differences(
    a: Mapping[str, Stored], b: Mapping[str, Stored], *, checked: bool
) -> Iterator[Difference]:
    def pair(key: str, mine: Stored, other: Stored) -> Iterator[Difference]:
        yield from _description_differences(key, mine, other)
        yield from _byte_differences(key, mine, other, checked=checked)

    return _member_differences(a, b, pair)


def _leaf_handles(checkpoint: Checkpoint) -> dict[str, Stored]:
    """Return the leaves of all ranks: a rank's own under a key with its number, divided
    ones whole.
    """
    found = checkpoint.leaves()
    for rank in range(1, checkpoint.world):
        view = checkpoint.as_rank(rank)
        prefix = own_key(rank, "")
        own = (key[len(prefix) :] for key in view.manifest.leaves if key.startswith(prefix))
        held = {key: view.leaf(key) for key in own}
        found |= {
            key if isinstance(leaf, StoredPieces) else prefix + key: leaf
            for key, leaf in held.items()
        }
    return found


def _description_differences(key: str, a: Stored, b: Stored) -> Iterator[Difference]:
    if (a.kind, a.dtype) != (b.kind, b.dtype):
        yield Difference(key, "dtype", f"{a.kind} {a.dtype} in a, {b.kind} {b.dtype} in b")
    if a.shape != b.shape:
        yield Difference(key, "shape", f"{list(a.shape)} in a, {list(b.shape)} in b")
    for name in sorted({*a.attrs, *b.attrs} - _ITSELF):
        if a.attrs.get(name) != b.attrs.get(name):
            yield Difference(
                key, "layout", f"{name} {a.attrs.get(name)!r} in a, {b.attrs.get(name)!r} in b"
            )


def _byte_differences(key: str, a: Stored, b: Stored, *, checked: bool) -> Iterator[Difference]:
    """Compare the bytes of leaves whose digests differ, a few at a time; unless `checked`, with
    their digests first.
    """
    if (a.dtype, a.shape, a.size_bytes) != (b.dtype, b.shape, b.size_bytes) or _leaf_digests(
        a
    ) == _leaf_digests(b):
        return
    if not checked:
        _verify_all([a, b])
    yield from _value_differences(
        key,
        a.dtype,
        a.size_bytes,
        lambda: zip(streaming.chunks(a), streaming.chunks(b), strict=True),
    )


# yields the bytes of both from the beginning
_Pairs = Callable[[], Iterable[tuple[bytearray, bytearray]]]


def _value_differences(
    key: str, dtype: str, size_bytes: int, pairs: _Pairs
) -> Iterator[Difference]:
    """Compare the values of two leaves a few bytes at a time; yield how far apart they are."""
    far = measure_distance(dtype, size_bytes, pairs())
    if far.differing if far else any(mine != other for mine, other in pairs()):
        yield Difference(key, "bytes", str(far) if far else "its bytes differ", far)


def _verify_all(found: Iterable[Stored]) -> None:
    """Read every byte of these leaves and compare the digests.

    Raises:
        Damaged: it is not what was committed.
    """
    reading.read_leaves([(leaf, None) for stored in found for leaf in leaves_of(stored)])


def _leaf_digests(stored: Stored) -> list[tuple[Any, str]]:
    """Return the digests of a leaf's pieces: equal for leaves with the same bytes in the same
    pieces.
    """
    if isinstance(stored, StoredPieces):
        return [(piece.box, piece.leaf.digest) for piece in stored.pieces]
    return [(None, stored.digest)]


def _file_differences(a: Checkpoint, b: Checkpoint) -> Iterator[Difference]:
    """Compare files without leaves, which a caller wrote into `Store.directory`. Which shard holds
    which leaf is not compared.
    """

    def pair(name: str, mine: Any, other: Any) -> Iterable[Difference]:
        return [] if mine == other else [Difference(name, "bytes", "the file's bytes differ")]

    return _member_differences(_files_without_leaves(a), _files_without_leaves(b), pair)


def _files_without_leaves(checkpoint: Checkpoint) -> dict[str, Any]:
    manifest = checkpoint.manifest
    known = {leaf.shard for leaf in manifest.leaves.values()} | {
        each.part for each in manifest.ranks or ()
    }
    return {name: file for name, file in manifest.files.items() if name not in known}
