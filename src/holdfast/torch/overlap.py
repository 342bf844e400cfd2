"""Overlap: memory that only an optimizer's step changes, a call before each such step, and copies of what is beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from ..run.overlap import Moving

LEAST_BYTES = 16 << 10  # a smaller tensor is copied in the time that it takes to ask about it
MOST_BYTES = 1 << 20  # of copies that the loop makes of what nobody lends


class BorrowedTensor(NamedTuple):
    """A tensor's memory, and what torch's counter of writes said when it was borrowed."""

    address: int
    size_bytes: int
    shape: tuple[int, ...]
    tensor: torch.Tensor
    storage: torch.UntypedStorage
    storage_address: int
    version: int

    def written(self) -> bool:
        """Whether torch has counted a write since. Fused kernels, `.data` and NumPy's views are not counted."""
        return bool(self.tensor._version != self.version)  # noqa: SLF001  documented, if not by its name

    def gone(self) -> bool:
        """Whether the memory was given back: its storage was resized, or moved to another place."""
        return self.storage.data_ptr() != self.storage_address or self.storage.nbytes() < self.size_bytes


class Steps:
    """The steps of the optimizers among `targets`, each preceded by `before`, for a block.

    A step that calls no hooks (of a wrapper around the optimizer, by a function of torch's) changes memory unannounced:
    only an optimizer whose step was once preceded by `before` lends anything.
    """

    def __init__(self, targets: Iterable[object], before: Callable[[], None]) -> None:
        self._optimizers = [target for target in targets if isinstance(target, Optimizer)]
        self._before = before
        self._seen: set[int] = set()
        self._hooks: list[Any] = []

    def __enter__(self) -> Self:
        for optimizer in self._optimizers:
            call = torch.compiler.disable(self._on_step)  # type: ignore[no-untyped-call]
            with suppress(AttributeError):  # a wrapper that is an Optimizer by name, and was never made one
                self._hooks.append(optimizer.register_step_pre_hook(call))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _on_step(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        self._seen.add(id(optimizer))
        self._before()

    def borrowed(self) -> dict[int, BorrowedTensor]:
        """By address: the parameters and the moments on the CPU, as they are now."""
        found = {}
        for optimizer in self._optimizers:
            if id(optimizer) in self._seen:
                for tensor in _tensors(optimizer):
                    if _may_lend(tensor):
                        borrowed = _borrowed(tensor)
                        found[borrowed.address] = borrowed
        return found

    def keeping(self, borrowed: Mapping[int, BorrowedTensor]) -> Keeping:
        return Keeping(borrowed)


class Keeping:
    """Captured tensors that are kept for later: of those over `borrowed` memory twins that share it, of the others copies."""

    def __init__(self, borrowed: Mapping[int, BorrowedTensor]) -> None:
        self._lent = borrowed
        self.referred: set[int] = set()
        self._copied: list[tuple[int, int]] = []  # from where to where
        self._copies: dict[int, torch.Tensor] = {}  # by the ids of what was copied: one that stands twice stays one
        self._spare = MOST_BYTES

    def keep(self, leaf: Any) -> Any:
        """A tensor of our own, whose shape and memory nobody changes, with all that is saved of this one.

        Raises:
            Moving: it is none of a kind that is known to be alone in its memory, or all copies would be too large.
        """
        kind = type(leaf)
        if kind is not torch.Tensor:
            if kind in _CONSTANT:
                return leaf
            raise Moving
        if not leaf.is_cpu or leaf.layout is not _STRIDED or not leaf.is_contiguous() or leaf.requires_grad:
            raise Moving
        start, size = leaf.data_ptr(), leaf.nbytes
        found = self._lent.get(start)
        if found is not None:
            if found.size_bytes != size or found.shape != leaf.shape:
                raise Moving
            self.referred.add(start)
            return leaf.detach()
        if id(leaf) in self._copies:
            return self._copies[id(leaf)]
        self._spare -= size
        copy = leaf.clone() if self._spare >= 0 and not (leaf.is_conj() or leaf.is_neg()) else None
        if copy is None or copy.stride() != leaf.stride():
            raise Moving
        self._copied.append((start, start + size))
        self._copies[id(leaf)] = copy
        return copy

    def settle(self) -> None:
        """
        Raises:
            Moving: something that was copied shares memory with another tensor, and its copy does not.
        """
        places = [*self._copied, *((place, place + self._lent[place].size_bytes) for place in self.referred)]
        reached = 0
        for start, stop in sorted(places):
            if start < reached:
                raise Moving
            reached = stop


_CONSTANT = frozenset({torch.Size, torch.dtype, torch.device})
_STRIDED = torch.strided


def _tensors(optimizer: Optimizer) -> Iterator[Any]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            entry = optimizer.state.get(parameter)
            yield from entry.values() if isinstance(entry, dict) else ()


def _may_lend(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, Parameter)
        and value.is_cpu
        and value.layout is _STRIDED
        and value.nbytes >= LEAST_BYTES
        and not value.is_inference()
    )


def _borrowed(tensor: torch.Tensor) -> BorrowedTensor:
    storage = tensor.untyped_storage()
    return BorrowedTensor(
        tensor.data_ptr(),
        tensor.nbytes,
        tensor.shape,
        tensor,
        storage,
        storage.data_ptr(),
        tensor._version,  # noqa: SLF001
    )
