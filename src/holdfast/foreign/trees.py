"""Converts the values of a pickle or a JSON text into a tree like Holdfast's, with the tensors in
them as its leaves.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..errors import Damaged, StoreError
from ..legible import is_text
from ..state.codec import ITEMSIZE, UNSOUND, c_stride
from ..state.nodes import format_node, quote_key, unused_key
from ..state.nodes import scalar_value as simple
from ..state.tree import INLINE_BYTES, MAX_DEPTH
from ..state.values import NODES
from .leaf import ForeignLeaf, LeafChunk, Place
from .limits import VALUES
from .pickles import DICT, PickledCall, PickledName

_INT_BITS = 1 << 14  # a larger number is not a setting, and is slow to print
_TEXT = 64  # so many characters count as one value
Step = tuple[str, ...]


class TensorStorage(NamedTuple):
    """Bytes that several tensors may share, and the type of items that its pickle gives them."""

    key: str
    dtype: str
    place: Place


Known = Callable[
    ["TreeBuilder", PickledCall, Step], Any
]  # an object and the path to it -> its node


class TreeBuilder:
    """Builds nodes from values. `known` interprets objects; `leaves` collects the tensors."""

    def __init__(
        self, where: Path, known: Mapping[str, Known], storage: Callable[[Any], TensorStorage]
    ) -> None:
        self.where, self.storage = where, storage
        self.leaves: dict[str, ForeignLeaf] = {}
        self._known, self._left = known, VALUES
        self._within: dict[int, Step] = {}
        # identity of tied tensors -> the key of their leaf
        self._same: dict[tuple[Any, ...], str] = {}

    def build_node(self, value: Any, path: Step = ()) -> Any:
        """Return the node of `value`.

        Raises:
            Damaged: an object that is known does not describe what its name says.
            StoreError: it is larger, or nested deeper, than this reads.
        """
        self._count_nodes(1 + (len(value) // _TEXT if isinstance(value, str | bytes) else 0))
        if not isinstance(value, list | tuple | dict | PickledCall) or isinstance(
            value, PickledName
        ):
            return self._build_plain(value, path)
        if id(value) in self._within:
            return custom_node("what contains it", "/".join(self._within[id(value)]))
        if len(self._within) >= MAX_DEPTH:
            raise StoreError(
                f"{self.where}: values more than {MAX_DEPTH} deep in each other; not read"
            )
        self._within[id(value)] = path
        try:
            return self._build_container(value, path)
        finally:
            del self._within[id(value)]

    def _count_nodes(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise StoreError(f"{self.where}: more than {VALUES:,} values; not read")

    def _build_plain(self, value: Any, path: Step) -> Any:
        if isinstance(value, PickledName):
            is_dtype = value.module == "torch" and value.name in ITEMSIZE
            return {"torch.dtype": value.name} if is_dtype else custom_node(str(value), None)
        if isinstance(value, bytes | bytearray):
            return self._build_bytes(bytes(value), path)
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int) and value.bit_length() > _INT_BITS:
            return custom_node("int", f"of {value.bit_length()} bits")
        stands_for_itself = (
            abs(value) <= 2**53
            if isinstance(value, int)
            else is_text(value)
            if isinstance(value, str)
            else math.isfinite(value) and (value != 0 or math.copysign(1, value) == 1)
        )
        if stands_for_itself:
            return value
        made = NODES[type(value)](value)
        return {made.tag: made.content}

    def _build_bytes(self, value: bytes, path: Step) -> Any:
        if len(value) <= INLINE_BYTES:
            return {"bytes": base64.b64encode(value).decode()}
        return self.add_leaf(path, "bytes", (len(value),), value)

    def _build_container(self, value: Any, path: Step) -> Any:
        if isinstance(value, list | tuple):
            nodes = self.build_members(value, path)
            return nodes if isinstance(value, list) else {"tuple": nodes}
        if isinstance(value, dict):
            return self.build_mapping([*value.items()], path)
        known = self._known.get(value.kind)
        if known is None:
            return self.build_unknown(value, path)
        try:
            return known(self, value, path)
        except (*UNSOUND, OverflowError) as error:
            raise Damaged(f"{self.where}: {'/'.join(path)}: not what {value.kind} makes") from error

    def build_members(self, values: Sequence[Any], path: Step) -> list[Any]:
        return [self.build_node(each, (*path, str(index))) for index, each in enumerate(values)]

    def build_mapping(self, pairs: Sequence[tuple[Any, Any]], path: Step, tag: str = DICT) -> Any:
        """Return the node of a mapping; if keys are equal, the last one counts."""
        if tag == DICT and all(type(key) is str and is_text(key) for key, _ in pairs):
            return {
                DICT: {
                    key: self.build_node(each, (*path, quote_key(key)))
                    for key, each in dict(pairs).items()
                }
            }
        keys: dict[bytes, tuple[Any, Any]] = {}
        for key, each in pairs:
            node = self.build_node(key, (*path, "key"))
            keys[msgspec.json.encode(node)] = node, each
        found: dict[str, Any] = {}
        for node, each in keys.values():
            text = simple(node)
            part = unused_key(
                quote_key(text if isinstance(text, str) else format_node(node)), found
            )
            found[part] = [node, self.build_node(each, (*path, part))]
        return {"items" if tag == DICT else tag: [*found.values()]}

    def build_unknown(self, value: PickledCall, path: Step) -> Any:
        """Return a node with the name of what an unpickler would call, and the arguments."""
        inner = (*path, "value")
        parts = {"arguments": value.args, "members": value.items, "state": value.state}
        held: dict[str, Any] = {
            name: part for name, part in parts.items() if part not in ((), [], None)
        }
        if value.pairs:
            held["items"] = pairs = PickledCall(DICT)
            pairs.pairs.extend(value.pairs)
        alone = next(iter(held.values())) if len(held) == 1 else None
        return custom_node(value.kind, self.build_node(held if len(held) > 1 else alone, inner))

    def add_leaf(
        self, path: Step, dtype: str, shape: tuple[int, ...], place: Place | Sequence[LeafChunk]
    ) -> Any:
        """Add a leaf of items in C order; return its node."""
        key = self._key(path)
        self.leaves[key] = ForeignLeaf(key, dtype, shape, place)
        return {"leaf": key}

    def _key(self, path: Step) -> str:
        key = unused_key("/".join(path) or "value", self.leaves)
        self._count_nodes(len(key) // _TEXT)
        return key

    def add_tensor(
        self,
        path: Step,
        storage: TensorStorage,
        offset: int,
        shape: Sequence[int],
        stride: Sequence[int],
    ) -> Any:
        """Add items of a storage, or find the leaf that has the same ones; return the node."""
        sizes = (offset, *shape, *stride)
        if len(shape) != len(stride) or any(
            type(each) is not int or not 0 <= each < 2**62 for each in sizes
        ):
            raise ValueError("no sizes")
        if storage.dtype not in ITEMSIZE or len(shape) > MAX_DEPTH:
            raise ValueError("no tensor that we know")
        steps = tuple(step if extent > 1 else 1 for extent, step in zip(shape, stride, strict=True))
        same = (storage.key, storage.dtype, offset, *shape, "of", *steps)
        if same not in self._same:
            key = self._same[same] = self._key(path)
            item, place = ITEMSIZE[storage.dtype], storage.place
            reach = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True)) + 1
            used = slice(offset * item, (offset + (reach if math.prod(shape) else 0)) * item)
            part = place[used] if isinstance(place, bytes) else place.slice(used.start, used.stop)
            flat = all(
                a == b or n == 1 for a, b, n in zip(stride, c_stride(shape), shape, strict=True)
            )
            self.leaves[key] = ForeignLeaf(
                key, storage.dtype, tuple(shape), part, () if flat else stride
            )
        return {"leaf": self._same[same]}


def custom_node(kind: str, inner: Any) -> Any:
    """Return a tree node for an object whose class is not loaded: its kind, and what it holds."""
    return {"custom": [kind, inner]}
