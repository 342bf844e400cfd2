"""beside_keras.py none|own|holdfast: dropout, shuffled arrays; Keras' own mechanism, or ours."""

import json
import sys
from pathlib import Path

import keras
import numpy as np

import struck

mode = sys.argv[1]
keras.utils.set_random_seed(7)
draw = np.random.default_rng(7)
x, y = draw.normal(size=(84, 6)).astype("float32"), draw.integers(0, 3, 84)
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(3)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])


class Count(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with Path("batches").open("a") as trained:
            print(batch, file=trained)
        struck.event("batch")


callbacks = [Count()]
if mode == "own":
    callbacks.insert(0, keras.callbacks.BackupAndRestore("backup", save_freq=3))
if mode == "holdfast":
    from holdfast import Every
    from holdfast.keras import Holdfast

    callbacks.append(Holdfast("run", every=Every(steps=3), background=False))
history = model.fit(x, y, batch_size=12, epochs=3, verbose=0, callbacks=callbacks, validation_data=(x[:24], y[:24]))
Path("result.json").write_text(json.dumps({"weights": struck.digest(model.get_weights()), "log": history.history}))
