"""A generator of the script's own: the code at an epoch's beginning draws from it again, and gets the same numbers."""

import random
from itertools import cycle

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
        "spawning": np.random.Generator(np.random.Philox(3)),
        "legacy": np.random.RandomState(3),
        "seeds": np.random.SeedSequence(3),
        "torch": torch_generator,
    }


def order_of(generator):
    if isinstance(generator, np.random.SeedSequence):
        return generator.spawn(2)[1].generate_state(3).tolist() * 4
    if isinstance(generator, torch.Generator):
        return torch.randperm(12, generator=generator).tolist()
    if isinstance(generator, np.random.Generator) and isinstance(generator.bit_generator, np.random.Philox):
        (generator,) = generator.spawn(1)
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


@pytest.mark.parametrize(("name", "nested"), [*zip(kinds(), cycle([False, True]), strict=False)])
def test_an_order_that_is_drawn_at_an_epochs_beginning_is_the_same_after_a_resume(tmp_path, capsys, name, nested):
    """In mid-epoch, twice; and nothing is said to have been put back, for nothing was wrong."""
    whole = train(tmp_path / "whole", name, nested=nested)
    assert whole == train(tmp_path / "cut", name, nested=nested, cuts=(6, 9))
    assert 12 == len(whole[0])
    assert "put back" not in capsys.readouterr().err


def first_of_a_child(spawning):
    (child,) = spawning.spawn(1)
    return np.random.default_rng(child).random() if isinstance(spawning, np.random.SeedSequence) else child.random()


@pytest.mark.parametrize(("again", "inside"), [(0, "state"), (1, "list"), (9, "vars")])
@pytest.mark.parametrize("kind", ["Generator", "SeedSequence"])
def test_a_resumed_generator_spawns_the_children_that_an_uninterrupted_one_does(tmp_path, kind, again, inside):
    """Also if a later start spawns fewer or more children before the run begins. Twice."""

    def train(place, cut, before):
        made = np.random.SeedSequence(5) if kind == "SeedSequence" else np.random.default_rng(5)
        made.spawn(before)
        tracked = [made] if inside == "list" else made
        state, variables = ({}, {"it": tracked}) if inside == "vars" else ({"it": tracked}, {})
        seen = {}
        with Run(place, state, vars=variables, every=Every(steps=1), background=False) as run:
            for step in run.steps(9):
                if step == cut:
                    raise Cut
                seen[step] = first_of_a_child(made)
        return seen

    whole = train(tmp_path / "whole", None, 1)
    for cut, before in ((3, 1), (6, again)):
        with pytest.raises(Cut):
            train(tmp_path / "cut", cut, before)
    last = train(tmp_path / "cut", None, again)
    assert [6, 7, 8] == list(last)
    assert {step: whole[step] for step in last} == last


def test_generators_that_share_a_sequence_go_on_sharing_it(tmp_path):
    """The sequence is the live one, filled: a child of either counts for both."""

    def train(cut):
        seeds = np.random.SeedSequence(5)
        one, other = np.random.default_rng(seeds), np.random.Generator(np.random.Philox(seeds))
        with Run(tmp_path, {"one": one, "other": other, "seeds": seeds}, every=Every(steps=1), background=False) as run:
            for step in run.steps(6):
                if step == cut:
                    raise Cut
                drawn = [first_of_a_child(each) for each in (one, other, seeds)]
        return drawn, seeds.n_children_spawned

    with pytest.raises(Cut):
        train(5)
    assert train(None)[1] == 18


def test_a_generator_that_spawned_nothing_is_saved_as_before(tmp_path):
    """Its sequence is no part of the checkpoint."""
    with Run(tmp_path, {"rng": np.random.default_rng(5)}) as run:
        run.save()
    assert "SeedSequence" not in (tmp_path / "checkpoints/latest/manifest.json").read_text()
