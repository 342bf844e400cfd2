"""Torch's tensors: to bytes without a copy where their layout allows, and back; ties and views kept."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..errors import Damaged, UsageError
from ..state.codec import ITEMSIZE, UNSOUND, Block, Node, Share, StoredLeaf, checked_size

DTYPES: Mapping[str, torch.dtype] = {name: getattr(torch, name) for name in ITEMSIZE if hasattr(torch, name)}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # torch can copy these in any layout


class Span(NamedTuple):
    """Where a tensor lies: bytes `start` up to `stop` of the memory `where`."""

    where: tuple[str, int]
    start: int
    stop: int


class Layout(NamedTuple):
    """Two tensors with one span and one layout are the same numbers: tied."""

    span: Span
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def node(value: Any) -> Node | None:
    if isinstance(value, torch.Tensor):
        reason = _refusal(value)
        if reason:
            raise UsageError(reason)
        return None
    if type(value) is torch.Size:
        return Node("size", list(value))
    if isinstance(value, torch.dtype):
        return Node("torch.dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return Node("torch.device", str(value))
    if type(value) is torch.Generator:
        return Node("torch.Generator", [str(value.device), value.get_state()])
    raise UsageError("")


def _refusal(tensor: torch.Tensor) -> str:
    """Why `tensor` cannot be saved; empty when it can."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return "only plain tensors and parameters are saved"
    if tensor.is_quantized:
        return "it is quantized: save tensor.int_repr() and its scales"
    if tensor.is_nested:
        return "it is nested: save tensor.unbind()"
    if tensor.layout is not torch.strided:
        return f"its layout is {tensor.layout}: save tensor.to_dense(), or its indices and values"
    if tensor.is_meta:
        return "it is on the meta device and has no data"
    if tensor.dtype not in NAMES:
        return f"its dtype {tensor.dtype} has no bytes of its own"
    end = tensor.storage_offset() + _reach(tensor.shape, tensor.stride())
    freed = tensor.numel() and end * tensor.element_size() > tensor.untyped_storage().nbytes()
    return "its storage has been freed: gather it first" if freed else ""  # sharded models resize storages to 0


def value(tag: str, content: Any) -> Any:
    return _VALUES[tag](content)


def shares(tensors: Sequence[torch.Tensor]) -> list[Share]:
    """One block for each tensor; one for all that are tied; one flat one for views that overlap."""
    result = []
    layouts = [_layout(tensor) for tensor in tensors]
    for group in _overlapping(layouts):
        members = [tensors[index] for index in group]
        if len({layouts[index] for index in group}) == 1:
            result.append(Share(_encode(members), dict.fromkeys(group)))
        else:
            result.append(_flat(group, members, [layouts[index] for index in group]))
    return sorted(result, key=lambda share: min(share.places))


def _layout(tensor: torch.Tensor) -> Layout | None:
    """None: it has no memory to share, or its numbers differ from what lies there."""
    if tensor.numel() == 0 or tensor.is_conj() or tensor.is_neg():
        return None
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    start = tensor.data_ptr()
    # two storages may share host memory (torch.from_numpy), so there the address alone decides
    storage = 0 if tensor.device.type == "cpu" else tensor.untyped_storage().data_ptr()
    span = Span((str(tensor.device), storage), start, start + _reach(shape, stride) * tensor.element_size())
    stride = tuple(step if extent > 1 else 1 for extent, step in zip(shape, stride, strict=True))
    return Layout(span, tensor.dtype, shape, stride)


def _reach(shape: Sequence[int], stride: Sequence[int]) -> int:
    return 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))


def _overlapping(layouts: Sequence[Layout | None]) -> Iterator[list[int]]:
    """Indices in groups that share bytes."""
    yield from ([index] for index, layout in enumerate(layouts) if layout is None)
    placed = sorted((layout.span, index) for index, layout in enumerate(layouts) if layout is not None)
    group: list[int] = []
    where, stop = ("", 0), 0
    for span, index in placed:
        if group and (span.where != where or span.start >= stop):
            yield sorted(group)
            group, stop = [], 0
        group.append(index)
        where, stop = span.where, max(stop, span.stop)
    if group:
        yield sorted(group)


def _encode(tied: Sequence[torch.Tensor]) -> Block:
    tensor = tied[0]
    attrs = _attrs(tied)
    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    # also where only dimensions of one item differ: channels_last shows there, and kernels are chosen by it
    if tensor.numel() and stride != _c_stride(shape) and _is_dense(shape, stride):
        attrs["stride"] = list(stride)
    return Block("torch", NAMES[tensor.dtype], shape, memory(_host(tensor)), attrs)


def _attrs(tied: Sequence[torch.Tensor]) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    if any(isinstance(tensor, torch.nn.Parameter) for tensor in tied):
        attrs["parameter"] = True
    if any(tensor.requires_grad for tensor in tied):
        attrs["requires_grad"] = True
    if tied[0].device.type != "cpu":
        attrs["device"] = str(tied[0].device)
    return attrs


