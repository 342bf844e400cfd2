"""What a fit() with our callback does besides training: asserted here, in one process."""

import contextlib
import io
import json
import os
import shutil
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest

from holdfast import Every, Store
from holdfast.errors import Mismatch, NotFinite, UsageError
from holdfast.keras import Holdfast, export
from holdfast.keras.state import optimizers
from holdfast.state import rng

x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
y = x.sum(axis=1)


def model(width=3, rate=0.001):
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(width), keras.layers.Dense(1)])
    made.compile(keras.optimizers.Adam(rate), "mse")
    return made


def fit(made, *callbacks, epochs=2, **more):
    return made.fit(x, y, batch_size=4, epochs=epochs, callbacks=[*callbacks], verbose=0, **more)


def refused(what, error, function):
    with pytest.raises(error, match=what):
        function()
    assert "evaluate" not in vars(made)


class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 3:
            raise ValueError("enough")


class FailsAfterRow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise ValueError("enough")


class Counts(keras.callbacks.Callback):
    """Has attributes of all kinds; the model is one that is kept already."""

    def __init__(self, net):
        super().__init__()
        self.num_timesteps, self.mean, self.net, self.lock = 0, keras.metrics.Mean(), net, threading.Lock()

    def on_train_batch_begin(self, batch, logs=None):
        self.num_timesteps += 1
        self.mean.update_state(batch)


class Pairs(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return x[index * 4 :][:4], y[index * 4 :][:4]

    def on_epoch_end(self):
        pass


def said(function):
    """What it writes to stderr."""
    with contextlib.redirect_stderr(io.StringIO()) as file:
        function()
    return file.getvalue()


class First(keras.callbacks.Callback):
    """What the weights are when the first epoch begins."""

    def on_train_begin(self, logs=None):
        assert logs == {}

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 0:
            self.weights = self.model.get_weights()


before = set(rng.capture())
made = model()
seen: list[set[str]] = []
inside = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(set(rng.capture()) - before))
expected = fit(made, Holdfast("whole"), inside)
assert all("keras" in each for each in seen)
assert len(seen) == 2
assert set(rng.capture()) == before  # Keras' generators are those of the fit alone
weights = made.get_weights()

# An error leaves the run, and undoes what was put in place; the run goes on in the same process.
made = model()
refused("enough", ValueError, lambda: fit(made, Holdfast("failed", every=Every(steps=1)), Fails()))
assert "_enumerate_iterator" not in vars(made)
assert set(rng.capture()) == before
assert Store("failed").checkpoints()[-1].step == 3
made = model()
assert expected.history == fit(made, Holdfast("failed")).history
assert all(map(np.array_equal, weights, made.get_weights()))

# Each refusal is one line, before anything is trained.
made = model()
refused("BackupAndRestore", UsageError, lambda: fit(made, Holdfast("a"), keras.callbacks.BackupAndRestore("b")))
refused("one trainer has one", UsageError, lambda: fit(made, Holdfast("a"), Holdfast("b")))
refused("has finished this run", UsageError, lambda: fit(made, Holdfast("whole")))
refused("the trainer's own objects", UsageError, lambda: fit(made, Holdfast("a", state={"model": made})))
assert not os.path.exists("a")
keras.distribution.set_distribution(object())
refused("spreads the model", UsageError, lambda: fit(made, Holdfast("a")))
keras.distribution.set_distribution(None)
for name in "missing.weights.h5", "unfit.weights.h5":
    model(width=5).save_weights("unfit.weights.h5")
    refused(f"start_from='{name}'", UsageError, lambda name=name: fit(made, Holdfast(name[:4], start_from=name)))
made = model(width=5)
refused("was saved", Mismatch, lambda: fit(made, Holdfast("whole"), epochs=3))

# More epochs go on.
made = model()
longer = fit(made, Holdfast("whole"), epochs=3)
assert longer.history["loss"][:2] == expected.history["loss"]
assert longer.epoch == [0, 1, 2]

