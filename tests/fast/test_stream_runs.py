"""A Stream in a run that goes back, branches, or adds up gradients."""

import random

import numpy as np
import pytest
from torch.utils.data import DataLoader

from holdfast.data import Stream, Window
from subjects import asked_of
from toy import Cut, Passes, Toy, new_run

BATCHES = 7  # of an epoch


def walked(path, cut=None, workers=0, accumulate=1, seed=1, **options):
    """The batches of two epochs, as far as this process took them, and what was learned in all. A resume takes the
    random numbers of the run, whatever `seed` is.
    """
    stream = Stream(range(50), 8, seed=2, shuffle=Window(2, 9), map=lambda n: (n, np.random.rand()))
    loader = DataLoader(stream, batch_size=None, num_workers=workers)
    toy, passes, seen = Toy(), Passes(cut), []
    random.seed(seed)
    with new_run(path, toy, background=False, **options) as run:
        for _ in run.epochs(2):
            for numbers, drawn in run.batches(loader, accumulate=accumulate):
                passes.one()
                seen.append([*zip(numbers.tolist(), drawn.tolist(), strict=True)])
                toy.learn(str(seen[-1]))
    return seen, toy.value


def test_a_run_that_goes_back_or_branches_takes_the_same_batches_again(tmp_path):
    """From the middle of an epoch, its end and the next one, with other workers too."""
    whole, value = walked(tmp_path / "whole")
    assert 2 * BATCHES == len(whole)
    for step in (11, BATCHES, 3):
        with asked_of(step):
            name = f"step-{step:09}" + "-end" * (step == BATCHES)
            branch = {"branch_from": tmp_path / "whole" / "checkpoints" / name}
            assert (whole[step:], value) == walked(tmp_path / f"{step}", workers=step % 2, seed=2, **branch)
    for step in (11, 3):
        with asked_of(step):
            assert (whole[step:], value) == walked(tmp_path / "whole", workers=1 - step % 2, seed=2, go_back=step)


def test_groups_of_accumulated_batches_are_resumed_whole(tmp_path):
    """A cut within a group takes its batches again from the group's first; an epoch's last group is short."""
    whole, value = walked(tmp_path / "whole", accumulate=3)
    for cut in (2, 4, 6, 7, 8, 10, 14):
        begins = cut - 1 - (cut - 1) % BATCHES % 3  # the first batch of the group
        with asked_of(cut):
            with pytest.raises(Cut):
                walked(tmp_path / f"{cut}", cut, accumulate=3)
            resumed = walked(tmp_path / f"{cut}", workers=cut % 2, accumulate=3, seed=2 if begins else 1)
            assert (whole[begins:], value) == resumed
