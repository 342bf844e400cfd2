"""A dense network on handwritten digits, in a chain of jobs: sbatch submit_tf_array.bash

The script that it was took the number of epochs of all jobs so far, loaded the last weights, and began each job with
new moments of the optimizer and another order of the data. This one goes on exactly: one line, marked with (*).
"""

import sys

import tensorflow as tf
from sklearn.datasets import load_digits

from holdfast import Every
from holdfast.keras import Holdfast

EPOCHS = int(sys.argv[1])  # of all jobs together


def create_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input((64,)),
            tf.keras.layers.Dense(512, activation="relu"),
            tf.keras.layers.Dropout(0.2),
            tf.keras.layers.Dense(10),
        ]
    )
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=[tf.keras.metrics.SparseCategoricalAccuracy()])
    return model


def main():
    tf.keras.utils.set_random_seed(0)
    digits = load_digits()
    images, labels = digits.data.astype("float32") / 16, digits.target
    history = create_model().fit(
        images[:1000],
        labels[:1000],
        epochs=EPOCHS,
        validation_data=(images[1000:], labels[1000:]),
        callbacks=[Holdfast("training_2", every=Every(epochs=5))],  # (*)
        verbose=0,
    )
    print(f"{len(history.epoch)} epochs, loss {history.history['val_loss'][-1]:.6f}", flush=True)


if __name__ == "__main__":
    main()
