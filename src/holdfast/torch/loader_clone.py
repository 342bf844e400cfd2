"""Clones a DataLoader: the clone has the user's settings, with an order and a generator of
Holdfast's own.

A clone draws from generators of its own. So that a loop with Holdfast sees the numbers of a loop
without it, the global generator moves as the plain loader would have moved it when an epoch begins:

    each new iterator             one number, the seed of its workers; from `generator=` if the
                                  loader was given one
    persistent workers            that number in the loader's first epoch only
    torch's samplers with chance  what they draw at their first index, unless they have a generator
                                  of their own
    a sampler of the user's       nothing: it draws from a stream of its own (plans.py)
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..data.facts import LoaderFacts, loader_facts
from ..data.seeded import Seeded
from ..data.seekable import SeekableBatches
from .workers import WorkerInit


def clone_loader(
    loader: DataLoader[Any],
    steps: Any = None,
    dataset: Any = None,
    kind: Any = DataLoader,
    **settings: Any,
) -> Any:
    """Return a loader of class `kind` like `loader`; `steps` takes the place of its batch sampler,
    `dataset` of its dataset.
    """
    if loader.num_workers and not getattr(loader, "in_order", True):  # since torch 2.6
        warnings.warn(
            "in_order=False: batches stay in order, or no run could be repeated",
            UserWarning,
            stacklevel=2,
        )
    order: dict[str, Any] = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if steps is not None:
        order = (
            {"batch_sampler": steps}
            if loader.batch_sampler is not None
            else {"sampler": steps, "batch_size": None}
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's own loader has warned already
        return kind(
            loader.dataset if dataset is None else dataset,
            **order,
            **{**_user_settings(loader), **settings},
        )


def draw_seed_of_workers(loader: DataLoader[Any], twin: Any, seed: int) -> None:
    """Draw the number that seeds the workers of `loader`. The next iterator of `twin` will draw the
    same one.

    A generator of the user's may not be tracked, and then a resume finds it in another state. So it
    is only advanced, and the workers get `seed`.
    """
    if loader.generator is None:
        twin.generator.set_state(torch.get_rng_state())
    else:
        twin.generator.manual_seed(seed)
    _draw_number(loader.generator or torch.default_generator)


def draw_as_sampler(loader: DataLoader[Any]) -> None:
    """Draw what the sampler of `loader` draws when an epoch begins, if it is one of torch's."""
    source: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    sampler = source.sampler if type(source) is BatchSampler else source
    if getattr(sampler, "generator", None) is not None:
        return
    if type(sampler) is RandomSampler:
        _draw_number(torch.default_generator)  # the seed of its permutation
    elif type(sampler) in {SubsetRandomSampler, WeightedRandomSampler}:
        next(iter(sampler), None)


def _draw_number(generator: torch.Generator) -> None:
    torch.empty((), dtype=torch.int64).random_(generator=generator)


def torchdata_class(name: str) -> Any:
    """Return the object of that name in `torchdata.stateful_dataloader`,
    if the program has imported it.
    """
    homes = ("torchdata.stateful_dataloader", "torchdata.stateful_dataloader.sampler")
    return next(
        (
            found
            for home in homes
            if (found := getattr(sys.modules.get(home), name, None)) is not None
        ),
        None,
    )


def _user_settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the user's settings that the clone takes over, without samples and their order."""
    names = ["num_workers", "collate_fn", "pin_memory", "timeout", "persistent_workers"]
    if loader.num_workers:
        names += ["prefetch_factor", "multiprocessing_context"]
    if loader.pin_memory_device:  # deprecated: even naming its default may warn one day
        names.append("pin_memory_device")
    settings = {name: getattr(loader, name) for name in names}
    return {
        **settings,
        "worker_init_fn": WorkerInit(loader.worker_init_fn),
        "generator": torch.Generator(),
    }


def facts_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the facts of a DataLoader; its length is that of its dataset, in samples."""
    dataset = loader.dataset
    name = (
        f"Seeded({type(dataset.dataset).__name__})"
        if isinstance(dataset, Seeded)
        else type(dataset).__name__
    )
    streams = [
        [stream[fact] for fact in ("seed", "shuffle", "sources")]
        for stream in _streams_inside(dataset)
    ]
    facts = {"dataset": name} | ({"sources": streams} if streams else {})
    return loader_facts(loader, dataset) | facts


def _streams_inside(dataset: Any) -> list[LoaderFacts]:
    """Return the facts of a stream of single samples, also where torch's datasets wrap it."""
    if isinstance(dataset, SeekableBatches):
        return [dataset.describe()]
    if isinstance(dataset, Seeded | Subset):
        return _streams_inside(dataset.dataset)
    parts = dataset.datasets if isinstance(dataset, ConcatDataset) else []
    return [facts for each in parts for facts in _streams_inside(each)]
