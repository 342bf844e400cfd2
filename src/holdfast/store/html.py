"""HTML: checkpoints as a notebook shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from ..errors import HoldfastError
from ..legible import printable, size

MOST_ROWS = 20  # the newest


class TableRow(Protocol):
    """A checkpoint; what is read from its manifest may raise."""

    path: Path

    @property
    def name(self) -> str: ...
    @property
    def step(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def size_bytes(self) -> int: ...


def table(caption: str, checkpoints: Sequence[TableRow]) -> str:
    """Return a table of the checkpoints, the newest last, under `caption`. A damaged one is a row
    that says so.
    """
    from html import escape  # imported late: only notebooks ask

    left_out = len(checkpoints) - MOST_ROWS
    head = f"{caption}{f' ({left_out} older ones are not shown)' if left_out > 0 else ''}"
    rows = [("name", "step", "size", "metrics"), *map(_row, checkpoints[-MOST_ROWS:])]
    cells = ["".join(f"<td>{escape(printable(cell))}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return f"<table><caption>{escape(printable(head))}</caption>{body}</table>"


def _row(checkpoint: TableRow) -> tuple[str, ...]:
    try:
        metrics = ", ".join(f"{name}={value:.4g}" for name, value in checkpoint.metrics.items())
        return checkpoint.name, str(checkpoint.step), size(checkpoint.size_bytes), metrics
    except (HoldfastError, OSError) as error:
        return checkpoint.path.name, "", "", str(error)
