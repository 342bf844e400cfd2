"""Kinds of loaders under a run that is cut after some of its batches and ends of epochs, and what is to follow.

A run of two epochs keeps a checkpoint of each of its safe points. From those that are chosen another run goes on, with
a fresh loader and other random numbers, as a new process does. Each pass of the body notes its batch and the states of
the three global random generators, and draws from them: one number too many or too few anywhere shows from there on.
"""

import gc
import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain, count, cycle, islice
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader

import holdfast.data
from holdfast import Every, Last, Run
from holdfast.data import Zip
from holdfast.errors import Mismatch
from subjects import asked_of
from toy import Toy

LENGTH, BATCH, EPOCHS = 5, 2, 2


class Points(Dataset):
    """Sample i is i. Without workers reading it draws from torch's generator, as augmentation does."""

    def __len__(self):
        return LENGTH

    def __getitem__(self, index):
        drawn = torch.rand(()).item() if get_worker_info() is None else 0.0
        return index + drawn / 2


class Lazy:
    """A sampler of the user's that draws as it goes."""

    def __iter__(self):
        left = list(range(LENGTH))
        while left:
            yield left.pop(random.randrange(len(left)))

    def __len__(self):
        return LENGTH


class Batches:
    """A batch sampler of the user's: an order drawn at the start, and sizes drawn on the way."""

    def __iter__(self):
        order = torch.randperm(LENGTH).tolist()
        while order:
            yield [order.pop() for _ in range(min(1 + int(np.random.randint(2)), len(order)))]


class GoesBack:
    """A sampler with a state, whose position is 0 again as soon as its last index is out: so does torchdata's."""

    def __init__(self):
        self.at, self.epoch, self.resumed = 0, 0, None

    def __iter__(self):
        self.at = self.resumed or 0
        self.resumed = None
        for place in range(self.at, LENGTH):
            self.at += 1
            yield (place + self.epoch) % LENGTH
        self.at = 0
        self.epoch += 1

    def __len__(self):
        return LENGTH

    def state_dict(self):
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.resumed, self.epoch = state["at"], state["epoch"]


class Endless(GoesBack):
    """The same without a length."""

    __len__: Any = None


class StaysAtTheEnd(GoesBack):
    """Says at its end that it is there, and begins anew when it is iterated again."""

    def __iter__(self):
        self.at = self.resumed or 0
        self.epoch += self.resumed is None
        self.resumed = None
        for place in range(self.at, LENGTH):
            self.at += 1
            yield (place + self.epoch) % LENGTH


class GroupsThatGoBack(GoesBack):
    """A batch sampler whose state is the next epoch's before its last batch is out."""

    def __iter__(self):
        start, self.resumed = self.resumed or 0, None
        for first in range(start, LENGTH, BATCH):
            batch = [(place + self.epoch) % LENGTH for place in range(first, min(first + BATCH, LENGTH))]
            self.at = first + BATCH
            if self.at >= LENGTH:
                self.at = 0
                self.epoch += 1
            yield batch

    def __len__(self):
        return (LENGTH + BATCH - 1) // BATCH


class Stream(IterableDataset):
    """No state; it draws as it goes, and workers share it out."""

    def __iter__(self):
        info = get_worker_info()
        first, apart = (info.id, info.num_workers) if info else (0, 1)
        for value in range(first, LENGTH, apart):
            yield value + (torch.rand(()).item() / 2 if info is None else 0.0)


class Counting(IterableDataset):
    """Counts its epochs in __iter__, and has another order in each."""

    def __init__(self):
        self.epoch = -1

    def __iter__(self):
        self.epoch += 1
        info = get_worker_info()
        first, apart = (info.id, info.num_workers) if info else (0, 1)
        order = np.random.default_rng(self.epoch).permutation(LENGTH).tolist()
        return iter(order[first::apart])


