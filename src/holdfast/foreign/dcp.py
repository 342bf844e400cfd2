"""Folders of torch.distributed.checkpoint: `.metadata`,
a pickle, and files with one zip file for each piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .. import scan
from ..errors import Damaged
from ..state.codec import ITEMSIZE, UNSOUND
from ..state.nodes import quote_key
from ..store.boxes import Box, is_tiled
from ..store.problems import Problem
from . import pickles, pt, safetensors
from .content import CRC, ForeignContent
from .known import KNOWN
from .leaf import LeafChunk, Place
from .pickles import PickledCall, PickledName
from .pt import imported_names
from .region import Region, whole_file
from .trees import Step, TreeBuilder

METADATA = ".metadata"
_ROOM = "torch.distributed.checkpoint."
_OWN = f"{_ROOM}metadata.", f"{_ROOM}filesystem.", f"{_ROOM}planner.", "torch.serialization."


class _Item(NamedTuple):
    """One piece of a tensor, or one value, as it lies in a file."""

    region: Region
    name: str
    at: tuple[int, ...] | None


def read(folder: Path, _: frozenset[str]) -> ForeignContent:
    """Return what a folder of DCP's holds.

    Raises:
        Damaged: its `.metadata` is cut, or is none.
    """
    path = folder / METADATA
    with whole_file(path).open() as file:
        value = pickles.read(file, path)
    flaws: list[Problem] = []
    try:
        items = {
            (each.name, each.at): each for each in _items(folder, value.get("storage_data"), flaws)
        }
        wanted = _dict_items(value.get("state_dict_metadata"))
        paths = (
            {name: _parse_path(each) for name, each in _dict_items(value.get("planner_data"))}
            if _is_save_plan(value)
            else {}
        )
        tree = TreeBuilder(path, KNOWN, pt.refuse_storage)
        root: dict[str, Any] = {}
        for name, facts in wanted:
            _put_node(
                root,
                paths.get(name) or (name,),
                _build_node(tree, (name, facts), items, paths.get(name) or (name,), flaws),
            )
    except (*UNSOUND, OverflowError) as error:
        raise Damaged(f"{path}: not what torch.distributed.checkpoint writes") from error
    files = sorted({each.region.path for each in items.values()})
    foreign = [
        name for name in imported_names(value).get("would import", ()) if not name.startswith(_OWN)
    ]

    def check() -> Iterator[Problem]:
        for item in items.values():
            if scan.exists(item.region.path):
                yield from _item_problems(item)

    return ForeignContent(
        "torch.distributed.checkpoint",
        {"dict": root},
        tree.leaves,
        [path, *files],
        facts={"would import": foreign} if foreign else {},
        proof=CRC,
        flaws=flaws,
        check=check,
    )


def _dict_items(value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, PickledCall):
        raise TypeError("no dict")
    return value.pairs


def _is_save_plan(value: PickledCall) -> bool:
    return isinstance(value.get("planner_data"), PickledCall)


def _parse_path(value: Any) -> Step:
    if not isinstance(value, tuple) or not value or len(value) > 100:
        raise TypeError("no path")
    return tuple(map(str, value))


def _items(folder: Path, data: Any, flaws: list[Problem]) -> Iterator[_Item]:
    """Yield the pieces; add those that lie beyond the end of their file to `flaws`."""
    sizes: dict[str, int | None] = {}
    for index, info in _dict_items(data):
        name, at = index.get("fqn"), index.get("offset")
        file, offset, length = (info.get(key) for key in ("relative_path", "offset", "length"))
        if (
            not isinstance(file, str)
            or "/" in file
            or "\0" in file
            or file in ("", ".", "..")
            or type(name) is not str
        ):
            raise ValueError("a file outside the folder")
        if type(offset) is not int or type(length) is not int or min(offset, length) < 0:
            raise ValueError("no place")
        if file not in sizes:
            sizes[file] = (folder / file).stat().st_size if scan.is_file(folder / file) else None
            flaws += (
                [] if scan.is_file(folder / file) else [Problem(folder / file, 0, 0, "missing")]
            )
        size = sizes[file]
        if size is not None and offset + length > size:
            flaws.append(
                Problem(folder / file, size, offset + length, f"cut: {name!r} goes on to there")
            )
        yield _Item(
            Region(folder / file, offset, length), name, None if at is None else _parse_sizes(at)
        )


def _parse_sizes(value: Any) -> tuple[int, ...]:
    found = (
        value.args[0] if isinstance(value, PickledCall) and value.kind == "torch.Size" else value
    )
    if not isinstance(found, tuple) or any(
        type(each) is not int or not 0 <= each < 2**62 for each in found
    ):
        raise TypeError("no sizes")
    return found


def _build_node(
    tree: TreeBuilder,
    wanted: tuple[str, Any],
    items: dict[tuple[str, Any], _Item],
    path: Step,
    flaws: list[Problem],
) -> Any:
    name, facts = wanted
    quotes = tuple(map(quote_key, path))
    if not facts.kind.endswith(".TensorStorageMetadata"):
        return _read_value(tree, items.get((name, None)), quotes, flaws)
    shape, dtype = _parse_sizes(facts.get("size")), facts.get("properties").state[0]
    if not isinstance(dtype, PickledName) or dtype.name not in ITEMSIZE:
        raise TypeError("no dtype")
    pieces: list[LeafChunk] = []
    for chunk in facts.get("chunks"):
        at, extent = _parse_sizes(chunk.get("offsets")), _parse_sizes(chunk.get("sizes"))
        item = items.get((name, at)) or items.get((name, None))
        if item is None:
            flaws.append(
                Problem(
                    tree.where, 0, 0, f"{name!r}: nothing says where its piece at {list(at)} lies"
                )
            )
        else:
            pieces.append(LeafChunk(at, extent, item.region.path, partial(_tensor_place, item)))
    if not is_tiled(shape, [Box(each.at, each.shape) for each in pieces]):
        flaws.append(Problem(tree.where, 0, 0, f"{name!r}: its pieces overlap, or leave holes"))
    return tree.add_leaf(quotes, dtype.name, shape, pieces)


def _read_value(tree: TreeBuilder, item: _Item | None, path: Step, flaws: list[Problem]) -> Any:
    """Read a value that is no tensor: a number, a list, a generator's state."""
    if item is None:
        flaws.append(Problem(tree.where, 0, 0, f"{'/'.join(path)}: nothing says where it lies"))
        return None
    try:
        content = pt.read(item.region, path)
    except Damaged as error:
        flaws.append(_problem(item, str(error).partition(": ")[2]))
        return {"custom": ["damaged", None]}
    tree.leaves.update(content.leaves)
    return content.tree


