"""Samplers of many ranks: torch's own order, a place in it, and every sample once, however often their number
changes.
"""

from collections import Counter
from itertools import chain, islice, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from holdfast.data import groups
from holdfast.data.seeded import Index
from holdfast.data.split import RankSplit, assign_places
from holdfast.errors import Mismatch, UsageError
from holdfast.torch.samplers import (
    InterruptibleDistributedGroupedBatchSampler,
    InterruptibleDistributedSampler,
    InterruptibleSampler,
)
from subjects import asked_of

LENGTHS = [0, 1, 2, 3, 7, 10, 24, 61]


def ours(length, *arguments, **settings):
    return InterruptibleDistributedSampler(range(length), *arguments, **settings)


# The order ------------------------------------------------------------------------------------------------------


def test_the_order_is_that_of_torchs_distributed_sampler():
    """Every length, seed, epoch and rank: as many indices, the same ones in the same order, padded and cut alike."""
    flags = (False, True)
    for world, shuffle, drop_last, length in product((1, 2, 3, 4, 8, 70), flags, flags, LENGTHS):
        if shuffle and not length:
            continue  # torch's own fails to pad nothing
        for (seed, epoch), rank in product(((0, 0), (0, 1), (5, 3), (2**40, 7)), {0, world // 2, world - 1}):
            made = []
            for kind in (InterruptibleDistributedSampler, DistributedSampler):
                sampler = kind(range(length), world, rank, seed=seed, shuffle=shuffle, drop_last=drop_last)
                sampler.set_epoch(epoch)
                made.append((len(sampler), getattr(sampler, "remaining", len(sampler)), list(sampler)))
            assert made[0] == made[1], (world, shuffle, drop_last, length, seed, epoch, rank)


def test_epochs_differ_and_come_again():
    """Each epoch has an order of its own, the same whenever it comes, and not drawn from the training's stream."""
    before = torch.get_rng_state()
    sampler = ours(50, 2, 0)
    epochs = []
    for epoch in (0, 1, 2, 1, 0):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    assert epochs[0] != epochs[1] != epochs[2]
    assert (epochs[3], epochs[4]) == (epochs[1], epochs[0])
    assert torch.equal(before, torch.get_rng_state())


def test_a_loader_gives_what_it_gives_with_torchs():
    """A real DataLoader, with the loader's own drop_last and without."""
    gives_what_it_gives_with_torchs(0)


def gives_what_it_gives_with_torchs(workers):
    data = torch.arange(29)
    for world, batch_size, drop in ((1, 4, False), (2, 4, True), (3, 2, False)):
        for rank in range(world):
            found = []
            for kind in (DistributedSampler, InterruptibleDistributedSampler):
                sampler = kind(data, world, rank, seed=3)
                sampler.set_epoch(2)
                loader = DataLoader(data, batch_size, sampler=sampler, num_workers=workers, drop_last=drop)
                found.append([batch.tolist() for batch in loader])
            assert found[0] == found[1]


# The place ------------------------------------------------------------------------------------------------------


def test_a_loop_that_advances_resumes_at_any_batch():
    """What workers have read ahead is not consumed; the rest comes in the order that it would have come in."""
    resumes_at_any_batch(0)


def resumes_at_any_batch(workers, every=1):
    data = torch.arange(23)

    def new():
        sampler = InterruptibleDistributedSampler(data, 2, 1, seed=4)
        return sampler, DataLoader(data, 3, sampler=sampler, num_workers=workers)

    def epochs(sampler, loader, states):
        for epoch in range(sampler.epoch, 3):
            with sampler.in_epoch(epoch):
                for batch in loader:
                    sampler.advance(len(batch))
                    states.append(sampler.state_dict())
                    yield batch.tolist()

    states = []
    sampler, loader = new()
    whole = list(epochs(sampler, loader, states))
    assert len(whole) == len(states) == 12
    for taken, state in list(enumerate(states, 1))[::every]:
        sampler, loader = new()
        sampler.load_state_dict(state)
        assert list(epochs(sampler, loader, [])) == whole[taken:]


def test_a_state_between_epochs_is_in_the_next_one():
    """After the block of in_epoch nothing of it comes again."""
    sampler, states = InterruptibleSampler(range(10)), []
    with sampler.in_epoch(3):
        sampler.advance(10)
        states.append(sampler.state_dict())
    states.append(sampler.state_dict())
    assert [(3, 10), (4, 0)] == [(state["epoch"], state["position"]) for state in states]


def test_an_exception_leaves_the_place_where_it_is():
    """The state saved on the way out says what was consumed."""
    sampler = ours(10, 2, 0)
    with pytest.raises(KeyboardInterrupt), sampler.in_epoch(3):
        sampler.advance(2)
        raise KeyboardInterrupt
    assert (sampler.epoch, sampler.position, sampler.progress, sampler.remaining) == (3, 4, 2, 3)


def test_the_place_is_the_same_on_every_rank():
    """So whichever rank saves it, any rank can go on from it."""
    states = []
    for rank in range(3):
        sampler = ours(20, 3, rank)
        sampler.set_epoch(1)
        sampler.advance(4)
        states.append(sampler.state_dict())
    assert states[0] == states[1] == states[2]
    assert states[0]["position"] == 12


def test_a_place_in_the_middle_computes_no_sample_before_it():
    """A resume near the end hands out the rest at once: nothing is drawn again and dropped."""
    walked = []

    class Counting(InterruptibleDistributedSampler):
        def indices(self, epoch, start=0):
            for index in super().indices(epoch, start):
                walked.append(index)
                yield index

    sampler = Counting(range(100_000), 4, 2)
    sampler.advance(24_990)
    assert list(sampler) == list(DistributedSampler(range(100_000), 4, 2))[-10:]
    assert len(walked) == 10


def test_counting_further_than_there_is_is_refused():
    """A slip in the count, such as the batch size for a short last batch, would show only as samples left out."""
    sampler = ours(10, 4, 0)
    sampler.advance(3)
    for n in (1, -1):
        with pytest.raises(UsageError, match=r"0 samples of epoch 0 are left for this rank.*advance\(len\(batch\)\)"):
            sampler.advance(n)
    sampler.reset_progress()
    sampler.advance(3)


def test_an_epoch_that_is_over_is_not_begun_again_silently():
    """A loop that forgot set_epoch would see nothing; one resumed at the epoch's end has nothing to do."""
    sampler = InterruptibleSampler(range(4))
    sampler.advance(len(list(sampler)))
    with pytest.raises(UsageError, match=r"epoch 0 is over: begin the next one with set_epoch\(1\)"):
        list(sampler)
    resumed = InterruptibleSampler(range(4))
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == []
    resumed.set_epoch(1)
    assert len(list(resumed)) == 4


def test_a_state_of_another_order_is_refused():
    """Another seed, another dataset, another kind of sampler: its place means nothing here."""
    sampler = ours(10, 2, 0, seed=4)
    state = sampler.state_dict()
    for sampler_there, saved, words in [
        (ours(11, 2, 0, seed=4), state, "make it the same again"),
        (ours(10, 2, 0, seed=5), state, "make it the same again"),
        (ours(10, 2, 0, shuffle=False, seed=4), state, "make it the same again"),
        (sampler, {**state, "order": "torch.randperm 7"}, r"order is '.*', in its saved state 'torch.randperm 7'"),
        (sampler, {"progress": 3, "epoch": 1}, "no state of a sampler: it has progress, epoch"),
        (sampler, {"epoch": 1, "position": 3}, "no state of a sampler: it has epoch, position"),
        (sampler, grouped(10, 2, 0, seed=4).state_dict(), r"another kind: its position is \[\]"),
    ]:
        with asked_of(saved), pytest.raises(Mismatch, match=words):
            sampler_there.load_state_dict(saved)


def test_without_a_process_group_there_is_one_rank(monkeypatch):
    """Unless torchrun says that there are more: each of them would take all the data."""
    assert list(ours(5, shuffle=False)) == list(range(5))
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match=r"WORLD_SIZE is 4.*init_process_group"):
        ours(5)
    assert list(InterruptibleSampler(range(5), shuffle=False)) == list(range(5))
    for rank, world, why in ((None, 2, "which of the 2 ranks"), (2, 2, "rank 2 of 2"), (-1, 2, "rank -1 of 2")):
        with pytest.raises(UsageError, match=why):
            ours(5, world, rank)


def test_an_index_reaches_tensors_lists_and_arrays():
    """It carries its epoch, and is a plain number to everybody else."""
    sampler = InterruptibleSampler(range(5), seed=1)
    sampler.set_epoch(6)
    for index in sampler:
        assert isinstance(index, Index)
        assert index.epoch == 6
        assert (torch.arange(5)[index].item(), list(range(5))[index], torch.arange(5).numpy()[index]) == (index,) * 3


# Any number of ranks --------------------------------------------------------------------------------------------

PLANS = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=6)


