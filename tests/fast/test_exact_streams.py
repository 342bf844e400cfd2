"""Streams: the same samples in the same order for any number of workers and ranks, entered at any place."""

import itertools
import pickle
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler, IterableDataset, Subset, TensorDataset

from feeds import resumes_anywhere
from holdfast.data import Mix, Pack, Seeded, Stream, Window
from holdfast.data.feed import feed_for
from holdfast.data.streams.mixture import Mixture, Phase
from holdfast.data.streams.orders import RecentValues, order_of
from holdfast.data.streams.source import Indexed, Source, SourceShard
from holdfast.errors import Mismatch, UsageError
from sources import merged
from subjects import asked_of

LENGTHS = st.lists(st.integers(0, 400), min_size=1, max_size=12)
WINDOWS = st.builds(Window, st.integers(1, 6), st.integers(1, 300))
SHUFFLES = [False, True, Window(2, 7), Window(3, 1000)]


class Files(Source):
    """Samples with names, in shards of these lengths."""

    def __init__(self, lengths, name="file", sizes=False):
        self.shards = [SourceShard(f"{name}{number}", length, length) for number, length in enumerate(lengths)]
        if sizes:
            self.sizes = np.array([len(self.document(s, r)) for s, each in enumerate(lengths) for r in range(each)])

    def read_rows(self, shard, rows):
        return [self.document(shard, row) for row in rows]

    def document(self, shard, row):
        """Tokens that say where they are from; some documents are empty, some long."""
        return [shard * 1000 + row] * ((shard + row * 7) % 11)


class OwnWay(DataLoader):
    def __iter__(self):
        yield from super().__iter__()


def first_number(sample):
    return float(np.ravel(sample)[0])


def as_lists(batch):
    return batch.tolist() if hasattr(batch, "tolist") else [*batch]


def samples(stream, epoch=0):
    """The samples of a whole epoch, in order."""
    stream.set_epoch(epoch)
    return list(itertools.chain.from_iterable(np.asarray(batch).tolist() for batch in stream))


# Orders ---------------------------------------------------------------------------------------------------------


@given(LENGTHS, st.one_of(WINDOWS, st.booleans()), st.integers(0, 3), st.data())
def test_an_order_has_each_sample_once_and_is_entered_anywhere(lengths, shuffle, turn, data):
    """Whatever the shards and the window, and any part of it is the same when computed alone."""
    order = order_of(np.array(lengths), shuffle, 5, turn)
    whole = order.block(0, order.length).tolist()
    assert list(range(sum(lengths))) == sorted(whole)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert whole[start:stop] == order_of(np.array(lengths), shuffle, 5, turn).block(start, stop).tolist()


