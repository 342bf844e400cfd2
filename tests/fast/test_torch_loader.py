"""torch's DataLoader under a run: a resume continues after any batch, and nothing is loaded twice."""

import multiprocessing
import os
import random
from contextlib import suppress
from functools import partial
from itertools import chain, islice, repeat
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    dataloader,
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from feeds import flat, leaves_the_next_epoch_whole, plain, resumes_anywhere, uninterrupted
from holdfast import Every, Run
from holdfast.data import Sampler, Seeded
from holdfast.data.feed import feed_for
from holdfast.data.replay import ReplayFeed
from holdfast.data.stateful import StatefulFeed
from holdfast.errors import Mismatch
from holdfast.torch.loader import DataLoaderFeed
from subjects import asked_of

workers_iterator: Any = dataloader._MultiProcessingDataLoaderIter
BEGIN = workers_iterator.__init__  # as it is when no run is open

LENGTH = 23


class Numbers(Dataset):
    """Sample i is i; each read leaves one byte in `log`, from whatever process."""

    def __init__(self, length=LENGTH, log=None):
        self.length, self.log = length, log

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if self.log is not None:
            with open(self.log, "ab", buffering=0) as log:
                log.write(bytes([index]))
        return int(index)


class Buckets:
    """A batch sampler of the user's: shuffled lengths in buckets, batches of different sizes, lazily."""

    def __iter__(self):
        order = list(range(LENGTH))
        random.shuffle(order)
        while order:
            size = 1 + np.random.randint(3) + int(torch.randint(2, ()))
            yield [np.int64(order.pop()) for _ in range(min(size, len(order)))]


class Endless:
    """A sampler without an end."""

    def __iter__(self):
        while True:
            yield random.randrange(LENGTH)


class HiddenRandomness:
    """A sampler that keeps a generator for itself."""

    def __init__(self):
        self.random = random.Random(1)

    def __iter__(self):
        return iter(self.random.sample(range(LENGTH), LENGTH))

    def __len__(self):
        return LENGTH


class Remembering(HiddenRandomness):
    """The same with a state: where the epoch began, and how far it is."""

    def __init__(self):
        super().__init__()
        self.began, self.taken, self.skip = self.random.getstate(), 0, 0

    def __iter__(self):
        if not self.skip:
            self.began = self.random.getstate()
        order = self.random.sample(range(LENGTH), LENGTH)
        self.taken, self.skip = self.skip, 0
        for index in order[self.taken :]:
            self.taken += 1
            yield index

    def state_dict(self):
        return {"began": self.began, "taken": self.taken}

    def load_state_dict(self, state):
        self.began, self.skip = state["began"], state["taken"]
        self.random.setstate(self.began)


SAMPLERS: dict[str, Any] = {
    "sequential": dict,
    "shuffle": lambda: {"shuffle": True},
    "drop last": lambda: {"shuffle": True, "drop_last": True},
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "holdfast": lambda: {"sampler": Sampler(LENGTH, seed=8)},
    "weighted": lambda: {"sampler": WeightedRandomSampler([1.0] * LENGTH, 30)},
    "subset": lambda: {"sampler": SubsetRandomSampler(range(5, 15))},
    "own generator": lambda: {
        "sampler": SubsetRandomSampler(range(5, 15), torch.Generator().manual_seed(3)),
    },
    "replacement": lambda: {"sampler": RandomSampler(range(LENGTH), replacement=True)},
    "distributed": lambda: {"sampler": DistributedSampler(range(LENGTH), 2, 0)},
    "buckets": lambda: {"batch_size": 1, "batch_sampler": Buckets()},
    "remembering": lambda: {"sampler": Remembering()},
    "no batches, weighted": lambda: {"batch_size": None, "sampler": WeightedRandomSampler([1.0] * LENGTH, 9)},
}


def loader(name, dataset=None, **settings):
    given = {"batch_size": 4, **SAMPLERS[name]()}
    return DataLoader(Numbers() if dataset is None else dataset, **given, **settings)


def numbers(**settings):
    return DataLoader(Numbers(), **{"batch_size": 4, **settings})


def run_of(name, **settings):
    """The batches of each epoch, and the position after each."""
    return uninterrupted(partial(loader, name, **settings))


