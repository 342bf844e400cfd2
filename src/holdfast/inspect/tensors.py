"""Names a checkpoint's tensors and writes them in other programs' formats. No framework is
needed.
"""

from __future__ import annotations

import itertools
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from ..errors import Damaged, NotFound, UsageError
from ..state import nodes
from ..state.codec import ITEMSIZE, ML_DTYPES, SAFETENSORS
from ..store import reading, streaming
from ..store.checkpoint import Checkpoint
from ..store.parts import is_cut, top_members
from ..store.stored import Stored, StoredLeaf, files_of, leaves_of

# Source: numpy.lib.format, version 1.0, and the array interface's type strings.
_NPY = {
    "bool": "|b1",
    "uint8": "|u1",
    "int8": "|i1",
    "uint16": "<u2",
    "int16": "<i2",
    "float16": "<f2",
    "uint32": "<u4",
    "int32": "<i4",
    "float32": "<f4",
    "uint64": "<u8",
    "int64": "<i8",
    "float64": "<f8",
    "complex64": "<c8",
    "complex128": "<c16",
}


Chunk = bytes | bytearray
MOST_DIMENSIONS = 64  # NumPy's limit, and more than torch's programs use


class Tensor(NamedTuple):
    """One tensor to write."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    leaf: Stored
    view: Mapping[str, Any] | None

    @property
    def size_bytes(self) -> int:
        return (
            math.prod(self.shape) * ITEMSIZE[self.dtype]
            if self.view is not None
            else self.leaf.size_bytes
        )

    @property
    def identity(self) -> str:
        """Identifies the items of the leaf: equal for tied tensors."""
        return f"{self.leaf.key}\0{self.view}"

    def chunks(self) -> Iterator[Chunk]:
        """Yield its bytes in C order, a few at a time."""
        return (
            streaming.chunks(self.leaf) if self.view is None else _gather_view(self.leaf, self.view)
        )


class SelectedTensors(NamedTuple):
    """The tensors of one part of a state, with the names of tied ones."""

    tensors: list[Tensor]
    tied: dict[str, str]  # `ties` of them
    left_out: int  # number of values that are not tensors

    @property
    def files(self) -> set[str]:
        """The names of the files that hold them."""
        return set().union(*(files_of(tensor.leaf) for tensor in self.tensors))


def select_tensors(checkpoint: Checkpoint, part: str | None) -> SelectedTensors:
    """Return the tensors of one part of the state, by their names in it; with None those of all
    parts, by full path.

    Raises:
        NotFound: there is no such part.
        UsageError: there is no tensor in it.
    """
    tree = checkpoint.tree
    members = (nodes.parse_node(tree).members if isinstance(tree, dict) else None) or {}
    if part is not None and part not in members:
        has = f"no part {part!r}; it has: {', '.join(members) or 'none'}"
        named = next((model.partition("/")[0] for model in checkpoint.models()), "NAME")
        raise NotFound(f"{checkpoint.path}: {has}; say --part {named}, or --all")
    cut = [name for name, node in members.items() if is_cut(node)]
    if part is None and cut:
        raise UsageError(
            f"{checkpoint.path}: each rank has saved other parts of {cut[0]}; say --part {cut[0]}"
        )
    if part in cut:
        found = _tensors_of_all_ranks(checkpoint, part)
    else:
        found = _tensors(
            checkpoint, tree if part is None else members[part], joint="/" if part is None else "."
        )
    if not found.tensors:
        raise UsageError(
            f"{checkpoint.path}: holds no tensor; copy the files of a program with cp"
            if part is None
            else f"{checkpoint.path}: part {part!r} holds no tensor; name another, or say --all"
        )
    return found


def _tensors_of_all_ranks(checkpoint: Checkpoint, part: str | None) -> SelectedTensors:
    """Return the tensors of a model that is cut over ranks, by their names in the whole model."""
    found: dict[str, Tensor] = {}
    left_out = 0
    for view in checkpoint.rank_views():
        held = top_members((top_members(view.tree) or {}).get(str(part))) or {}
        each = _tensors(view, held.get("model"), joint=".")
        left_out += each.left_out
        for tensor in each.tensors:
            found.setdefault(tensor.name, tensor)
    return SelectedTensors([*found.values()], tied_names([*found.values()]), left_out)


def _tensors(checkpoint: Checkpoint, node: Any, joint: str) -> SelectedTensors:
    tensors: dict[str, Tensor] = {}
    leaves, left_out = nodes.find_path_ends(node)
    for path, end in leaves:
        tag, content = nodes.split_tag(end)
        view = content if tag == "view" else None
        leaf = checkpoint.leaf(view["leaf"] if view else content)
        if leaf.kind == "bytes":
            left_out += 1
            continue
        name = joint.join(map(unquote, path)) or "value"
        if name in tensors:
            raise UsageError(
                f"two tensors would both be called {name!r}; export one part of the state, or --all"
            )
        dtype, shape = _dtype_and_shape(leaf, view)
        tensors[name] = Tensor(name, dtype, shape, leaf, view)
    return SelectedTensors([*tensors.values()], tied_names([*tensors.values()]), left_out)


def verify_tensors(tensors: Sequence[Tensor]) -> None:
    """Read every byte of the tensors' leaves.

    Raises:
        Damaged: bytes differ from what was committed.
    """
    leaves = {leaf.key: leaf for tensor in tensors for leaf in leaves_of(tensor.leaf)}
    reading.read_leaves([(leaf, None) for leaf in leaves.values()])


def _dtype_and_shape(leaf: Stored, view: Mapping[str, Any] | None) -> tuple[str, tuple[int, ...]]:
    """Return the dtype and shape of a leaf, or of a view of it.

    Raises:
        Damaged: they contradict the leaf's length.
    """
    dtype, shape = (
        (leaf.dtype, tuple(leaf.shape)) if view is None else _view_dtype_and_shape(leaf, view)
    )
    most = (
        math.prod(max(extent, 1) for extent in shape) * ITEMSIZE.get(dtype, 1)
        if len(shape) <= MOST_DIMENSIONS
        else 0
    )
    fits = (
        view is not None
        or dtype not in ITEMSIZE
        or math.prod(shape) * ITEMSIZE[dtype] == leaf.size_bytes
    )
    if not fits or not 0 < most < 2**62:
        raise Damaged(f"leaf {leaf.key!r}: no tensor has its shape")
    return dtype, shape


def _view_dtype_and_shape(leaf: Stored, view: Mapping[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Return a view's dtype and shape, when all of it is within its leaf.

    Raises:
        Damaged: it is not.
    """
    try:
        sizes = [*view["shape"], *view["stride"], view["offset"]]
        item = ITEMSIZE[view["dtype"]]
        steps = [
            (extent - 1) * step for extent, step in zip(view["shape"], view["stride"], strict=True)
        ]
        reach = (1 + sum(steps)) * item if math.prod(view["shape"]) else 0
        if (
            any(type(size) is not int or size < 0 for size in sizes)
            or view["offset"] + reach > leaf.size_bytes
        ):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise Damaged(f"leaf {leaf.key!r}: a view of it lies outside it") from None
    return view["dtype"], tuple(view["shape"])


