"""Samplers of many ranks under a run: it counts for them, once, and goes on in the middle of an epoch on any number
of ranks.
"""

from itertools import chain

import pytest
from torch.utils.data import DataLoader

from holdfast.data.feed import feed_for
from holdfast.errors import Mismatch, UsageError
from holdfast.torch.samplers import InterruptibleDistributedSampler
from samplers_run import DATA, EPOCHS, KINDS, LENGTH, ours, ranks, sampler_of, torchs, train


@pytest.mark.parametrize("make", KINDS)
def test_a_run_has_the_order_that_the_sampler_has_alone(make, tmp_path):
    """Under a run nothing moves: the batches are those of a plain loop over the same loader."""
    loader = DataLoader(DATA, **make(2, 1, 3))
    sampler = loader.sampler if make is torchs else sampler_of(loader)
    plain = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        plain += [(epoch, batch.tolist()) for batch in loader]
    assert train(tmp_path / "run", DataLoader(DATA, **make(2, 1, 3))) == plain


def test_another_batch_size_alone_is_refused_unless_accepted(tmp_path):
    """On as many ranks: the steps would be others, which somebody has to have meant."""
    _, start = ranks(tmp_path, ours, 2, 3, steps=1)
    loader = DataLoader(DATA, **ours(2, 1, 4))
    with pytest.raises(Mismatch, match=r"batch_size was 3, is 4 \(a step took \d+ samples over all ranks"):
        train(start, loader, take_over=True)
    rest = train(start, loader, take_over=True, accept={"batch_size"})
    assert len(list(chain.from_iterable(batch for epoch, batch in rest if epoch == 0))) == LENGTH // 2 - 3


def test_a_tracked_sampler_tells_what_was_consumed(tmp_path):
    """However far workers are ahead; its state alone, without a run, goes on from there."""
    loader = DataLoader(DATA, **ours(2, 0, 3))
    states = []
    seen = train(tmp_path / "run", loader, each=lambda: states.append(sampler_of(loader).state_dict()))
    for taken in (1, 3):
        alone = InterruptibleDistributedSampler(DATA, 2, 0, seed=3)
        alone.load_state_dict(states[taken - 1])
        assert list(alone) == list(chain.from_iterable(batch for epoch, batch in seen[taken:] if epoch == 0))


def test_a_loop_without_a_run_counts_again(tmp_path):
    """After a run the same sampler serves a plain loop, which advances it."""
    loader = DataLoader(DATA, **ours(1, 0, 13))
    train(tmp_path / "run", loader)
    with pytest.raises(UsageError, match="epoch 1 is over"):
        next(iter(loader))
    sampler = sampler_of(loader)
    sampler.set_epoch(7)
    for batch in loader:
        sampler.advance(len(batch))
    assert (sampler.position, sampler.remaining) == (LENGTH, 0)


def test_a_place_that_one_rank_counted_is_no_place_of_all():
    """As a sampler that is drawn again has it, and as earlier versions had it for torch's: refused, whatever is
    accepted.
    """
    position = {"epoch": 0, "batches": 2, "samples": 6, "digest": "0" * 32}
    with pytest.raises(Mismatch, match="its place among all ranks is not known"):
        feed_for(DataLoader(DATA, **torchs(2, 0, 3)), 1).open(0, position)
    alone = feed_for(DataLoader(DATA, **torchs(1, 0, 3)), 1)
    assert len(list(alone.open(0, position))) == 7