class CountsAtTheEnd(Counting):
    """Counts an epoch when it is over: a pass that is left early does not count."""

    def __init__(self):
        self.epoch = 0

    def __iter__(self):
        yield from np.random.default_rng(self.epoch).permutation(LENGTH).tolist()
        self.epoch += 1


class StatefulStream(Endless, IterableDataset):
    """A stream with a state, that goes back as soon as its last sample is out."""


class StreamThatStays(StaysAtTheEnd, IterableDataset):
    """A stream with a state that stays at its end."""

    __len__: Any = None


class Own(GoesBack):
    """A loader of the user's with a state."""


def loaders(kind, dataset=Points, **settings):
    """What makes a loader of that kind for a number of workers; settings that are functions are called."""

    def made(workers):
        named = {name: value() if callable(value) else value for name, value in settings.items()}
        size = {} if "batch_sampler" in named else {"batch_size": BATCH}
        return kind(dataset(), num_workers=workers, **size, **named)

    return made


points = stream = partial(loaders, DataLoader)
of_torchdata = partial(loaders, StatefulDataLoader)


def of_stream(**settings):
    """Whole batches from their places; the map draws, and leaves no trace of that."""

    def made(workers):
        batches = holdfast.data.Stream(
            range(LENGTH), BATCH, shuffle=holdfast.data.Window(2, 3), map=Points().__getitem__
        )
        return DataLoader(batches, batch_size=None, num_workers=workers, **settings)

    return made


def of_nodes(source, **options):
    """torchdata's nodes, of which the second draws random numbers."""
    return nodes.Loader(nodes.Batcher(nodes.Mapper(source, Points().__getitem__), BATCH, drop_last=False), **options)


def generator(loader):
    yield from loader


weighted = lambda: WeightedRandomSampler([1.0, 2.0, 3.0, 4.0, 5.0], LENGTH)
shuffled = points(shuffle=True)


class Case(NamedTuple):
    make: Callable[[int], Any]
    each: Callable[[Any], Any] = lambda loader: loader  # what each epoch makes of it
    unshuffled: bool = False  # the numbers are those of a loop without Holdfast, too
    workers: tuple[int, ...] = (0, 2)
    refused: tuple[str, ...] = ()  # the cuts after which a resume is refused, and not only different
    unseen: tuple[str, ...] = ()  # those after which it is different, and nobody can tell


