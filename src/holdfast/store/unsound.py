"""Unsound: a run's messages about weights that are not finite,
and its reaction with `stop_on_nan`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .. import retention
from ..errors import NotFinite, StoreError
from ..retention import CheckpointFacts
from .checkpoint import Checkpoint
from .checkpoint_index import CheckpointIndex
from .store import Store

NAMED = 3  # weights in a line
NOTHING_KNOWN = (
    "stop_on_nan=True: of nothing that is tracked it is known "
    "which numbers are weights, or NumPy is missing: track "
    "the model and the optimizer themselves"
)


def report_saved(store: Store, tell: Callable[..., None], name: str, found: Sequence[str]) -> None:
    """Report that a saved checkpoint has weights that are not finite, if the one before had
    finite ones.
    """
    tell(
        f"{_describe_not_finite(name, found)}; {_advice(store.index)}", kind="not_finite", name=name
    )


def report_resumed(store: Store, tell: Callable[..., None], checkpoint: Checkpoint) -> None:
    """Report if the run resumes from weights that are not finite."""
    found = checkpoint.head.not_finite
    if found:
        line = (
            "goes on from weights that are not finite: "
            f"{_describe_not_finite(checkpoint.name, found)}; {_advice(store.index)}"
        )
        tell(line, kind="not_finite", name=checkpoint.name)


def not_finite_error(store: Store, name: str, found: Sequence[str]) -> NotFinite:
    """Return the error that ends a run with `stop_on_nan` after such a save."""
    advice = f"; {_advice(store.index)}" if store.ranks.leads else ""
    return NotFinite(f"{store.root}: stop_on_nan: {_describe_not_finite(name, found)}{advice}")


def require_finite(store: Store, checkpoint: Checkpoint) -> None:
    """Require finite weights.

    Raises:
        NotFinite: the weights of the checkpoint from which the run would go on, its own or a named
            one, are not finite.
    """
    found = checkpoint.head.not_finite
    if not found:
        return
    refused = (
        "the run does not go on from there: "
        f"{_describe_not_finite(checkpoint.name, found)}; {_advice(store.index)}"
    )
    if checkpoint.path.parent.parent != store.root:
        refused = (
            f"the run does not branch from {checkpoint.path}: "
            f"{_describe_not_finite('it', found)}; name one without, or another run: "
            "`holdfast ls` marks those that are not finite"
        )
    raise NotFinite(f"{store.root}: stop_on_nan: {refused}")


def describe_newest(index: CheckpointIndex) -> str:
    """Return a sentence about the newest checkpoint;
    empty if its weights are finite or cannot be read now.
    """
    try:
        checkpoint = index.latest()
        found = checkpoint.head.not_finite
    except (OSError, StoreError):
        return ""
    return f"{_describe_not_finite(checkpoint.path.name, found)}; {_advice(index)}" if found else ""


def newest_finite(index: CheckpointIndex) -> CheckpointFacts | None:
    """Return the newest checkpoint whose weights are finite; None if there is none.

    Raises:
        StoreError, OSError: one cannot be read now.
    """
    return retention.newest_finite(index.facts())


def go_back_code(finite: CheckpointFacts) -> str:
    """Return the code with which a user repeats the run from that checkpoint."""
    return f"Run(..., go_back={finite.step})"


def _describe_not_finite(name: str, found: Sequence[str]) -> str:
    more = " and others" if len(found) > NAMED else ""
    return f"{name} has infinite or NaN numbers in {', '.join(found[:NAMED])}{more}"


def _advice(index: CheckpointIndex) -> str:
    """Return from which checkpoint the run can be repeated, and how."""
    try:
        finite = newest_finite(index)
    except (OSError, StoreError) as error:
        return f"the last one without cannot be told now: {error}"
    if finite is None:
        return "no checkpoint with finite weights is here: mend the cause, and begin another run"
    return (
        f"{finite.name} is the last one without, and stays: "
        "to repeat from there, mend the cause and start with "
        f"{go_back_code(finite)}"
    )
