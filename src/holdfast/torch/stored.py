"""Compares stored leaves with live tensors, and fills one from the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import torch
from torch.nn.parameter import is_lazy

from ..errors import Damaged, Mismatch
from ..state.codec import (
    ITEMSIZE,
    ML_DTYPES,
    LeafReader,
    is_stored_leaf,
    read_into_memory,
    require_size,
)
from . import pieces
from .items import DeviceMoments, memory, tensor_data

DTYPES: Mapping[str, torch.dtype] = {
    name: getattr(torch, name) for name in ITEMSIZE.keys() - ML_DTYPES if hasattr(torch, name)
}
# most bytes that exist twice while read into memory no file can be read into
AROUND_BYTES = 16 << 20


class TensorFacts(NamedTuple):
    """The facts that must agree before bytes are read."""

    dtype: str
    shape: tuple[int, ...]


def is_stored_tensor(value: object) -> TypeGuard[LeafReader]:
    return getattr(value, "kind", None) == "torch" and is_stored_leaf(value)


def tensor_facts(value: object) -> TensorFacts | None:
    """Return dtype and shape of a live tensor or of a stored one; None for anything else."""
    if isinstance(value, torch.Tensor):
        return TensorFacts(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    return TensorFacts(value.dtype, tuple(value.shape)) if is_stored_tensor(value) else None


def empty_tensor(stored: LeafReader, device: torch.device) -> torch.Tensor:
    """Return a tensor of the stored dtype and layout, without values yet."""
    dtype, stride = dtype_and_stride(stored)
    if stride is None:
        return torch.empty(stored.shape, dtype=dtype, device=device)
    return torch.empty_strided(stored.shape, stride, dtype=dtype, device=device)


def dtype_and_stride(stored: LeafReader) -> tuple[torch.dtype, list[int] | None]:
    """Return the dtype of a stored tensor, and its stride; None for C order.

    Raises:
        Damaged: it does not describe a tensor.
    """
    dtype = DTYPES.get(stored.dtype)
    if dtype is None:
        raise Damaged(f"leaf {stored.key!r}: torch has no dtype {stored.dtype!r}")
    require_size(stored, dtype.itemsize)
    stride: list[int] | None = stored.attrs.get("stride")
    if stride is not None and not (
        is_size_list(stride) and len(stride) == len(stored.shape) and is_dense(stored.shape, stride)
    ):
        raise Damaged(
            f"leaf {stored.key!r}: stride {stride!r} does not fit the shape {list(stored.shape)}"
        )
    return dtype, stride


def require_described(stored: LeafReader) -> None:
    """Check the description of a stored tensor.

    Raises:
        Damaged: its dtype, shape, stride and size contradict each other.
    """
    # in pieces: their sizes lie with other ranks, and are checked at a read
    if not hasattr(type(stored), "pieces"):
        dtype_and_stride(stored)


class TensorRestore:
    """Reads stored leaves into live tensors. `read_into`, `read_part` and `read_new` record
    requests; `read_all` reads them.
    """

    def __init__(self) -> None:
        # from the file into the tensor's own memory; tied tensors, which share leaf and address,
        # once
        self._straight: dict[tuple[str, int], tuple[torch.Tensor, LeafReader]] = {}
        # leaf's key -> cuts that are read through a copy of the leaf
        self._parts: dict[str, list[pieces.StoredSlice]] = {}

    def read_into(self, live: torch.Tensor, stored: LeafReader | torch.Tensor) -> None:
        """Fill `live` with the stored values when `read_all` is called."""
        if isinstance(stored, torch.Tensor):
            if pieces.is_dtensor(live) and not pieces.is_dtensor(stored):
                stored = pieces.divided_like(live, stored)
            with torch.no_grad():
                live.copy_(stored)
            return
        for cut in (
            pieces.stored_slices(live, stored)
            if pieces.is_dtensor(live)
            else [pieces.StoredSlice(live, stored, (...,))]
        ):
            self.read_part(cut)

    def read_part(self, cut: pieces.StoredSlice) -> None:
        """Fill the live tensor of a slice with its items of the stored leaf."""
        live, stored = cut.live, cut.stored
        if pieces.is_whole_leaf(cut) and DTYPES.get(stored.dtype) is live.dtype and _is_plain(live):
            # tied tensors may count their versions apart: no graph made before may go backward over
            # new bytes
            torch.autograd.graph.increment_version(live)
            self._straight.setdefault((stored.key, live.data_ptr()), (live, stored))
        elif live.numel():
            self._parts.setdefault(stored.key, []).append(cut)

    def read_new(
        self, stored: LeafReader, device: torch.device, parameter: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return a new tensor on `device` with the stored dtype, shape and stride; `read_all` fills
        in its values.

        If its parameter is a DTensor it becomes one as well, unless it is a single number.
        """
        if parameter is not None and pieces.is_dtensor(parameter) and stored.shape:
            tensor = pieces.empty_like(
                parameter, stored.shape, empty_tensor(stored, torch.device("meta")).dtype
            )
        else:
            tensor = empty_tensor(stored, device)
        self.read_into(tensor, stored)
        return tensor

    def read_all(self) -> None:
        """Read all requested leaves, straight from the files where possible; of the others, few
        exist twice at a time.
        """
        now = DeviceMoments()
        read_into_memory(
            [
                (stored, tensor_data(live, now))
                for live, stored in self._straight.values()
                if live.numel()
            ]
        )
        parts = [*self._parts.values()]
        self._straight, self._parts = {}, {}
        while parts:
            some = _first_batch(parts)
            parts = parts[len(some) :]
            _fill_from_whole(some)


