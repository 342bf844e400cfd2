"""Torch's global random generators: the CPU's and every CUDA device's."""

from __future__ import annotations

from typing import Any

import torch

from ..state.rng import GeneratorSource


def capture() -> dict[str, Any]:
    # before its initialisation CUDA has drawn nothing, and a query would initialise it (in a forked
    # worker: fail)
    cuda = torch.cuda.get_rng_state_all() if _is_cuda_initialized() else []
    return {"cpu": torch.get_rng_state(), "cuda": list(cuda)}


def _is_cuda_initialized() -> bool:
    """Return whether this process has begun to use CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def restore(state: Any) -> list[str]:
    torch.set_rng_state(state["cpu"])
    here = torch.cuda.device_count() if state["cuda"] else 0
    for index, saved in enumerate(state["cuda"][:here]):
        torch.cuda.set_rng_state(saved, index)
    return [
        f"cuda:{index}: this machine has {here} CUDA devices"
        for index in range(here, len(state["cuda"]))
    ]


def seed(number: int) -> None:
    # torch.manual_seed would queue a seed for an uninitialised CUDA, which no restore can undo
    torch.default_generator.manual_seed(number % 2**64)
    if _is_cuda_initialized():
        torch.cuda.manual_seed_all(number % 2**64)


def check(state: Any) -> None:
    torch.Generator().set_state(state["cpu"])
    if not all(saved.dtype is torch.uint8 and saved.dim() == 1 for saved in state["cuda"]):
        raise TypeError("the state of a CUDA device is not bytes")


SOURCE = GeneratorSource(capture, restore, seed, check)
