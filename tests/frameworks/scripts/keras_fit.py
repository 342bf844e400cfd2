"""A training by Keras, of data of every kind: `keras_fit.py KIND`. The backend is that of KERAS_BACKEND."""

import hashlib
import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import struck
from holdfast import Every
from holdfast.keras import Holdfast

if keras.backend.backend() == "torch":
    import torch

KIND, *WORDS = sys.argv[1:]
EXECUTION = 2 if "grouped" in WORDS else 1
EPOCHS = 3
BATCH, SAMPLES = 8, 60  # the last batch is short

keras.utils.set_random_seed(7)
rng = np.random.default_rng(0)
x = rng.normal(size=(SAMPLES, 6)).astype("float32")
x[:, 0] = np.arange(SAMPLES)  # tells which sample it is
y = rng.integers(0, 3, SAMPLES)


class Seen(layers.Layer):
    """Counts what comes by, in an order-sensitive sum: a trace of all samples seen in training."""

    def build(self, shape):
        self.trace = self.add_weight(shape=(), dtype="float32", initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        if training:
            places = keras.ops.cast(inputs[:, 0], "float32")
            weights = keras.ops.arange(1, keras.ops.shape(places)[0] + 1, dtype="float32")
            self.trace.assign(0.7 * self.trace + keras.ops.sum(places * weights) * 1e-3)
        return inputs[:, 1:]


class Custom(keras.Sequential):
    """A train_step of its own, with a log that is no metric, and with an optimizer in a dict."""

    def __init__(self, layers):
        super().__init__(layers)
        self.more = {"decay": keras.optimizers.Adam(0.001)}

    def train_step(self, *arguments):
        logs = super().train_step(*arguments)
        if keras.backend.backend() == "jax":
            return {**logs[0], "twice": 2 * logs[0]["loss"]}, logs[1]
        kernel = self.trainable_variables[0]
        with torch.no_grad() if keras.backend.backend() == "torch" else nullcontext():
            self.more["decay"].apply([keras.ops.convert_to_tensor(kernel)], [kernel])
        return {**logs, "twice": 2 * logs["loss"]}


def network():
    return (Custom if "custom" in WORDS else keras.Sequential)(
        [
            layers.Input((6,)),
            Seen(),
            layers.GaussianNoise(0.1),
            layers.Dense(8, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


class Numbered(keras.utils.PyDataset):
    """Draws noise for each batch, some from a generator of its own, and another order of its own after each epoch."""

    def __init__(self, **more):
        super().__init__(**more)
        self.order, self.rng = np.arange(SAMPLES), np.random.default_rng(0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        chosen = self.order[index * BATCH : (index + 1) * BATCH]
        noise = np.random.normal(size=(len(chosen), 6)) + self.rng.normal(size=(len(chosen), 6))
        noisy = x[chosen] + np.float32([0, 1, 1, 1, 1, 1]) * noise.astype("float32")
        return noisy, y[chosen]

    def on_epoch_end(self):
        np.random.shuffle(self.order)


def endless():
    while True:
        chosen = np.random.permutation(SAMPLES)[:BATCH]
        yield x[chosen], y[chosen]


def data():
    """What fit() is given besides epochs, callbacks and validation."""
    if KIND == "arrays":
        return {"x": x, "y": y, "batch_size": BATCH}
    if KIND == "in_order":
        return {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}
    if KIND == "within_batches":
        return {"x": x, "y": y, "batch_size": BATCH, "shuffle": "batch"}
    if KIND == "few_steps":
        return {"x": x, "y": y, "batch_size": BATCH, "steps_per_epoch": 5}
    if KIND == "pydataset":
        return {"x": Numbered()}
    if KIND == "generator":
        return {"x": endless(), "steps_per_epoch": 7}
    if KIND == "dataloader":
        import torch

        pairs = torch.utils.data.TensorDataset(torch.tensor(x), torch.tensor(y))
        return {"x": torch.utils.data.DataLoader(pairs, BATCH, shuffle=True)}
    import tensorflow as tf

    pairs = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(SAMPLES, seed=3)
    if KIND == "tfdata":
        return {"x": pairs.map(lambda a, b: (a * 1.0, b), num_parallel_calls=2).batch(BATCH).prefetch(2)}
    if KIND == "repeated":
        return {"x": pairs.batch(BATCH).repeat(), "steps_per_epoch": 5}
    assert KIND == "filtered"  # its length is unknown
    return {"x": pairs.filter(lambda a, _: a[0] < 50).batch(BATCH)}


class Events(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        struck.event("begin")

    def on_train_batch_end(self, batch, logs=None):
        struck.event("batch")

    def on_test_begin(self, logs=None):
        struck.event("validation")

    def on_epoch_end(self, epoch, logs=None):
        struck.event("epoch")


def digest(variables):
    found = hashlib.sha256()
    for each in variables:
        found.update(np.ascontiguousarray(keras.ops.convert_to_numpy(each)).tobytes())
    return found.hexdigest()


def events(directory):
    """What TensorBoard reads in the files of all attempts."""
    from tensorboard.backend.event_processing.directory_loader import DirectoryLoader
    from tensorboard.backend.event_processing.event_file_loader import TimestampedEventFileLoader

    found = []
    for event in DirectoryLoader(directory, TimestampedEventFileLoader).Load():
        if event.HasField("graph_def"):
            found.append(["graph", event.step, ""])
        for value in event.summary.value:
            content = value.tensor.SerializeToString() + value.metadata.SerializeToString()
            found.append([value.tag, event.step, hashlib.sha256(content).hexdigest()[:12]])
    return found


def optimizer():
    """One that keeps more than moments: gradients between two steps, averages, scales, or optimizers of its own."""
    if "several" in WORDS:
        dense = keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9)
        others = keras.optimizers.SGD(0.05, momentum=0.9)
        return keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(others, {".*dense.*": dense}))
    more: dict[str, float] = {}
    if "accumulating" in WORDS:
        more["gradient_accumulation_steps"] = 3
    if "averaging" in WORDS:
        more |= {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 4}
    if "swapped" in WORDS:
        more |= {"use_ema": True, "ema_momentum": 0.9}
    if "free" in WORDS:
        return keras.optimizers.ScheduleFreeAdamW(0.01)
    inner = keras.optimizers.Adam(0.01, **more)
    return keras.optimizers.LossScaleOptimizer(inner, 4.0, dynamic_growth_steps=3) if "scaled" in WORDS else inner


def main():
    model = network()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(), loss, metrics=["accuracy"], steps_per_execution=EXECUTION)
    if "twice" in WORDS:  # all but the last layer are frozen; then all of them are tuned
        for layer in model.layers[:-1]:
            layer.trainable = False
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], steps_per_execution=EXECUTION)
        model.fit(**data(), epochs=1, callbacks=[Holdfast("first", every=Every(steps=3)), Events()], verbose=0)
        for layer in model.layers:
            layer.trainable = True
        model.compile(keras.optimizers.SGD(0.01, 0.9), loss, metrics=["accuracy"], steps_per_execution=EXECUTION)
    others = [
        Events(),
        keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.CSVLogger("log.csv"),
    ]
    if "several" in WORDS:  # MultiOptimizer has no learning rate
        others = others[:2] + others[4:]
    if "swapped" in WORDS:
        others.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
    if "board" in WORDS:
        directory = f"boards/{time.time_ns()}"  # as TensorFlow's own tutorial has it
        often = {"histogram_freq": 1, "update_freq": 1, "profile_batch": 0}
        others.insert(1, keras.callbacks.TensorBoard(directory, **often))
    ours = [Holdfast("run", every=Every(steps=2))] if "plain" not in WORDS else []
    history = model.fit(
        **data(), epochs=EPOCHS, callbacks=[*ours, *others], validation_data=(x[:20], y[:20]), verbose=0
    )
    result = {
        "model": digest(model.variables),
        "optimizer": digest(model.optimizer.variables),
        "history": history.history,
        "epochs": history.epoch,
        "csv": Path("log.csv").read_text(),
        "next": float(np.random.random()) if KIND != "generator" else 0,
        "keras": keras.ops.convert_to_numpy(keras.random.normal((2,))).tolist(),
    }
    if ours:
        kept = ("step", "phase", "epoch", "values")
        lines = [{name: line.get(name) for name in kept} for line in ours[0].run.metrics()]
        result["log"] = lines
    if "board" in WORDS:
        (shared,) = Path("boards").iterdir()  # by all attempts
        result["boards"] = [events(str(shared / kind)) for kind in ("train", "validation")]
    with open("result.json", "w") as file:
        json.dump(result, file, indent=1)


main()