def _gather_view(leaf: Stored, view: Mapping[str, Any]) -> Iterator[bytearray]:
    """Yield the view's items in C order, a few at a time;
    runs that lie together are copied as one.
    """
    shape, stride, run = list(view["shape"]), list(view["stride"]), ITEMSIZE[view["dtype"]]
    item = run
    if 0 in shape:
        return
    while shape and (shape[-1] == 1 or stride[-1] * item == run):
        run *= shape[-1]
        shape.pop()
        stride.pop()
    at = _reader(leaf)
    out = bytearray()
    for start in _item_offsets(view["offset"], shape, [step * item for step in stride]):
        for part in at(start, run):
            out += part
            if len(out) >= streaming.CHUNK_BYTES:
                yield out
                out = bytearray()
    yield out


def _reader(leaf: Stored) -> Callable[[int, int], Iterable[Chunk]]:
    """Return a function that reads bytes of the leaf: from an offset on, so many."""
    if isinstance(leaf, StoredLeaf):
        return streaming.RandomAccess(leaf)
    data = leaf.read()
    return lambda start, size: [data[start : start + size]]


def _item_offsets(base: int, shape: Sequence[int], stride: Sequence[int]) -> Iterator[int]:
    """Yield the offset of each item, in C order."""
    if not shape:
        yield base
        return
    for place in (
        range(base, base + shape[0] * stride[0], stride[0])
        if stride[0]
        else itertools.repeat(base, shape[0])
    ):
        if len(shape) == 1:
            yield place
        else:
            yield from _item_offsets(place, shape[1:], stride[1:])


