"""The program whose start is measured: started.py BEGAN_NS numpy|torch bare|make|run PATH.

`run` and `bare` print what each stage took, in ms, as JSON, when the first batch is ready, and end without a word to
anybody, as a killed program does. `bare` does without Holdfast: it reads the bytes of the files in PATH into memory.
`make` runs on until its checkpoint is saved.
"""

from __future__ import annotations

import sys
import time
from typing import Any

STAGES: dict[str, float] = {}
BATCHES, SAVED_AT = 20_000, 10_000  # of an epoch; the step of the checkpoint
LAYERS, WIDTH = 12, 342  # with two moments of each layer: 16 MiB

_last_ns = 0


def stage(name: str) -> None:
    """The time since the last stage ended belongs to this one, but for calls that were `timed`."""
    global _last_ns
    now_ns = time.monotonic_ns()
    STAGES[f"{name}_ms"], _last_ns = (now_ns - _last_ns) / 1e6, now_ns


def timed(owner: Any, function: str, name: str) -> None:
    """Make the calls of a function a stage of its own, and no part of the one in which it is called."""
    plain = getattr(owner, function)

    def around(*arguments: Any, **options: Any) -> Any:
        global _last_ns  # noqa: PLW0603
        began_ns = time.monotonic_ns()
        try:
            return plain(*arguments, **options)
        finally:
            taken_ns = time.monotonic_ns() - began_ns
            STAGES[f"{name}_ms"] = STAGES.get(f"{name}_ms", 0.0) + taken_ns / 1e6
            _last_ns += taken_ns

    setattr(owner, function, around)


def numpy_state() -> tuple[dict[str, Any], Any]:
    import numpy as np

    layers = {f"layers.{number}.weight": np.zeros((WIDTH, WIDTH), np.float32) for number in range(LAYERS)}
    moments = {name: {"exp_avg": np.zeros_like(w), "exp_avg_sq": np.zeros_like(w)} for name, w in layers.items()}
    return {"model": layers, "optimizer": moments, "dice": np.random.default_rng(0)}, range(BATCHES)


def torch_state() -> tuple[dict[str, Any], Any]:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.arange(4 * BATCHES))
    return {"model": model, "optimizer": optimizer}, torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)


def bare(loader: Any, path: str) -> None:
    import os

    for name in sorted(os.listdir(path)):
        if name.endswith(".safetensors"):
            with open(f"{path}/{name}", "rb", buffering=0) as file:
                file.readinto(bytearray(os.stat(file.fileno()).st_size))
    stage("restore")
    for _batch in loader:
        stage("first_batch")
        return


def run(state: dict[str, Any], loader: Any, path: str) -> None:
    from holdfast import Every, Run

    stage("imports")
    from holdfast.run.resume import Restorer
    from holdfast.run.session import Session

    timed(Session, "_claim_run", "claim")
    timed(Restorer, "restore", "restore")
    with Run(path, state, every=Every(steps=SAVED_AT), background=False) as run:
        stage("open")
        for _epoch in run.epochs(2):
            for _batch in run.batches(loader):
                stage("first_batch")
                leave()


def make(state: dict[str, Any], loader: Any, path: str) -> None:
    import os

    from holdfast import Every, Run

    if hasattr(state["optimizer"], "step"):
        state["model"](next(state["model"].parameters())).sum().backward()
        state["optimizer"].step()  # makes the moments
    with Run(path, state, every=Every(steps=SAVED_AT), background=False) as run:
        for _epoch in run.epochs(2):
            for _batch in run.batches(loader):
                if run.step == SAVED_AT:
                    os._exit(0)
                run.log(loss=1 / (1 + run.step))


def leave() -> None:
    import json
    import os

    sys.stdout.write(json.dumps(STAGES))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    _last_ns = int(sys.argv[1])
    stage("interpreter")
    state, loader = {"numpy": numpy_state, "torch": torch_state}[sys.argv[2]]()
    stage("frameworks")
    if sys.argv[3] == "bare":
        bare(loader, sys.argv[4])
        leave()
    {"make": make, "run": run}[sys.argv[3]](state, loader, sys.argv[4])
