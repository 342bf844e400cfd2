"""`holdfast report`: where a run's time went, what interruptions cost, and one page of it."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from .. import disk, scan
from ..errors import UsageError
from ..legible import counted, duration, size
from ..report import page, report
from ..report.curves import Curve, describe
from ..report.interruptions import AUTO
from ..report.report import RunReport
from ..store.checkpoint_index import CheckpointIndex
from ..store.format import created_s
from ..store.locate import locate
from ..supervise import status
from . import options
from .formatting import echo, echo_json, format_section, print_table
from .ls import checkpoint_facts

COLUMNS = ("RUN", "STATE", "STEP", "GOODPUT", "TIME", "ATTEMPTS", "LOST", "BEST", "SIZE")
BAR = 30  # letters of a bar for the whole time
PRINTED = Path("-")
MOST = 20  # interruptions and metrics that are printed


@click.command()
@options.runs_here
@click.option("--html", metavar="FILE", type=Path, help="Write one page that needs no network.")
@click.option(
    "--csv", "table", metavar="FILE", type=Path, help="Write the metrics, a line a step; - prints."
)
@options.as_json
def command(path: str, html: Path | None, table: Path | None, as_json: bool) -> None:
    """Tell where the time of RUN went, what each interruption cost, and what would have saved it.

    Each second since its first start is training that counts, training done again, a start, a
    save, the queue, or one of a few others.

    Of a folder of runs or a sweep: one line each, to compare them. Default: this folder.
    """
    printed = table == PRINTED
    if printed and (html or as_json):
        raise UsageError("--csv - prints the metrics alone: leave out --html and --json")
    for target in filter(None, (html, None if printed else table)):
        if not scan.is_dir(target.absolute().parent):
            raise UsageError(f"{target}: there is no directory {target.absolute().parent}")
        if scan.is_dir(target):
            raise UsageError(f"{target} is a directory: name a file")
        if scan.lexists(target) and (scan.is_symlink(target) or not scan.is_file(target)):
            raise UsageError(f"{target} is no regular file: name one, or --csv - to print")
    places = status.find_runs(Path(path))
    if len(places) > 1 and (html or table):
        raise UsageError(f"--html and --csv take one run; {path} holds {len(places)}")
    found = [report.read(place) for place in places]
    lines = _csv_lines(found[0].curves, found[0].metrics.rows())
    if printed:
        sys.stdout.writelines(lines)
        return
    if html is not None:
        _write_page(found[0], html)
    if table is not None:
        _write(table, (line.encode("utf-8", "backslashreplace") for line in lines))
    if as_json:
        facts = [report.facts(each) for each in found]
        if len(facts) == 1:
            run, verified = found[0].status.run, found[0].verified
            facts[0]["checkpoints"], facts[0]["existing"] = _checkpoints(run, verified)
        echo_json(facts[0] if len(facts) == 1 else {"runs": facts})
    elif len(found) == 1:
        _print(found[0])
    else:
        _compare(found)
    for written in filter(None, (html, table)):
        if not as_json:
            echo(f"wrote {written} ({size(written.stat().st_size)})")


def write_page_of(run: Path, target: Path) -> None:
    """Write the page of a run to `target`."""
    (place,) = status.find_runs(run)
    _write_page(report.read(place), target)


def _write_page(found: RunReport, target: Path) -> None:
    rows, existing = _checkpoints(found.status.run, found.verified)
    _write(target, [page.html(found, rows, existing)])


def _write(target: Path, chunks: Iterable[bytes]) -> None:
    try:
        disk.replace_with(target, chunks)
    except OSError as error:
        error.filename = str(target)  # not that of a temporary file
        raise


def _checkpoints(
    run: str | None, verified: Mapping[str, float]
) -> tuple[list[dict[str, Any]], int]:
    """Return the facts of those that a page shows, and how many exist. `verified`: when each was
    read last.
    """
    if run is None:
        return [], 0
    place = locate(run)
    existing = place.checkpoints()
    marked = {*CheckpointIndex(place.path).pins()}
    with suppress(OSError):
        marked.add((place.path / "checkpoints" / "best").readlink().name)
    newest = existing[-page.MOST_ROWS :]
    older = [each for each in existing[: -page.MOST_ROWS] if each.path.name in marked]
    rows = checkpoint_facts(place, apart=False, checkpoints=[*older, *newest])
    for row in rows:
        at_s = 0.0 if row["damaged"] else verified.get(row["directory"], 0.0)
        # another one of this name may have been there before
        row["verified"] = at_s if at_s and at_s >= created_s(row["created"]) else None
    return rows, len(existing)


def _csv_lines(curves: Sequence[Curve], rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    names = ["step", "phase", "epoch", *(curve.name for curve in curves)]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row)
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _print(found: RunReport) -> None:
    spent, word = found.account, found.verdict
    echo(f"{found.name}: {word[0]}. {word[1]}")
    if found.status.next:
        shows = "  # its checkpoints and metrics" if word[0] == "done" else ""
        echo(f"next   {found.status.next}{shows}")
    echo()
    goodput = (
        "" if spent.goodput is None else f", of which training that counts {spent.goodput:.1%}"
    )
    echo(f"{duration(spent.wall_s)} since its first attempt began{goodput}")
    for name, took_s, share in spent.parts:
        took = duration(took_s)
        echo(f"  {name:<11}{took:>9} {share:>6.1%}  {'#' * round(BAR * share)}".rstrip())
    lines = [
        f"{each.attempt or 'without a run'}: {each.story}"
        f"; at step {each.step:,}"
        + (f", resumed at step {each.resumed_step:,}" if each.resumed_step is not None else "")
        + (f"; {duration(each.lost_s)} done again" if each.lost_s >= 1 else "")
        + (f"; {duration(each.down_s)} to the next step" if each.down_s is not None else "")
        + (f"; {each.advice}" if each.advice and not each.advice.startswith(AUTO) else "")
        for each in found.interruptions
    ]
    sections = format_section(f"interruptions: {len(lines)}", lines[-MOST:]) if lines else []
    sections += format_section("what to change", found.advice)
    sections += format_section("metrics", _metrics(found))
    sections += format_section("estimated", spent.estimated[:MOST])
    for line in sections:
        echo(line)


def _metrics(run: RunReport) -> list[str]:
    best = [] if run.best is None else [f"best: {run.best.text}"]
    lines = [f"{each.name}: {describe(each)}" for each in run.curves[:MOST]]
    return [*lines, *best, run.soundness.replace("`", "")] if lines else []


def _compare(found: Sequence[RunReport]) -> None:
    print_table(COLUMNS, [_row(each) for each in found], right=COLUMNS[2:7] + COLUMNS[8:])
    states = Counter(each.status.state for each in found)
    told = ", ".join(f"{count} {state}" for state, count in states.most_common())
    lost_s = sum(each.lost_s for each in found)
    echo(f"{counted(len(found), 'run')}: {told}; {duration(lost_s)} lost to interruptions")
    for line in _best_of_all(found):
        echo(line)
    alike = Counter(each.why for run in found for each in run.interruptions[-1:] if each.why)
    for why, count in alike.most_common(3):
        if count > 1:
            echo(f"{count} failed alike: {why}")


def _best_of_all(found: Sequence[RunReport]) -> list[str]:
    """Return the best run of a sweep, if all name the same metric as best."""
    ranked = [(each.best, each.name) for each in found if each.best is not None]
    if len(ranked) < 2 or len({(best.metric, best.largest) for best, _ in ranked}) > 1:
        return []
    chosen = max if ranked[0][0].largest else min
    best, name = chosen(ranked, key=lambda each: each[0].value)
    return [f"best: {name}, {best.metric} {best.value:.5g} at step {best.step:,}"]


def _row(each: RunReport) -> list[object]:
    spent, best = each.account, each.best
    return [
        each.name,
        each.status.state,
        "" if each.status.step is None else f"{each.status.step:,}",
        "" if spent.goodput is None else f"{spent.goodput:.1%}",
        duration(spent.wall_s),
        len(each.starts),
        duration(each.lost_s),
        "" if best is None else f"{best.metric} {best.value:.5g} at {best.step:,}",
        size(sum(save.size_bytes for save in each.saves[-1:])),
    ]
