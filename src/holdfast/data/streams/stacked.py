"""Batches from samples: arrays and numbers are stacked, members of containers each by itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np


def stack(samples: Sequence[Any]) -> Any:
    """Return one batch: arrays of one shape and numbers as an array with one dimension more, dicts
    and tuples member by member, and a list of anything else.
    """
    first = samples[0]
    if isinstance(first, dict) and all(isinstance(each, dict) for each in samples):
        if any(each.keys() != first.keys() for each in samples):
            return [*samples]
        return {key: stack([each[key] for each in samples]) for key in first}
    if isinstance(first, tuple) and {*map(type, samples)} == {type(first)}:
        if len({*map(len, samples)}) > 1:
            return [*samples]
        members = [stack(each) for each in zip(*samples, strict=True)]
        return type(first)(*members) if hasattr(first, "_fields") else tuple(members)
    if isinstance(first, np.ndarray | np.generic | int | float | bool):
        arrays = [*map(np.asarray, samples)]
        alike = len({(each.shape, each.dtype.kind) for each in arrays}) == 1
        return np.stack(arrays) if alike else [*samples]
    if type(first).__module__.partition(".")[0] == "torch":
        return sys.modules["torch"].stack([*samples])  # a sample of it has imported torch
    return [*samples]
