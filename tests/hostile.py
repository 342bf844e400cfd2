"""Hostile checkpoints: valid ones, changed at one place, with every digest put right again.

`grown(root)` trains a run in which every kind of node occurs. `places` lists each place of a JSON document, `ODD` what
is put there, and `resumed` tells what a run makes of it.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime as dt
import enum
import itertools
import json
import pathlib
import random
import shutil
import signal
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from holdfast import Every, Last, Run
from holdfast.errors import HoldfastError
from holdfast.state.codec import UNSOUND
from holdfast.stateful.tracked import Tracked
from hostile_stores import rewrite

Place = tuple[Any, ...]  # the way to a value in a JSON document: keys and numbers

EPOCHS, ENDS_AT = 2, 6  # of the eight steps that it would have


@dataclasses.dataclass
class Settings:
    rate: float = 0.1
    names: list[str] = dataclasses.field(default_factory=lambda: ["a", "b"])


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


Pair = collections.namedtuple("Pair", "left right")  # noqa: PYI024 -- as users write it


class Counting:
    """An object with a state of its own."""

    def __init__(self) -> None:
        self.value = 1

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


def live() -> tuple[dict[str, Any], dict[str, Any]]:
    """The tracked objects and the variables of a program that begins."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    other = nn.Linear(3, 1)
    adam = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1:].parameters()}])
    sgd = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    steps = [lr_scheduler.StepLR(adam, 2), lr_scheduler.ExponentialLR(adam, 0.9)]
    objects = {
        "model": model,
        "other": other,
        "adam": adam,
        "sgd": sgd,
        "chain": lr_scheduler.SequentialLR(adam, steps, milestones=[3]),
        "plateau": lr_scheduler.ReduceLROnPlateau(sgd, patience=1),
        "scaler": torch.amp.GradScaler("cpu", init_scale=8.0),
        "dice": random.Random(1),
        "bits": np.random.default_rng(2),
        "legacy": np.random.RandomState(3),
        "generator": torch.Generator().manual_seed(4),
        "counting": Counting(),
        "table": {
            "array": np.arange(6.0).reshape(2, 3),
            "tensor": torch.arange(4.0),
            "list": [1, 2.5, None, True, "x", b"y", 2**70, float("nan"), "\ud800", 1j],
            "sets": [{1, 2}, frozenset({3}), bytearray(b"z")],
            "maps": [OrderedDict(a=1), defaultdict(list, a=[1]), Counter("aab"), {1: "one", (2, 3): "two"}],
            "kinds": [range(3), slice(1, 2), (1, 2), deque([1, 2], maxlen=4), Pair(1, [2]), Settings(), Colour.RED],
            "times": [
                dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
                dt.date(2026, 1, 2),
                dt.timedelta(1),
                pathlib.Path("a/b"),
            ],
            "numpy": [np.float32(1), np.dtype("<f4"), np.random.default_rng(5), np.random.SeedSequence(6)],
            "torch": [torch.Size([1, 2]), torch.float32, torch.device("cpu"), torch.Generator().manual_seed(7)],
            "long": bytes(2000),
        },
        "inside": [nn.Linear(1, 1), {"dice": random.Random(8)}],
    }
    variables = {
        "patience": 3,
        "best": float("inf"),
        "window": deque([1.0], maxlen=3),
        "array": np.zeros(3),
        "seeds": np.random.SeedSequence(9),
        "settings": Settings(),
    }
    return objects, variables


class Enough(Exception):
    """The training has gone as far as it shall."""


def loop(run: Run, objects: dict[str, Any], ends_at: int = 10**9, *, learns: bool = True) -> None:
    """Train from where the run is, or only walk. Raise `Enough` in the body of step `ends_at`."""
    data = TensorDataset(torch.arange(12.0).reshape(4, 3))
    loader = DataLoader(data, batch_size=2, shuffle=True)
    for _ in run.epochs(EPOCHS):
        for (batch,) in run.batches(loader):
            if learns:
                learn(objects, batch)
            run.log(loss=1.0, n=2)
            patience = run.vars.patience  # of any type, in a forged manifest
            run.vars.patience = patience + 1 if isinstance(patience, int) else 1
        for batch in run.batches([0, 1], name="second"):
            objects["counting"].value += batch
            run.log(loss=2.0, n=2)
            if run.step + 1 >= ends_at:
                raise Enough


def learn(objects: dict[str, Any], batch: torch.Tensor) -> None:
    loss = objects["model"](batch).sum() + objects["other"](batch).sum() + random.random()
    objects["adam"].zero_grad()
    objects["sgd"].zero_grad()
    loss.backward()
    objects["adam"].step()
    objects["sgd"].step()
    objects["chain"].step()
    objects["plateau"].step(1.0)
    objects["bits"].normal()
    objects["table"]["list"].append(1)


def grown(root: Path) -> Path:
    """Train a run until the middle of an epoch, and return its newest checkpoint."""
    objects, variables = live()
    with (
        suppress(Enough),
        Run(root, objects, vars=variables, seed=1, types=TYPES, every=Every(steps=1), keep=Last(2)) as run,
    ):
        loop(run, objects, ENDS_AT)
    return max((root / "checkpoints").glob("step-*"))


def digests(objects: dict[str, Any]) -> dict[str, str]:
    """What the live objects hold, bit for bit."""
    return Tracked(objects).digests().of


# What is put into a document ---------------------------------------------------------------------------------------

DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]
DEEPER = copy.copy(DEEP)
for _ in range(400):
    DEEPER = [DEEPER]
ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    3,
    2**62,
    2**64,
    1e308,
    0.5,
    "",
    "x",
    "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    [],
    {},
    ["x", 1],
    {"x": 1},
    {"dict": {}},
    {"dict": {"x": 1}},
    {"items": [[1, 2], [2, 3]]},
    {"tuple": []},
    {"tuple": [1, 2, 3]},
    {"int": "0x1" + "0" * 30},
    {"int": "-0x1" + "0" * 5000},
    {"float": "7ff8000000000000"},
    {"float": "7ff0000000000000"},
    {"str": "eda080"},
    {"bytes": ""},
    {"leaf": "nowhere"},
    {"leaf": "table/array"},
    {"leaf": "model/0.weight"},
    {"leaf": "table/long"},
    {"view": {"leaf": "table/array", "dtype": "float32", "shape": [10**6, 10**6], "stride": [0, 0], "offset": 0}},
    {"numpy.SeedSequence": [1, [], 2**39, 0]},
    {"numpy_scalar": ["<f4", "0000c07f"]},
    {"torch.dtype": "onnx"},
    {"random.Random": [3, {"bytes": ""}, None]},
    DEEP,
    DEEPER,
)
GONE = object()  # the place itself is removed
TWICE = object()  # what is there is put there once more


def places(document: Any, path: Place = ()) -> Iterator[Place]:
    """The way to each value in a JSON document."""
    yield path
    inside = list(document.items()) if isinstance(document, dict) else []
    if isinstance(document, list):
        inside = list(enumerate(document))
        inside = inside if len(inside) < 100 else [*inside[:2], inside[-1]]  # the words of a generator are alike
    for key, value in inside:
        yield from places(value, (*path, key))


def changed(document: Any, path: Place, value: Any) -> Any:
    """A copy of `document` with `value` at the end of `path`."""
    if not path:
        return None if value is GONE else [document, document] if value is TWICE else value
    made = copy.copy(document)
    key = path[0]
    if len(path) > 1:
        made[key] = changed(made[key], path[1:], value)
    elif value is GONE:
        del made[key]
    elif value is TWICE and isinstance(made, list):
        made.insert(key, made[key])
    elif value is TWICE:
        made[f"{key}~"] = made[key]
    else:
        made[key] = value
    return made


def mutations(document: Any, seed: int, share: float = 1.0) -> Iterator[tuple[Place, int]]:
    """Places of `document`, each with the numbers of what is put there; of all of them a share, drawn by `seed`."""
    luck = random.Random(seed)
    for path, number in itertools.product(list(places(document)), range(len(ODD) + 2)):
        if luck.random() < share:
            yield path, number


def value_of(number: int) -> Any:
    return (GONE, TWICE, *ODD)[number]


# What a resume makes of it -----------------------------------------------------------------------------------------

TYPES = [Settings, Colour, Pair]
TORCHS = [
    *(("tree", "dict", name) for name in ("adam", "sgd", "chain", "plateau", "scaler", "generator")),
    ("tree", "dict", "table", "dict", "torch", 3),
]
PATIENCE_S = 60  # for one of them
MINE = ("tree", "dict", "counting")  # the state of the script's own object: its load_state_dict decides


class Outcome(NamedTuple):
    """How a run resumed, or why not."""

    error: BaseException | None
    began: bool  # whether the run's block was entered
    changed: bool  # whether the live objects hold anything else than before

    @property
    def survived(self) -> bool:
        """Whether it resumed and trained to its end, or was refused by an error of ours before anything changed."""
        if self.error is None:
            return True
        return isinstance(self.error, HoldfastError) and (self.began or not self.changed)

    @property
    def is_torchs(self) -> bool:
        """Whether it resumed, or raised an error of ours or of torch's, as with a forged state of torch's objects."""
        return self.error is None or isinstance(self.error, (HoldfastError, *UNSOUND))


def resumed(root: Path, **options: Any) -> Outcome:
    """Go on with the run at `root` to its end, as its script would, but for what learns.

    Odd values inside of an optimizer's state may fail in its next step, with torch's own error.
    """
    objects, variables = live()
    before, began = digests(objects), False
    try:
        with Run(root, objects, vars=variables, seed=1, types=TYPES, background=False, **options) as run:
            began = True
            loop(run, objects, learns=False)
    except Exception as error:
        return Outcome(error, began, changed=began or digests(objects) != before)
    return Outcome(None, began=True, changed=True)


def put(checkpoint: Path, path: Place, value: Any) -> None:
    """Put `value` at a place of the manifest, whose digest is right afterwards."""

    def change(fields: dict[str, Any]) -> Any:
        made = changed(fields, path, value)
        return made if isinstance(made, dict) else json.dumps(made).encode()

    rewrite(checkpoint, change)


@contextmanager
def in_time(limit_s: int) -> Iterator[None]:
    """Raise in the block when it takes longer."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"it takes longer than {limit_s} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Tried(NamedTuple):
    """A mutation of a checkpoint, and how a run resumed from it."""

    path: Place
    value: Any
    outcome: Outcome

    @property
    def is_well(self) -> bool:
        """Whether that is no fault. States of torch's own objects may also raise an error of torch's."""
        of_torch = any(self.path[: len(each)] == each for each in TORCHS)
        return self.outcome.is_torchs if of_torch else self.outcome.survived


def tried(newest: Path, mutated: Iterable[tuple[Place, int]], watched: Any = nullcontext) -> Iterator[Tried]:
    """Resume from each of these mutations of a run's newest checkpoint, without an older one, in a copy of the run."""
    for older in {*newest.parent.glob("step-*")} - {newest}:
        shutil.rmtree(older)
    root = newest.parents[2] / "odd"
    for path, number in mutated:
        shutil.copytree(newest.parents[1], root, symlinks=True)
        put(root / "checkpoints" / newest.name, path, value_of(number))
        with in_time(PATIENCE_S), watched(root.parent):
            found = resumed(root)
        yield Tried(path, value_of(number), found)
        shutil.rmtree(root)