def _tensor_place(item: _Item) -> Place:
    """Return the bytes of a piece: a zip file of torch's with one tensor, or a safetensors file."""
    content = _open_item(item)
    for leaf in content.leaves.values():
        return bytes(leaf.read())
    raise Damaged(f"{item.region.path}: {item.name!r}: no tensor is there")


def _open_item(item: _Item) -> ForeignContent:
    with item.region.open() as file:
        head = file.read(4)
    return (
        pt.read(item.region)
        if head == b"PK\3\4" or not head[:1].isascii()
        else safetensors.read(item.region)
    )


def _item_problems(item: _Item) -> Iterator[Problem]:
    try:
        content = _open_item(item)
    except Damaged as error:
        yield _problem(item, str(error).partition(": ")[2])
        return
    for problem in (*content.problems, *content.check()):
        yield problem._replace(what=f"{item.name}: {problem.what}")


def _problem(item: _Item, what: str) -> Problem:
    return Problem(
        item.region.path,
        item.region.start,
        item.region.start + item.region.size,
        f"{item.name}: {what}",
    )


def _put_node(root: dict[str, Any], path: Step, node: Any) -> None:
    """Put a node at its path in the tree; missing steps become mappings."""
    for part in path[:-1]:
        inner = root.setdefault(part, {"dict": {}})
        if not isinstance(inner, dict) or not isinstance(inner.get("dict"), dict):
            raise TypeError("a value that has members")
        root = inner["dict"]
    root[path[-1]] = node
