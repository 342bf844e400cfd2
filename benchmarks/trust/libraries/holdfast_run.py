"""Holdfast: a Run with its defaults, which saves at each step and keeps the last two."""

import holdfast
from holdfast import Every, Last, Run

NAME = "Holdfast"
VERSION = holdfast.__version__
PRACTICE = "Run(every=Every(steps=1), keep=Last(2)), run.wait() after each save"
LINK = "docs/guarantees.md"
PROMISES = dict.fromkeys(
    [
        *(
            "killed in a save",
            "killed between saves",
            "power loss",
            "flipped bit",
            "cut file",
            "zeroed page",
            "disk full",
        ),
        *("EIO at a write", "EIO at a read", "two writers", "a writer that wakes late", "a stale rename"),
    ],
    LINK,
)


def train(folder, first, last, state_of, saved):
    state = state_of(0)
    with Run(folder, state, every=Every(steps=1), keep=Last(2)) as run:
        for _ in run.steps(last):
            if run.step >= first:
                run.wait()
                saved(run.step)
            for name, value in state_of(run.step + 1).items():
                state[name][:] = value
    saved(last)


def resume(folder, like):
    if not any(folder.iterdir()):
        return None
    with Run(folder, like) as run:
        return (run.step, like) if run.step else None