def require_known(tensors: Sequence[Tensor]) -> None:
    """Require dtypes that can be exported.

    Raises:
        UsageError: no format that we write has a tensor's dtype.
    """
    for tensor in tensors:
        if tensor.dtype in ML_DTYPES:
            raise UsageError(
                f"{tensor.name}: no format has {tensor.dtype}; "
                "holdfast.Store(RUN).load() gives the array"
            )


def write_safetensors(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> Iterator[Chunk]:
    """Yield the chunks of a .safetensors file. Of tied tensors the first by name is written; the
    metadata name the others.

    This is what `safetensors.torch.save_model` does, and what `load_model` expects.

    Raises:
        UsageError: the format lacks a tensor's dtype.

    Source: safetensors' format description: no holes, no overlap, a header of JSON padded with
    spaces.
    """
    tied = tied_names(tensors)
    once = (tensor for tensor in tensors if tensor.name not in tied)
    ordered = sorted(once, key=lambda tensor: (-ITEMSIZE.get(tensor.dtype, 0), tensor.name))
    entries: dict[str, Any] = {"__metadata__": {**tied, "format": "pt", **metadata}}
    offset = 0
    for tensor in ordered:
        if tensor.dtype not in SAFETENSORS or tensor.name == "__metadata__":
            raise UsageError(
                f"{tensor.name}: a .safetensors file cannot hold "
                f"{tensor.dtype} under that name; try .npz or .pt"
            )
        end = offset + tensor.size_bytes
        code = SAFETENSORS[tensor.dtype]
        entries[tensor.name] = {
            "dtype": code,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = msgspec.json.encode(entries)
    text += b" " * (-(len(text) + 8) % 16)
    data = itertools.chain.from_iterable(tensor.chunks() for tensor in ordered)
    return itertools.chain([len(text).to_bytes(8, "little") + text], data)


def tied_names(tensors: Sequence[Tensor]) -> dict[str, str]:
    """Map each tied tensor's name to the first name of the same memory."""
    first: dict[str, str] = {}
    every = (
        (tensor.name, tensor.identity) for tensor in sorted(tensors, key=lambda each: each.name)
    )
    return {
        name: kept for name, identity in every if name != (kept := first.setdefault(identity, name))
    }


def write_npz(tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """Yield the chunks of a .npz file, equal for equal tensors.

    Raises:
        UsageError: NumPy lacks a tensor's dtype.
    """
    described = {tensor.name: _npy_header(tensor) for tensor in tensors}
    return write_zip(
        (f"{tensor.name}.npy", itertools.chain([described[tensor.name]], tensor.chunks()))
        for tensor in tensors
    )


def _npy_header(tensor: Tensor) -> bytes:
    text = (
        tensor.dtype
        if tensor.leaf.kind == "numpy" and tensor.dtype[:1] in "<>|"
        else _NPY.get(tensor.dtype)
    )
    if text is None or (
        "dtype" in tensor.leaf.attrs and not isinstance(tensor.leaf.attrs["dtype"], str)
    ):
        raise UsageError(f"{tensor.name}: NumPy has no {tensor.dtype}; export to .safetensors")
    header = repr({"descr": text, "fortran_order": False, "shape": tuple(tensor.shape)}).encode(
        "latin1"
    )
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def write_zip(files: Iterable[tuple[str, Iterable[Chunk]]]) -> Iterator[bytes]:
    """Yield the chunks of a zip archive, which is not compressed,
    from the names and chunks of its files.
    """
    sink = _WriteBuffer()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:  # type: ignore[call-overload]
        for name, chunks in files:
            entry = zipfile.ZipInfo(name)  # dated 1980: the same input gives the same file
            with archive.open(entry, "w", force_zip64=True) as member:
                for chunk in chunks:
                    member.write(chunk)
                    yield from sink.take_bytes()
            yield from sink.take_bytes()
    yield from sink.take_bytes()


class _WriteBuffer:
    """A file that cannot seek; written bytes wait until `take_bytes`."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._chunks.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """ZipFile requires this method."""

    def take_bytes(self) -> list[bytes]:
        chunks, self._chunks = self._chunks, []
        return chunks