def test_a_resume_at_any_batch_gives_the_rest():
    """Without workers, for every sampler. Every shuffled epoch has an order of its own."""
    for name in SAMPLERS:
        expected = resumes_anywhere(name, partial(loader, name), every=3)
        if name != "sequential":
            assert expected[0] != expected[1] != expected[2], name
        if name == "shuffle":
            assert [sorted(flat(epoch)) for epoch in expected] == [list(range(LENGTH))] * 3


def without_once(position):
    """But for the mark that persistent workers drew their seed in the first epoch only."""
    return {name: value for name, value in position.items() if name != "once"}


PERSISTENT = {"num_workers": 2, "persistent_workers": True}


def changes_nothing(place, settings, names=("shuffle", "buckets", "remembering")):
    """How many processes load, and how long they live, neither moves the order nor the position. A resume reads the
    samples that are left, each once, and no other.
    """
    for name in names:
        expected, positions = run_of(name)
        found, theirs = run_of(name, **settings)
        assert (found, {place: without_once(each) for place, each in theirs.items()}) == (expected, positions)
        log = place / name
        feed = feed_for(loader(name, Numbers(log=log), **settings), 1)
        with asked_of(name, settings):
            assert plain(feed.open(1, positions[1, 4, "step"])) == expected[1][4:]
            assert sorted(log.read_bytes()) == sorted(flat(expected[1][4:]))
            assert plain(feed.open(2, None)) == expected[2]


def test_workers_change_nothing(tmp_path):
    """Two persistent ones, or none; tests/slow/test_torch_loader_workers.py asks others."""
    changes_nothing(tmp_path, PERSISTENT)
    (tmp_path / "none").mkdir()
    changes_nothing(tmp_path / "none", {}, ("shuffle", "holdfast", "buckets", "remembering"))


def global_states(walk, epochs=2):
    """Where the three global generators are after each epoch of `walk`, begun from the same numbers."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    found = []
    for epoch in range(epochs):
        for _ in walk(epoch):
            torch.rand(())  # the training's own
        numpy: Any = np.random.get_state()
        found.append((random.getstate(), numpy[1].tolist(), torch.get_rng_state().tolist()))
    return found


def test_the_global_generators_move_as_a_plain_loader_moves_them(monkeypatch):
    """Each epoch draws what it draws without Holdfast; only a sampler of the user's has a stream of its own."""
    monkeypatch.setattr(workers_iterator, "__init__", BEGIN)  # a run that another test left open has changed it
    for name, settings, seed in [
        *((name, {}, None) for name in SAMPLERS),
        *((name, {}, 3) for name in ("sequential", "shuffle", "weighted")),
        ("shuffle", {"num_workers": 2}, 3),
        ("weighted", PERSISTENT, None),
    ]:
        own = settings if seed is None else {**settings, "generator": torch.Generator().manual_seed(seed)}
        users, feed = loader("sequential" if name == "buckets" else name, **own), feed_for(loader(name, **own), 1)
        walk: Any = lambda _, users=users: users
        if name == "buckets":  # as many steps, and no draw of the sampler's
            steps = [len(each) for each in run_of(name)[0]]
            walk = lambda epoch, users=users, steps=steps: islice(chain(users, repeat(0)), steps[epoch])
        expected = global_states(walk)
        with asked_of(name, settings, seed):
            assert global_states(lambda epoch, feed=feed: feed.open(epoch, None)) == expected


class Drawing(Numbers):
    """A dataset with augmentation."""

    def __getitem__(self, index):
        return index + torch.rand(()) + random.random()


def test_a_position_counts_what_was_consumed():
    """Batches that workers have read ahead are not behind us."""
    for settings in ({}, {"num_workers": 2}):
        feed = feed_for(loader("shuffle", **settings), 1)
        batches: Any = feed.open(0, None)
        for taken in (0, 1, 2, 3):
            if taken:
                next(batches)
            assert without_once(feed.position(taken)) == {"epoch": 0, "batches": taken, "samples": 4 * taken}
        batches.close()


