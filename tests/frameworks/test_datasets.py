"""Streams of Hugging Face's datasets, killed and resumed."""

import itertools
import json

import pytest
from datasets import Dataset, concatenate_datasets, interleave_datasets, load_dataset
from test_streams import cut_anywhere, walked
from torch.utils.data import DataLoader

from holdfast import Every
from holdfast.data.feed import feed_for
from holdfast.data.replay import ReplayFeed
from holdfast.errors import Mismatch
from toy import Cut

AT_RANDOM = (3, 9, 16, 20, 17, 18, 11, 24)


@pytest.mark.parametrize("shuffles", [False, True])
def test_streams_of_hugging_face_lose_no_sample(tmp_path, shuffles):
    """Their buffer of a shuffle is not in their state: such a stream is read again."""

    def make():
        stream = Dataset.from_dict({"a": [*range(12)]}).to_iterable_dataset(num_shards=2)
        return stream.shuffle(seed=3, buffer_size=6) if shuffles else stream

    assert isinstance(feed_for(make(), 1), ReplayFeed) == shuffles
    seen = cut_anywhere(tmp_path, make, (5, 13, 20, 30))
    assert [sorted(seen[at : at + 12]) for at in (0, 12, 24)] == [[*range(12)]] * 3


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Streams of local files: of two shards, and of one."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def stream(name, begin, count):
        for number in range(begin, begin + count):
            with (tmp_path / f"{name}{number % 2 if name == 'two' else 0}.jsonl").open("a") as file:
                file.write(json.dumps({"a": number}) + "\n")
        paths = [*map(str, sorted(tmp_path.glob(f"{name}*.jsonl")))]
        cache = str(tmp_path / "cache")
        return lambda: load_dataset("json", data_files=paths, split="train", streaming=True, cache_dir=cache)

    return stream("two", 0, 12), stream("one", 100, 7)


def mixed(*streams, **options):
    return interleave_datasets([each() for each in streams], **options)


KINDS = {
    "mapped": lambda one, two: one().map(lambda row: {"a": row["a"] * 2}).filter(lambda row: row["a"] % 3),
    "in batches": lambda one, two: one().map(lambda rows: {"a": [-a for a in rows["a"]]}, batched=True, batch_size=5),
    "taken": lambda one, two: one().skip(2).take(9).repeat(2),
    "joined": lambda one, two: concatenate_datasets([one(), two()]),
    "in turns": mixed,
    "by chance": lambda one, two: mixed(one, two, probabilities=[0.7, 0.3], seed=3),
    "until all": lambda one, two: mixed(one, two, probabilities=[0.7, 0.3], seed=3, stopping_strategy="all_exhausted"),
    "shuffled": lambda one, two: mixed(one, two, probabilities=[0.7, 0.3], seed=3).shuffle(seed=5, buffer_size=4),
}


@pytest.mark.parametrize("set_epoch", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_their_streams_goes_on_exactly(tmp_path, files, kind, set_epoch):
    """By its own state, or read again, also in the epochs that follow; alone, and in a DataLoader. Without set_epoch
    the next pass of such a stream would begin at the loaded state.
    """
    make = lambda: KINDS[kind](*files)
    replayed = kind == "shuffled"
    assert isinstance(feed_for(make(), 1), ReplayFeed) == replayed
    cut_anywhere(tmp_path / "alone", make, AT_RANDOM[::2], set_epoch=set_epoch)
    loader = lambda: DataLoader(make(), batch_size=None)
    cut_anywhere(tmp_path / "loader", loader, AT_RANDOM[1::2], set_epoch=set_epoch)


def test_with_workers_they_are_read_again(tmp_path, files):
    """A shard each; the run says what that costs."""
    make = lambda: DataLoader(KINDS["by chance"](files[0], files[0]), batch_size=None, num_workers=2)
    assert isinstance(feed_for(make(), 1), ReplayFeed)
    cut_anywhere(tmp_path / "run", make, (9, 30))


@pytest.mark.parametrize("wrap", [lambda stream: stream, lambda stream: DataLoader(stream, batch_size=None)])
def test_a_stream_without_a_seed_is_refused(tmp_path, files, wrap):
    """Each process would have another order: of a mixture, whose state is used, and of a shuffle, which is read
    again. Its first and last batch may be the same by chance.
    """
    unseeded = (lambda: mixed(*files, probabilities=[0.7, 0.3]), lambda: files[0]().shuffle(buffer_size=3))
    for number, (make, every) in enumerate(itertools.product(unseeded, (Every(steps=1), Every(epochs=1)))):
        with pytest.raises(Cut):
            walked(tmp_path / f"{number}", lambda make=make: wrap(make()), 30, every=every)
        with pytest.raises(Mismatch, match="give shuffle and interleave_datasets a seed"):
            walked(tmp_path / f"{number}", lambda make=make: wrap(make()), every=every)
