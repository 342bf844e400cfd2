"""Every public name as a user writes it, with the type a checker must see. `make types` checks it; nothing runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import torch

import holdfast
from holdfast import (
    Auto,
    Best,
    Checkpoint,
    Every,
    Fields,
    HoldfastError,
    Last,
    Run,
    Seeded,
    StartFrom,
    Stopped,
    Store,
    Whole,
    Within,
    load_into,
    register,
)
from holdfast.board import Board
from holdfast.cluster import cpus, job, restart_count, tmpdir
from holdfast.data import (
    Arrow,
    CsvRows,
    DamagedSample,
    Documents,
    Indexed,
    JsonLines,
    Kept,
    Lines,
    Mix,
    Pack,
    Parquet,
    Records,
    Sampler,
    Shuffle,
    Skipping,
    Source,
    SourceShard,
    Stream,
    Tar,
    Window,
    Zip,
)
from holdfast.torch import ModelParts, Reader, Writer


class Pair:
    """A type of the user's own."""

    def __init__(self, left: int, right: int) -> None:
        self.left, self.right = left, right


def encoded(pair: Pair) -> list[int]:
    return [pair.left, pair.right]


def decoded(stored: list[int]) -> Pair:
    return Pair(*stored)


def loop(model: torch.nn.Module, loader: list[int]) -> None:
    """`Run` with its rules, and each verb of a loop."""
    rule = Last(3) | Best("val_acc", max) | Every(steps=1000) | Within(5e9)
    state = {"model": model, "fields": Fields(Pair(1, 2), "left", "right")}
    try:
        with Run("runs/x", state, keep=rule, every=Every(minutes=10), whole=Whole(checkpoints=5)) as run:
            assert_type(run, Run)
            for epoch in run.epochs(10):
                assert_type(epoch, int)
                for x in run.batches(loader):
                    assert_type(x, Any)
                for i, _ in run.enumerate(loader, accumulate=2):
                    assert_type(i, int)
                run.log(loss=0.5)
                assert_type(run.mean("loss"), float)
            for step in run.steps(5):
                assert_type(step, int)
            run.safe_point()
            run.save()
            run.wait()
            assert_type(run.path, os.PathLike[str])
            assert_type((run.step, run.epoch), tuple[int, int])
            assert_type(run.metrics(), list[dict[str, Any]])
    except Stopped as stop:
        assert_type(stop.reason, str)
    assert_type(Run("runs/z", state, every=Auto(interrupted_hours=3)), Run)
    assert_type(Run("runs/y", state, start_from=StartFrom("runs/x")).start(), Run)


def trainer(run: Run, loader: list[int]) -> None:
    """The loop of another program."""
    loop = run.loop(epochs=10)
    assert_type((loop.goes_on, loop.in_epoch, loop.epoch, loop.step, loop.consumed()), tuple[bool, bool, int, int, int])
    loop.begin_epoch()
    loop.settle()
    assert_type(loop.batches(loader, "train"), Iterator[Any])
    loop.step_done(batches=2)
    loop.end_epoch(batches=1, last=True)
    loop.leave(ValueError())


def store(model: torch.nn.Module) -> None:
    """`Store`, its checkpoints, and weights for inference."""
    kept = Store("checkpoints", keep=Last(2))
    assert_type(kept.save({"pair": Pair(1, 2)}, step=1, metrics={"loss": 0.5}), Checkpoint)
    assert_type(kept.checkpoints(), list[Checkpoint])
    assert_type((kept.latest().step, kept.latest().name, kept.latest().size_bytes), tuple[int, str, int])
    assert_type(kept.latest().metrics, dict[str, float])
    assert_type(kept.load(), Any)
    with kept.directory(step=2) as path:
        assert_type(path, Path)
    try:
        assert_type(load_into(model, "runs/x", step="best").complete, bool)
    except HoldfastError as error:
        assert_type(error.exit_code, int)
    register(Pair, encoded, decoded)


def data(dataset: list[int]) -> None:
    """Orders and datasets that can be entered anywhere."""
    assert_type(Seeded(dataset, seed=0), Seeded)
    assert_type(Sampler(dataset, seed=0).state_dict(), dict[str, Any])
    assert_type(Shuffle(10, seed=0, epoch=1)[3], int)
    assert_type(Zip(dataset, dataset), Zip)


def streams(folder: Path) -> None:
    """Sources of each format, and what is made of them."""
    for source in (Lines("*.txt"), JsonLines(folder / "*.jsonl"), CsvRows([folder], delimiter="\t"), Tar(["a.tar"])):
        assert_type(source.shards[0], SourceShard)
        assert_type(source.read_rows(0, [1]), list[Any])
    assert_type(Parquet("*.parquet", columns=["x"])[0], Any)
    assert_type(Arrow("*.arrow").fingerprint(), str)
    tokens = Records("train.bin", "<u2", 1024, overlap=1, header_bytes=1024)
    chosen: Source = Kept(Indexed([1, 2]), lambda number: number > 1, name="late")
    mix = Mix({"a": Pack(Documents("a"), 8, end=0), "b": tokens, "c": Skipping(chosen)}, [1, 2, 3])
    try:
        assert_type(len(Stream(mix, global_batch_size=8, shuffle=Window(4, 100), ranks=(0, 1))), int)
    except DamagedSample as error:
        assert_type(error.exit_code, int)


def around() -> None:
    """What a script asks about its job; DCP's two ends; TensorBoard."""
    assert_type((cpus(), restart_count()), tuple[int, int])
    assert_type(tmpdir(), Path)
    assert_type(job() is None, bool)
    assert_type(Writer("runs/dcp", step=1), Writer)
    assert_type(Reader("runs/dcp"), Reader)
    layer = torch.nn.Linear(1, 1)
    assert_type(ModelParts({"layers.0": layer}, torch.optim.SGD(layer.parameters())).parameter_names(), list[list[str]])
    Board("runs/x").update()


def nothing_else() -> None:
    """A name that does not exist is an error for a type checker, too."""
    holdfast.Rum  # type: ignore[attr-defined]
