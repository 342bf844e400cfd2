"""Judge: the result of comparing two runs: a verdict, and where and why they diverge. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..stateful.tracked import RESERVED
from . import by_itself, cause, compare
from .advice import AdviceLine
from .cause import DivergenceCause
from .compare import MetricDifference, StateDifference
from .evidence import RunTrace, SafePoint
from .files import FileDifference
from .leftovers import Leftover
from .output import LineDifference
from .report import IDENTICAL, NOT_PROVEN, Divergence, DrillReport, Fix
from .suspects import VARS

LEFTOVER = "leftover file"


def find_divergence(
    reference: RunTrace,
    other: RunTrace,
    parted: StateDifference | None,
    metrics: Sequence[MetricDifference],
    leftovers: Sequence[Leftover] = (),
) -> Divergence:
    """Return where the states or metrics of `other` first left those of the reference run,
    and the usual reason.
    """
    if metrics and (parted is None or metrics[0].place.order < parted.place.order):
        place, what = metrics[0].place, metrics[0].what
        before = [
            attempt for attempt, restored in other.restored.items() if restored.order < place.order
        ]
        # the attempt whose line survived: the last that began before it
        attempt = max(before, default=0)
    elif parted is not None:
        place, attempt, what = parted.place, parted.attempt, parted.what
    else:
        place, attempt, what = (
            reference.states[-1].place,
            max(other.restored, default=0),
            "the last state differs",
        )
    facts = cause.gather_facts(reference, other, (place, attempt), parted, metrics)
    usual = (
        by_itself.cause_of(reference, other, facts)
        if reference.second is None
        else cause.find_cause(facts)
    )
    found = _divergence_at(place, attempt, other, what, _choose_reason(usual, leftovers))
    found.leaf = facts.leaves[0] if facts.leaves and not facts.metrics_first else None
    found.leaves = list(facts.leaves)
    found.metric = facts.metrics[0] if facts.metrics else None
    return found


def output_divergence(
    reference: RunTrace,
    other: RunTrace,
    difference: LineDifference,
    leftovers: Sequence[Leftover] = (),
) -> Divergence:
    """The first line that `other` printed differently while all tracked state was equal,
    and the usual reason.
    """
    line = (
        f"the line {difference.now!r}"
        if difference.now is not None
        else f"what printed {difference.was!r}"
    )
    where = difference.after, difference.attempt
    facts = cause.gather_facts(reference, other, where)._replace(
        metrics=(line,), metrics_first=True
    )
    return _divergence_at(
        *where, other, str(difference), _choose_reason(cause.find_cause(facts), leftovers)
    )


FILE = DivergenceCause(
    "file",
    "attempts of one run share this file, and a resume does "
    "not take back what a killed attempt had written. Let each "
    "row carry run.step and replace an earlier one of that step, "
    "or write the file anew from run.metrics() or from "
    "what run.vars keeps",
)


def file_divergence(
    differences: Sequence[FileDifference], reference: RunTrace, other: RunTrace
) -> Divergence:
    """The first file that differs after `other`, while all tracked state was equal."""
    attempt, place = max(other.restored, default=0), reference.states[-1].place
    lost = cause.unrestored_variables(cause.gather_facts(reference, other, (place, attempt)))
    return _divergence_at(
        place,
        attempt,
        other,
        str(differences[0]),
        FILE if lost is None else lost.combined_with(FILE),
    )


ANOTHER_RUN = DivergenceCause(
    "another run",
    "the first run of the script is identical, "
    "and a further one ended otherwise. Drill that one alone, in a script "
    "without the others: then the cause is named",
)


def other_run_divergence(what: str, reference: RunTrace, other: RunTrace) -> Divergence:
    """How a run of the script besides its first differed in the end."""
    return _divergence_at(
        reference.states[-1].place, max(other.restored, default=0), other, what, ANOTHER_RUN
    )


AFTER_THE_LOOP = DivergenceCause(
    "after the loop",
    "the finished script was started once more, "
    "as after a kill behind its loop, and the loop's body did not run",
)


def restart_divergence(what: str, reference: RunTrace, other: RunTrace) -> Divergence:
    """The differences after a start of the finished script. The run reports names that only the
    loop's body sets.
    """
    attempt = max(other.restored, default=0)
    named = [
        str(event.get("name")).split(", ")
        for event in other.told
        if event["kind"] == "after_the_loop"
    ]
    names = tuple(named[-1]) if named else ()
    reads = f", which sets {', '.join(names)}" if names else ""
    lines = (
        AdviceLine(
            "Keep in run.vars what the code behind the loop reads",
            tuple(Fix("vars", (name,)) for name in names),
        ),
        AdviceLine(
            'or end such a process: Run(..., finished="exit")', (Fix("finished", ("exit",)),)
        ),
    )
    reason = AFTER_THE_LOOP._replace(text=AFTER_THE_LOOP.text + reads, lines=lines)
    return _divergence_at(reference.states[-1].place, attempt, other, what, reason)


def failure_divergence(
    reference: RunTrace, other: RunTrace, idle: frozenset[str]
) -> Divergence | None:
    """Return where a resumed attempt that failed had left the reference run's path;
    None if it had not.
    """
    parted = compare.first_state_difference(reference, other, idle)
    if parted is None or not other.restored.get(parted.attempt, SafePoint(0)).step:
        return None
    metrics = compare.metric_differences(reference.metrics, other.metrics)
    return find_divergence(
        reference, other, parted, [each for each in metrics if each.what != "missing"]
    )


def describe_failure_cause(found: Divergence | None) -> str:
    """Return the cause of such a failure as one more line."""
    if found is None:
        return ""
    place = SafePoint(found.step, found.phase)
    return (
        "\nthe resumed run had left the undisturbed one's "
        f"path at {place}; {found.cause}: {found.advice}"
    )


def require_comparable(found: DrillReport, reference: RunTrace) -> None:
    """Change the verdict "identical" if nothing could be compared: the run tracks, logs and
    prints nothing.
    """
    keys = [key for seen in reference.states[:1] for key in seen.leaves]
    state = [key for key in keys if not key.removeprefix("tree:").startswith(RESERVED)]
    state += [
        path for sight in reference.sights.all for path in sight.values if path.startswith(VARS)
    ]
    if found.verdict == IDENTICAL and not (
        state or found.metric_lines or found.lines_compared or found.files_compared
    ):
        found.verdict = NOT_PROVEN
        found.notes.append(
            "there was nothing to compare: the run tracks nothing, "
            "logs nothing and prints nothing at its safe points. "
            "Give Run the objects that the loop changes, or log a number with run.log()"
        )


def why_not_proven(found: DrillReport, schedule_wanted: int) -> str | None:
    """Return why fewer places are proven than wanted, and what to do; None if they are enough."""
    if found.kills_proven >= schedule_wanted > 0:
        return None
    if found.places == 0:
        return (
            "the run has one safe point or none: "
            "there is nothing to resume from and go on to. Give the script more "
            "steps (--steps N drills the first N of them)"
        )
    return (
        f"the run was resumed from {found.kills_proven} distinct "
        f"places of the {schedule_wanted} wanted: a kill led to "
        "a place that was tried before, or came too late. "
        "Try another --seed, fewer --kills, --signals KILL, or more "
        "steps (--steps N)"
    )


def _choose_reason(usual: DivergenceCause, leftovers: Sequence[Leftover]) -> DivergenceCause:
    """Return the reason. A file that another run left comes first:
    it changes how any run begins.
    """
    if not leftovers:
        return usual
    also = f". Or ({usual.name}): {usual.advice}" if by_itself.names_a_cause(usual) else ""
    return DivergenceCause(
        LEFTOVER,
        f"{leftovers[0]}. A run must not depend on files that "
        "an earlier one left: let the script write it elsewhere "
        f"for each run, or track its content{also}",
    )


def _divergence_at(
    place: SafePoint, attempt: int, other: RunTrace, what: str, reason: DivergenceCause
) -> Divergence:
    resumed = other.restored.get(attempt)
    return Divergence(
        step=place.step,
        phase=place.phase,
        attempt=attempt,
        resumed_from=resumed.step if resumed else None,
        what=what,
        cause=reason.name,
        advice=reason.advice,
        lines=[line.text for line in reason.lines],
        fixes=[fix for line in reason.lines for fix in line.fixes],
    )
