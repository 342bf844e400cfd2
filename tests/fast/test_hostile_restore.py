"""Checkpoints whose digests hold and whose content is odd: a restore refuses them before it changes a live byte."""

import random
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fuzzed
import hostile
from holdfast import Run, load_into
from holdfast.errors import Damaged, Mismatch, StoreError
from holdfast.run.weights import StartFrom
from hostile import Outcome, put, resumed
from hostile_stores import fields_of
from samples import SEED


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A run with two checkpoints, the newest in the middle of an epoch."""
    return hostile.grown(tmp_path_factory.mktemp("grown") / "run")


@pytest.fixture
def newest(grown, tmp_path):
    """The newest of two checkpoints, in a copy of the run."""
    root = grown.parents[1]
    shutil.copytree(root, tmp_path / "run", symlinks=True)
    return tmp_path / "run/checkpoints" / grown.name


def at(*path):
    return ("tree", "dict", *path)


def own(*path):
    return at("holdfast", "dict", *path)


def drawn(newest, count, *, of_torch):
    """So many mutations of the newest checkpoint: of torch's own objects, or of anything else that is ours to check."""
    below = lambda path, *roots: any(path[: len(each)] == each for each in roots)
    return random.Random(SEED).sample(
        [
            each
            for each in hostile.mutations(fields_of(newest), 0)
            if below(each[0], *hostile.TORCHS) == of_torch and not below(each[0], hostile.MINE)
        ],
        count,
    )


def test_odd_content_is_refused_before_anything_changes(newest):
    """A draw: what is damage or does not fit is refused in one line, with every live object as it was.

    tests/prove/test_hostile_trees.py draws more of all places and all that is put there.
    """
    found = [*hostile.tried(newest, drawn(newest, 40, of_torch=False))]
    assert [] == [each for each in found if not each.is_well]
    refused = [each.outcome for each in found if isinstance(each.outcome.error, StoreError | Mismatch)]
    assert len(refused) > 20
    assert not [each for each in refused if each.began or each.changed or "Traceback" in str(each.error)]


def test_a_forged_state_of_torchs_objects_executes_nothing(newest):
    """It is restored as far as torch takes it, or raises an error of ours or of torch's."""
    found = hostile.tried(newest, drawn(newest, 15, of_torch=True), fuzzed.watched)
    assert [] == [each for each in found if not each.is_well]


DAMAGED = [
    (at("adam", "dict", "state"), 5),
    (own("position", "dict", "step"), 7),
    (own("rng", "dict", "python"), {"tuple": []}),
    (("leaves", "table/array", "size_bytes"), 40),
]


@pytest.mark.parametrize(("path", "value"), DAMAGED)
def test_the_next_older_checkpoint_is_tried(path, value, newest, capsys):
    """The odd one is set aside, and the run goes on from the one before it, to its end."""
    put(newest, path, value)
    assert Outcome(None, began=True, changed=True) == resumed(newest.parents[1])
    assert [f"{newest.name}-damaged"] == [each.name for each in (newest.parents[1] / "quarantine").iterdir()]
    assert "step-000000005" in capsys.readouterr().err


def test_another_kind_of_generator_does_not_fit(tmp_path):
    """A generator of NumPy's over other bits is no damage: the checkpoint is right, the script is another."""
    with Run(tmp_path / "run", {"bits": np.random.Generator(np.random.PCG64(1))}) as run:
        run.save()
    with pytest.raises(Mismatch, match="bit_generator: PCG64 in the checkpoint, MT19937 here"):
        Run(tmp_path / "run", {"bits": np.random.Generator(np.random.MT19937(1))}).__enter__()


def test_an_object_inside_a_container_is_not_dropped(newest):
    """Where the checkpoint has a number in the place of a list with a generator, it does not fit."""
    put(newest, at("table", "dict", "torch"), 0)
    assert isinstance(resumed(newest.parents[1]).error, Mismatch)


def test_a_check_of_random_states_changes_no_generator(newest):
    """The states of a checkpoint that is refused do not reach the global generators."""
    put(newest, own("position", "dict", "step"), 7)
    for older in {*newest.parent.glob("step-*")} - {newest}:
        shutil.rmtree(older)
    before = random.getstate(), torch.get_rng_state(), str(np.random.get_state())
    objects, variables = hostile.live()
    torch.set_rng_state(before[1])
    with pytest.raises(StoreError):
        Run(newest.parents[1], objects, vars=variables, types=hostile.TYPES).__enter__()
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())
    assert before[2] == str(np.random.get_state())


def test_a_number_that_python_does_not_print_may_be_a_key(tmp_path):
    """It has more digits than Python's limit; it is saved, restored, and saved again."""
    table: dict[object, Any] = {2**20000: 1, "generator": random.Random(1)}
    for epochs in (1, 2):
        with Run(tmp_path / "run", {"table": table}, vars={"counts": {-(2**20000): [0]}}) as run:
            for _ in run.epochs(epochs):
                table[2**20000] += 1
        assert table[2**20000] == 1 + epochs


WEIGHTS = [
    (at("model"), {"dict": {"0.weight": 3}}, Mismatch),
    (at("model"), 3, Mismatch),
    (at("model"), {"items": [[1, 2]]}, Damaged),
    (at("model", "dict", ".metadata"), 3, Damaged),
    (("leaves", "model/0.weight", "size_bytes"), 40, Damaged),
    (("leaves", "model/0.weight", "attrs"), {"stride": "x"}, Damaged),
]


@pytest.mark.parametrize(("path", "value", "kind"), WEIGHTS)
@pytest.mark.parametrize("how", ["load_into", "start_from"])
def test_odd_weights_are_refused_before_anything_changes(how, path, value, kind, newest, tmp_path):
    """Of a checkpoint by its path; of a run, the next older one gives the weights if the newest is damaged."""
    put(newest, path, value)
    model = hostile.live()[0]["model"]
    before = hostile.digests({"model": model})
    with pytest.raises(kind):
        begun(how, model, newest, tmp_path)
    assert before == hostile.digests({"model": model})
    if kind is Damaged:
        begun(how, model, newest.parents[1], tmp_path)
        assert before != hostile.digests({"model": model})


def begun(how, model: nn.Module, path, tmp_path):
    if how == "load_into":
        load_into(model, path)
    else:
        with Run(tmp_path / "mine", {"model": model}, start_from=StartFrom(path)):
            pass


def test_every_kind_of_node_occurs(newest):
    """So the campaign over all places has all kinds in it."""
    tags = {step for path in hostile.places(fields_of(newest)["tree"]) for step in path}
    wanted = {"leaf", "tuple", "set", "frozenset", "items", "ordered", "defaultdict", "counter", "deque", "dataclass"}
    assert not wanted - tags, wanted - tags
