"""torch's DataLoader under a run: any batch can be come back to, and nothing is loaded twice."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from itertools import chain, islice, repeat

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
    get_worker_info,
)
from torch.utils.data.distributed import DistributedSampler

from holdfast import Run
from holdfast.data import Sampler, Seeded
from holdfast.data.feed import ReplayFeed, StatefulFeed, feed_for
from holdfast.errors import Mismatch
from holdfast.torch.loader import DataLoaderFeed
from toy import Toy

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
    """A sampler that keeps a generator for itself: nobody can bring it back."""

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


SAMPLERS = {
    "sequential": lambda: {"batch_size": 4},
    "shuffle": lambda: {"batch_size": 4, "shuffle": True},
    "drop last": lambda: {"batch_size": 4, "shuffle": True, "drop_last": True},
    "no batches": lambda: {"batch_size": None, "shuffle": True},
    "holdfast": lambda: {"batch_size": 4, "sampler": Sampler(LENGTH, seed=8)},
    "weighted": lambda: {"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * LENGTH, 30)},
    "subset": lambda: {"batch_size": 4, "sampler": SubsetRandomSampler(range(5, 15))},
    "own generator": lambda: {
        "batch_size": 4,
        "sampler": SubsetRandomSampler(range(5, 15), torch.Generator().manual_seed(3)),
    },
    "replacement": lambda: {"batch_size": 4, "sampler": RandomSampler(range(LENGTH), replacement=True)},
    "distributed": lambda: {"batch_size": 4, "sampler": DistributedSampler(range(LENGTH), 2, 0)},
    "buckets": lambda: {"batch_sampler": Buckets()},
    "remembering": lambda: {"batch_size": 4, "sampler": Remembering()},
    "no batches, weighted": lambda: {"batch_size": None, "sampler": WeightedRandomSampler([1.0] * LENGTH, 9)},
}
SHUFFLING = [name for name in SAMPLERS if name != "sequential"]
WORKERS = [
    {},
    pytest.param({"num_workers": 1}, marks=pytest.mark.slow),
    {"num_workers": 2, "persistent_workers": True},
    pytest.param({"num_workers": 4, "prefetch_factor": 3}, marks=pytest.mark.slow),
]


def loader(name, dataset=None, **settings):
    return DataLoader(Numbers() if dataset is None else dataset, **SAMPLERS[name](), **settings)


def flat(batches):
    return list(chain.from_iterable(batches))


def plain(batches):
    return [batch.tolist() if hasattr(batch, "tolist") else [batch] for batch in batches]


def uninterrupted(name, epochs=3, **settings):
    """The batches of each epoch, and the position after each: {(epoch, batches): position}."""
    feed, batches, positions = feed_for(loader(name, **settings), 1), [], {}
    for epoch in range(epochs):
        batches.append([])
        walk = feed.open(epoch, None)
        positions[epoch, 0] = feed.position(0)
        for batch in walk:
            batches[-1] += plain([batch])
            positions[epoch, len(batches[-1])] = feed.position(len(batches[-1]))
    return batches, positions


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resume_at_any_batch_gives_the_rest(name):
    """Without workers, at every position: what was left, and then the same epochs."""
    expected, positions = uninterrupted(name)
    for (epoch, taken), position in positions.items():
        feed = feed_for(loader(name), 1)
        assert plain(feed.open(epoch, position)) == expected[epoch][taken:]
        if epoch < 2:
            assert plain(feed.open(epoch + 1, None)) == expected[epoch + 1]


def without_once(position):
    """But for the mark that persistent workers drew their seed in the first epoch only."""
    return {name: value for name, value in position.items() if name != "once"}


@pytest.mark.parametrize("settings", WORKERS, ids=str)
@pytest.mark.parametrize("name", ["shuffle", "buckets", "remembering"])
def test_workers_change_nothing(name, settings):
    """How many processes load, and how long they live, neither moves the order nor the position."""
    expected, positions = uninterrupted(name)
    found, theirs = uninterrupted(name, **settings)
    assert (found, {place: without_once(each) for place, each in theirs.items()}) == (expected, positions)
    for taken in (0, 1, 4, len(expected[1])):
        feed = feed_for(loader(name, **settings), 1)
        assert plain(feed.open(1, positions[1, taken])) == expected[1][taken:]
        assert plain(feed.open(2, None)) == expected[2]


@pytest.mark.slow
def test_spawned_workers_change_nothing():
    """Workers that share nothing with the process that starts them."""
    expected, positions = uninterrupted("shuffle")
    settings = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "spawn"}
    feed = feed_for(loader("shuffle", **settings), 1)
    assert plain(feed.open(1, positions[1, 2])) == expected[1][2:]
    assert plain(feed.open(2, None)) == expected[2]


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resume_after_an_epoch_gives_the_next_one(name):
    """The position at an epoch's end opens the next epoch in a new process."""
    expected, positions = uninterrupted(name)
    for epoch in (0, 1):
        position = positions[epoch, len(expected[epoch])]
        assert plain(feed_for(loader(name), 1).open(epoch + 1, position)) == expected[epoch + 1]


