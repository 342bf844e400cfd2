"""Train a small network on scikit-learn's handwritten digits with Keras; kill it whenever you like, and run it again.

    KERAS_BACKEND=jax python examples/keras/train.py          # or tensorflow, or torch
    holdfast drill -- python examples/keras/train.py          # proves that it resumes bit for bit

Everything here is plain Keras, but for the line marked with (*).
"""

import keras
from keras import layers
from sklearn.datasets import load_digits

from holdfast import Best, Every, Last
from holdfast.keras import Holdfast

EPOCHS, BATCH, TRAIN = 6, 96, 1440


def network():
    return keras.Sequential(
        [
            layers.Input((8, 8, 1)),
            layers.GaussianNoise(0.1),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dropout(0.3),
            layers.Dense(10, activation="softmax"),
        ]
    )


def main():
    keras.utils.set_random_seed(0)
    digits = load_digits()
    images, labels = digits.images[..., None].astype("float32") / 16, digits.target

    model = network()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        Holdfast("runs/keras", keep=Last(3) | Best("val_accuracy", max), every=Every(steps=10)),  # (*)
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
    ]
    history = model.fit(
        images[:TRAIN],
        labels[:TRAIN],
        batch_size=BATCH,
        epochs=EPOCHS,
        validation_data=(images[TRAIN:], labels[TRAIN:]),
        callbacks=callbacks,
        verbose=0,
    )
    for epoch, accuracy in zip(history.epoch, history.history["val_accuracy"], strict=True):
        print(f"epoch {epoch + 1}: accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
