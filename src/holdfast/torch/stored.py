"""Stored leaves and live tensors: compare them, and fill the one from the other, one leaf at a time."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import torch

from ..errors import Mismatch
from ..state.codec import StoredLeaf, decode_leaf, is_stored
from .leaves import memory


class Facts(NamedTuple):
    """What must agree before bytes move."""

    dtype: str
    shape: tuple[int, ...]


def is_stored_tensor(value: object) -> TypeGuard[StoredLeaf]:
    return is_stored(value) and value.kind == "torch"


def facts(value: object) -> Facts | None:
    """Dtype and shape of a live tensor or of a stored one; None for anything else."""
    if isinstance(value, torch.Tensor):
        return Facts(str(value.dtype).removeprefix("torch."), tuple(value.shape))
    return Facts(value.dtype, tuple(value.shape)) if is_stored_tensor(value) else None


def mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """`tree` with its containers copied and `leaf` applied to everything in them."""
    if is_stored(tree) or isinstance(tree, torch.Tensor):
        return leaf(tree)
    if isinstance(tree, dict):
        return _with_items(tree, {key: mapped(value, leaf) for key, value in tree.items()})
    if type(tree) in (list, tuple):
        return type(tree)(mapped(item, leaf) for item in tree)
    if isinstance(tree, deque):
        return deque((mapped(item, leaf) for item in tree), tree.maxlen)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(item, leaf) for item in tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return _with_fields(tree, {name: mapped(value, leaf) for name, value in _fields(tree).items()})
    return leaf(tree)


def detached(tree: Any) -> Any:
    """`tree` in containers of its own; its tensors share memory with the originals and carry no graph."""
    return mapped(tree, lambda value: value.detach() if isinstance(value, torch.Tensor) else value)


def decoded(tree: Any) -> Any:
    """`tree` with a fresh object for every stored leaf; a leaf that stands in two places stays one object."""
    known: dict[str, object] = {}

    def leaf(value: Any) -> Any:
        if not is_stored(value):
            return value
        if value.key not in known:
            known[value.key] = decode_leaf(value)
        return known[value.key]

    return mapped(tree, leaf)


def fresh(stored: StoredLeaf, device: torch.device) -> torch.Tensor:
    """A new tensor on `device` with the stored dtype, shape, stride and bytes."""
    tensor: torch.Tensor = decode_leaf(stored)
    return tensor.detach().to(device)


def fill(live: torch.Tensor, stored: StoredLeaf | torch.Tensor) -> None:
    """Puts the stored bytes into the memory of `live`; at most this one leaf exists twice, and mostly none does."""
    with torch.no_grad():
        if isinstance(stored, torch.Tensor):
            live.copy_(stored)
        elif _is_plain_memory(live):
            stored.read_into(memory(live))
            torch.autograd.graph.increment_version(live)  # a graph made before must not go backward over new bytes
        else:
            contiguous = torch.empty(stored.shape, dtype=live.dtype)
            stored.read_into(memory(contiguous))
            live.copy_(contiguous)


def differing(path: str, stored: object, live: torch.Tensor) -> list[str]:
    """One line per fact in which the stored leaf and the live tensor disagree."""
    there, here = facts(stored), facts(live)
    if there is None or here is None:
        return [f"{path}: {type(stored).__name__} in the checkpoint, a tensor here"]
    if live.is_meta:
        return [f"{path}: on the meta device here; give it memory first (to_empty)"]
    lines = []
    if there.shape != here.shape:
        lines.append(f"{path}: shape {there.shape} in the checkpoint, {here.shape} here")
    if there.dtype != here.dtype:
        lines.append(f"{path}: dtype {there.dtype} in the checkpoint, {here.dtype} here")
    return lines


def load(live: Any, state: Any) -> None:
    """Gives `state` to the object's own load_state_dict.

    Raises:
        Mismatch: it refused; it may have taken a part of the state.
    """
    try:
        live.load_state_dict(state)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, KeyError) as error:
        raise Mismatch(
            f"{type(live).__name__}.load_state_dict refused what the checkpoint holds: {error!s}; "
            "restore into objects made as they were when it was saved"
        ) from error


def _with_items(mapping: dict[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    twin = copy.copy(mapping)  # an ordered, counting or default dict keeps its kind and its attributes
    for key, value in items.items():
        twin[key] = value  # Counter.update would add
    return twin


def _fields(record: Any) -> dict[str, Any]:
    names = dict.fromkeys([*(each.name for each in dataclasses.fields(record)), *getattr(record, "__dict__", ())])
    return {name: getattr(record, name) for name in names if hasattr(record, name)}


def _with_fields(record: Any, fields: dict[str, Any]) -> Any:
    twin = copy.copy(record)
    for name, value in fields.items():
        object.__setattr__(twin, name, value)  # frozen ones too
    return twin


def _is_plain_memory(tensor: torch.Tensor) -> bool:
    return (
        type(tensor.detach()) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and not (tensor.is_conj() or tensor.is_neg())
    )