def breaking_out_changes_nothing(settings):
    for name, of in (("shuffle", {}), ("buckets", {}), ("remembering", {}), ("shuffle", settings)):
        leaves_the_next_epoch_whole((name, of), partial(loader, name, **of), LENGTH, partial(loader, name))


def test_breaking_out_leaves_the_next_epoch_whole():
    """Without workers, and with two that persist."""
    breaking_out_changes_nothing(PERSISTENT)


def test_an_endless_sampler_is_drawn_lazily():
    """Nothing asks for its length or its end."""
    feeds = [feed_for(numbers(sampler=Endless()), 1) for _ in range(2)]
    batches = feeds[0].open(0, None)
    taken = [next(batches).tolist() for _ in range(50)]
    rest = feeds[1].open(0, {"epoch": 0, "batches": 40, "samples": 160})
    assert [next(rest).tolist() for _ in range(10)] == taken[40:]


LUCK = random.Random(2)


class Lucky:
    """A sampler whose generator is no attribute of its."""

    def __iter__(self):
        return iter(LUCK.sample(range(LENGTH), LENGTH))


def test_an_order_that_cannot_be_replayed_is_refused():
    """A sampler that hides its randomness gives other indices the second time: no resume, but an error."""
    made = lambda: numbers(sampler=Lucky())
    _, positions = uninterrupted(made, 2)
    for epoch, place in ((1, (1, 1, "step")), (2, (1, 6, "end"))):
        with pytest.raises(Mismatch, match="cannot be replayed"):
            feed_for(made(), 1).open(epoch, positions[place])


def test_a_sampler_that_became_shorter_is_refused():
    """There is nothing to resume at when the replay ends too early."""
    feed = feed_for(numbers(sampler=SubsetRandomSampler(range(8))), 1)
    with pytest.raises(Mismatch, match="cannot be replayed"):
        feed.open(0, {"epoch": 0, "batches": 3, "samples": 12, "digest": "0" * 32})


def test_another_batch_size_goes_on_at_the_same_sample():
    """When the user accepts a changed batch size, no sample comes twice and none is left out."""
    batches, positions = run_of("shuffle")
    seen = flat(batches[0][:3])
    feed = feed_for(numbers(batch_size=5, shuffle=True), 1)
    following = plain(feed.open(0, positions[0, 3, "step"]))
    assert [len(batch) for batch in following] == [5, 5, 1]
    assert sorted(seen + flat(following)) == list(range(LENGTH))
    assert feed.position(6) == {"epoch": 0, "batches": 6, "samples": LENGTH}


def test_a_tracked_sampler_tells_the_truth():
    """The state of a Holdfast Sampler inside a run is what the loop consumed, however far the workers are ahead."""
    sampler = Sampler(LENGTH, seed=8)
    feed = feed_for(numbers(sampler=sampler, num_workers=2), 1)
    batches = feed.open(2, None)
    next(batches), next(batches)
    assert (sampler.epoch, sampler.position) == (2, 8)


def test_a_batch_sampler_of_torchs_is_seekable_too():
    """BatchSampler(RandomSampler(...)) is what shuffle=True makes: the same order, the same position."""
    explicit = DataLoader(Numbers(), batch_sampler=BatchSampler(RandomSampler(range(LENGTH)), 4, drop_last=False))
    assert plain(feed_for(explicit, 1).open(1, None)) == run_of("shuffle")[0][1]


class Stream(IterableDataset):
    """Numbers without indices; workers share them out."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(range(first, LENGTH, step))


class StatefulStream(IterableDataset):
    """A stream that knows where it is."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        while self.at < LENGTH:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def is_read_again(settings):
    """Only reading what was consumed leads back; the feed says that this costs."""
    feed, fresh = (feed_for(DataLoader(Stream(), batch_size=4, **settings), 1) for _ in range(2))
    expected = plain(feed.open(0, None))
    assert (True, True) == (fresh.replays, isinstance(fresh, ReplayFeed))
    assert plain(fresh.open(0, {"epoch": 0, "batches": 3})) == expected[3:]
    assert plain(fresh.open(1, None)) == expected


def test_an_iterable_dataset_is_read_again():
    """Without workers."""
    is_read_again({})


