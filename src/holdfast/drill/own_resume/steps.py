"""Steps: what the optimizer steps of a resumed attempt began with, beside the undisturbed run's,
and what the program's own resume lost. Pure except for reading.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ... import scan
from ...legible import UNREADABLE, counted
from ..report import Loss
from .values import ValueDifference


class ObservedStep(msgspec.Struct, frozen=True):
    """What was there when an optimizer began a step: digests, and the options themselves."""

    optimizer: str
    weights: int
    gradients: int
    state: int  # the optimizer's, of each weight
    held: int  # the weights for which it had one
    options: list[dict[str, Any]]  # of each group: its learning rate and the others
    generators: dict[str, int]
    batches: list[int]  # that the loaders have handed out since the step before
    rank: int = 0


_DECODER = msgspec.json.Decoder(ObservedStep)


def read_steps(path: Path) -> list[ObservedStep]:
    """Return the steps that rank 0 noted in this file; none if there is no such file."""
    found = []
    for line in path.read_bytes().split(b"\n") if scan.exists(path) else ():
        with suppress(*UNREADABLE):  # empty, or cut off by a kill
            found.append(_DECODER.decode(line))
    return [each for each in found if each.rank == 0]


def resumed_at(whole: Sequence[ObservedStep], resumed: Sequence[ObservedStep]) -> int | None:
    """Return the step of the undisturbed run that began with the weights with which the resumed
    attempt began; None: no step did.
    """
    if not resumed:
        return len(whole)  # it had nothing left to do
    began = [at for at, step in enumerate(whole) if step.weights == resumed[0].weights]
    alike = [at for at in began if whole[at].state == resumed[0].state]
    return max(alike or began, default=None)


def find_losses(
    whole: Sequence[ObservedStep], attempt: Sequence[ObservedStep], before: int, *, finished: bool
) -> list[Loss]:
    """Return what a resumed attempt lacked. `before`: steps that the attempts before had made.

    The first step tells most. If it was equal, the first later step that differs does.
    """
    if not whole or not attempt:
        return []
    at = resumed_at(whole, attempt)
    if at is None:
        return [
            Loss(
                "weights",
                "the first step after the resume began with weights that no step of the "
                "undisturbed run began with",
            )
        ]
    if at == 0 and before > 0:
        return [Loss("started over", "the resumed program began with the initial weights")]
    if not whole[at].batches:  # a loader that is one ahead had drawn this step's batch before
        drawn = [batch for step in whole[:at] for batch in step.batches]
        due = msgspec.structs.replace(whole[at], batches=drawn[-1:])
        whole = [*whole[:at], due, *whole[at + 1 :]]
    pairs = enumerate(zip(whole[at:], attempt, strict=False))
    number = next((each for each, pair in pairs if _differ(*pair, each)), None)
    found = [] if number is None else [*_losses_at(whole, attempt, at, number)]
    beyond = len(attempt) - (len(whole) - at)
    if beyond > 0 or (finished and beyond < 0):
        more = "more" if beyond > 0 else "fewer"
        found.append(Loss("steps", f"{counted(abs(beyond), 'step')} {more} than undisturbed"))
    return found


def _differ(mine: ObservedStep, theirs: ObservedStep, number: int) -> bool:
    """Whether two steps differ. The first one after a resume may have passed over batches."""
    last = slice(-1, None) if number == 0 else slice(None)
    return (
        mine.weights,
        mine.state,
        mine.gradients,
        mine.options,
        mine.batches[last],
    ) != (
        theirs.weights,
        theirs.state,
        theirs.gradients,
        theirs.options,
        theirs.batches[last],
    )


def _losses_at(
    whole: Sequence[ObservedStep], attempt: Sequence[ObservedStep], at: int, number: int
) -> Iterator[Loss]:
    """Yield what differs at the first step that differs, causes before their effects."""
    mine, theirs = whole[at + number], attempt[number]
    where = (
        "in the first step after the resume" if number == 0 else f"{number} steps after the resume"
    )
    if mine.state != theirs.state:
        held = f"it held the state of {theirs.held} weights, and {mine.held} undisturbed"
        yield Loss(
            "optimizer",
            f"{theirs.optimizer} began without the state that it had had: {held}, {where}"
            if theirs.held != mine.held
            else f"the state of {theirs.optimizer} was another one {where}",
        )
    for group, (was, now) in enumerate(zip(mine.options, theirs.options, strict=False)):
        for name in sorted(name for name in was if was[name] != now.get(name)):
            kind = "scheduler" if name in ("lr", "momentum", "betas", "initial_lr") else "option"
            yield Loss(
                kind, f"{name} of group {group} was {now.get(name)}, not {was[name]}, {where}"
            )
    last = slice(-1, None) if number == 0 else slice(None)
    other_data = mine.batches[last] != theirs.batches[last]
    generators = [*_generators(whole, mine, theirs, at)]
    changed = _other_batches(whole, at + number, theirs, where) if other_data else None
    if generators and (changed is None or changed.kind == "order"):
        if other_data or mine.gradients != theirs.gradients:
            names = ", ".join(generators)
            yield Loss(
                "generator", f"the random numbers of {names} went on from another state, {where}"
            )
    elif changed is not None:
        yield changed
    if not other_data and mine.gradients != theirs.gradients and not generators:
        if mine.weights != theirs.weights:
            yield Loss("weights", f"they were others {where}")
        elif mine.batches:
            yield Loss(
                "gradients",
                f"another gradient for the same weights and batches, {where}: what had been "
                "accumulated before the save, or a state of the model that is no weight",
            )
        else:
            yield Loss("data", f"another gradient for the same weights, {where}: other data")


def _generators(
    whole: Sequence[ObservedStep], mine: ObservedStep, theirs: ObservedStep, at: int
) -> Iterator[str]:
    """Yield the generators that are drawn from after the resume, and were in another state."""
    for name, state in mine.generators.items():
        drawn = len({step.generators.get(name) for step in whole[max(0, at - 1) :]}) > 1
        if drawn and theirs.generators.get(name) != state:
            yield name


def _other_batches(
    whole: Sequence[ObservedStep], place: int, theirs: ObservedStep, where: str
) -> Loss:
    """Tell which batches the step had: earlier ones, later ones, or such as never were there."""
    order = [(number, batch) for number, step in enumerate(whole) for batch in step.batches]
    known = {batch: number for number, batch in reversed(order)}
    if not theirs.batches:
        return Loss("data", f"no loader was asked for a batch, {where}")
    had = known.get(theirs.batches[-1])
    if had is None:
        return Loss(
            "order",
            f"a batch that the undisturbed run never had, {where}: other samples or other "
            "random changes of them",
        )
    if had < place:
        return Loss(
            "batches twice",
            f"the batch of step {had + 1}, where step {place + 1} was due, {where}: "
            f"{counted(place - had, 'step')} of data trained again",
        )
    if had > place:
        return Loss(
            "batches skipped",
            f"the batch of step {had + 1}, where step {place + 1} was due, {where}: "
            f"{counted(had - place, 'step')} of data never trained",
        )
    return Loss("batches twice", f"other batches were accumulated, {where}")


_BY_NAME = {
    "moving average": ("ema", "swa", "shadow", "averag", "polyak"),
    "buffers": ("running_mean", "running_var", "num_batches_tracked"),
    "best so far": ("best", "patience", "bad_epochs", "wait", "stale"),
    "scheduler": ("sched",),
    "scaler": ("scaler", "growth_tracker"),
    "optimizer": ("optim", "exp_avg", "momentum_buffer"),
}


def losses_in_values(differences: Sequence[ValueDifference], known: Iterable[Loss]) -> list[Loss]:
    """Return losses that the names of differing values show.

    Where training itself differed, each value after it does, and only names that training
    does not move say something; they are the log's rows.
    """
    found: dict[str, Loss] = {}
    trained = any(True for _ in known)
    for each in differences:
        place = f"{each.file}/{each.where}".lower()
        if each.where == "length":
            found.setdefault("rows", Loss("rows", f"{each}: rows written twice, or lost"))
        for kind, words in () if trained else _BY_NAME.items():
            if any(word in place for word in words):
                found.setdefault(kind, Loss(kind, str(each)))
    if not trained and not found.keys() - {"rows"}:
        logs = {each.file for each in differences if each.where == "length"}
        first = next((each for each in differences if each.file not in logs), None)
        return [*([] if first is None else [Loss("value", str(first))]), *found.values()]
    return [*found.values()]


def merge_losses(found: Iterable[Loss]) -> list[Loss]:
    """Return one loss of each kind, with how many resumes had it."""
    first: dict[str, Loss] = {}
    often: Counter[str] = Counter()
    for each in found:
        first.setdefault(each.kind, each)
        often[each.kind] += 1
    return [
        each if often[kind] == 1 else Loss(kind, f"{each.what} (after {often[kind]} resumes)")
        for kind, each in first.items()
    ]