def _first_batch(parts: list[list[pieces.StoredSlice]]) -> list[list[pieces.StoredSlice]]:
    """Return the first slices, of at most `AROUND_BYTES` together, or the first alone."""
    total = 0
    for count, cuts in enumerate(parts):
        total += cuts[0].stored.size_bytes
        if count and total > AROUND_BYTES:
            return parts[:count]
    return parts


def _fill_from_whole(parts: list[list[pieces.StoredSlice]]) -> None:
    """Read each leaf whole, because its digest covers all of it, and copy the requested items."""
    leaves = [cuts[0].stored for cuts in parts]
    wholes = [torch.empty(tuple(leaf.shape), dtype=DTYPES[leaf.dtype]) for leaf in leaves]
    read_into_memory([(leaf, memory(whole)) for leaf, whole in zip(leaves, wholes, strict=True)])
    with torch.no_grad():
        for whole, cuts in zip(wholes, parts, strict=True):
            for cut in cuts:
                cut.live.copy_(whole[cut.where])


def tensor_differences(path: str, stored: object, live: object) -> list[str]:
    """Return one line per fact that differs between stored leaf and live tensor;
    none for lazy or other objects.
    """
    if not isinstance(live, torch.Tensor) or is_lazy(live):
        return []
    there, here = tensor_facts(stored), tensor_facts(live)
    if is_stored_tensor(stored):
        require_described(stored)
    if there is None or here is None:
        return [f"{path}: {type(stored).__name__} in the checkpoint, a tensor here"]
    if live.is_meta:
        return [f"{path}: on the meta device here; give it memory first (to_empty)"]
    lines = []
    if there.shape != here.shape:
        lines.append(f"{path}: shape {there.shape} in the checkpoint, {here.shape} here")
    if there.dtype != here.dtype:
        lines.append(f"{path}: dtype {there.dtype} in the checkpoint, {here.dtype} here")
    return lines


def memory_id(tensor: torch.Tensor) -> int:
    """Return what identifies a tensor's memory: a detached tensor has the same."""
    return pieces.local_tensor(tensor).untyped_storage().data_ptr() or id(tensor)


def load_live_state(live: Any, state: Any) -> None:
    """Pass `state` to the object's own load_state_dict.

    Raises:
        Mismatch: it refused; it may have taken a part of the state.
    """
    try:
        live.load_state_dict(state)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, KeyError) as error:
        raise Mismatch(
            f"{type(live).__name__}.load_state_dict refused what the checkpoint holds: {error!s}; "
            "restore into objects made as they were when it was saved"
        ) from error


def _is_plain(tensor: torch.Tensor) -> bool:
    """Return whether each of the tensor's items has its own place, in host memory or on a CUDA
    device.
    """
    return (
        type(tensor.detach()) is torch.Tensor
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.layout == torch.strided
        and not (tensor.is_conj() or tensor.is_neg())
        and (tensor.is_contiguous() or 0 not in tensor.stride())
    )


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Return whether each item has its own place and no place is empty."""
    expected = 1
    for step, extent in sorted(
        (step, extent) for step, extent in zip(stride, shape, strict=True) if extent != 1
    ):
        if step != expected:
            return False
        expected *= extent
    return True


def is_size_list(sizes: Any) -> bool:
    return isinstance(sizes, list) and all(
        type(size) is int and 0 <= size < 2**62 for size in sizes
    )
