"""Weights: a model's alone, out of a checkpoint, for a new run or for inference."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import Damaged, Mismatch, NotFound, UsageError
from ..store.checkpoint import Checkpoint
from ..store.format import MANIFEST
from ..store.store import Store
from .tracked import weights_for


class Report(NamedTuple):
    """What of a model was read and what was not. Keys as the model has them."""

    loaded: list[str]
    missing: list[str]  # in the model, not in the checkpoint: left as they were
    unexpected: list[str]  # in the checkpoint, not in the model
    mismatched: list[str]  # in both, of another shape or dtype: left as they were

    @property
    def complete(self) -> bool:
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        lines = [f"{len(self.loaded)} tensors read"]
        for what in ("missing", "unexpected", "mismatched"):
            names = getattr(self, what)
            if names:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                lines.append(f"{len(names)} {what}: {', '.join(names[:5])}{more}")
        return "; ".join(lines)


@dataclass(frozen=True)
class StartFrom:
    """Where a new run takes weights from: a run's directory or a checkpoint's.

    `names`: which tracked objects (default: every model). `rename`: prefix in the checkpoint -> prefix here.
    With `strict=False` what does not match is told and left as it was.
    """

    path: str | os.PathLike[str]
    names: tuple[str, ...] | str = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    strict: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.names, str):
            object.__setattr__(self, "names", (self.names,))


def load_into(
    model: Any,
    path: str | os.PathLike[str],
    name: str = "model",
    *,
    rename: Mapping[str, str] | None = None,
    strict: bool = True,
    step: int | str | None = None,
) -> Report:
    """Read the weights that were tracked as `name` into `model`, straight into its memory, checked on the way.

    `path` is a run's directory (its newest checkpoint, or `step`, or "best") or a checkpoint's.

    Raises:
        Mismatch: something is missing, unexpected or of another shape, and `strict`; nothing was overwritten.
        NotFound, Damaged: no such checkpoint, or it is not whole; then the model may hold a part of it.
    """
    adapter = weights_for(model)
    if adapter is None:
        raise UsageError(f"load_into reads into a model, not into a {type(model).__qualname__}")
    checkpoint = at(path, step)
    handles = checkpoint.handles(part=name)
    report = Report(*adapter.match(model, handles, rename or {}))
    if strict and not report.complete:
        raise Mismatch(f"{checkpoint.path}: {report}; strict=False reads what fits")
    adapter.read_matching(model, handles, rename or {})
    return report


def at(path: str | os.PathLike[str], step: int | str | None = None) -> Checkpoint:
    """The checkpoint that `path` means: itself, or the newest of its run whose layout holds."""
    where = Path(path)
    if (where / MANIFEST).exists():
        return Checkpoint(where)
    store = Store(where)
    if step is not None:
        return store.best() if step == "best" else store[step]
    damage: list[Damaged] = []
    for checkpoint in reversed(store.checkpoints()):
        try:
            checkpoint.check_layout()
            return checkpoint
        except Damaged as error:
            damage.append(error)
    if damage:
        raise damage[0]
    raise NotFound(f"{where}: neither a checkpoint nor a run with one")


def begin_from(source: StartFrom, objects: Mapping[str, Any]) -> dict[str, Report]:
    """Read the weights of `source` into the models among `objects`; what was read, by name."""
    models = [name for name, target in objects.items() if weights_for(target)]
    unknown = [name for name in source.names if name not in models]
    if unknown:
        raise UsageError(f"start_from: no tracked model is called {unknown[0]!r}; there are: {', '.join(models)}")
    reports = {}
    stored = at(source.path).parts()
    for name in source.names or [name for name in models if name in stored]:
        reports[name] = load_into(objects[name], source.path, name, rename=source.rename, strict=source.strict)
    if not reports:
        raise Mismatch(f"{source.path}: holds none of {', '.join(models) or 'no models'}, only {', '.join(stored)}")
    return reports
