"""What lint's rules have in common: a rule, its severity, and the fault that it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from ..batch.script import BatchScript
from .fix import LintFix

Severity = Literal["loses work", "may lose work", "style"]


class Fault(NamedTuple):
    """What is wrong at a line, and how to mend it."""

    line: int
    what: str
    fix: LintFix


class Rule(NamedTuple):
    """A rule is a pure function; its name is the function's with dashes."""

    severity: Severity
    check: Callable[[BatchScript], Iterator[Fault]]
    once: bool = False  # at most one finding for a script

    @property
    def name(self) -> str:
        return str(getattr(self.check, "__name__", "")).replace("_", "-")