CASES = {
    "sequential": Case(points(), unshuffled=True),
    "shuffled": Case(shuffled),
    "drop last": Case(points(shuffle=True, drop_last=True)),
    "replacement": Case(points(sampler=lambda: RandomSampler(range(LENGTH), replacement=True))),
    "weighted": Case(points(sampler=weighted)),
    "subset": Case(points(sampler=lambda: SubsetRandomSampler(range(1, 5)))),
    "own sampler": Case(points(sampler=Lazy)),
    "own batch sampler": Case(points(batch_sampler=Batches)),
    "sampler that goes back": Case(points(sampler=GoesBack), unshuffled=True),
    "sampler that goes back, drop last": Case(points(sampler=GoesBack, drop_last=True)),
    "sampler without a length": Case(points(sampler=Endless), unshuffled=True),
    "sampler that stays at its end": Case(points(sampler=StaysAtTheEnd), unshuffled=True),
    "batch sampler that goes back": Case(points(batch_sampler=GroupsThatGoBack), workers=(0,)),
    "own generator": Case(points(shuffle=True, generator=lambda: torch.Generator().manual_seed(3))),
    "own generator, unshuffled": Case(points(generator=lambda: torch.Generator().manual_seed(3)), unshuffled=True),
    "persistent workers": Case(points(persistent_workers=True), unshuffled=True, workers=(2,)),
    "torchdata": Case(of_torchdata(), unshuffled=True),
    "torchdata, shuffled": Case(of_torchdata(shuffle=True)),
    "torchdata, weighted": Case(of_torchdata(sampler=weighted)),
    "torchdata, sampler that goes back": Case(of_torchdata(sampler=GoesBack), unshuffled=True),
    "torchdata, stream that stays at its end": Case(of_torchdata(StreamThatStays), unshuffled=True, workers=(0,)),
    "torchdata, stream that goes back": Case(of_torchdata(StatefulStream), unshuffled=True),
    "torchdata, stream without a state": Case(of_torchdata(Stream), workers=(2,)),
    "seekable": Case(of_stream()),
    "seekable, persistent workers": Case(of_stream(persistent_workers=True, prefetch_factor=3), workers=(2,)),
    "nodes": Case(
        lambda _: of_nodes(nodes.SamplerWrapper(RandomSampler(range(LENGTH)))), unshuffled=True, workers=(0,)
    ),
    "nodes of an iterable": Case(
        lambda _: of_nodes(nodes.IterableWrapper(range(LENGTH)), restart_on_stop_iteration=False),
        unshuffled=True,
        workers=(0,),
    ),
    "stream with a state": Case(stream(StatefulStream), unshuffled=True, workers=(0,)),
    "stream that stays at its end": Case(stream(StreamThatStays), unshuffled=True, workers=(0,)),
    "stream": Case(stream(Stream), unshuffled=True),
    "stream, persistent workers": Case(stream(Stream, persistent_workers=True), unshuffled=True, workers=(2,)),
    "stream that counts": Case(stream(Counting), unshuffled=True),
    "stream that counts, persistent workers": Case(
        stream(Counting, persistent_workers=True), unshuffled=True, workers=(2,)
    ),
    "stream that counts at its end": Case(stream(CountsAtTheEnd), workers=(0,)),
    "own loader": Case(lambda _: Own(), unshuffled=True, workers=(0,)),
    "list": Case(lambda _: [1, 2, 3], unshuffled=True, workers=(0,)),
    "zip": Case(lambda workers: (shuffled(workers), shuffled(workers)), lambda pair: zip(*pair, strict=True)),
    "Zip": Case(lambda workers: Zip(shuffled(workers), points()(workers))),
    "Zip of samplers that go back": Case(
        lambda _: Zip(points(sampler=GoesBack)(0), [1, 2]), unshuffled=True, workers=(0,)
    ),
    "enumerate": Case(shuffled, enumerate),
    "islice": Case(shuffled, lambda loader: islice(loader, 2)),
    "chain": Case(  # begins the second loader with the random numbers of that moment
        shuffled, lambda loader: chain(loader, loader), workers=(0,), refused=("5", "6", "11", "12")
    ),
    "cycle": Case(shuffled, lambda loader: islice(cycle(loader), 4), workers=(0,)),
    "generator": Case(shuffled, generator),
    "unshuffled generator": Case(points(), generator, unshuffled=True, workers=(0,)),
    "an iterator across epochs": Case(
        lambda _: count(), lambda numbers: islice(numbers, 3), workers=(0,), refused=("4", "5", "6"), unseen=("3-end",)
    ),
}


def generators():
    """A digest of where Python's, NumPy's and torch's generators are."""
    numpy: Any = np.random.get_state()
    states = random.getstate(), numpy[1].tobytes(), numpy[2:], torch.get_rng_state().numpy().tobytes()
    return xxhash.xxh3_64_hexdigest(repr(states).encode())


def draw():
    random.random(), np.random.rand(), torch.rand(())


def plain(batch):
    if isinstance(batch, tuple | list):
        return [plain(part) for part in batch]
    return batch.tolist() if hasattr(batch, "tolist") else batch


