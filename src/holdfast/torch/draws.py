"""What a plain DataLoader draws from torch's generators when an epoch begins, drawn in its place.

A twin draws from generators of its own. So that a loop with Holdfast sees the numbers of a loop without it, the global
generator moves as the plain loader would have moved it:

    each new iterator             one number, the seed of its workers; from `generator=` if the loader was given one
    persistent workers            that number in the loader's first epoch only
    torch's samplers with chance  what they draw at their first index, unless they have a generator of their own
    a sampler of the user's       nothing: it draws from a stream of its own (plans.py)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler


def seed_of_workers(loader: DataLoader[Any], twin: DataLoader[Any], seed: int) -> None:
    """Draw the number that seeds the workers of `loader`. The next iterator of `twin` will draw the same one.

    A generator of the user's need not be tracked, so that a resume might find it elsewhere: it moves on, and the workers
    get `seed`.
    """
    if loader.generator is None:
        twin.generator.set_state(torch.get_rng_state())
    else:
        twin.generator.manual_seed(seed)
    _number(torch.default_generator if loader.generator is None else loader.generator)


def of_the_sampler(loader: DataLoader[Any]) -> None:
    """Draw what the sampler of `loader` draws when an epoch begins, if it is one of torch's."""
    source: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    sampler = source.sampler if type(source) is BatchSampler else source
    if getattr(sampler, "generator", None) is not None:
        return
    if type(sampler) is RandomSampler:
        _number(torch.default_generator)  # the seed of its permutation
    elif type(sampler) in {SubsetRandomSampler, WeightedRandomSampler}:
        next(iter(sampler), None)


def _number(generator: torch.Generator) -> None:
    torch.empty((), dtype=torch.int64).random_(generator=generator)
