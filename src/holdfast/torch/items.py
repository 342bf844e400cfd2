"""Items: the bytes of one tensor in C order: its own memory, or gathered piece by piece."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable

import torch

from ..pages import PIECE_BYTES, Data, DistantBytes, Wait, address, await_copy, copy, slabs
from . import staging

# torch copies these in any layout
CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class DeviceMoments:
    """For each device, a point in its work: where it was when a state was flattened. Copies begin
    after it.
    """

    def __init__(self) -> None:
        self._moments: dict[torch.device, staging.Moment] = {}

    def moment(self, device: torch.device) -> staging.Moment:
        if device not in self._moments:
            self._moments[device] = staging.Moment(device)
        return self._moments[device]


def tensor_data(tensor: torch.Tensor, now: DeviceMoments) -> Data:
    """Return the bytes of a tensor in C order: its own memory;
    distant if on a device or in another order.
    """
    is_lazy = tensor.is_conj() or tensor.is_neg()
    if not tensor.numel() or (tensor.is_cpu and tensor.is_contiguous() and not is_lazy):
        return memory(tensor)
    if not tensor.is_cuda:
        return DistantBytes(TensorItems(tensor, _copy_now), tensor.nbytes)
    device = tensor.device
    return DistantBytes(
        TensorItems(tensor, now.moment(device).copy),
        tensor.nbytes,
        pin=lambda memory: staging.pin(memory, device),
    )


class TensorItems:
    """The items of a tensor in C order, on any device."""

    def __init__(
        self, tensor: torch.Tensor, copied: Callable[[torch.Tensor, torch.Tensor], Wait | None]
    ) -> None:
        plain, self._copied = tensor.detach(), copied
        is_lazy = plain.is_conj() or plain.is_neg()  # the numbers differ from the stored bytes
        as_it_lies = plain.is_contiguous() and not is_lazy
        if as_it_lies:
            plain = plain.view(-1).view(torch.uint8)
        elif is_lazy:
            plain = plain.view(-1) if plain.dim() == 0 else plain
        else:
            plain = plain.view(CARRIERS.get(plain.element_size(), plain.dtype))
        self._tensor, self.itemsize = plain, plain.element_size()
        # a device first orders them in its own memory: limit that to few at a time
        self._most = sys.maxsize if plain.is_cpu or as_it_lies else PIECE_BYTES // self.itemsize

    def gather(self, start: int, target: memoryview) -> Wait | None:
        return self._moved(start, target, lambda slab, part: self._copied(part, slab), back=True)

    def scatter(self, start: int, source: memoryview) -> Wait | None:
        return self._moved(start, source, self._copied, back=False)

    def _moved(
        self,
        start: int,
        whole: memoryview,
        move: Callable[[torch.Tensor, torch.Tensor], Wait | None],
        *,
        back: bool,
    ) -> Wait | None:
        """Like `_each`; memory that is not aligned to the items is copied through aligned memory,
        piece by piece.
        """
        if address(whole) % self.itemsize == 0:
            return self._each(start, whole, move)
        for at in range(0, whole.nbytes, PIECE_BYTES):
            odd = whole[at : at + PIECE_BYTES]
            even = memory(torch.empty(odd.nbytes, dtype=torch.uint8))
            copy(even, odd)
            await_copy(self._each(start + at, even, move))
            if back:
                copy(odd, even)
        return None

    def _each(
        self,
        start: int,
        whole: memoryview,
        move: Callable[[torch.Tensor, torch.Tensor], Wait | None],
    ) -> Wait | None:
        """Call `move` with each part of the tensor and the same part of `whole`.

        Return the last wait, which covers all.
        """
        flat = torch.frombuffer(whole, dtype=self._tensor.dtype)
        wait, at, place, end = (
            None,
            0,
            start // self.itemsize,
            start // self.itemsize + flat.numel(),
        )
        try:
            while place < end:
                stop = min(end, place + self._most)
                for slab in slabs(self._tensor, place, stop):
                    wait = move(slab, flat[at : at + slab.numel()].view(slab.shape))
                    at += slab.numel()
                place = stop
        # the device is full: pending work must end before its memory is freed
        except BaseException:
            await_copy(wait)
            raise
        return wait


def _copy_now(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def memory(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor:
    its own memory, writable, kept alive by the view.
    """
    size = tensor.nbytes
    return (
        memory_at(tensor.data_ptr(), size, tensor.untyped_storage())
        if size
        else memoryview(bytearray())
    )


class _Memory(ctypes.Array[ctypes.c_ubyte]):
    """Bytes at an address; one type for every size,
    since ctypes would keep one type for each size.
    """

    __slots__ = ("owner",)
    _type_, _length_ = ctypes.c_ubyte, 1 << 46
    owner: object


def memory_at(address: int, size: int, owner: object) -> memoryview:
    whole = _Memory.from_address(address)
    whole.owner = owner
    return memoryview(whole).cast("B")[:size]
