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


HUGE = {"int": "0x1" + "0" * 5000}
LEAF = {"leaf": "model/0.weight"}
ODD = [
    (at("adam", "dict", "param_groups"), 3),
    (at("adam", "dict", "param_groups", 0), {"str": "78"}),
    (at("adam", "dict", "param_groups", 0, "dict", "params"), 0),
    (at("adam", "dict", "param_groups", 0, "dict", "params", 0), {"dict": {}}),
    (at("adam", "dict", "param_groups", 0, "dict", "params", 0), 1),
    (at("adam", "dict", "state"), 5),
    (at("adam", "dict", "state", "items", 0, 1), LEAF),
    (at("adam", "dict", "state", "items", 0, 1, "dict", "exp_avg"), 5),
    (at("chain", "dict", "_schedulers"), -1),
    (at("adam", "dict", "state", "items", 0, 1, "dict", "step"), hostile.GONE),
    (at("generator", "dict", "device"), HUGE),
    (at("dice", "dict", "random"), "x"),
    (at("bits", "dict", "bit_generator", "dict", "state"), None),
    (at("bits", "dict", "bit_generator", "dict", "has_uint32"), {"dict": {}}),
    (at("legacy"), 0),
    (at("table", "dict", "sets", 0, "set", 0), LEAF),
    (at("table", "dict", "maps", 3, "items", 0, 0), LEAF),
    (at("table", "dict", "numpy", 3), {"numpy.SeedSequence": [1, [], 2**39, 0]}),
    (at("table", "dict", "kinds", 6, "enum", 1), {"int": "-0x1" + "0" * 5000}),
    (own("vars"), 3),
    (own("vars", "dict", "load_state_dict"), 3),
    (own("seed"), None),
    (own("seed"), HUGE),
    (own("overrides"), 3),
    (own("fingerprint"), 2**62),
    (own("fingerprint", "dict", "loaders", "dict", "train"), LEAF),
    (own("fingerprint", "dict", "environment", "dict", "threads"), HUGE),
    (own("fingerprint", "dict", "more"), 3),
    (own("more"), 3),
    (own("means"), 0.5),
    (own("means", "dict", "n"), 1e308),
    (own("means", "dict", "loss", "dict", "n", 0), {"dict": {}}),
    (own("nested"), [[]]),
    (own("rng"), 3),
    (own("rng", "dict", "torch", "dict", "cpu"), 3),
    (own("rng", "dict", "python"), {"tuple": []}),
    (own("rng", "dict", "numpy", "dict", "bit_generator"), HUGE),
    (own("epoch_rng"), 3),
    (own("epoch_rng", "dict", "python"), None),
    (own("position", "dict", "step"), {"tuple": [1]}),
    (own("position", "dict", "step"), 7),
    (own("position", "dict", "epoch"), 2**64),
    (own("position", "dict", "epoch"), -1),
    (own("position", "dict", "epoch"), 3),
    (own("position", "dict", "left"), 3),
    (own("position", "dict", "targets", "dict", "epochs"), ""),
    (own("position", "dict", "targets", "dict", "epochs"), HUGE),
    (own("position", "dict", "loaders", "dict"), {}),
    (own("position", "dict", "loaders", "dict", "train"), 3),
    (own("position", "dict", "loaders", "dict", "train", "dict", "consumed"), {"bytes": ""}),
    (own("position", "dict", "feeds", "dict", "train"), hostile.GONE),
    (own("position", "dict", "feeds", "dict", "train", "dict", "samples"), -1),
    (own("position", "dict", "feeds", "dict", "train", "dict", "batches"), {"dict": {}}),
    (own("position", "dict", "feeds", "dict", "train", "dict", "batches"), 0),
    (own("position", "dict", "feeds", "dict", "train", "dict", "epoch"), 3),
    (own("position", "dict", "feeds", "dict", "second", "dict", "rng"), -1),
    (("created",), "yesterday"),
    (("leaves", "model/0.weight", "shape"), [3, 5]),
    (("leaves", "table/array", "size_bytes"), 40),
    (("leaves", "sgd/state/0/momentum_buffer", "kind"), "x"),
]
FORGED = [  # of torch's own objects, which look at their states themselves
    (at("adam", "dict", "param_groups", 0, "dict", "lr"), "x"),
    (at("adam", "dict", "param_groups", 0, "dict", "eps"), HUGE),
    (at("adam", "dict", "param_groups", 0, "dict", "betas"), {"tuple": [0.9]}),
    (at("adam", "dict", "param_groups", 0, "dict", "fused"), LEAF),
    (at("adam", "dict", "param_groups", 0, "dict", "fused"), {"leaf": "table/array"}),
    (at("adam", "dict", "state", "items", 0, 1, "dict", "step"), "x"),
    (at("plateau", "dict", "mode"), "sideways"),
    (at("plateau", "dict", "best"), "x"),
    (at("plateau", "dict", "threshold_mode"), 3),
    (at("chain", "dict", "_schedulers", 0, "dict", "base_lrs"), LEAF),
    (at("chain", "dict", "last_epoch"), []),
    (at("scaler"), [1]),
    (at("scaler", "dict", "scale"), hostile.GONE),
    (at("generator", "dict", "state"), 5),
]


def names(cases):
    return ["/".join(map(str, path)) + f"={value!r:.20}" for path, value in cases]


@pytest.mark.parametrize(("path", "value"), ODD, ids=names(ODD))
def test_odd_content_is_refused_before_anything_changes(path, value, newest):
    """It is damage, or it does not fit: with one line, and with every live object as it was."""
    for older in newest.parent.glob("step-*"):
        if older != newest:
            shutil.rmtree(older)
    put(newest, path, value)
    found = resumed(newest.parents[1])
    assert isinstance(found.error, StoreError | Mismatch), found
    assert found == Outcome(found.error, began=False, changed=False)
    assert "Traceback" not in str(found.error)


@pytest.mark.parametrize(("path", "value"), FORGED, ids=names(FORGED))
def test_a_forged_state_of_torchs_objects_executes_nothing(path, value, newest):
    """It is restored as far as torch takes it, or raises an error of ours or of torch's."""
    put(newest, path, value)
    with fuzzed.watched(newest.parents[2]):
        assert resumed(newest.parents[1]).is_torchs


@pytest.mark.parametrize(("path", "value"), ODD[::6], ids=names(ODD[::6]))
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