@pytest.mark.parametrize("name", SHUFFLING)
def test_every_epoch_has_an_order_of_its_own(name):
    """No epoch repeats the last."""
    batches, _ = uninterrupted(name)
    assert batches[0] != batches[1] != batches[2]


@pytest.mark.parametrize("settings", WORKERS, ids=str)
def test_every_shuffled_epoch_is_a_permutation(settings):
    """Each sample once per epoch."""
    batches, _ = uninterrupted("shuffle", **settings)
    assert [sorted(flat(epoch)) for epoch in batches] == [list(range(LENGTH))] * 3


@pytest.mark.parametrize("settings", WORKERS, ids=str)
@pytest.mark.parametrize("name", ["shuffle", "holdfast", "buckets", "remembering"])
def test_no_skipped_sample_is_read(name, settings, tmp_path):
    """A resume reads the samples that are left, each once, and no other."""
    expected, positions = uninterrupted(name)
    log = tmp_path / "reads"
    feed = feed_for(loader(name, Numbers(log=log), **settings), 1)
    assert plain(feed.open(1, positions[1, 4])) == expected[1][4:]
    assert sorted(log.read_bytes()) == sorted(flat(expected[1][4:]))


FEW_WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


def global_states(walk, epochs=2):
    """Where the three global generators are after each epoch of `walk`, begun from the same numbers."""
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    found = []
    for epoch in range(epochs):
        for _ in walk(epoch):
            torch.rand(())  # the training's own
        found.append((random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))
    return found


@pytest.mark.parametrize("settings", FEW_WORKERS, ids=str)
@pytest.mark.parametrize(
    ("name", "generator"), [*((name, None) for name in SAMPLERS), ("sequential", 3), ("shuffle", 3), ("weighted", 3)]
)
def test_the_global_generators_move_as_a_plain_loader_moves_them(name, settings, generator):
    """Each epoch draws what it draws without Holdfast; only a sampler of the user's has a stream of its own."""
    own = {} if generator is None else {"generator": torch.Generator().manual_seed(generator)}
    feed = feed_for(loader(name, **settings, **own), 1)
    users = loader("sequential" if name == "buckets" else name, **settings, **own)
    if name == "buckets":  # as many epochs, and no draw of the sampler's
        steps = [len(list(feed.open(epoch, None))) for epoch in range(2)]
        expected = global_states(lambda epoch: islice(chain(users, repeat(0)), steps[epoch]))
        feed = feed_for(loader(name, **settings, **own), 1)
    else:
        expected = global_states(lambda _: users)
    assert global_states(lambda epoch: feed.open(epoch, None)) == expected


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_what_those_of_a_plain_loader_draw(persistent):
    """An unshuffled loader whose dataset draws random numbers hands out the same samples with Holdfast and without."""
    settings = {"num_workers": 2, "persistent_workers": persistent, "batch_size": 4}
    torch.manual_seed(5)
    plain_loader = DataLoader(Drawing(), **settings)
    expected = [plain(plain_loader) for _ in range(2)]
    torch.manual_seed(5)
    feed = feed_for(DataLoader(Drawing(), **settings), 1)
    assert [plain(feed.open(epoch, None)) for epoch in range(2)] == expected
    assert expected[0] != expected[1]


class Drawing(Numbers):
    """A dataset with augmentation."""

    def __getitem__(self, index):
        return index + torch.rand(()) + random.random()


