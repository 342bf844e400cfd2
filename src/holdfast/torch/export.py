"""Export to .pt: plain tensors that `torch.load(weights_only=True)` reads."""

from __future__ import annotations

import io
from collections.abc import Sequence

import torch

from ..errors import UsageError
from ..inspect.tensors import Tensor
from .leaves import DTYPES


def pt(tensors: Sequence[Tensor]) -> memoryview:
    """Return the bytes of a .pt file with a dict of tensors on the CPU; tied tensors share memory when loaded.

    Raises:
        UsageError: torch has no dtype for a tensor.
    """
    made: dict[str, torch.Tensor] = {}
    plain: dict[str, torch.Tensor] = {}
    for tensor in tensors:
        identity = f"{tensor.leaf.key}\0{tensor.view}"
        if identity not in made:
            made[identity] = _plain(tensor)
        plain[tensor.name] = made[identity]
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    return buffer.getbuffer()


def _plain(tensor: Tensor) -> torch.Tensor:
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise UsageError(f"{tensor.name}: torch has no {tensor.dtype}; export to .npz")
    data = tensor.read()
    return torch.frombuffer(data, dtype=dtype).reshape(tensor.shape) if data else torch.empty(tensor.shape, dtype=dtype)
