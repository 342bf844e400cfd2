"""Samplers of many ranks under a run that is cut, and goes on with other ranks: one process plays each of them in
turn.
"""

from itertools import chain

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast import Every, Run
from holdfast.data import Seeded
from holdfast.torch.samplers import InterruptibleDistributedSampler, InterruptibleSampler
from samplers_run import DATA, EPOCHS, KINDS, LENGTH, groups, ours, ranks, sampler_of, together, torchs, train
from toy import Cut


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [ours, groups])
def test_nothing_is_counted_twice(make, workers, tmp_path):
    """A script that advances the sampler itself, and goes through in_epoch, and tracks it: all as if it did not.
    However far workers have read ahead.
    """
    expected = train(tmp_path / "plain", DataLoader(DATA, **make(2, 0, 3)))

    def careful(path, steps=None):
        loader = DataLoader(DATA, **make(2, 0, 3), num_workers=workers)
        sampler, seen = sampler_of(loader), []
        try:
            with Run(path, {"sampler": sampler}, every=Every(steps=1), background=False, seed=1, take_over=True) as run:
                for epoch in run.epochs(EPOCHS):
                    with sampler.in_epoch(epoch):
                        for batch in run.batches(loader):
                            seen.append((epoch, batch.tolist()))
                            sampler.advance(1)
                            assert sampler.epoch == epoch
                            if len(seen) == steps:
                                raise Cut
        except Cut:
            seen.pop()
        return seen

    assert careful(tmp_path / "whole") == expected
    first = careful(tmp_path / "cut", 3)
    assert first + careful(tmp_path / "cut") == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", KINDS)
def test_a_run_resumes_after_any_step(make, workers, tmp_path):
    """Killed after each, the rest is what it would have been, and the next epoch too."""
    whole = train(tmp_path / "whole", DataLoader(DATA, **make(2, 1, 3), num_workers=workers))
    assert {epoch for epoch, _ in whole} == {0, 1}
    for steps in (1, 3, len(whole) - 1):
        path = tmp_path / f"cut-{steps}"
        first = train(path, DataLoader(DATA, **make(2, 1, 3), num_workers=workers), steps)
        rest = train(path, DataLoader(DATA, **make(2, 1, 3), num_workers=workers), take_over=True)
        assert first + rest == whole


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize(("before", "after"), [((4, 3), (2, 6)), ((2, 6), (3, 4)), ((1, 12), (4, 3))])
def test_other_ranks_take_the_same_steps(make, before, after, tmp_path):
    """With the same number of samples in a step over all ranks nobody has to accept anything."""
    whole, _ = ranks(tmp_path / "whole", make, *before)
    first, start = ranks(tmp_path, make, *before, steps=1)
    rest, _ = ranks(tmp_path / "rest", make, *after, start=start)
    found = together(first) + together(rest)
    if make is groups:  # a group's last batch is filled up to the ranks that there are
        found, whole = ([(epoch, set(step)) for epoch, step in steps] for steps in (found, together(whole)))
        assert found == whole
    else:
        full = [step for step in together(whole) if len(step[1]) == 12]
        assert [step for step in found if len(step[1]) == 12] == full


@pytest.mark.parametrize("make", KINDS)
def test_every_sample_comes_once_however_often_the_ranks_change(make, tmp_path):
    """The same batch size on each rank, as when a node is lost: nothing to accept either."""
    seen, start = [], None
    for number, (world, steps) in enumerate([(4, 1), (3, 1), (1, 2), (2, None)]):
        found, start = ranks(tmp_path / str(number), make, world, 3, steps=steps, start=start)
        seen += together(found)
    ones = [index for epoch, step in seen if epoch == 0 for index in sorted(set(step))]
    assert sorted(ones) == list(range(LENGTH))
    assert {index for epoch, step in seen if epoch == 1 for index in step} == set(range(LENGTH))


@pytest.mark.parametrize("make", [ours, torchs])
def test_fewer_ranks_may_accumulate(make, tmp_path):
    """Four ranks with one batch a step go on as one rank with four batches a step: the same samples in each step."""
    whole, _ = ranks(tmp_path / "whole", make, 4, 3)
    _, start = ranks(tmp_path, make, 4, 3, steps=1)
    rest = train(start, DataLoader(DATA, **make(1, 0, 3)), accumulate=4, take_over=True)
    assert sorted(chain.from_iterable(batch for _, batch in rest[:4])) == together(whole)[1][1]
    assert [epoch for epoch, _ in rest] == [0] * 5 + [1] * 9
    logged = [line["values"]["batches"] for line in Run(start, {}).metrics()]
    assert logged == [1, 4, 5, 9, 13, 14]  # one by four ranks; then groups of 4 and 1 batches, and of 4, 4 and 1


def test_seeded_samples_know_their_epoch(tmp_path):
    """Augmentation differs from epoch to epoch, and does not depend on which rank loads a sample."""

    class Drawing:
        def __len__(self):
            return LENGTH

        def __getitem__(self, index):
            return int(index) * 1000 + int(torch.randint(1000, ()))

    def seen(world, rank):
        sampler = InterruptibleDistributedSampler(range(LENGTH), world, rank)
        loader = DataLoader(Seeded(Drawing(), seed=1), 2, sampler=sampler)
        return train(tmp_path / f"{world}-{rank}", loader)

    alone = seen(1, 0)

    def values(*found):
        return {(epoch, value) for rank in found for epoch, batch in rank for value in batch}

    assert values(seen(2, 0), seen(2, 1)) == values(alone)
    drawn = [{value % 1000 for at, value in values(alone) if at == epoch} for epoch in range(2)]
    assert drawn[0] != drawn[1]


def test_a_subclass_that_iterates_in_its_own_way_is_replayed(tmp_path):
    """Its state says what was counted, which is not what it has handed out: its indices are drawn again."""

    class Backwards(InterruptibleSampler):
        def __iter__(self):
            return iter([*super().__iter__()][::-1])

    def loader():
        return DataLoader(DATA, 4, sampler=Backwards(DATA, seed=3))

    whole = train(tmp_path / "whole", loader())
    first = train(tmp_path / "cut", loader(), 3)
    assert first + train(tmp_path / "cut", loader(), take_over=True) == whole
    plain = train(tmp_path / "plain", DataLoader(DATA, 4, sampler=InterruptibleSampler(DATA, seed=3)))
    assert whole != plain
