"""Overlap: memory that only an optimizer's step changes, and a call before each such step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Self

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

LEAST_BYTES = 16 << 10  # a smaller tensor is copied in the time that it takes to ask about it


class Lent(NamedTuple):
    """A tensor's memory, and what torch's counter of writes said when it was lent."""

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

    def lent(self) -> dict[int, Lent]:
        """By address: the parameters and the moments on the CPU, as they are now."""
        stepping = (optimizer for optimizer in self._optimizers if id(optimizer) in self._seen)
        found = (_lent(tensor) for optimizer in stepping for tensor in _tensors(optimizer) if _may_lend(tensor))
        return {lent.address: lent for lent in found}


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
        and value.layout is torch.strided
        and value.nbytes >= LEAST_BYTES
        and not value.is_inference()
    )


def _lent(tensor: torch.Tensor) -> Lent:
    storage = tensor.untyped_storage()
    return Lent(
        tensor.data_ptr(),
        tensor.nbytes,
        tuple(tensor.shape),
        tensor,
        storage,
        storage.data_ptr(),
        tensor._version,  # noqa: SLF001
    )
