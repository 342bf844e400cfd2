"""A model for the drilled scripts: two weights, trained by hand, whose bits tell every step apart."""

import math
import os

FIX = bool(os.environ.get("FIX"))  # whether the script does what the drill has told it
DATA = [math.sin(number) for number in range(8)]


class Line:
    def __init__(self):
        self.a, self.b = 0.1, 0.0

    def step(self, x, lr=0.05, noise=0.0):
        """One step of gradient descent on one sample; the loss before it."""
        error = self.a * x + self.b - math.cos(3 * x) + 0.01 * noise
        self.a -= lr * error * x
        self.b -= lr * error
        return error * error

    def loss(self):
        return sum((self.a * x + self.b - math.cos(3 * x)) ** 2 for x in DATA)

    def state_dict(self):
        return {"a": self.a, "b": self.b}

    def load_state_dict(self, state):
        self.a, self.b = state["a"], state["b"]
