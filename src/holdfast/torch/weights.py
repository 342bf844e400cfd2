"""Reads a model's weights from another run, and names those that do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import Mismatch
from ..run.weights import Report, match_by_name, rename_leaf
from . import modules
from .stored import tensor_differences


def is_model(target: object) -> TypeGuard[nn.Module]:
    return isinstance(target, nn.Module)


def match_weights(model: nn.Module, stored: Mapping[str, Any], rename: Mapping[str, str]) -> Report:
    """Return which leaves of `stored` fit the model after renaming; nothing is changed or read.

    `rename`: prefix in the checkpoint -> prefix here, whole parts of a name; the longest that fits
    counts.
    """
    if not isinstance(stored, Mapping):
        raise Mismatch(
            f"the checkpoint holds no model there, but a value of type {type(stored).__name__}"
        )
    modules.require_names(stored)
    live, there = modules.live_entries(model), _renamed(stored, rename)
    return match_by_name(
        live, there, lambda name: tensor_differences(name, there[name], live[name])
    )


def read_matching(model: nn.Module, stored: Mapping[str, Any], rename: Mapping[str, str]) -> None:
    """Read the fitting leaves into the model's memory; the rest stays."""
    live, there = modules.live_entries(model), _renamed(stored, rename)
    tree = {name: value for name, value in live.items() if not is_lazy(value)}
    tree |= {name: there[name] for name in match_weights(model, stored, rename).loaded}
    versions = {
        rename_leaf(name, rename): version
        for name, version in stored.get(modules.METADATA, {}).items()
    }
    modules.restore(model, tree | {modules.METADATA: versions})


def _renamed(stored: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    return {
        rename_leaf(name, rename): value for name, value in modules.stored_tensors(stored).items()
    }
