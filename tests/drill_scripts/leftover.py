"""Each epoch leaves a snapshot where the next run finds it."""

import json
import os
from pathlib import Path

from line import DATA, FIX, Line

from holdfast import Run

model, snapshot = Line(), Path(os.environ["SNAPSHOT"])
if snapshot.exists() and not FIX:
    model.load_state_dict(json.loads(snapshot.read_text()))
with Run("runs/x", {"model": model}) as run:
    for _ in run.epochs(3):
        for x in run.batches(DATA):
            run.log(loss=model.step(x))
        snapshot.write_text(json.dumps(model.state_dict()))
