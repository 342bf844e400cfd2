"""Finding: what a rule of lint says of a batch script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import sbatch
from .batch import Script


class Finding(NamedTuple):
    """What is wrong at a line, why, and what to write instead."""

    line: int
    rule: str
    what: str
    why: str
    fix: str


Rule = Callable[[Script], Iterator[Finding]]


def line_of(option: sbatch.Option | None) -> int:
    return option.line if option else 1