@pytest.mark.parametrize("settings", WORKERS, ids=str)
def test_a_position_counts_what_was_consumed(settings):
    """Batches that workers have read ahead are not behind us."""
    feed = feed_for(loader("shuffle", **settings), 1)
    batches = feed.open(0, None)
    assert without_once(feed.position(0)) == {"epoch": 0, "batches": 0, "samples": 0}
    for taken in (1, 2, 3):
        next(batches)
        assert without_once(feed.position(taken)) == {"epoch": 0, "batches": taken, "samples": 4 * taken}


@pytest.mark.parametrize("settings", WORKERS, ids=str)
@pytest.mark.parametrize("name", ["shuffle", "buckets", "remembering"])
def test_breaking_out_leaves_the_next_epoch_whole(name, settings):
    """After a break, in the same process or from its position in another, the next epoch is the same."""

    def left_early(feed):
        for number, _ in enumerate(feed.open(0, None), 1):
            if number == 2:
                return feed.position(2)
        return None

    feed = feed_for(loader(name, **settings), 1)
    position = left_early(feed)
    expected = plain(feed.open(1, None))
    assert sorted(flat(expected)) == list(range(LENGTH))
    assert plain(feed_for(loader(name), 1).open(1, position)) == expected


def test_an_endless_sampler_is_drawn_lazily():
    """Nothing asks for its length or its end."""
    feeds = [feed_for(DataLoader(Numbers(), batch_size=4, sampler=Endless()), 1) for _ in range(2)]
    batches = feeds[0].open(0, None)
    taken = [next(batches).tolist() for _ in range(50)]
    rest = feeds[1].open(0, {"epoch": 0, "batches": 40, "samples": 160})
    assert [next(rest).tolist() for _ in range(10)] == taken[40:]


def test_an_order_that_cannot_be_replayed_is_refused():
    """A sampler that hides its randomness gives other indices the second time: no resume, but an error."""
    feed = feed_for(DataLoader(Numbers(), batch_size=4, sampler=HiddenRandomness()), 1)
    list(feed.open(0, None))
    batches = feed.open(1, None)
    next(batches)
    middle = feed.position(1)
    list(batches)
    end = feed.position(6)
    for epoch, position in ((1, middle), (2, end)):
        fresh = feed_for(DataLoader(Numbers(), batch_size=4, sampler=HiddenRandomness()), 1)
        with pytest.raises(Mismatch, match=r"set_epoch\(epoch\) or state_dict\(\)"):
            fresh.open(epoch, position)


def test_a_sampler_that_became_shorter_is_refused():
    """There is nothing to resume at when the replay ends too early."""
    feed = feed_for(DataLoader(Numbers(), batch_size=4, sampler=SubsetRandomSampler(range(8))), 1)
    with pytest.raises(Mismatch, match="cannot be replayed"):
        feed.open(0, {"epoch": 0, "batches": 3, "samples": 12, "digest": "0" * 32})


def test_another_batch_size_goes_on_at_the_same_sample():
    """When the user accepts a changed batch size, no sample comes twice and none is left out."""
    _, positions = uninterrupted("shuffle")
    seen = flat(uninterrupted("shuffle")[0][0][:3])
    feed = feed_for(DataLoader(Numbers(), batch_size=5, shuffle=True), 1)
    rest = feed.open(0, positions[0, 3])
    following = plain(rest)
    assert [len(batch) for batch in following] == [5, 5, 1]
    assert sorted(seen + flat(following)) == list(range(LENGTH))
    assert feed.position(6) == {"epoch": 0, "batches": 6, "samples": LENGTH}


def test_a_tracked_sampler_tells_the_truth():
    """The state of a Holdfast Sampler inside a run is what the loop consumed, however far the workers are ahead."""
    sampler = Sampler(LENGTH, seed=8)
    feed = feed_for(DataLoader(Numbers(), batch_size=4, sampler=sampler, num_workers=2), 1)
    batches = feed.open(2, None)
    next(batches), next(batches)
    assert (sampler.epoch, sampler.position) == (2, 8)


def test_a_batch_sampler_of_torchs_is_seekable_too():
    """BatchSampler(RandomSampler(...)) is what shuffle=True makes: the same order, the same position."""
    explicit = DataLoader(Numbers(), batch_sampler=BatchSampler(RandomSampler(range(LENGTH)), 4, drop_last=False))
    assert plain(feed_for(explicit, 1).open(1, None)) == uninterrupted("shuffle")[0][1]


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