def walk(new, plan):
    """The steps of one epoch: so many ranks take so many samples in a step, so many times, and others go on; the last
    to the end. Each step is what each rank took.
    """
    steps, state = [], None
    for number, (world, batch_size, some) in enumerate(plan, 1):
        samplers = [new(world, rank, batch_size) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        batched = [batches_of(sampler, batch_size) for sampler in samplers]
        for batches in islice(zip(*batched, strict=True), some if number < len(plan) else None):
            steps.append(batches)
            for sampler, batch in zip(samplers, batches, strict=True):
                sampler.advance(1 if hasattr(sampler, "batch_size") else len(batch))
        (state,) = {repr(sampler.state_dict()): sampler.state_dict() for sampler in samplers}.values()
    return steps


def batches_of(sampler, batch_size):
    indices = iter(sampler)
    return indices if hasattr(sampler, "batch_size") else iter(lambda: list(islice(indices, batch_size)), [])


def flat(steps):
    return [index for step in steps for batch in step for index in batch]


@given(st.integers(0, 60), PLANS, st.integers(0, 3), st.booleans())
def test_every_sample_comes_once_however_often_the_number_of_ranks_changes(length, plan, seed, shuffle):
    """What is consumed is the order's beginning, at any time; only the last round of an epoch is filled up."""
    seen = Counter(flat(walk(lambda world, rank, _: ours(length, world, rank, shuffle, seed), plan)))
    assert set(seen) == set(range(length))
    assert seen.total() - length < max(world for world, _, _ in plan)
    order = list(ours(length, 1, 0, shuffle, seed))
    again = Counter(order[place % length] for place in range(length, seen.total()))
    assert seen - Counter(order) == again


@given(st.integers(0, 80), PLANS)
def test_dropping_the_last_leaves_out_less_than_a_round(length, plan):
    """Nothing comes twice. Fewer samples than there are ranks at the end do not come; of groups, fewer than a batch of
    each.
    """
    world, batch_size, _ = plan[-1]
    for new, most in [
        (lambda world, rank, _: ours(length, world, rank, seed=2, drop_last=True), world - 1),
        (lambda *given: grouped(length, *given, drop_last=True), 3 * (world * batch_size - 1)),
    ]:
        seen = flat(walk(new, plan))
        assert len(set(seen)) == len(seen)
        assert 0 <= length - len(seen) <= most


WORLDS = {(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)}


@given(st.integers(0, 100), st.lists(st.sampled_from(sorted(WORLDS)), min_size=1, max_size=5), st.data())
def test_the_same_global_batch_means_the_same_steps(length, kinds, data):
    """Whatever the ranks are: the samples of each step, in the order in which the ranks take turns. In groups, each
    step has the samples that it has on one rank.
    """
    plan = [(world, size, data.draw(st.integers(0, 3))) for world, size in kinds]
    order = list(ours(length, 1, 0, seed=5))
    steps = walk(lambda world, rank, _: ours(length, world, rank, seed=5, drop_last=True), plan)
    found = [list(chain.from_iterable(zip(*step, strict=True))) for step in steps]
    whole = [order[first : first + 12] for first in range(0, length, 12)]
    assert [step for step in found if len(step) == 12] == [step for step in whole if len(step) == 12]
    found = walk(lambda world, rank, size: grouped(length, world, rank, size, seed=5), plan)
    alone = list(grouped(length, 1, 0, 12, seed=5))
    assert [set(chain.from_iterable(step)) for step in found] == [set(batch) for batch in alone]


# Groups ---------------------------------------------------------------------------------------------------------


def group_of(index):
    return "tall" if index % 3 == 0 else index % 2


def grouped(length, world, rank, batch_size=2, **settings):
    ids = [group_of(index) for index in range(length)]
    return InterruptibleDistributedGroupedBatchSampler(range(length), ids, batch_size, world, rank, **settings)


@given(st.integers(0, 60), PLANS, st.integers(0, 3), st.booleans())
def test_every_batch_is_of_one_group_and_every_sample_comes_once(length, plan, seed, shuffle):
    """All ranks have the same group in a step; what comes twice fills up the last batch of its group."""
    steps = walk(lambda *given: grouped(length, *given, seed=seed, shuffle=shuffle), plan)
    for step in steps:
        taken = flat([step])
        assert (len(set(map(group_of, taken))), len(set(map(len, step)))) == (1, 1)
        assert len(taken) - len(set(taken)) < len(step)
    assert set(flat(steps)) == set(range(length))
    assert sum(len(set(flat([step]))) for step in steps) == length  # no sample in two steps


def test_a_grouped_loader_resumes_at_any_batch():
    """A real DataLoader; an epoch has as many batches as it says, and every one has an order of its own."""
    data = torch.arange(40)

    def epochs(sampler, states):
        loader = DataLoader(data, batch_sampler=sampler)
        for epoch in range(sampler.epoch, 3):
            with sampler.in_epoch(epoch):
                for batch in loader:
                    sampler.advance()
                    states.append(sampler.state_dict())
                    yield batch.tolist()

    states = []
    whole = list(epochs(grouped(40, 2, 1, seed=1), states))
    each = len(grouped(40, 2, 1))
    assert (len(whole), states[each - 1]["position"]) == (3 * each, [[4, each]])
    assert whole[:each] != whole[each : 2 * each]
    for taken, state in enumerate(states, 1):
        resumed = grouped(40, 2, 1, seed=1)
        resumed.load_state_dict(state)
        assert list(epochs(resumed, [])) == whole[taken:]


def test_other_groups_are_another_order():
    """They decide which samples the batches taken were."""
    made = lambda ids, size=2: InterruptibleDistributedGroupedBatchSampler(range(10), ids, size, 2, 0)
    sampler, other = grouped(10, 2, 0), made([0] * 10)
    with pytest.raises(Mismatch, match="the sampler's groups is"):
        other.load_state_dict(sampler.state_dict())
    for refused, words in [
        (lambda: made([0] * 9), "group_ids has 9 entries, and the dataset 10 samples"),
        (lambda: made([0] * 10, 0), "batch_size=0"),
        (lambda: sampler.advance(99), r"advance\(99\): \d+ batches"),
    ]:
        with pytest.raises(UsageError, match=words):
            refused()
    assert made(torch.zeros(10, dtype=torch.int64)).state_dict() == other.state_dict()


def test_groups_fill_up_in_the_order_of_their_samples():
    """Full batches first, in the order in which the last sample of each comes; then what is left, the earliest
    first.
    """
    ids = "abababbba"
    assert groups.group_batches(range(9), ids, 2) == [[0, 2], [1, 3], [5, 6], [4, 8], [7]]
    assert groups.remaining_samples(range(9), ids, [(2, 2)]) == [4, 5, 6, 7, 8]
    assert groups.add_batches([(2, 2)], 2, 1) == [(2, 3)]
    assert groups.add_batches([(2, 2)], 4, 1) == [(2, 2), (4, 1)]


# Shares ---------------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 7), st.data())
def test_what_is_dealt_is_ones_own_first(length, world, data):
    """Any number of samples up to all, none twice; a fair share each is all of them between the ranks."""
    each = data.draw(st.integers(0, length))
    shares = [assign_places(RankSplit(length, world, rank), each) for rank in range(world)]
    assert all(len(set(share)) == len(share) == each for share in shares)
    fair = [assign_places(RankSplit(length, world, rank), -(-length // world)) for rank in range(world)]
    assert set(chain.from_iterable(fair)) == set(range(length))
    own = range(0, length, world)
    assert shares[0][: len(own)] == [*own][:each]