# Another learning rate in the script has no effect, and a line says what has; a callback's change is no news.
half = {"overrides": {"optimizer": {"learning_rate": 0.5}}}
drop = keras.callbacks.LearningRateScheduler(lambda epoch, _: 0.001 if epoch == 0 else 0.0001)
assert "which is used" not in said(lambda: [fit(model(), Holdfast("rate"), drop, epochs=each) for each in (2, 3)])
made = model(rate=0.5)
line = said(lambda: fit(made, Holdfast("rate"), epochs=4))
assert 'overrides={"optimizer": {"learning_rate": ...}} changes it' in line
assert "learning_rate is 0.5 here and 0.001 in the checkpoint, which is used" in line
assert np.isclose(made.optimizer.learning_rate, 0.0001)
assert "learning_rate 0.0001 -> 0.5" in said(lambda: fit(model(rate=0.5), Holdfast("rate", **half), epochs=5))
for epochs, options in (6, half), (7, {}):
    line = said(lambda: fit(model(rate=0.5), Holdfast("rate", **options), epochs=epochs))  # noqa: B023
    assert "learning_rate" not in line
decay = {"overrides": {"optimizer": {"weight_decay": 0.5}}}
refused("and not weight_decay", UsageError, lambda: fit(model(), Holdfast("rate", **decay), epochs=8))

# The other callbacks go on: their counters, what they have of Keras, and CSVLogger's file.
made, rows = model(), keras.callbacks.CSVLogger("rows.csv", append=True)
refused(
    "enough", ValueError, lambda: fit(made, Holdfast("rows", every=Every(steps=3)), rows, Counts(made), FailsAfterRow())
)
assert Store("rows").checkpoints()[-1].step == 3
made = model()
counts = Counts(made)
line = said(lambda: fit(made, Holdfast("rows"), keras.callbacks.CSVLogger("rows.csv", append=True), counts))
assert "the callback Counts has what cannot be saved: lock; " in line
assert (counts.num_timesteps, float(counts.mean.result())) == (12, 2.5)
with open("rows.csv") as file:
    assert [row.split(",")[0] for row in file] == ["epoch", "0", "1"]


# CSVLogger: rows behind those of a finished fit() are somebody else's, and so is a file that begins with other rows.
def csv(name):
    return keras.callbacks.CSVLogger(name, append=True)


with open("rows.csv", "a") as file:
    file.write("0,another training\n")
shutil.copytree("rows", "rows-again")
fit(model(), Holdfast("rows-again"), csv("rows.csv"), Counts(made))
with open("rows.csv") as file:
    assert file.read().endswith("0,another training\n")
with open("precious.csv", "w") as file:
    file.write("epoch,loss\n0,7\n")
shutil.copytree("rows", "rows-elsewhere")
made = model()
refused(
    "begins with other rows",
    UsageError,
    lambda: fit(made, Holdfast("rows-elsewhere"), csv("precious.csv"), Counts(made)),
)
with open("precious.csv") as file:
    assert file.read() == "epoch,loss\n0,7\n"


# A list that the script has given a callback is filled, and what a callback empties as an epoch begins comes back.
class Lists(keras.callbacks.Callback):
    def __init__(self, given):
        super().__init__()
        self.given, self.of_epoch, self.sums = given, [], []

    def on_epoch_begin(self, epoch, logs=None):
        self.of_epoch.clear()

    def on_train_batch_end(self, batch, logs=None):
        self.given.append(batch)
        self.of_epoch.append(logs["loss"])

    def on_epoch_end(self, epoch, logs=None):
        self.sums.append(sum(self.of_epoch))


undisturbed, given = Lists([]), []
fit(model(), Holdfast("lists-whole"), undisturbed)
made = model()
refused("enough", ValueError, lambda: fit(made, Holdfast("lists", every=Every(steps=1)), Lists([]), Fails()))
lists = Lists(given)
fit(model(), Holdfast("lists"), lists)
assert given == [*range(6), *range(6)]
assert lists.sums == undisturbed.sums


