"""Torch's tensors: converts them to bytes, without a copy where their layout allows, and back;
keeps ties and views.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn import Parameter

from ..errors import Damaged, UsageError
from ..pages import Data
from ..state.codec import UNSOUND, Block, LeafReader, Node, PendingLeaf, SharedBlock, c_stride
from . import pieces
from .items import DeviceMoments, memory, memory_at, tensor_data
from .stored import DTYPES, TensorRestore, dtype_and_stride, empty_tensor, is_dense, is_size_list
from .stored import tensor_differences as tensors_differing

NAMES = {dtype: name for name, dtype in DTYPES.items()}
_PLAIN = (torch.Tensor, Parameter)


def encode_node(value: Any) -> Node | None:
    if isinstance(value, torch.Tensor):
        reason = _why_not_saved(value)
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


def _why_not_saved(tensor: torch.Tensor) -> str:
    """Why `tensor` cannot be saved; empty if it can."""
    if type(tensor) not in _PLAIN:
        held = pieces.local_tensor(tensor)
        return pieces.why_not_saved(tensor) or (
            _why_not_saved(held) if type(held) in _PLAIN else "its piece here is no plain tensor"
        )
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
    end = tensor.storage_offset() * tensor.element_size() + _span_bytes(tensor)
    freed = end > tensor.untyped_storage().nbytes() and tensor.numel()
    # sharded models resize storages to 0
    return "its storage has been freed: gather it first" if freed else ""


def decode_node(tag: str, content: Any) -> Any:
    return _VALUES[tag](content)


def group_into_blocks(tensors: Sequence[torch.Tensor]) -> list[SharedBlock]:
    """Return one block for each tensor, one for all tied tensors,
    and one flat block for views that overlap.
    """
    found: list[SharedBlock | None] = [None] * len(tensors)
    now = DeviceMoments()
    for group in _group_overlapping([pieces.local_tensor(tensor) for tensor in tensors]):
        found[group[0]] = _shared_block(group, [tensors[index] for index in group], now)
    return [share for share in found if share is not None]


def _shared_block(
    group: Sequence[int], members: Sequence[torch.Tensor], now: DeviceMoments
) -> SharedBlock:
    if len(members) == 1 or len({_layout(tensor) for tensor in members}) == 1:
        return SharedBlock(_encode(members, now), dict.fromkeys(group))
    if any(map(pieces.is_dtensor, members)):
        raise UsageError("a DTensor shares its memory with a tensor of another layout: clone one")
    return _flat_block(group, members, now)


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Find the tied ones among overlapping tensors: two with one layout have the same numbers."""
    if pieces.is_dtensor(tensor):
        return *_layout(pieces.local_tensor(tensor)), *pieces.local_box(tensor), *tensor.shape
    shape, stride = tuple(tensor.shape), tensor.stride()
    strides = tuple(step if extent > 1 else 1 for extent, step in zip(shape, stride, strict=True))
    return tensor.data_ptr(), tensor.dtype, shape, strides


def _group_overlapping(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Return indices in groups that share bytes, each in order."""
    memories: dict[tuple[str, int] | None, list[tuple[int, int, int]]] = {}
    for index, tensor in enumerate(tensors):
        # the numbers differ from the stored bytes
        if tensor.numel() == 0 or tensor.is_conj() or tensor.is_neg():
            yield [index]
            continue
        # two storages may share host memory (torch.from_numpy), so there the address alone decides
        where = None if tensor.is_cpu else (str(tensor.device), tensor.untyped_storage().data_ptr())
        start = tensor.data_ptr()
        memories.setdefault(where, []).append((start, start + _span_bytes(tensor), index))
    for placed in memories.values():
        yield from _group_touching(sorted(placed))


def _group_touching(placed: Sequence[tuple[int, int, int]]) -> Iterator[list[int]]:
    group: list[int] = []
    reached = 0
    for start, stop, index in placed:
        if start >= reached and group:
            yield sorted(group)
            group = []
        group.append(index)
        reached = max(reached, stop)
    yield sorted(group)


def _span_bytes(tensor: torch.Tensor) -> int:
    """Number of bytes from its first item to the end of its last."""
    if tensor.is_contiguous():
        return tensor.nbytes
    return _span_items(tensor.shape, tensor.stride()) * tensor.element_size()


def _span_items(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Return the bytes from the first in memory to the last, including gaps."""
    return 1 + sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))