def test_a_stateful_iterable_dataset_is_not_read_again():
    """Without workers the dataset's own state is the position."""
    feed, fresh = (feed_for(DataLoader(StatefulStream(), batch_size=4), 1) for _ in range(2))
    assert isinstance(feed, StatefulFeed)
    batches = feed.open(0, None)
    next(batches), next(batches)
    assert plain(fresh.open(0, feed.position(2))) == plain(batches)
    assert len(plain(fresh.open(1, None))) == 6


def test_a_loader_with_an_iteration_of_its_own_is_left_alone():
    """A subclass that overrides __iter__ is walked as it is; one that only fixes arguments gets its twin."""

    class Own(DataLoader):
        def __iter__(self):
            return iter([1, 2])

    class Preset(DataLoader):
        pass

    assert type(feed_for(Own(Numbers()), 1)) is ReplayFeed
    assert type(feed_for(Preset(Numbers()), 1)) is DataLoaderFeed


def test_the_users_settings_reach_the_twin():
    """Collation, the first call in a worker and the rest are the user's; only order and generator are ours."""
    os.environ.pop("HOLDFAST_TEST_WORKER", None)
    users = numbers(num_workers=2, collate_fn=told, worker_init_fn=tell, timeout=30)
    assert plain(feed_for(users, 1).open(0, None))[:2] == [["0", 0, 1, 2, 3], ["1", 4, 5, 6, 7]]


def tell(worker):
    os.environ["HOLDFAST_TEST_WORKER"] = str(worker)


def told(samples):
    return [os.environ["HOLDFAST_TEST_WORKER"], *samples]


def test_batches_stay_in_order():
    """in_order=False would make the order a matter of timing: it is not followed, and the user is told."""
    with pytest.warns(UserWarning, match="in_order=False"):
        feed = feed_for(numbers(num_workers=2, in_order=False), 1)
    assert flat(plain(feed.open(0, None))) == list(range(LENGTH))


def test_facts_for_the_fingerprint():
    """The length is the dataset's; a Holdfast sampler adds its seed."""
    assert feed_for(loader("shuffle", Seeded(Numbers(), 1), num_workers=2), 1).describe() == {
        "loader": "DataLoader",
        "dataset": "Seeded(Numbers)",
        "length": LENGTH,
        "batch_size": 4,
        "drop_last": False,
        "workers": 2,
        "sampler": "RandomSampler",
        "shuffle": True,
        "order": "shuffle-1",
    }
    assert feed_for(loader("holdfast"), 1).describe()["seed"] == 8
    assert feed_for(loader("buckets"), 1).describe()["sampler"] == "Buckets"


def workers():
    """The children that multiprocessing has started, by fork or through a server, and that live."""
    return {each.pid for each in multiprocessing.active_children()}


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_with_their_iterator(persistent):
    """A closed epoch leaves no process behind, unless its workers are to persist; those serve the next epoch."""
    before = workers()
    feed = feed_for(loader("shuffle", num_workers=2, persistent_workers=persistent), 1)
    batches: Any = feed.open(0, None)
    next(batches)
    first = workers() - before
    batches.close()
    assert len(first) == 2
    assert workers() - before == (first if persistent else set())
    list(feed.open(1, None))
    assert workers() - before == (first if persistent else set())


def test_an_evaluation_in_persistent_workers_draws_nothing_that_a_resume_draws_again(tmp_path):
    """As in timm's train.py: a resumed process starts them anew (that they draw: pytorch/pytorch#11062, of 2018)."""

    def trained(path, stop=None):
        torch.manual_seed(3)
        drawn, evaluation = [], DataLoader(range(2), num_workers=1, persistent_workers=True)
        with suppress(InterruptedError), Run(path, {}, vars={"drawn": drawn}, every=Every(epochs=1)) as run:
            for epoch in run.epochs(3):
                if epoch == stop:
                    raise InterruptedError
                for _ in run.batches(DataLoader(range(2))):
                    run.vars.drawn.append(torch.rand(()).item())
                assert len(list(evaluation)) == 2
        return run.vars.drawn

    expected = trained(tmp_path / "whole")
    trained(tmp_path / "cut", stop=1)
    assert trained(tmp_path / "cut") == expected
