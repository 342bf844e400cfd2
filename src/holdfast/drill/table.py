"""Table: a drill's report as cells and lines of text. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..legible import counted
from . import report as reports
from .by_itself import UNKNOWN
from .cause import SWITCHES
from .report import Divergence, DrillAttempt, DrillReport, ResumePoint
from .safepoint import SafePoint

_MOST = 4  # lines of one kind
COLUMNS = (
    "ATTEMPT",
    "RESTORED",
    "REACHED",
    "INTERRUPTED BY",
    "EXIT",
    "PROVEN",
    "SET ASIDE AS DAMAGED",
)


def report_lines(report: DrillReport) -> Iterator[str]:
    """Yield the lines below the attempts; the last line is the verdict."""
    yield from (
        f"damaged after attempt {each.attempt}: {each.damage}"
        for each in report.attempts
        if each.damage
    )
    if report.metrics:
        yield "last metrics: " + ", ".join(
            f"{name} {_format_number(value)}" for name, value in report.metrics.items()
        )
    if report.exempt:
        yield f"not compared, as timings or by --exempt: {', '.join(report.exempt)}"
    yield from _count_lines(report)
    yield from _first_differences(
        "read from another run, besides the run's own directory",
        [str(each) for each in report.leftovers],
    )
    yield from (f"lost by its own resume: {each}" for each in report.losses)
    if report.resume_with:
        yield from _first_differences("files that differ", report.file_differences)
    for note in report.notes:
        yield f"note: {note}"
    if report.divergence is not None:
        yield from divergence_lines(report.divergence, report.verdict)
        yield from _first_differences("metrics that differ", report.metric_differences)
        yield from _first_differences(
            "the last state differs (a: the first run, b: this one)", report.final_differences
        )
        yield from _first_differences("printed lines that differ", report.output_differences)
        yield from _first_differences("files of the script that differ", report.file_differences)
    yield report.verdict_line


def divergence_lines(found: Divergence, verdict: str) -> Iterator[str]:
    """Yield where and why they diverge, in a few lines."""
    resumed = (
        f", in attempt {found.attempt}, resumed at step {found.resumed_from}"
        if found.resumed_from
        else ""
    )
    first = found.leaf or (f"metric {found.metric}" if found.metric else "")
    what = f"{first}: {found.what}" if first else found.what
    yield f"first difference: {SafePoint(found.step, found.phase)}{resumed}: {what}"
    if verdict == reports.NOT_DETERMINISTIC and found.cause == UNKNOWN:
        yield "two uninterrupted runs of the command differ; what to switch on:"
        yield from (f"  {switch}" for switch in SWITCHES)
    else:
        told = found.advice.removesuffix("; ".join(found.lines)).removesuffix(". ")
        yield f"usual cause ({found.cause}): {told}"
        yield from (f"  {line}" for line in found.lines)


def attempt_cells(attempt: DrillAttempt) -> tuple[str, ...]:
    """Return the cells of an attempt under COLUMNS."""
    return (
        str(attempt.attempt),
        attempt.restored or "(fresh)",
        f"step {attempt.reached}",
        _interruption(attempt),
        "" if attempt.exit is None else str(attempt.exit),
        ("yes" if attempt.proven else "no") if attempt.signal else "",
        ", ".join(attempt.quarantined),
    )


def _interruption(attempt: DrillAttempt) -> str:
    if attempt.signal is None:
        return attempt.stop or ""
    return attempt.signal + (f", while saving {attempt.in_save}" if attempt.in_save else "")


def _count_lines(report: DrillReport) -> Iterator[str]:
    if report.resume_with and report.attempts:
        yield (
            f"compared with an uninterrupted run: {counted(report.steps, 'optimizer step')}, "
            f"{counted(report.files_compared, 'file')} by value"
        )
        yield (
            f"resumed after {counted(report.kills_proven, 'kill')} of {report.kills_asked}; "
            f"{counted(len(report.attempts), 'attempt')}, {report.total_s:.0f} s in all"
        )
    elif report.attempts:
        states, metrics = (
            counted(report.states_compared, "state"),
            counted(report.metric_lines, "line"),
        )
        printed = (
            counted(report.lines_compared, "printed line")
            + f", {counted(report.files_compared, 'file')}"
        )
        whole = "" if report.divergence else ", every byte of the last state"
        yield (
            f"compared with an uninterrupted run: {states}, {metrics} of metrics, {printed}{whole}"
        )
        proven = f"{report.kills_proven} of {report.kills_asked}"
        yield (
            f"kills proven: {proven}; {counted(len(report.attempts), 'attempt')}, "
            f"{report.total_s:.0f} s in all"
        )
        yield (
            f"resumed from: {', '.join(map(_resumed, report.resumed)) or 'no place beyond step 0'}"
        )
        yield report.limits
    if report.kept:
        yield f"kept: {report.kept}"


def _resumed(place: ResumePoint) -> str:
    after = {"end": "'s end", "exit": ", after the loop"}.get(place.phase, "")
    return f"step {place.step}{after} ({place.kind})"


def _first_differences(what: str, differences: Sequence[str]) -> Iterator[str]:
    if differences:
        yield f"{what}:"
    yield from (f"  {each}" for each in differences[:_MOST])
    if len(differences) > _MOST:
        yield f"  and {len(differences) - _MOST} more"


def _format_number(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