def _encode(tied: Sequence[torch.Tensor], now: DeviceMoments) -> Block:
    first, divided = tied[0], False
    attrs = _attrs(tied) | _device(first)
    if pieces.is_dtensor(first) and (divided := pieces.is_divided(first)):
        attrs |= pieces.piece_attributes(first)
    tensor = pieces.local_tensor(first)
    shape, contiguous = tuple(tensor.shape), tensor.is_contiguous()
    # even if only dimensions of one item differ: they reveal channels_last, which selects kernels
    if (1 in shape or not contiguous) and tensor.numel() and not divided:
        stride = tensor.stride()
        if stride != c_stride(shape) and is_dense(shape, stride):
            attrs["stride"] = list(stride)
    return Block("torch", NAMES[tensor.dtype], shape, tensor_data(tensor, now), attrs)


def _attrs(tied: Sequence[torch.Tensor]) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for tensor in tied:
        if type(tensor) is not torch.Tensor and isinstance(tensor, Parameter):
            attrs["parameter"] = True
        if tensor.requires_grad and tensor.is_leaf:
            # a graph is not saved: its result is restored without one
            attrs["requires_grad"] = True
    return attrs


def _device(tensor: torch.Tensor) -> dict[str, str]:
    return {} if tensor.is_cpu else {"device": str(tensor.device)}


def _flat_block(
    group: Sequence[int], members: Sequence[torch.Tensor], now: DeviceMoments
) -> SharedBlock:
    """Return the bytes from the first to the last that any member uses,
    and each member as a view of them.
    """
    start = min(tensor.data_ptr() for tensor in members)
    stop = max(tensor.data_ptr() + _span_bytes(tensor) for tensor in members)
    # makes every offset a multiple of the item size
    pad = start % max(tensor.element_size() for tensor in members)
    views: dict[int, Mapping[str, Any] | None] = {}
    for index, tensor in zip(group, members, strict=True):
        offset = tensor.data_ptr() - start + pad
        if offset % tensor.element_size():
            raise UsageError(
                f"a tensor of {list(tensor.shape)} {NAMES[tensor.dtype]} shares memory with "
                "another and does not begin at a multiple of its item size: track its clone()"
            )
        views[index] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": offset,
            **_attrs([tensor]),
        }
    whole = _span_data(members, start, stop, now)
    if pad:
        whole = memoryview(bytes(pad) + bytes(whole))
    return SharedBlock(Block("torch", "uint8", (whole.nbytes,), whole, _device(members[0])), views)


def _span_data(members: Sequence[torch.Tensor], start: int, stop: int, now: DeviceMoments) -> Data:
    first = members[0]
    if first.device.type == "cpu":
        return memory_at(start, stop - start, [member.untyped_storage() for member in members])
    storage = first.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=first.device)
    flat.set_(storage, start - storage.data_ptr(), (stop - start,), (1,))
    return tensor_data(flat, now)


def allocate_leaf(stored: LeafReader) -> PendingLeaf:
    tensor = empty_tensor(stored, torch.device("cpu"))  # if memory is short this fails: no damage
    held = memory(tensor) if tensor.is_contiguous() else tensor_data(tensor, DeviceMoments())
    return PendingLeaf(held, lambda: _apply_attrs(tensor, stored))


def build_mapped(stored: LeafReader, data: memoryview) -> torch.Tensor | None:
    dtype, stride = dtype_and_stride(stored)
    if stride is not None or not data:
        return None
    raw = torch.frombuffer(data, dtype=torch.uint8)
    return (
        None
        if raw.data_ptr() % dtype.itemsize
        else _apply_attrs(raw.view(dtype).view(stored.shape), stored)
    )


def why_not_in_place(live: Any) -> str:
    if not isinstance(live, torch.Tensor):
        return "it is no tensor"
    if live.grad_fn is not None:
        return "it has a graph: detach() it"
    if live.is_inference():
        return "it was made in inference mode: clone() it outside"
    twice = any(
        step == 0 and extent > 1 for step, extent in zip(live.stride(), live.shape, strict=True)
    )
    return (
        "several of its items are one in memory: clone() has a place for each"
        if twice
        else _why_not_saved(live)
    )


