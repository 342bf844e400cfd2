"""The twin of a DataLoader: the user's settings, with an order and a generator of Holdfast's own."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..data.facts import facts
from ..data.seeded import Seeded
from .workers import WorkerInit


def twin_of(loader: DataLoader[Any], steps: Any = None, dataset: Any = None) -> DataLoader[Any]:
    """A DataLoader like `loader`; `steps` takes the place of its batch sampler, `dataset` of its dataset."""
    if loader.num_workers and not loader.in_order:
        warnings.warn("in_order=False: batches stay in order, or no run could be repeated", UserWarning, stacklevel=2)
    order: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if steps is not None:
        order = {"batch_sampler": steps} if loader.batch_sampler is not None else {"sampler": steps, "batch_size": None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own loader has said it all
        return DataLoader(loader.dataset if dataset is None else dataset, **order, **_settings(loader))


def stateful_twin_of(loader: Any, dataset: Any) -> Any:
    """A StatefulDataLoader of torchdata like `loader`, over `dataset`."""
    size = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    steps = loader.snapshot_every_n_steps
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = torchdatas("StatefulDataLoader")
        return kind(dataset, **size, **_settings(loader), snapshot_every_n_steps=steps)


def torchdatas(name: str) -> Any:
    """What `torchdata.stateful_dataloader` has under that name, if the program has imported it."""
    homes = ("torchdata.stateful_dataloader", "torchdata.stateful_dataloader.sampler")
    return next((found for home in homes if (found := getattr(sys.modules.get(home), name, None)) is not None), None)


def _settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """What the twin has of the user's besides samples and their order."""
    settings: dict[str, Any] = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": WorkerInit(loader.worker_init_fn),
        "persistent_workers": loader.persistent_workers,
        "generator": torch.Generator(),
    }
    if loader.num_workers:
        settings |= {
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    if loader.pin_memory_device:  # deprecated: even naming its default may warn one day
        settings["pin_memory_device"] = loader.pin_memory_device
    return settings


def facts_of(loader: DataLoader[Any]) -> dict[str, Any]:
    found = facts(loader) | {"dataset": _dataset_name(loader.dataset)}
    found.pop("length", None)  # of batches, where ours is of samples
    with suppress(TypeError, NotImplementedError):
        found["length"] = len(loader.dataset)  # type: ignore[arg-type]
    return found


def _dataset_name(dataset: Any) -> str:
    inner = dataset.dataset if isinstance(dataset, Seeded) else None
    return type(dataset).__name__ if inner is None else f"Seeded({type(inner).__name__})"
