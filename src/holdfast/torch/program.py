"""Torch's part of a program: facts for the fingerprint,
the seed, its ranks, prediction mode for a probe.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import initial_seed

from .left_out import registered_hooks, saves_nothing, unsaved_attributes
from .modules import evaluation_mode
from .ranks import ranks
from .reducer import ReducerLayouts
from .stepping import StepObserver
from .untracked import (
    is_stepped,
    is_unshared,
    memory_of,
    memory_of_run,
    omits_references,
    unsaved_optimizers,
    unsaved_tensors,
    untracked_parameters,
)
from .workers import workers_ignore_stops

__all__ = [
    "ReducerLayouts",
    "StepObserver",
    "evaluation_mode",
    "facts",
    "initial_seed",
    "is_stepped",
    "is_unshared",
    "memory_of",
    "memory_of_run",
    "omits_references",
    "ranks",
    "registered_hooks",
    "saves_nothing",
    "unsaved_attributes",
    "unsaved_optimizers",
    "unsaved_tensors",
    "untracked_parameters",
    "workers_ignore_stops",
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
