"""DTensors: which box of the whole a process holds, and which stored items fill it.

A divided tensor is saved as the piece in this process, with its place in the whole. A DTensor that
every rank holds whole is saved like any other tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

from ..store.boxes import Box, index_within, intersection
from ..store.stored import Piece

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class StoredSlice(NamedTuple):
    """The items of a stored leaf that fill `live`."""

    live: torch.Tensor
    stored: Any
    where: tuple[Any, ...]  # index into the stored leaf


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    # None: not imported, or torch < 2.5
    kind = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return kind is not None and isinstance(value, kind)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor in this process: itself, or the local piece of a DTensor."""
    if not is_dtensor(tensor):
        return tensor
    held: Any = tensor._local_tensor  # noqa: SLF001  autograd would record to_local()
    # a collective may be under way
    found: torch.Tensor = held.wait() if hasattr(held, "wait") else held
    return found


def why_not_saved(tensor: torch.Tensor) -> str:
    """Return why a tensor of another type cannot be saved;
    empty for a DTensor that can be saved.
    """
    if not is_dtensor(tensor):
        return "only plain tensors and parameters are saved, and DTensors"
    if any(placement.is_partial() for placement in tensor.placements):
        return "it is a DTensor of partial sums: redistribute it first"
    return "" if _is_box(tensor) else "its piece here is no box of the whole: redistribute it first"


def is_divided(tensor: DTensor) -> bool:
    """Return whether ranks hold different parts of the tensor."""
    sizes = tensor.device_mesh.shape
    return any(
        not each.is_replicate() and size > 1
        for each, size in zip(tensor.placements, sizes, strict=True)
    )


def local_box(tensor: DTensor) -> Box:
    """Return the position and shape of the local tensor in the whole. A rank outside the mesh
    has an empty box at 0.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, at = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    if not at and tensor.dim():
        return Box((0,) * tensor.dim(), (0,) * tensor.dim())
    ends = zip(at, shape, tensor.shape, strict=True)
    return Box(tuple(min(start, most - extent) for start, extent, most in ends), tuple(shape))


def piece_attributes(tensor: DTensor) -> dict[str, Any]:
    """Return the attributes of a block that is a piece."""
    found: dict[str, Any] = {"of": list(tensor.shape), "at": list(local_box(tensor).at)}
    writer = _writer(tensor)
    if writer is not None:
        found["spare"] = writer
    return found


def stored_slices(live: DTensor, stored: Any) -> Iterator[StoredSlice]:
    """Yield the stored leaves, and their items, that fill the local tensor of `live`."""
    whole, target = local_box(live), local_tensor(live)
    own = getattr(stored, "own", None)
    if own is not None and own.box == whole:
        held: Sequence[Piece] = [own]  # other ranks' parts need not be read
    else:
        held = getattr(stored, "pieces", None) or [Piece((0,) * live.dim(), stored)]
    for piece in held:
        both = intersection(whole, piece.box)
        if both is not None:
            part = target[index_within(whole, both)] if both != whole else target
            yield StoredSlice(part, piece.leaf, index_within(piece.box, both))


def is_whole_leaf(cut: StoredSlice) -> bool:
    """Return whether the slice is the whole stored leaf."""
    return tuple(cut.live.shape) == tuple(cut.stored.shape)


def empty_like(parameter: DTensor, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return an uninitialized DTensor of that shape,
    with the placements that torch derives from `parameter`.
    """
    if tuple(shape) == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    return parameter.new_empty(tuple(shape), dtype=dtype, requires_grad=False)


def divided_like(live: DTensor, whole: torch.Tensor) -> torch.Tensor:
    """Return `whole`, which every rank has,
    as a DTensor with the placements of `live`. No communication.
    """
    fresh: Any = torch.empty_like(live, dtype=whole.dtype, requires_grad=False)
    with torch.no_grad():
        local_tensor(fresh).copy_(
            whole[index_within(Box((0,) * live.dim(), tuple(live.shape)), local_box(live))]
        )
    return fresh  # type: ignore[no-any-return]


def _writer(tensor: DTensor) -> int | None:
    """Return the rank that has the same piece and writes it; None if this one writes it."""
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return int(mesh.mesh.flatten()[0])
    first = [
        0 if each.is_replicate() else at
        for each, at in zip(tensor.placements, coordinate, strict=True)
    ]
    return None if first == list(coordinate) else int(mesh.mesh[tuple(first)])


def _is_box(tensor: DTensor) -> bool:
    """Whether the local piece is one box.
    It may not be if a dimension is divided twice (FSDP over TP).
    """
    placements: Any = tensor.placements
    twice = [
        each.dim for each in placements if isinstance(getattr(each, "split_factor", None), int)
    ]
    return all(_are_indices_consecutive(tensor, dim) for dim in twice)


def _are_indices_consecutive(tensor: DTensor, dim: int) -> bool:
    """Whether the local piece has consecutive items of dimension `dim`;
    torch itself selects from 0, 1, 2, ...
    """
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    items = torch.arange(tensor.shape[dim]).view(
        [-1 if axis == dim else 1 for axis in range(tensor.dim())]
    )
    placements: Any = tensor.placements
    for placement, parts, part in zip(
        placements, mesh.shape, coordinate or (), strict=coordinate is not None
    ):
        if getattr(placement, "dim", None) == dim:
            items = placement._split_tensor(items, parts, with_padding=False, contiguous=False)[0][  # noqa: SLF001
                part
            ]
    return bool((items.flatten().diff() == 1).all())
