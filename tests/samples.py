"""Seeded samples of what takes long: `make test` tries a few, `make prove` all, `make soak` others each time.

What was tried is printed after the tests: each test records its line of a table.
"""

import os
import random

SEED = os.environ.get("HOLDFAST_SEED", "0")


def sample(whole, count):
    """So many of them, in their order."""
    chosen = random.Random(SEED).sample(range(len(whole)), count)
    return [whole[number] for number in sorted(chosen)]
