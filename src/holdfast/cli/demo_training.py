"""Train a small network with NumPy: what `holdfast demo` kills.
The lines marked with (*) are Holdfast's.
"""

import numpy as np

from ..rules import Every, Last
from ..run.run import Run  # (*) in a script of your own: from holdfast import Every, Last, Run

EPOCHS, BATCHES, BATCH, HIDDEN = 5, 20, 32, 128
RATE, MOMENTUM = 0.05, 0.9


def main() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 8))
    y = np.sin(x.sum(axis=1, keepdims=True))
    model = {
        "w": rng.normal(size=(8, HIDDEN)) / 3,
        "b": np.zeros(HIDDEN),
        "out": rng.normal(size=(HIDDEN, 1)) / 8,
    }
    speed = {name: np.zeros_like(value) for name, value in model.items()}

    state = {"model": model, "speed": speed, "rng": rng}  # (*) everything that training changes
    with Run("runs/demo", state, keep=Last(3), every=Every(steps=10)) as run:  # (*)
        for epoch in run.epochs(EPOCHS):  # (*)
            for _ in run.batches(range(BATCHES)):  # (*)
                chosen = rng.integers(0, len(x), BATCH)
                hidden = np.tanh(x[chosen] @ model["w"] + model["b"])
                wrong = hidden @ model["out"] - y[chosen]
                back = wrong @ model["out"].T * (1 - hidden**2)
                slopes = {"w": x[chosen].T @ back, "b": back.sum(axis=0), "out": hidden.T @ wrong}
                for name, slope in slopes.items():
                    speed[name] *= MOMENTUM
                    speed[name] -= RATE * slope / BATCH
                    model[name] += speed[name]
                run.log(loss=float((wrong**2).mean()))  # (*)
            # (*) its mean over the epoch
            print(f"epoch {epoch + 1}: loss {run.mean('loss'):.4f}", flush=True)


if __name__ == "__main__":
    main()
