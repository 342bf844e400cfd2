"""Plain attributes of NNX objects that come later, asserted here: refused at the save, and at the restore."""

import json

import pytest
from flax import nnx

from holdfast import Every, Run
from holdfast.errors import Mismatch, UsageError
from holdfast.jax import Tree


def model(**attributes):
    made = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def steps(made, path, change):
    with Run(path, {"model": Tree(made)}, every=Every(steps=1)) as run:
        for step in run.steps(4):
            change(step)
            if step == 3:
                raise KeyboardInterrupt


made = model()
with pytest.raises(UsageError, match="best has come"):
    steps(made, "comes", lambda step: setattr(made, "best", 0.3))
made = model(best=1.0)
with pytest.raises(UsageError, match="best is gone"):
    steps(made, "goes", lambda step: delattr(made, "best"))

made = model(best=1.0)
with pytest.raises(KeyboardInterrupt):
    steps(made, "kept", lambda step: setattr(made, "best", step / 10))
with pytest.raises(Mismatch, match="best: in the checkpoint, not here"):
    steps(model(), "kept", print)
made = model(best=1.0)
with Run("kept", {"model": Tree(made)}):
    assert made.best == 0.2

with open("result.json", "w") as file:
    json.dump("all laws hold", file)
