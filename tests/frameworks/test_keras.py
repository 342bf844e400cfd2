"""Keras on TensorFlow, JAX and torch: a fit() that is killed and started again ends as the undisturbed one does."""

import json
import os
from functools import cache
from importlib.metadata import files

import pytest

from framework_runs import trained

BACKENDS = ("tensorflow", "jax", "torch")


@pytest.fixture(scope="module")
def whole(pythons, tmp_path_factory):
    """The result of the undisturbed training with these arguments."""

    @cache
    def result(backend, *arguments):
        place = tmp_path_factory.mktemp("whole")
        return trained(pythons(backend), "keras_fit", place, *arguments, **environment(backend)).result

    return result


def differing(expected, result):
    """The parts of a result that are not as expected, with both of them."""
    one, other = json.loads(expected), json.loads(result)
    return [(name, one.get(name), other.get(name)) for name in one | other if one.get(name) != other.get(name)]


def environment(backend):
    return {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def pythons(zygotes):
    def python(backend):
        os.environ.update(environment(backend))
        more = {"tensorflow": (), "jax": ("jax", "torch"), "torch": ("torch",)}[backend]
        return zygotes("struck", "tensorflow", "keras", "holdfast.keras.fitting", "holdfast.keras.tfdata", *more)

    return python


STRIKES = (  # 8 batches in an epoch, a save after every other one
    "batch:3:KILL",  # in mid-epoch
    "batch:6:TERM",  # the epoch's last: the validation comes first
    "batch:8:KILL",  # the next epoch's last
    "validation:1:KILL",
    "validation:1:TERM",
    "begin:1:TERM",  # before the last epoch's first batch
    "epoch:1:KILL",  # after its validation
)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_killed_fit_ends_as_the_undisturbed_one(backend, pythons, whole, tmp_path):
    """Weights, optimizer, seeds, the order of the samples, History, CSVLogger's file, and the run's log."""
    expected = whole(backend, "arrays")
    assert [0, 1, 2] == json.loads(expected)["epochs"]
    done = trained(pythons(backend), "keras_fit", tmp_path, "arrays", strikes=STRIKES, **environment(backend))
    assert [-9, 75, -9, -9, 75, 75, -9, 0] == done.exits
    assert [] == differing(expected, done.result)
    again = trained(pythons(backend), "keras_fit", tmp_path, "arrays", **environment(backend))
    assert [] == differing(expected, again.result)  # a finished run trains nothing, and its History is whole
    assert "already finished" in again.said


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_tensorboards_files_have_each_point_once(backend, pythons, whole, tmp_path):
    """Its own reader finds the points of the undisturbed fit, in a directory that the script names by the clock."""
    words = ("arrays", "board")
    expected = whole(backend, *words)
    training, validation = json.loads(expected)["boards"]
    assert [*range(1, 25)] == [step for tag, step, _ in training if tag == "batch_loss"]
    assert [[0, 1, 2]] * 2 == [
        [step for tag, step, _ in points if tag == "epoch_loss"] for points in (training, validation)
    ]
    strikes = ("batch:1:KILL", *STRIKES)  # the first before there is a checkpoint
    done = trained(pythons(backend), "keras_fit", tmp_path, *words, strikes=strikes, most=9, **environment(backend))
    assert [] == differing(expected, done.result)


KINDS = {
    "tensorflow": ["tfdata", "repeated", "filtered", "pydataset", "generator", "few_steps grouped"],
    "jax": ["filtered", "generator", "within_batches grouped", "dataloader"],
    "torch": ["tfdata", "pydataset", "dataloader", "in_order"],
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_data_go_on_where_they_were(backend, pythons, whole, tmp_path):
    """tf.data, PyDataset, generators, DataLoader: in the middle of the second epoch."""
    for kind in KINDS[backend]:
        words, strikes = kind.split(), ("batch:5:TERM" if "grouped" in kind else "batch:11:TERM",)
        done = trained(pythons(backend), "keras_fit", tmp_path / kind, *words, strikes=strikes, **environment(backend))
        assert [] == differing(whole(backend, *words), done.result), kind


OPTIMIZERS = ["accumulating averaging", "swapped", "scaled"]
NEWER_OPTIMIZERS = {"several": "multi_optimizer.py", "free": "schedule_free_adamw.py"}  # Keras 3.12 has neither


@pytest.mark.parametrize("backend", BACKENDS)
def test_optimizers_that_keep_more_than_moments(backend, pythons, whole, tmp_path):
    """Gradients between two steps, averages that take the weights' place, a loss scale, optimizers for some layers."""
    installed = {path.name for path in files("keras") or ()}  # an import would choose the backend
    for kind in OPTIMIZERS + [kind for kind, module in NEWER_OPTIMIZERS.items() if module in installed]:
        words, strikes = ("arrays", *kind.split()), ("batch:5:KILL", "validation:1:TERM", "batch:3:TERM")
        done = trained(pythons(backend), "keras_fit", tmp_path / kind, *words, strikes=strikes, **environment(backend))
        assert [] == differing(whole(backend, *words), done.result), kind
        if kind == "swapped":  # what fit() does to the averages at its end, it does once more in a finished run
            again = trained(pythons(backend), "keras_fit", tmp_path / kind, *words, **environment(backend))
            assert [] == differing(done.result, again.result), kind


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_a_pipeline_that_goes_on_otherwise_says_so(backend, pythons, tmp_path):
    """tf.data of unknown length, stopped behind the last batch of its first pass."""
    strikes = ("batch:7:TERM",)
    done = trained(pythons(backend), "keras_fit", tmp_path, "filtered", strikes=strikes, **environment(backend))
    assert "the next one is shuffled otherwise" in done.said


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fit_of_a_shape_of_its_own_goes_on(backend, pythons, whole, tmp_path):
    """A second fit after another compile(); a train_step of one's own, with an optimizer in a dict."""
    tried = [
        (("arrays", "twice"), ("batch:5:KILL", "batch:9:TERM")),  # in the first fit, and in the second
        (("tfdata", "custom"), ("validation:1:TERM",)),  # between two passes
    ]
    for words, strikes in tried:
        done = trained(
            pythons(backend), "keras_fit", tmp_path / "-".join(words), *words, strikes=strikes, **environment(backend)
        )
        assert [] == differing(whole(backend, *words), done.result), words


@pytest.mark.parametrize("backend", ["tensorflow", "torch"])
def test_what_fit_is_given_besides_ours(backend, pythons, tmp_path):
    """Errors leave the run, what is refused says why, ours may stand first, weights go in and out."""
    done = trained(pythons(backend), "keras_laws", tmp_path, **environment(backend))
    assert "all laws hold" in done.result