def test_a_window_reads_few_shards_at_a_time_and_a_piece_of_each():
    """With 3 shards and 60 samples a window: it takes a tenth of each of three shards of 200."""
    order = order_of(np.full(30, 200), Window(3, 60), 1, 0)
    for first in range(0, 6000, 60):
        ids = order.block(first, first + 60)
        assert {3} == {len({*(ids // 200).tolist()})}
        assert {20} == {*Counter((ids // 200).tolist()).values()}
        assert ids.tolist() != sorted(ids.tolist())
    assert order.block(0, 100).tolist() != order_of(np.full(30, 200), Window(3, 60), 1, 1).block(0, 100).tolist()


def test_the_order_of_version_1_stays():
    """Positions in checkpoints are places of this order."""
    lengths = np.array([3, 0, 11, 7, 2])
    windows, all_samples = order_of(lengths, Window(2, 9), 7, 2), order_of(lengths, True, 7, 2)
    assert [16, 14, 18, 20, 17, 15, 19, 1, 0, 2, 21, 22, 3, 6, 4, 7, 5, 8, 10, 11, 13, 9, 12] == windows.block(
        0, 23
    ).tolist()
    assert [15, 10, 14, 13, 16, 2, 9, 18] == all_samples.block(0, 8).tolist()
    mixture = Mixture([Numbered("a", 50), Numbered("b", 50)], [Phase(0, [2, 1])], 7, 60)
    assert "baaaaaaaaabaaaabbabbabaa" == "".join(name for name, _, _ in mixture.read(0, np.arange(24)))


# Mixtures -------------------------------------------------------------------------------------------------------


class Numbered:
    """A part of a mixture that says which of its samples is asked for."""

    def __init__(self, name, length):
        self.name, self.length = name, length

    def read(self, turn, places):
        return [(self.name, turn, place) for place in places.tolist()]


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.floats(0.01, 5)), min_size=1, max_size=4),
    st.lists(st.integers(1, 3000), max_size=2, unique=True),
    st.one_of(st.sampled_from(["first", "all"]), st.integers(1, 5000)),
    st.data(),
)
def test_a_mixture_takes_each_source_in_its_order_pass_after_pass(parts, later, until, data):
    """Over two epochs each source gives its samples in turn, none left out; any place is the same when asked alone."""
    weights = [weight for _, weight in parts]
    phases = [Phase(0, weights), *(Phase(place, weights[::-1]) for place in sorted(later))]

    def made():
        return Mixture([Numbered(n, length) for n, (length, _) in enumerate(parts)], phases, 3, until)

    mixture = made()
    epochs = [mixture.read(epoch, np.arange(mixture.length)) for epoch in range(2)]
    for number, (length, _) in enumerate(parts):
        mine = [sample for sample in epochs[0] + epochs[1] if sample[0] == number]
        assert [(number, *divmod(at, length)) for at in range(len(mine))] == mine
    place = data.draw(st.integers(0, mixture.length - 1))
    assert [epochs[1][place]] == made().read(1, np.array([place]))


def test_weights_hold_in_every_stretch():
    """Of each thousand samples a source has its weight of them, within what one block may add."""
    mixture = Mixture(
        [Numbered("a", 10_000), Numbered("b", 70)], [Phase(0, [0.9, 0.1]), Phase(20_000, [1, 3])], 0, 40_000
    )
    drawn = np.array([name == "b" for name, _, _ in mixture.read(0, np.arange(40_000))])
    for first in range(0, 20_000, 1000):
        assert abs(int(drawn[first : first + 1000].sum()) - 100) < 45
        assert abs(int(drawn[20_000 + first : 21_000 + first].sum()) - 750) < 75
    assert abs(int(drawn[:20_000].sum()) - 2000) <= 1
    assert abs(int(drawn[20_000:].sum()) - 15_000) <= 1


def test_an_epoch_ends_with_the_first_source_or_with_all():
    """`first`: no source is read twice. `all`: each sample of each comes."""
    sources = {"long": range(1000), "short": range(5000, 5100)}
    first = Counter(samples(Stream(Mix(sources, {"long": 1, "short": 1}), 16)))
    assert {1} == {*first.values()}
    assert 199 <= sum(first.values()) <= 200
    whole = Counter(samples(Stream(Mix(sources, {"long": 1, "short": 1}, until="all"), 16)))
    assert {*range(1000), *range(5000, 5100)} == {*whole}
    by_length = Counter(samples(Stream(Mix(sources), 16)))
    assert abs(sum(by_length[each] for each in range(5000, 5100)) - 100) <= 2


@given(st.lists(st.floats(1e-9, 1e9) | st.just(0.0), min_size=1, max_size=40).filter(any), st.integers(0, 10**12))
def test_shares_are_exact_and_only_grow(weights, places):
    """A source has its share of the first places, within one for each halving of the weights, never less of more."""
    [phase] = Mixture([Numbered("a", 1)] * len(weights), [Phase(0, weights)], 0, 1)._phases
    counts, more = phase.counts(places), phase.counts(places + 1)
    assert places == sum(counts)
    assert [1, *[0] * (len(weights) - 1)] == sorted(map(int.__sub__, more, counts), reverse=True)
    parts = [Fraction(weight) for weight in weights]
    within = max(1, (len(weights) - 1).bit_length())
    assert all(abs(count - places * part / sum(parts)) < within for count, part in zip(counts, parts, strict=True))


def test_a_small_source_beside_a_huge_one_costs_no_more():
    """Of 10 samples among 10**9: a batch needs one block of places, not so many that each source has one."""
    stream = Stream(Mix({"few": range(10), "many": range(10**9)}), 8)
    mixture: Any = stream._layout(stream._now)
    assert 8 == len(stream[10**8])
    assert {1024} == {len(block.sources) for block in mixture._block._found.values()}


# Packing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", SHUFFLES, ids=str)
@pytest.mark.parametrize("end", [None, -1])
@pytest.mark.parametrize("sizes", [False, True])
def test_packing_joins_the_documents_of_a_pass_and_cuts_them(shuffle, end, sizes):
    """It is what joining all documents in their order would give; a document goes on in the next sequence."""
    source = Files([30, 0, 45, 25], sizes=sizes)
    for length in (1, 4, 97):
        stream = Stream(Pack(source, length, end=end), 3, shuffle=shuffle)
        documents = Stream(Files([30, 0, 45, 25]), 1, shuffle=shuffle, collate=lambda each: each)
        for epoch in (0, 1):
            documents.set_epoch(epoch)
            joined = [token for [each] in documents for token in [*each, *([] if end is None else [end])]]
            whole = len(joined) // length * length
            assert joined[:whole] == np.ravel(samples(stream, epoch)).tolist()
            stream.set_epoch(epoch)
            third = joined[2 * 3 * length :][: 3 * length]  # the third batch, made alone
            assert len(third) < 3 * length or third == np.ravel(stream[2]).tolist()


# Batches, workers, ranks ----------------------------------------------------------------------------------------

STREAMS = {
    "files": lambda **more: Stream(Files([40, 3, 25], sizes=True), seed=2, shuffle=Window(2, 9), collate=list, **more),
    "dataset": lambda **more: Stream(np.arange(101), seed=2, **more),
    "mixture": lambda **more: Stream(
        Mix({"a": range(60), "b": Pack(Files([9, 9]), 1)}, [2, 1], until="all"), map=first_number, **more
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_resume_goes_on_after_any_batch_with_any_number_of_workers(name):
    """By itself, and in a DataLoader: saved with some workers, resumed with others."""
    expected = resumes_anywhere(name, lambda: STREAMS[name](global_batch_size=8), every=5)
    for wrap in (lambda stream: stream, lambda stream: DataLoader(stream, batch_size=None)):
        feed = feed_for(wrap(STREAMS[name](global_batch_size=8)), 1)
        assert expected == [[*map(as_lists, feed.open(epoch, None))] for epoch in range(3)]
    position = None
    walked = []
    for workers in (2, 0, 3, 1):
        feed = feed_for(DataLoader(STREAMS[name](global_batch_size=8), batch_size=None, num_workers=workers), 1)
        batches: Any = feed.open(1, position)
        walked += map(as_lists, itertools.islice(batches, 2))
        position = feed.position(len(walked))
        batches.close()  # and its workers with it
    assert expected[1][:8] == walked


@pytest.mark.parametrize("name", STREAMS)
def test_ranks_share_each_global_batch_and_their_number_may_change(name):
    """The parts of 1, 2, 3 and 7 ranks make the batches of one; positions of one number go on with another."""
    whole, _ = batches_of(name, 1, 0, None)
    for before, after in itertools.permutations((1, 2, 3, 7), 2):
        with asked_of(name, before, after):
            first = [batches_of(name, before, rank, None) for rank in range(before)]
            positions = {str(found[1][3]) for found in first}
            assert 1 == len(positions)
            rest = [batches_of(name, after, rank, first[0][1][3])[0] for rank in range(after)]
            joined = [merged(parts) for parts in zip(*[found[0][:3] for found in first], strict=True)]
            joined += [merged(parts) for parts in zip(*rest, strict=True)]
            assert whole[:-1] == joined[:-1]
            assert Counter(map(str, whole[-1])).keys() == Counter(map(str, joined[-1])).keys()


def batches_of(name, world, rank, position):
    """The batches of one rank from a position of epoch 0, and the position after each."""
    feed = feed_for(STREAMS[name](global_batch_size=8, ranks=(rank, world)), 1)
    batches, positions = [], {}
    for number, batch in enumerate(feed.open(0, position), 1 + (position or {"batches": 0})["batches"]):
        batches.append(as_lists(batch))
        positions[number] = feed.position(number)
    return batches, positions


def test_an_epoch_has_each_sample_once_and_drop_last_drops_the_short_batch():
    """With 20 samples a step: 101 of them are six batches, or five whole ones."""
    assert list(range(101)) == sorted(samples(Stream(range(101), 20)))
    assert 6 == len(Stream(range(101), 20))
    assert 5 == len(Stream(range(101), 20, drop_last=True))
    assert 100 == len(samples(Stream(range(101), 20, drop_last=True)))


def test_a_last_batch_of_fewer_samples_than_ranks_has_one_for_each():
    """Else a rank would have none, and the others would wait for it."""
    last = [Stream(range(10), global_batch_size=4, shuffle=False, ranks=(rank, 4))[2].tolist() for rank in range(4)]
    assert [[8], [9], [8], [9]] == last


def test_what_map_draws_depends_on_the_sample_alone():
    """Not on the batch, the worker or the rank; the loop's own random numbers are as if it had not drawn."""
    draws = {}
    for world in (1, 2):
        for rank in range(world):
            stream = Stream(range(24), global_batch_size=6, map=lambda x: (x, np.random.rand()), ranks=(rank, world))
            np.random.seed(7)
            for numbers, drawn in stream:
                for number, value in zip(numbers.tolist(), drawn.tolist(), strict=True):
                    assert value == draws.setdefault(number, value)
            assert np.random.rand() == np.random.RandomState(7).rand()
    assert 24 == len({*draws.values()})


def test_without_a_batch_size_a_loader_batches_and_shares_out():
    """Single samples: torch's own batches and samplers, and the order of the stream."""
    stream = Stream(Files([40, 3, 25]), seed=2, shuffle=Window(2, 9), map=len)
    expected = [len(each) for each in STREAMS["files"](batch_size=68)[0]]
    feed = feed_for(DataLoader(stream, batch_size=5, num_workers=2), 1)
    assert expected == torch.cat([*feed.open(0, None)]).tolist()
    ranks = [
        [*feed_for(DataLoader(stream, 4, sampler=DistributedSampler(stream, 2, rank, shuffle=False)), 1).open(0, None)]
        for rank in range(2)
    ]
    assert expected == torch.stack([torch.cat(each) for each in ranks], 1).ravel().tolist()


def test_a_stream_goes_to_another_process():
    """A copy by pickle, as `spawn` makes it, gives the same batches."""
    for name in ("dataset", "files"):
        stream = STREAMS[name](batch_size=8)
        first = stream[0]
        assert str(first) == str(pickle.loads(pickle.dumps(stream))[0])


def test_batches_of_dicts_tuples_and_arrays_are_stacked():
    """Member by member; what has no common shape stays a list."""
    made = Stream([{"x": np.ones(2) * n, "t": (n, "a" * n)} for n in range(4)], 4, shuffle=False)[0]
    assert [[0, 0], [1, 1], [2, 2], [3, 3]] == made["x"].tolist()
    assert ([0, 1, 2, 3], ["", "a", "aa", "aaa"]) == (made["t"][0].tolist(), made["t"][1])
    assert [[1], [1, 1]] == [each.tolist() for each in Stream([np.ones(1), np.ones(2)], 2, shuffle=False)[0]]


# Sources that changed, and mistakes -----------------------------------------------------------------------------


def test_shards_that_were_added_behind_wait_for_the_next_epoch():
    """An epoch ends with the shards that it began with; the next one has all."""

    def made(lengths):
        return feed_for(Stream(Files(lengths), 4, collate=list, shuffle=Window(2, 9)), 1)

    small, grown = made([20, 30]), made([20, 30, 11])
    batches = small.open(0, None)
    taken = [*itertools.islice(batches, 5)]
    position = small.position(5)
    assert [*batches] == [*grown.open(0, position)]
    assert 61 == sum(map(len, grown.open(1, None)))
    assert small.describe()["sources"] != grown.describe()["sources"]
    for other in ([20, 31], [30, 20], [20]):
        with pytest.raises(Mismatch, match="Put new shards behind the old ones"):
            made(other).open(0, position)
    assert 5 == len(taken)


def test_a_dataset_may_grow_by_whole_shards():
    """It has no files: each 10,000 samples count as one."""

    def made(length):
        return feed_for(Stream(Indexed(range(length), "numbers"), 64), 1)

    small = made(20_000)
    batches = small.open(0, None)
    next(batches)
    assert next(made(30_000).open(0, small.position(1))).tolist() == next(batches).tolist()
    part = made(20_010)
    next(part.open(0, None))
    with pytest.raises(Mismatch, match="Put new shards behind the old ones"):
        made(20_020).open(0, part.position(1))


def test_documents_of_other_sizes_are_other_sources():
    """Another tokenizer moves the sequences, also when the documents and all tokens are as many."""
    lengths = ([3, 5, 4], [5, 3, 4], [3, 5, 4])
    first, other, same = (
        Stream(Pack(each, 4, tokenize=lambda size: np.full(size, 7)), 2).describe() for each in lengths
    )
    assert first == same
    assert {"sources"} == {fact for fact in first if first[fact] != other[fact]}


def test_a_loader_of_single_samples_tells_what_decides_their_order():
    """Through torch's own wrappers, too: else a resume with another seed would take other samples in silence."""
    wraps = {
        "bare": lambda stream: stream,
        "seeded": lambda stream: Seeded(stream, 1),
        "subset": lambda stream: Subset(stream, range(5)),
        "several": lambda stream: Subset(ConcatDataset([TensorDataset(torch.ones(3)), stream]), range(5)),
    }
    changes = ({"seed": 1}, {"shuffle": Window()}, {"sources": range(11)})
    for name, wrap in wraps.items():
        before, *after = (
            feed_for(DataLoader(wrap(Stream(**{"sources": range(10), **change})), 2), 1).describe()["sources"]
            for change in ({}, *changes)
        )
        with asked_of(name):
            assert before not in after


def test_threads_may_read_one_stream():
    """What one of them drops another computes again, and none finds it missing."""
    values = RecentValues(lambda key: [key], 2)

    def walk(first):
        return all([key % 7] == values(key % 7) for key in range(first, first + 30_000))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(walk, range(4)))
    finally:
        sys.setswitchinterval(interval)


def test_a_dataset_that_tells_the_share_of_one_rank_is_read_whole_or_refused(monkeypatch):
    """Else the samples of the other shares would never come. MosaicML's tells its `size`, litData's does not."""

    class Share(IterableDataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return index

        def __iter__(self):
            return iter(range(6))

    class Told(Share):
        size = 12

    assert [*range(6)] == sorted(samples(Stream(Share(), 2)))
    assert [*range(12)] == sorted(samples(Stream(Told(), 2)))
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert 12 == len(Stream(Told()))
    with pytest.raises(UsageError, match="the share of one rank"):
        Stream(Share())


def test_datasets_may_stand_in_a_list_of_sources():
    """One behind the other; a list without any source is a dataset itself."""
    assert [*range(7)] == samples(Stream([Indexed(range(4)), range(4, 7)], 2, shuffle=False))
    assert [[0, 1], [2, 3]] == Stream([[0, 1], [2, 3]], 2, shuffle=False, collate=list)[0]


def test_what_cannot_be_meant_is_refused_in_one_line():
    """Each message says what to write instead."""
    stream = Stream(range(10), 2)
    for words, mistake in {
        "batch_size is for one rank": lambda: Stream(range(9), 2, global_batch_size=4),
        "each needs one": lambda: Stream(range(9), global_batch_size=2, ranks=(0, 3)),
        "a step of 0 samples": lambda: Stream(range(9), 0),
        "of 0 samples": lambda: Stream(range(9), global_batch_size=0),
        "a str cannot be a source": lambda: Stream("train.jsonl", 2),
        "a dict cannot be a source": lambda: Stream({"train": [1]}, 2),
        "iterates in its own way": lambda: feed_for(OwnWay(stream, batch_size=None), 1),
        "ranks count from 0": lambda: Stream(range(9), 2, ranks=(3, 3)),
        "needs len\\(\\) and \\[index\\]": lambda: Stream(iter(range(9)), 2),
        "True, False or a Window": lambda: Stream(range(9), 2, shuffle=100),
        "at least one shard": lambda: Stream(range(9), 2, shuffle=Window(0, 5)),
        "until is 'first'": lambda: Mix([range(9)], until="never"),
        "weights of \\['b'\\]": lambda: len(Stream(Mix({"a": range(9)}, {"b": 1}), 2)),
        "2 weights for 1": lambda: len(Stream(Mix([range(9)], [1, 2], until="all"), 2)),
        "numbers from 0": lambda: len(Stream(Mix([range(9), range(9)], [1, -2]), 2)),
        "the first is 0": lambda: len(Stream(Mix([range(9)], [(5, [1])], until="all"), 2)),
        "never be read whole": lambda: len(Stream(Mix([range(9), range(9)], [1, 0], until="all"), 2)),
        "has no samples": lambda: len(Stream([], 2)),
        "fewer tokens": lambda: len(Stream(Pack([[1, 2]], 5), 2)),
        "at least one token": lambda: Pack([[1]], 0),
        "the loader batch_size=None": lambda: feed_for(DataLoader(stream, batch_size=2), 1),
        "share|Remove it": lambda: feed_for(
            DataLoader(stream, batch_size=None, sampler=DistributedSampler(stream, 2, 0)), 1
        ),
        "so does its loader": lambda: [*DataLoader(stream, batch_size=2)],
    }.items():
        with asked_of(words), pytest.raises(UsageError, match=words):
            mistake()


def test_a_resume_deep_in_a_huge_dataset_reads_only_its_batch():
    """At sample 10**8 of 10**9: one batch is read, and nothing in proportion to the place."""

    class Huge:
        read = 0

        def __len__(self):
            return 10**9

        def __getitem__(self, index):
            Huge.read += 1
            return index

    feed = feed_for(Stream(Huge(), 64, shuffle=Window()), 1)
    position = {**feed.position(0), "batches": 10**8 // 64, "samples": 10**8, "shards": [10**5]}
    position["sources"] = feed.describe()["sources"]
    batch = next(feed.open(0, position))
    assert 64 == Huge.read == len({*batch.tolist()})
    assert len(Indexed(Huge()).shards) == 10**5
