"""Replaces the batches of the trainer's loaders: accelerate's own loader stays around Holdfast's,
with all its functions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from ..data.seeded import SeededBatches, mark_as_worker


class LoaderProxy:
    """Replaces a loader: its iteration is `batches`, and everything else is the loader's."""

    def __init__(self, loader: Any, batches: Callable[[Any], Iterator[Any]]) -> None:
        self._loader, self._batches = loader, batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in {"_loader", "_batches"}:
            raise AttributeError(name)
        return getattr(self._loader, name)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._loader)


def with_repeatable_workers(loader: Any, seed: int) -> Any:
    """Return a loader like this one, whose workers draw the same numbers for the same batch.

    Their draws must not depend on the batches that they read before: a resume begins with new
    workers.
    """
    if not (isinstance(loader, DataLoader) and loader.num_workers) or isinstance(
        loader.dataset, IterableDataset
    ):
        return loader
    twin = copy.copy(loader)
    vars(twin).update(dataset=SeededBatches(loader.dataset, seed), _iterator=None)
    return twin


def without_global_draws(loader: Any, seed: int) -> Any:
    """Return a loader for an evaluation with persistent workers: iterating it draws nothing from
    the global generators.

    torch draws the seed of a loader's workers from them when the workers start. An evaluation's
    persistent workers start once in each process, so that a resumed training would draw once more
    than an uninterrupted one.
    """
    twin = with_repeatable_workers(loader, seed)
    if twin is not loader:
        twin.generator = torch.Generator().manual_seed(seed % 2**63)
        twin.worker_init_fn = _EvaluationWorkerInit(loader.worker_init_fn)
    return twin


class _EvaluationWorkerInit:
    """A `worker_init_fn` for an evaluation's workers: only samples use their generators."""

    def __init__(self, users: Callable[[int], None] | None) -> None:
        self._users = users

    def __call__(self, worker: int) -> None:
        mark_as_worker()
        if self._users is not None:
            self._users(worker)
