"""cycling_utils' names: change the import line of a script, and nothing else.

    from holdfast.compat.cycling_utils import AtomicDirectory, atomic_torch_save

Signatures are those of cycling_utils (github.com/StrongResearch/cycling_utils, as of November
2025), and the behaviour is the documented one; docs/migration-cycling-utils.md lists the
differences and the removed faults.
"""

from __future__ import annotations

from ..torch.sharded import DistributedShardedDataset
from .directory import AtomicDirectory
from .reports import MetricsTracker, TimestampedTimer
from .samplers import (
    AdvancedTooFarError,
    HasNotResetProgressError,
    InterruptableDistributedGroupedBatchSampler,
    InterruptableDistributedSampler,
    InterruptableSampler,
)
from .saving import atomic_torch_save

InterruptibleSampler = InterruptableSampler  # as the documentation spells it

__all__ = [
    "AdvancedTooFarError",
    "AtomicDirectory",
    "DistributedShardedDataset",
    "HasNotResetProgressError",
    "InterruptableDistributedGroupedBatchSampler",
    "InterruptableDistributedSampler",
    "InterruptableSampler",
    "InterruptibleSampler",
    "MetricsTracker",
    "TimestampedTimer",
    "atomic_torch_save",
]
