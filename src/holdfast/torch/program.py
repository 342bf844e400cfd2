"""Torch's part of a program: facts for the fingerprint,
the seed, its ranks, prediction mode for a probe.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import initial_seed

from .left_out import left_out, saves_nothing
from .modules import still
from .ranks import ranks
from .reducer import Reducers
from .stepping import Steps
from .untracked import alone, forgotten, held_by, learned, place, saves_alone, stepped_in, untracked
from .workers import sheltered

__all__ = [
    "Reducers",
    "Steps",
    "alone",
    "facts",
    "forgotten",
    "held_by",
    "initial_seed",
    "learned",
    "left_out",
    "place",
    "ranks",
    "saves_alone",
    "saves_nothing",
    "sheltered",
    "stepped_in",
    "still",
    "untracked",
]


def facts() -> dict[str, Any]:
    """Return threads, device model and deterministic switches."""
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