# What a train_step counts in Python, and a learning rate that the script has changed.
class Counting(keras.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.calls, self.done = 0, []

    def train_step(self, *arguments):
        self.calls += 1
        self.done.append(self.calls)
        return super().train_step(*arguments)


def counting(rate=0.01):
    keras.utils.set_random_seed(1)
    made = Counting([keras.layers.Input((4,)), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(rate), "mse", run_eagerly=keras.backend.backend() == "tensorflow")
    return made


if keras.backend.backend() != "jax":
    made = counting()
    refused("enough", ValueError, lambda: fit(made, Holdfast("counting", every=Every(steps=1)), Fails()))
    made = counting()
    assert "learning_rate" not in said(lambda: fit(made, Holdfast("counting")))
    assert made.calls == 12
    assert list(made.done) == [*range(1, 13)]
    made = counting(0.5)
    line = said(lambda: fit(made, Holdfast("counting"), epochs=3))
    assert "learning_rate is 0.5 here and 0.01 in the checkpoint, which is used" in line
    assert made.optimizer.learning_rate == np.float32(0.01)


# Threads that read a PyDataset may be others, and draw when they like; a validation's order begins anew.
def fit_pairs(workers, epochs):
    pairs, ours = Pairs(workers=workers), Holdfast("read")
    model().fit(pairs, epochs=epochs, callbacks=[ours], validation_data=Pairs(), verbose=0)


line = said(lambda: fit_pairs(2, epochs=1))
assert "draws or counts is not kept" in line
assert "where these begin" not in line
line = said(lambda: fit_pairs(1, epochs=2))
assert "draws or counts" not in line
assert "where these begin is not kept" in line

# A run whose directory is gone begins anew.
shutil.copytree("whole", "gone")
fit(model(), Holdfast("gone"), epochs=3)
shutil.rmtree("gone")
assert fit(model(), Holdfast("gone"), epochs=3).epoch == [0, 1, 2]

# Weights go out, and in.
for name in "out.keras", "out.weights.h5":
    out = model()
    export("whole", out, name, step="step-000000012-end")
    fresh = model()
    fresh.load_weights(name)
    assert all(map(np.array_equal, weights, fresh.get_weights())), name
for number, source in enumerate(["out.weights.h5", "failed"]):
    first = First()
    fit(model(), Holdfast(f"begun-{number}", start_from=source), first)
    assert all(map(np.array_equal, weights, first.weights)), source


# An optimizer of a train_step's own has the same name in a checkpoint on each backend.
class Pair(keras.Model):
    def compile(self, other):
        super().compile("adam")
        self.other = other


pair = Pair()
pair.compile(keras.optimizers.SGD())
assert sorted(optimizers(pair)) == ["optimizer", "other"]

# A model that TensorFlow builds with its first batch is trained; a resume wants it built.
if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    # A layer that draws random numbers in a pipeline: TensorFlow cannot save it, and the message says what to do.
    flip = keras.layers.RandomFlip("horizontal", seed=1)
    flipped = (
        tf.data.Dataset.from_tensor_slices(x.reshape(24, 2, 2, 1)).map(flip).map(lambda each: tf.reshape(each, (4,)))
    )
    pairs = tf.data.Dataset.zip((flipped, tf.data.Dataset.from_tensor_slices(y))).batch(4)
    refused("into the model", UsageError, lambda: model().fit(pairs, callbacks=[Holdfast("drawn")], verbose=0))

    class Late(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                loss = keras.ops.mean((self.dense(data[0])[:, 0] - data[1]) ** 2)
            variables = self.dense.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"loss": loss}

    made = Late()
    made.compile("adam")
    assert fit(made, Holdfast("late")).epoch == [0, 1]
    made = Late()
    made.compile("adam")
    refused("Build the model before", Mismatch, lambda: fit(made, Holdfast("late"), epochs=3))


class Diverges(keras.callbacks.Callback):
    """Spoils a moving statistic in the first epoch, which is none of a save's business, and a weight in the second."""

    def on_epoch_end(self, epoch, logs=None):
        norm, kernel = self.model.layers[1].moving_variance, self.model.layers[0].kernel
        norm.assign(np.full(norm.shape, np.inf, "float32"))
        if epoch == 1:
            kernel.assign(np.full(kernel.shape, np.nan, "float32"))


# Weights that are not finite: the trainable variables are known, and with stop_on_nan the run ends.
made = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()])
made.compile("sgd", "mse")
ours = Holdfast("diverged", every=Every(epochs=1), background=False, stop_on_nan=True)
with pytest.raises(NotFinite, match="has infinite or NaN numbers in model/"):
    made.fit(x, np.tile(y[:, None], 3), batch_size=4, epochs=4, callbacks=[Diverges(), ours], verbose=0)
assert [bool(each.head.not_finite) for each in Store("diverged").checkpoints()] == [False, True]

with open("result.json", "w") as file:
    json.dump("all laws hold", file)