@pytest.mark.parametrize("settings", WORKERS, ids=str)
def test_an_iterable_dataset_is_read_again(settings):
    """Only reading what was consumed leads back; the feed says that this costs."""
    feed = feed_for(DataLoader(Stream(), batch_size=4, **settings), 1)
    expected = plain(feed.open(0, None))
    fresh = feed_for(DataLoader(Stream(), batch_size=4, **settings), 1)
    assert fresh.replays
    assert isinstance(fresh, ReplayFeed)
    assert plain(fresh.open(0, {"epoch": 0, "batches": 3})) == expected[3:]
    assert plain(fresh.open(1, None)) == expected


def test_a_stateful_iterable_dataset_is_not_read_again():
    """Without workers the dataset's own state is the position."""
    feed = feed_for(DataLoader(StatefulStream(), batch_size=4), 1)
    assert isinstance(feed, StatefulFeed)
    batches = feed.open(0, None)
    next(batches), next(batches)
    fresh = feed_for(DataLoader(StatefulStream(), batch_size=4), 1)
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
    users = DataLoader(Numbers(), batch_size=4, num_workers=2, collate_fn=told, worker_init_fn=tell, timeout=30)
    assert plain(feed_for(users, 1).open(0, None))[:2] == [[["0", 0, 1, 2, 3]], [["1", 4, 5, 6, 7]]]


def tell(worker):
    os.environ["HOLDFAST_TEST_WORKER"] = str(worker)


def told(samples):
    return [os.environ["HOLDFAST_TEST_WORKER"], *samples]


def test_batches_stay_in_order():
    """in_order=False would make the order a matter of timing: it is not followed, and the user is told."""
    with pytest.warns(UserWarning, match="in_order=False"):
        feed = feed_for(DataLoader(Numbers(), batch_size=4, num_workers=2, in_order=False), 1)
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


def workers_of(process):
    with open(f"/proc/{process}/task/{process}/children") as children:
        return [int(child) for child in children.read().split()]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_end_with_their_iterator(persistent):
    """A closed epoch leaves no process behind, unless its workers are to persist; those serve the next epoch."""
    before = set(workers_of(os.getpid()))
    feed = feed_for(loader("shuffle", num_workers=2, persistent_workers=persistent), 1)
    batches = feed.open(0, None)
    next(batches)
    first = set(workers_of(os.getpid())) - before
    batches.close()
    assert len(first) == 2
    assert set(workers_of(os.getpid())) - before == (first if persistent else set())
    list(feed.open(1, None))
    assert set(workers_of(os.getpid())) - before == (first if persistent else set())


@pytest.mark.slow
def test_persistent_workers_end_with_the_run(tmp_path):
    """Left to the garbage collector, each of them is waited for in vain for 5 s: its queue is collected before it."""
    before = set(workers_of(os.getpid()))
    with Run(tmp_path, {"toy": Toy()}, every=None, background=False) as run:
        users = loader("sequential", num_workers=2, persistent_workers=True)
        for _ in run.epochs(2):
            for _ in run.batches(users):
                assert len(set(workers_of(os.getpid())) - before) == 2
    assert set(workers_of(os.getpid())) - before == set()


SCRIPT = """
    import os, signal, sys, time
    from torch.utils.data import DataLoader
    from holdfast.data.feed import feed_for

    class Slow:
        def __len__(self): return 400
        def __getitem__(self, index):
            time.sleep(0.01)
            return int(index)

    if __name__ == "__main__":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda *_: None)
        settings = {"persistent_workers": True, "multiprocessing_context": sys.argv[1]}
        feed = feed_for(DataLoader(Slow(), batch_size=4, num_workers=2, **settings), 1)
        batches = feed.open(0, None)
        print("open", flush=True)
        print(sum(len(batch) for batch in batches), flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_ignore_the_signals_that_stop_a_run(start, tmp_path):
    """A signal to the whole group, as Slurm and Ctrl-C send it, costs no batch; afterwards the script ends at once."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(path), start]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as train:
        try:
            assert train.stdout.readline() == b"open\n"
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
                os.killpg(train.pid, number)
                time.sleep(0.05)
            assert train.stdout.readline() == b"400\n"
            assert train.wait(20) == 0
            assert train.stderr.read() == b""
        finally:
            with suppress(ProcessLookupError):
                os.killpg(train.pid, signal.SIGKILL)
