"""What torch adds to a program: facts for the fingerprint, the seed, its ranks, stillness for a probe."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from . import modules
from .ranks import ranks
from .reducer import Reducers
from .untracked import alone, untracked
from .workers import sheltered

__all__ = ["Reducers", "alone", "facts", "initial_seed", "ranks", "sheltered", "still", "untracked"]


def facts() -> dict[str, Any]:
    """Threads, device model and deterministic switches."""
    cuda = torch.cuda.is_available()
    return {
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def initial_seed() -> int:
    """What torch.manual_seed was given, or torch's own constant."""
    return torch.initial_seed()


def still(targets: Iterable[object]) -> AbstractContextManager[None]:
    """The modules among `targets` in evaluation mode, without gradients, for a block."""
    return modules.still(target for target in targets if isinstance(target, nn.Module))
