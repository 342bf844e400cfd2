"""Stored leaves and live tensors: compare them, and fill the one from the other."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard, TypeVar

import torch

from ..errors import Mismatch
from ..state.captured import ATOMS
from ..state.codec import LeafReader, decode_leaves, is_stored, read_all
from . import pieces
from .items import Now, data, memory
from .leaves import DTYPES, NAMES, empty

T = TypeVar("T")

_PLAIN = (torch.Tensor, torch.nn.Parameter)
AROUND_BYTES = 16 << 20  # that exist twice while they come into memory that no file can be read into


class TensorFacts(NamedTuple):
    """What must agree before bytes move."""

    dtype: str
    shape: tuple[int, ...]


def is_stored_tensor(value: object) -> TypeGuard[LeafReader]:
    return getattr(value, "kind", None) == "torch" and is_stored(value)


def facts(value: object) -> TensorFacts | None:
    """Dtype and shape of a live tensor or of a stored one; None for anything else."""
    if isinstance(value, torch.Tensor):
        dtype = value.dtype
        return TensorFacts(NAMES.get(dtype) or str(dtype).removeprefix("torch."), tuple(value.shape))
    return TensorFacts(value.dtype, tuple(value.shape)) if is_stored_tensor(value) else None


def mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """`tree` with its containers copied and `leaf` applied to everything in them."""
    if isinstance(tree, torch.Tensor) or type(tree) in ATOMS:
        return leaf(tree)
    if type(tree) is dict:
        return {key: mapped(value, leaf) for key, value in tree.items()}
    if is_stored(tree):
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
    return mapped(
        tree, lambda value: value.detach() if isinstance(value, torch.Tensor) and _has_graph(value) else value
    )


def _has_graph(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad or not pieces.is_dtensor(tensor)  # whose detach() costs ten times a tensor's


def decoded(tree: Any) -> Any:
    """`tree` with a fresh object for every stored leaf; a leaf that stands in two places stays one object."""
    stored: dict[str, LeafReader] = {}

    def note(value: Any) -> Any:
        if type(value) not in ATOMS and is_stored(value):
            stored.setdefault(value.key, value)
        return value

    mapped(tree, note)
    if not stored:
        return tree
    leaves = dict(zip(stored, decode_leaves(list(stored.values())), strict=True))
    return mapped(tree, lambda value: leaves[value.key] if is_stored(value) else value)


class TensorRestore:
    """Stored leaves on their way into live tensors. `into` and `fresh` only take notes; `run` reads all in one go."""

    def __init__(self) -> None:
        self._straight: list[tuple[torch.Tensor, LeafReader]] = []
        self._around: list[tuple[torch.Tensor, LeafReader]] = []  # what torch alone can write to: by way of a copy
        self._parts: dict[str, list[pieces.Cut]] = {}  # of leaves of which not all is wanted, by their key

    def into(self, live: torch.Tensor, stored: LeafReader | torch.Tensor) -> None:
        """Let `live` have the stored numbers."""
        if isinstance(stored, torch.Tensor):
            with torch.no_grad():
                live.copy_(stored)
        elif pieces.is_dtensor(live):
            for cut in pieces.cuts(live, stored):
                self.part(cut)
        else:
            self._note(live, stored)

    def part(self, cut: pieces.Cut) -> None:
        """Let its tensor have these items of its leaf."""
        if pieces.is_whole(cut) and NAMES.get(cut.live.dtype) == cut.stored.dtype:
            self._note(cut.live, cut.stored)
        elif cut.live.numel():
            self._parts.setdefault(cut.stored.key, []).append(cut)

    def _note(self, live: torch.Tensor, stored: LeafReader) -> None:
        (self._straight if _is_plain(live) else self._around).append((live, stored))

    def fresh(self, stored: LeafReader, device: torch.device, parameter: torch.Tensor | None = None) -> torch.Tensor:
        """A new tensor on `device` with the stored dtype, shape and stride; its numbers come with `run`.

        One that belongs to a parameter which is a DTensor becomes one as well, unless it is a single number.
        """
        if parameter is not None and pieces.is_dtensor(parameter) and stored.shape:
            tensor = pieces.like(parameter, stored.shape, empty(stored, torch.device("meta")).dtype)
        else:
            tensor = empty(stored, device)
        self.into(tensor, stored)
        return tensor

    def run(self) -> None:
        """Read them all, straight from the files into their memory; of the others, few exist twice at a time."""
        straight, around = self._straight, self._around
        self._straight, self._around = [], []
        now = Now()
        read_all([(stored, data(live, now)) for live, stored in straight if live.numel()])
        for live, _ in straight:
            torch.autograd.graph.increment_version(live)  # a graph made before must not go backward over new bytes
        while around:
            few = _few(around)
            around = around[len(few) :]
            _fill_around(few)
        parts = [(cuts, cuts[0].stored) for cuts in self._parts.values()]
        self._parts = {}
        while parts:
            some = _few(parts)
            parts = parts[len(some) :]
            _fill_parts(some)


def _few(pairs: list[tuple[T, LeafReader]]) -> list[tuple[T, LeafReader]]:
    """The first ones, of at most `AROUND_BYTES` together, or the first alone."""
    total = 0
    for count, (_, stored) in enumerate(pairs):
        total += stored.size_bytes
        if count and total > AROUND_BYTES:
            return pairs[:count]
    return pairs


def _fill_around(pairs: list[tuple[torch.Tensor, LeafReader]]) -> None:
    copies = [torch.empty(stored.shape, dtype=live.dtype) for live, stored in pairs]
    read_all([(stored, memory(whole)) for whole, (_, stored) in zip(copies, pairs, strict=True) if whole.numel()])
    with torch.no_grad():
        for whole, (live, _) in zip(copies, pairs, strict=True):
            live.copy_(whole)


def _fill_parts(parts: list[tuple[list[pieces.Cut], LeafReader]]) -> None:
    """Read each leaf whole, as its digest is of all of it, and copy the wanted items."""
    wholes = [torch.empty(tuple(stored.shape), dtype=DTYPES[stored.dtype]) for _, stored in parts]
    read_all([(stored, memory(whole)) for whole, (_, stored) in zip(wholes, parts, strict=True)])
    with torch.no_grad():
        for whole, (cuts, _) in zip(wholes, parts, strict=True):
            for cut in cuts:
                cut.live.copy_(whole[cut.where])


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


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether each of its items has a place of its own, in the host's memory or on a device of CUDA's."""
    return (
        (type(tensor) in _PLAIN or type(tensor.detach()) is torch.Tensor)
        and (tensor.is_cpu or tensor.is_cuda)
        and tensor.layout == torch.strided
        and not (tensor.is_conj() or tensor.is_neg())
        and (tensor.is_contiguous() or 0 not in tensor.stride())
    )
