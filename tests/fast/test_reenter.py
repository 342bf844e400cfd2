"""A second block of the same run in one process: what the script did between them counts, and a restart repeats it."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from holdfast import Every, Fields, Run
from run_ranks import Part, among_threads
from toy import Cut, Passes, Toy, names, new_run


def phases(path, passes, *, again=False):
    """Three blocks; between them the state is changed, and numbers are drawn."""
    random.seed(5)
    toy, box = Toy(), [0]
    run = None
    for total in (2, 5, 7):
        if run is None or not again:
            run = Run(path, {"toy": toy, "box": box}, vars={"seen": 0}, every=Every(steps=1), background=False)
        with run:
            for step in run.steps(7 if again else total):
                if step >= total:
                    break
                toy.learn(step)
                box.append(step)
                run.vars.seen += 1
                passes.one()
            toy.learn("evaluation".__len__())
            run.log(box=len(box))
        passes.one()
        box.append(random.random())
        toy.value += 1
        passes.one()
    return toy.value, box, run.vars.seen


def test_what_is_changed_between_two_blocks_counts(tmp_path):
    """State, and draws from the generators: the same as in one process without a run."""
    value, box, seen = phases(tmp_path, Passes())
    random.seed(5)
    toy, expected = Toy(), [0]
    for begin, end in ((0, 2), (2, 5), (5, 7)):
        for step in range(begin, end):
            toy.learn(step)
            expected.append(step)
        toy.learn("evaluation".__len__())
        expected.append(random.random())
        toy.value += 1
    assert (toy.value, expected, 7) == (value, box, seen)


def test_a_cut_anywhere_leads_to_the_same_end(tmp_path):
    """In a block, behind it, and behind what is done between two of them; twice, too."""
    whole = Passes()
    expected = phases(tmp_path / "whole", whole)
    assert whole.count == 7 + 6
    for cut in range(1, whole.count + 1):
        path = tmp_path / str(cut)
        for passes in (Passes(cut), Passes(2)):
            try:
                found = phases(path, passes)
            except Cut:
                found = None
        assert expected == (found or phases(path, Passes())), cut


def block(path, state, total, **options):
    with Run(path, state, **options) as run:
        for step in run.steps(total):
            state["box"].append(step)
    return run


def test_a_block_that_did_not_end_in_order_is_restored(tmp_path):
    box = [0]
    block(tmp_path, {"box": box}, 2)
    with pytest.raises(ValueError, match="x"), Run(tmp_path, {"box": box}) as run:
        for _ in run.steps(4):
            box.append("lost")
            raise ValueError("x")
    block(tmp_path, {"box": box}, 3)
    assert [0, 0, 1, 2] == box


def test_other_objects_are_restored(tmp_path):
    """A cell of a notebook that makes them anew, and `Fields` of other names."""
    first = block(tmp_path / "a", {"box": [0]}, 2)
    state: dict[str, list[object]] = {"box": ["new"]}
    block(tmp_path / "a", state, 3)
    assert [0, 0, 1, 2] == state["box"]
    assert first is not None

    class Holder:
        one, two = 1, 2

    holder, box = Holder(), []
    for total in (1, 2):
        run = block(tmp_path / "b", {"box": box, "mine": Fields(holder, "one", "two")}, total)
        holder.one += 10
    assert 21 == holder.one
    assert run is not None


def test_an_object_that_an_attribute_holds_may_be_another_one(tmp_path):
    """A model of a trainer that a cell has made anew is restored, too."""

    class Trainer:
        model = Toy()

    trainer = Trainer()
    values = []
    for total in (2, 2, 2):
        with Run(tmp_path, {"trainer": Fields(trainer, "model")}) as run:
            values.append(trainer.model.value)
            [trainer.model.learn(step) for step in run.steps(total)]
            values.append(trainer.model.value)
        trainer.model = Toy()
    assert values[1] == values[2] == values[3] == values[4] != values[0]


def test_a_save_of_another_process_goes_before(tmp_path):
    box = [0]
    run = block(tmp_path, {"box": box}, 2)
    step = names(tmp_path)[-1]
    other = [0]
    block(tmp_path, {"box": other}, 3)
    box.append("mine")
    again = block(tmp_path, {"box": box}, 4)
    assert [0, 0, 1, 2, 3] == box
    assert step != names(tmp_path)[-1]
    assert again is not run


def test_big_containers_are_restored_and_one_line_says_so(tmp_path, capsys):
    """Kept alive, they would hold memory that the script has let go. The same Run goes on with them all the same."""
    box = [np.zeros(1 << 18)]
    run = block(tmp_path, {"box": box}, 1)
    box[0] += 7
    capsys.readouterr()
    block(tmp_path, {"box": box}, 2)
    assert 0 == box[0][0]
    assert "what 'box' was then is not known here. To go on with what was changed since, enter the same Run again" in (
        capsys.readouterr().err
    )
    run = Run(tmp_path / "same", {"box": box})
    for total in (1, 2):
        with run:
            box += run.steps(total)
        box[0] += 7
    assert 14 == box[0][0]
    assert "not known" not in capsys.readouterr().err


def test_going_back_restores(tmp_path):
    box = [0]
    run = block(tmp_path, {"box": box}, 4, every=Every(steps=1), keep=Every(steps=1))
    box.append("mine")
    run = block(tmp_path, {"box": box}, 4, go_back=4)
    assert [0, 0, 1, 2, 3] == box
    assert run.step == 4


def test_a_model_that_was_pruned_between_two_fits_goes_on_as_it_is(tmp_path):
    """Its keys are others than the checkpoint's; a learning rate that was set counts, too."""
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    for total in (2, 4):
        with Run(tmp_path, {"model": model, "optimizer": optimizer}) as run:
            for _ in run.steps(total):
                optimizer.zero_grad()
                model(torch.ones(1, 4)).sum().backward()
                optimizer.step()
        if total == 2:
            prune.l1_unstructured(model, "weight", 8)
            optimizer.param_groups[0]["lr"] = 0.25
    assert 8 == int((model.weight == 0).sum())
    assert 0.25 == optimizer.param_groups[0]["lr"]


def test_generators_of_the_script_and_numpys_go_on(tmp_path):
    rng = np.random.default_rng(0)
    drawn, toy = [], Toy()
    for total in (1, 2):
        with new_run(tmp_path, toy, every=None) as run:
            drawn += [np.random.rand() for _ in run.steps(total)]
        drawn.append(np.random.rand())
    state = {"rng": rng}
    for total in (1, 2):
        with Run(tmp_path / "own", state) as run:
            drawn += [rng.random() for _ in run.steps(total)]
        drawn.append(rng.random())
    assert len(drawn) == len({*drawn}) == 8


def test_all_ranks_go_on_or_none(tmp_path, monkeypatch):
    """One of them has made its object anew."""
    among = among_threads(monkeypatch)

    def work(rank, *, anew):
        part = Part(rank)
        values = []
        for total in (2, 4):
            if anew and rank == 1:
                part = Part(rank)
            with Run(tmp_path / str(anew), {"part": part}) as run:
                values.append(part.state_dict())
                for _ in run.steps(total):
                    part.learn()
            part.learn()
        return values

    kept = among(2, lambda rank: work(rank, anew=False))
    restored = among(2, lambda rank: work(rank, anew=True))
    assert all(kept[rank][1] != restored[rank][1] for rank in (0, 1))