def _flat(group: Sequence[int], members: Sequence[torch.Tensor], layouts: Sequence[Layout | None]) -> Share:
    """The bytes from the first to the last that any member uses, and each member as a view of them."""
    spans = [layout.span for layout in layouts if layout is not None]
    start, stop = min(span.start for span in spans), max(span.stop for span in spans)
    pad = start % max(tensor.element_size() for tensor in members)  # so that every offset is whole items
    views: dict[int, Mapping[str, Any] | None] = {}
    for index, tensor, span in zip(group, members, spans, strict=True):
        offset = span.start - start + pad
        if offset % tensor.element_size():
            raise UsageError("tensors of a shared storage do not lie at multiples of their item size: clone one")
        views[index] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": offset,
            **{name: kept for name, kept in _attrs([tensor]).items() if name != "device"},
        }
    data = _raw(members, start, stop)
    if pad:
        data = memoryview(bytes(pad) + bytes(data))
    device = {name: kept for name, kept in _attrs(members).items() if name == "device"}
    return Share(Block("torch", "uint8", (len(data),), data, device), views)


def _raw(members: Sequence[torch.Tensor], start: int, stop: int) -> memoryview:
    first = members[0]
    if first.device.type == "cpu":
        return _window(start, stop - start, members)
    storage = first.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=first.device)
    flat.set_(storage, start - storage.data_ptr(), (stop - start,), (1,))
    return memory(flat.cpu())


def _host(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's numbers on the CPU in C order; itself where it is so already."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_contiguous():
        return tensor.cpu()
    carrier = _CARRIERS.get(tensor.element_size())
    return (tensor if carrier is None else tensor.view(carrier)).contiguous().cpu()


def memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor: its own memory, writable, kept alive by the view."""
    size = tensor.numel() * tensor.element_size()
    return _window(tensor.data_ptr(), size, tensor) if size else memoryview(bytearray())


def _window(address: int, size: int, owner: object) -> memoryview:
    array = (ctypes.c_ubyte * size).from_address(address)
    array.owner = owner  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def _c_stride(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


def _is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether each item has its own place and no place is empty."""
    expected = 1
    for step, extent in sorted((step, extent) for step, extent in zip(stride, shape, strict=True) if extent != 1):
        if step != expected:
            return False
        expected *= extent
    return True


def decode(stored: StoredLeaf) -> torch.Tensor:
    dtype = DTYPES.get(stored.dtype)
    if dtype is None:
        raise Damaged(f"leaf {stored.key!r}: torch has no dtype {stored.dtype!r}")
    checked_size(stored, dtype.itemsize)
    stride = stored.attrs.get("stride")
    if stride is not None and not _fits(stride, stored.shape):
        raise Damaged(f"leaf {stored.key!r}: stride {stride!r} does not fit the shape {list(stored.shape)}")
    tensor = torch.empty(stored.shape, dtype=dtype)  # where memory is short this fails, and that is no damage
    if tensor.numel():
        stored.read_into(memory(tensor))
    tensor = tensor if stride is None else _strided(tensor, stride)
    try:
        return _dressed(tensor, stored.attrs)
    except UNSOUND as error:
        raise Damaged(f"leaf {stored.key!r}: {error}") from error


def _fits(stride: Any, shape: Sequence[int]) -> bool:
    return _are_sizes(stride) and len(stride) == len(shape) and _is_dense(shape, stride)


def _strided(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """`tensor` in the memory layout that it had when it was saved."""
    target = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype)
    carrier = _CARRIERS.get(tensor.element_size(), tensor.dtype)
    target.view(carrier).copy_(tensor.view(carrier))
    return target


def _dressed(tensor: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
    requires_grad = attrs.get("requires_grad") is True
    if attrs.get("parameter") is True:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _are_sizes(sizes: Any) -> bool:
    return isinstance(sizes, list) and all(type(size) is int and 0 <= size < 2**62 for size in sizes)


def _view(content: Any) -> torch.Tensor:
    base, dtype = content["leaf"], DTYPES[content["dtype"]]
    shape, stride, offset = content["shape"], content["stride"], content["offset"]
    if not (isinstance(base, torch.Tensor) and base.dtype is torch.uint8 and base.dim() == 1):
        raise ValueError("the leaf under it is not flat bytes")
    if not (_are_sizes([offset]) and _are_sizes(shape) and _are_sizes(stride) and len(shape) == len(stride)):
        raise ValueError("it has no sizes")
    reach = _reach(shape, stride) * dtype.itemsize if math.prod(shape) else 0
    if offset % dtype.itemsize or offset + reach > base.numel():
        raise ValueError("it lies outside its leaf")
    view = torch.empty(0, dtype=dtype)
    view.set_(base.untyped_storage(), offset // dtype.itemsize, shape, stride)
    return _dressed(view, content)


def _dtype(name: Any) -> torch.dtype:
    dtype = getattr(torch, name) if isinstance(name, str) and name.isidentifier() else None
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch has no dtype {name!r}")
    return dtype


def _generator(content: Any) -> torch.Generator:
    device, state = content
    try:
        generator = torch.Generator(device)
    except RuntimeError as error:
        raise UsageError(f"this checkpoint holds a torch.Generator on {device}, which this machine lacks") from error
    generator.set_state(state)
    return generator


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "view": _view,
    "size": torch.Size,
    "torch.dtype": _dtype,
    "torch.device": torch.device,
    "torch.Generator": _generator,
}
