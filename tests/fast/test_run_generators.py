"""A generator of the script's own: the code at an epoch's beginning draws from it again, and gets the same numbers."""

import random

import numpy as np
import pytest
import torch

from holdfast import Every, Run
from toy import Cut


def kinds():
    torch_generator = torch.Generator()
    torch_generator.manual_seed(3)
    return {
        "random": random.Random(3),
        "numpy": np.random.default_rng(3),
        "legacy": np.random.RandomState(3),
        "torch": torch_generator,
    }


def order_of(generator):
    if isinstance(generator, torch.Generator):
        return torch.randperm(12, generator=generator).tolist()
    order = list(range(12))
    generator.shuffle(order)
    return order


def train(place, name, *, nested, cuts=()):
    """What the batches were and what the generator gives next; cut in front of the safe points after these steps."""
    generator, seen = kinds()[name], {}
    for cut in [*cuts, None]:
        generator = kinds()[name]
        state = {"made": {"deep": [generator]} if nested else generator}
        try:
            with Run(place, state, every=Every(steps=1), background=False) as run:
                for epoch in run.epochs(3):
                    order = order_of(generator)
                    for batch in run.batches([order[at : at + 3] for at in range(0, 12, 3)]):
                        seen[run.step] = (epoch, batch, order_of(generator))
                        if run.step == cut:
                            raise Cut
        except Cut:
            pass
    return seen, order_of(generator)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", kinds())
def test_an_order_that_is_drawn_at_an_epochs_beginning_is_the_same_after_a_resume(tmp_path, capsys, name, nested):
    """In mid-epoch, twice; and nothing is said to have been put back, for nothing was wrong."""
    whole = train(tmp_path / "whole", name, nested=nested)
    assert whole == train(tmp_path / "cut", name, nested=nested, cuts=(6, 9))
    assert 12 == len(whole[0])
    assert "put back" not in capsys.readouterr().err