def list_differences(live: Any, stored: Any) -> list[str]:
    if not isinstance(live, torch.Tensor):
        return ["a tensor in the checkpoint, none here"]
    return [line.removeprefix(": ") for line in tensors_differing("", stored, live)]


def fill_in_place(pairs: Sequence[tuple[torch.Tensor, Any]]) -> None:
    filling = TensorRestore()
    for live, stored in pairs:
        if live is not stored:
            filling.read_into(live.detach(), stored)
    filling.read_all()


def memory_span(live: Any) -> tuple[int, int]:
    held = pieces.local_tensor(live)
    return held.data_ptr(), held.data_ptr() + (_span_bytes(held) if held.numel() else 0)


def stacking_forms(rows: list[Any]) -> list[Any] | None:
    return [(each.dtype, each.shape) for each in rows] if all(map(_can_be_stacked, rows)) else None


def _can_be_stacked(tensor: Any) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and tensor.ndim > 0
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and 0 < tensor.nbytes == tensor.untyped_storage().nbytes()
    )


def memory_identities(tensors: list[Any]) -> list[Any]:
    """Return what identifies each tensor's memory: two tensors may share it."""
    return [("torch", pieces.local_tensor(each).untyped_storage().data_ptr()) for each in tensors]


def stack(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(rows)


def unstack(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [each.clone() for each in tensor.unbind()]


def memory_watcher(live: Any) -> Callable[[], bool]:
    from torch.multiprocessing.reductions import StorageWeakRef

    reference: Any = StorageWeakRef(pieces.local_tensor(live).untyped_storage())  # type: ignore[no-untyped-call]
    return lambda: not reference.expired()


def refill_generator(live: Any, stored: Any) -> bool:
    if (
        type(live) is not torch.Generator
        or type(stored) is not torch.Generator
        or live.device != stored.device
    ):
        return False
    live.set_state(stored.get_state())
    return True


def _apply_attrs(tensor: torch.Tensor, stored: LeafReader) -> torch.Tensor:
    try:
        return _with_attrs(tensor, stored.attrs)
    except UNSOUND as error:
        raise Damaged(f"leaf {stored.key!r}: {error}") from error


def _with_attrs(tensor: torch.Tensor, attrs: Mapping[str, Any]) -> torch.Tensor:
    if not attrs:
        return tensor
    requires_grad = attrs.get("requires_grad") is True
    if attrs.get("parameter") is True:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)


def _build_view(content: Any) -> torch.Tensor:
    base, dtype = content["leaf"], DTYPES[content["dtype"]]
    shape, stride, offset = content["shape"], content["stride"], content["offset"]
    if not (isinstance(base, torch.Tensor) and base.dtype is torch.uint8 and base.dim() == 1):
        raise ValueError("the leaf under it is not flat bytes")
    if not (
        is_size_list([offset])
        and is_size_list(shape)
        and is_size_list(stride)
        and len(shape) == len(stride)
    ):
        raise ValueError("it has no sizes")
    reach = _span_items(shape, stride) * dtype.itemsize if math.prod(shape) else 0
    if offset % dtype.itemsize or offset + reach > base.numel():
        raise ValueError("it lies outside its leaf")
    view = torch.empty(0, dtype=dtype)
    view.set_(base.untyped_storage(), offset // dtype.itemsize, shape, stride)
    return _with_attrs(view, content)


def _dtype(name: Any) -> torch.dtype:
    # getattr would import what torch imports lazily
    dtype = vars(torch).get(name) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch has no dtype {name!r}")
    return dtype


def _decode_generator(content: Any) -> torch.Generator:
    device, state = content
    try:
        generator = torch.Generator(device)
    except RuntimeError as error:
        raise UsageError(
            f"this checkpoint holds a torch.Generator on {device}, which this machine lacks"
        ) from error
    generator.set_state(state)
    return generator


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "view": _build_view,
    "size": torch.Size,
    "torch.dtype": _dtype,
    "torch.device": torch.device,
    "torch.Generator": _decode_generator,
}
