"""Walks: which loops of a run are in progress, and what they left behind when their bodies were left early."""

from __future__ import annotations

from typing import NamedTuple

from .passes import Walk

Logged = dict[str, float | str]


class LeftPass(NamedTuple):
    """What was logged in a pass of a body that was left, by `break` for one; it is counted when the script goes on."""

    logged: Logged
    early: set[str]


class Walks:
    """The loops of one attempt."""

    def __init__(self) -> None:
        self.open: list[Walk] = []  # begun and not ended, outermost first
        self.named: set[str] = set()  # loaders begun by this attempt: in this epoch, or outside of run.epochs()
        self.totals: dict[str, int] = {}  # up to which this attempt has walked outermost loops, by their kind
        self.outer: tuple[str, int] | None = None  # the outermost loop, begun and not ended, and its total
        self.left_pass: LeftPass | None = None  # not counted yet
        self.left_at, self.left_metrics = (
            -1,
            dict[str, float](),
        )  # the step that the last one became, and what was measured
        self.logged_inside: Logged = {}  # what was logged in the body of an outermost loop that was left
        self.raised: BaseException | None = None  # the last error that came out of a loop

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(walk.kind for walk in self.open)

    def close_inside(self, walk: Walk | None = None) -> None:
        """Close the walks inside of `walk` that somebody holds though their loops were left; all of them without it."""
        keep = 0 if walk is None else self.open.index(walk) + 1
        for inner in reversed(self.open[keep:]):
            inner.close()