def start(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def by_epochs(run, batches_of, epoch_of, save):
    """The loop of a script: `epoch_of` does the passes over what `batches_of` gives; `save` each end of an epoch."""
    for epoch in run.epochs(EPOCHS):
        if save:  # also behind the last batch, where no periodic save is
            epoch_of(epoch, run.batches(batches_of()), run.save)
            run.save()
        else:
            epoch_of(epoch, run.batches(batches_of()))


def fetched_ahead(batches, ahead):
    """The batches, of which `ahead` more are fetched than are out."""
    queue = deque()
    for batch in batches:
        queue.append(batch)
        if len(queue) > ahead:
            yield queue.popleft()
    yield from queue


def by_trainer(run, batches_of, epoch_of, save, ahead):
    loop = run.loop(epochs=EPOCHS)

    def marked(batches):
        for batch in fetched_ahead(batches, ahead):
            yield batch
            if save:  # also where no start is sure to go on from
                run.save()
            loop.step_done()

    while loop.goes_on:
        epoch = loop.epoch
        loop.begin_epoch()
        epoch_of(epoch, marked(loop.batches(batches_of())))
        if save:
            run.save()
        loop.end_epoch()
    loop.leave()


def walked(case, workers, seed, path=None, drive=by_epochs, **options):
    """What each pass of the body and each end of an epoch saw: its epoch, batch and random numbers. `drive` walks."""
    start(seed)
    loader, seen = case.make(workers), []

    def epoch_of(epoch, batches, save=lambda: None):
        for batch in batches:
            seen.append((epoch, plain(batch), generators()))
            draw()
            save()
        seen.append((epoch, "end", generators()))

    if path is None:
        for epoch in range(EPOCHS):
            epoch_of(epoch, case.each(loader))
        return seen
    with Run(path, {"toy": Toy()}, background=False, keep=Last(1000), **options) as run:
        drive(run, lambda: case.each(loader), epoch_of, options.get("every") is not None)
    return seen


def cuts(path, seen):
    """Each checkpoint but the last, and what is to be seen after it."""
    found, passes = [], 0
    checkpoints = sorted(
        (path / "checkpoints").glob("step-*[0-9d]"), key=lambda each: (each.name[:14], each.name.endswith("-end"))
    )
    steps = iter(checkpoints)
    for number, (_, what, _) in enumerate(seen):
        checkpoint = next(steps)
        passes += what != "end"
        assert checkpoint.name == f"step-{passes:09}" + ("-end" if what == "end" else "")
        found.append((checkpoint, seen[number + 1 :]))
    assert next(steps, None) is None
    return found[:-1]


def differing_cuts(name, workers, place, chosen=lambda cuts: cuts, drive=by_epochs):
    """The cuts after which what follows differs, with what was found and expected; batches and random numbers are to be
    those of the run of one piece, and unshuffled, those of a loop without Holdfast.
    """
    case = CASES[name]
    seen = walked(case, workers, 1, place / "whole", drive, every=Every(steps=1))
    assert sum(what != "end" for _, what, _ in seen) >= EPOCHS * 2
    if case.unshuffled and drive is by_epochs:
        assert seen == walked(case, workers, 1)
    different, refused, tried = {}, [], chosen(cuts(place / "whole", seen))
    assert tried
    for checkpoint, rest in tried:
        gc.collect()  # the workers of the run before end here
        cut = checkpoint.name.removeprefix("step-").lstrip("0")
        try:
            found = walked(case, workers, 99, place / cut, drive, every=None, branch_from=checkpoint)
        except Mismatch as error:
            refused.append((cut, "cannot be resumed" in str(error)))
            continue
        if found != rest and cut not in case.unseen:
            different[cut] = (found[:2], rest[:2])
    names = [checkpoint.name.removeprefix("step-").lstrip("0") for checkpoint, _ in tried]
    assert refused == [(cut, True) for cut in case.refused if cut in names]
    return different


def differing_trainer_cuts(ahead, place, nth=1):
    """`differing_cuts` of every nth kind of loader, of which a trainer has fetched `ahead` batches too early."""
    names = [name for name, case in CASES.items() if 0 in case.workers and not (ahead and case.refused)]
    found = {}
    for number, name in enumerate(names[::nth]):
        with asked_of(name):
            found |= differing_cuts(name, 0, place / str(number), drive=partial(by_trainer, ahead=ahead))
    assert len(names) > 8
    return found
