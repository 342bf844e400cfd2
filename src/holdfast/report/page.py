"""One page that shows what became of a run: a file of its own, without a network.

Elements are built with ElementTree, which escapes every text and attribute. The charts are drawn by
uPlot (MIT), which the page contains.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from ..inspect.starts import HANG
from ..legible import counted, duration, legible, printable, size
from ..store.format import unpack_metrics
from ..supervise.status import AS_BEFORE
from .accounting import CATEGORIES, Span, spans_between
from .curves import Curve, describe, downsample
from .interruptions import AUTO
from .report import RunReport, changes, late_ranks
from .times import LATEST_S

MOST_CURVES, MOST_UNDONE = 60, 12  # charts of a page; lines of one chart that were done again
MOST_ATTEMPTS, MOST_ROWS = 300, 300  # of the timeline and of a table: the newest
MOST_ADVICE = 6
NO_RANK = "At no save did it wait for another rank"
COLUMNS = 400  # that a bar of the timeline can show
LONG = 12  # letters of a cell that get a wide column
DIGITS = 5  # of the numbers in charts


def html(report: RunReport, checkpoints: Sequence[Mapping[str, Any]], existing: int) -> bytes:
    """Return the page.

    `checkpoints`: the facts of those that it shows, as `holdfast ls --json` prints them, and when
    each was verified: the newest, the best and those that are pinned. `existing`: how many there
    are.
    """
    page = ET.Element("html", lang="en")
    _head(page, f"{report.name}: {report.verdict[0]}")
    body = ET.SubElement(page, "body")
    _verdict(body, report)
    _what_to_change(body, report)
    _timeline(body, report)
    _where_time_went(body, report)
    _interruptions(body, report)
    curves = report.curves[:MOST_CURVES]
    _curves(body, report, curves)
    _checkpoints(body, report, checkpoints, existing)
    _environment(body, report)
    _warnings(body, report)
    now = _when(datetime.now(UTC).timestamp())
    _add(body, "footer", f"Written by holdfast report on {now}.")
    # `<` can end neither a script nor a string of JSON when it is written so
    data = json.dumps(_chart_data(report, curves), allow_nan=False).replace("<", "\\u003c")
    _add(body, "script", data, type="application/json", id="data")
    _add(body, "script", _asset("uPlot.iife.min.js"))
    _add(body, "script", _asset("page.js"))
    # the method knows that text in scripts and styles stays as it is
    return f"<!doctype html>\n{ET.tostring(page, encoding='unicode', method='html')}\n".encode()


def _head(page: ET.Element, title: str) -> None:
    head = _add(page, "head")
    _add(head, "meta", charset="utf-8")
    _add(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    # nothing of the page may load anything
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    _add(head, "meta", **{"http-equiv": "Content-Security-Policy", "content": policy})
    _add(head, "title", title)
    _add(head, "style", _asset("uPlot.min.css") + _asset("page.css"))


def _verdict(body: ET.Element, report: RunReport) -> None:
    word, sentence = report.verdict
    title = _add(body, "h1")
    _add(title, "span", word, **{"class": f"verdict {word.replace(' ', '-')}"})
    _text(title, report.name)
    _add(body, "p", sentence)
    if report.status.not_finite:
        _add(body, "p", report.status.not_finite)
    if report.status.next and word != "done":  # then the page is for readers elsewhere
        line = _add(body, "p", "Next: ")
        _add(line, "span" if report.status.next == AS_BEFORE else "code", report.status.next)
    spent, facts = report.account, _add(body, "div", **{"class": "facts"})
    goodput = "" if spent.goodput is None else f"{spent.goodput:.1%}"
    for value, name in (
        (goodput, "of the time was training that counts"),
        (duration(spent.wall_s), f"from {_when(spent.began_s)}"),
        (f"{report.status.step or 0:,}", "steps"),
        (f"{len(report.starts):,}", "attempts"),
        (duration(report.lost_s), "lost to interruptions"),
    ):
        box = _add(facts, "div")
        _add(box, "b", value)
        _add(box, "span", name, **{"class": "soft"})


def _what_to_change(body: ET.Element, report: RunReport) -> None:
    """What would have saved time, over all and at the interruptions that cost most."""
    section = _section(body, "What to change")
    lines = [
        *report.advice,
        *(
            f"{'' if each.attempt is None else f'attempt {each.attempt}, '}{each.cause}: "
            + each.advice
            for each in sorted(
                report.interruptions, key=lambda each: (each.cause != HANG, -each.lost_s)
            )
            if each.advice and not each.advice.startswith(AUTO)  # that is advised once
        ),
    ]
    for line in lines[:MOST_ADVICE] or ["Nothing of which Holdfast knows would have saved much"]:
        _with_code(_add(section, "p"), f"{line[:1].upper()}{line[1:]}.")
    if len(lines) > MOST_ADVICE:
        _add(section, "p", f"{len(lines) - MOST_ADVICE} more: see Interruptions.")


def _timeline(body: ET.Element, report: RunReport) -> None:
    section, spent = _section(body, "Attempts"), report.account
    shown = report.starts[-MOST_ATTEMPTS:]
    if len(shown) < len(report.starts):
        _add(section, "p", f"The last {len(shown)} of {len(report.starts):,} attempts.")
    if not shown or spent.wall_s <= 0:
        _add(section, "p", "No attempt has begun.")
        return
    began_s = shown[0].began_s
    wall_s = spent.began_s + spent.wall_s - began_s
    grid = _add(section, "div", **{"class": "attempts"})
    from_s = began_s
    for start in shown:
        end = report.end_of(start)
        where = f"{start.attempt or ''} {end.host}{f' job {end.job}' if end.job else ''}"
        _add(grid, "span", where, **{"class": "label"})
        track = _add(grid, "div", **{"class": "track"})
        # with what lies between it and the attempt before
        end_s = start.began_s + start.ended
        for span in _visible(spans_between(spent, from_s, end_s), wall_s):
            _piece(track, span, began_s, wall_s)
        before, after = (from_s - began_s) / wall_s, 1 - (end_s - began_s) / wall_s
        # behind the bar, or before it where more room is left
        side = f"left:{1 - after:.2%};right:0"
        if before > after:
            side = f"right:{1 - before:.2%};left:0"
        _add(track, "b", end.cause or "at work", style=side)
        from_s = end_s
    _add(grid, "span")
    axis = _add(grid, "div", **{"class": "axis"})
    for part in (0.0, 0.5, 1.0):
        _add(axis, "span", _when(began_s + part * wall_s))
    for facts in late_ranks(report.saves)[:1]:
        times, late = counted(facts["saves"], "save"), duration(facts["waited_s"])
        slow = f"Rank {facts['rank']} came last to {times}; rank 0 waited {late} for it"
        _add(section, "p", f"Times are those of rank 0. {slow if facts['rank'] else NO_RANK}.")
    legend = _add(section, "p", **{"class": "soft"})
    for name, _, _ in spent.parts:
        entry = _add(legend, "span", **{"class": "part"})
        _swatch(entry, name)
        _text(entry, name)
        _text(legend, " ")


def _piece(track: ET.Element, span: Span, began_s: float, wall_s: float) -> None:
    left, width = (span.began_s - began_s) / wall_s, (span.ended_s - span.began_s) / wall_s
    title = f"{span.category}: {duration(span.ended_s - span.began_s)}, from {_when(span.began_s)}"
    style = f"left:{left:.3%};width:{width:.3%}"
    _add(track, "i", title=title, style=style, **{"class": span.category})


def _visible(spans: Sequence[Span], wall_s: float) -> list[Span]:
    """Return the spans that a bar can show; what is too short goes to the one before it."""
    found: list[Span] = []
    for span in spans:
        short = span.ended_s - span.began_s < wall_s / COLUMNS
        if found and (short or found[-1].category == span.category):
            found[-1] = found[-1]._replace(ended_s=span.ended_s)
        else:
            found.append(span)
    return found


def _where_time_went(body: ET.Element, report: RunReport) -> None:
    section, spent = _section(body, "Where the time went"), report.account
    bar = _add(section, "div", **{"class": "bar"})
    rows = []
    for name, took_s, share in spent.parts:
        _add(bar, "i", title=name, style=f"width:{share:.3%}", **{"class": name})
        rows.append([name, duration(took_s), f"{share:.1%}", CATEGORIES[name][0]])
    _table(section, ("", "time", "part", "what it is"), rows, numbers=(1, 2), swatches=True)
    for line in spent.estimated:
        _add(section, "p", f"Estimated: {line}.", **{"class": "soft"})


def _interruptions(body: ET.Element, report: RunReport) -> None:
    section = _section(body, "Interruptions")
    if not report.interruptions:
        _add(section, "p", "None.")
        return
    rows = [
        [
            each.attempt or "",
            _when(each.at_s),
            each.story,
            f"{each.step:,}",
            "" if each.resumed_step is None else f"{each.resumed_step:,}",
            duration(each.lost_s),
            duration(each.down_s),
            each.saved_by.replace("`", ""),
        ]
        for each in report.interruptions[-MOST_ROWS:]
    ]
    head = (
        "attempt",
        "when",
        "cause",
        "reached step",
        "resumed at step",
        "done again",
        "until the next step",
        "what would have saved it",
    )
    _table(section, head, rows, numbers=(0, 3, 4, 5, 6), stacks=True)


def _curves(body: ET.Element, report: RunReport, curves: Sequence[Curve]) -> None:
    section = _section(body, "Metrics")
    if not curves:
        _add(section, "p", "The run has logged none.")
        return
    _with_code(_add(section, "p"), report.soundness)
    controls = _add(section, "div", **{"class": "controls"})
    label = _add(controls, "label")
    _add(label, "input", type="checkbox", id="log").tail = " log axis"
    label = _add(controls, "label", "smoothing ")
    _add(label, "input", type="range", id="smooth", min="0", max="0.99", step="0.01", value="0")
    hint = (
        "drag to zoom, double click to go back; dashed: an attempt resumed there; faint: done again"
    )
    _add(controls, "span", hint)
    if len(curves) < len(report.curves):
        _add(section, "p", f"The first {len(curves)} of {len(report.curves):,} metrics.")
    box = _add(section, "div", id="curves", **{"class": "curves"})
    for curve in curves:
        place = _add(box, "div", **{"class": "curve"})
        _add(place, "h3", curve.name)
        _add(place, "p", describe(curve), **{"class": "soft"})
        _add(place, "div", **{"class": "plot"})


def _chart_data(report: RunReport, curves: Sequence[Curve]) -> dict[str, Any]:
    resumed = [start.first for start in report.starts[1:] if start.restored is not None]
    return {"resumed": resumed[-MOST_ATTEMPTS:], "curves": [*map(_chart, curves)]}


def _chart(curve: Curve) -> dict[str, Any]:
    lines = [_line("counts", curve.steps, curve.values, counts=True)]
    for attempt, steps, values in curve.undone[-MOST_UNDONE:]:
        lines.append(_line(f"attempt {attempt}, done again", steps, values, counts=False))
    positive = all(value > 0 for line in lines for value in line["values"] if value is not None)
    return {"lines": lines, "positive": positive}


def _line(
    label: str, steps: Sequence[int], values: Sequence[float], *, counts: bool
) -> dict[str, Any]:
    steps, values = downsample(steps, values)
    last = dict(zip(steps, values, strict=True))  # of equal steps the last
    return {
        "label": label,
        "counts": counts,
        "steps": [*last],
        "values": [float(f"{v:.{DIGITS}g}") if math.isfinite(v) else None for v in last.values()],
    }


def _checkpoints(
    body: ET.Element, report: RunReport, checkpoints: Sequence[Mapping[str, Any]], existing: int
) -> None:
    section = _section(body, "Checkpoints")
    saves = {save.name: save for save in report.saves}
    waited = sum(save.stall_s for save in report.saves)
    told = (
        f"{len(report.saves):,} saves in all, for which the loop waited {duration(waited)}. Of it "
        f"{duration(report.account.seconds['save'])} is `save` above; the rest is in `stop`, for "
        f"last saves, and in `redone`. {existing:,} checkpoints exist."
    )
    _with_code(_add(section, "p"), told)
    if report.saves and not existing:
        told = (
            "The folder holds no checkpoints: only the journal is here; the last one saved was step"
        )
        _add(section, "p", f"{told} {report.saves[-1].step:,}.")
    if report.best is not None:
        _add(section, "p", f"Best: {report.best.text}.")
    if report.status.run is not None and checkpoints:
        best = next((facts for facts in checkpoints if facts.get("best")), None)
        place = Path(report.status.run, "checkpoints").absolute()
        words = "They lie in "
        if best is not None:
            words = f"The best checkpoint, step {best['step']:,}: "
            place /= best["name"]
        _add(_add(section, "p", words), "code", str(place))
    rows = []
    for facts in checkpoints:
        if facts.get("damaged"):
            rows.append([facts["name"], "", "", f"damaged: {facts['damaged']}", *[""] * 8])
            continue
        save = saves.get(facts["name"])
        marks = [mark for mark in ("pinned", "best", "latest") if facts.get(mark)]
        values = unpack_metrics(facts["metrics"])
        metrics = ", ".join(f"{name} {value:.5g}" for name, value in values.items())
        rows.append(
            [
                facts["name"],
                f"{facts['step']:,}",
                facts["created"][:19].replace("T", " "),
                ", ".join(marks),
                metrics,
                size(facts["size_bytes"]),
                size(max(0, facts["size_bytes"] - facts["disk_bytes"])),
                duration(save and save.save_s),
                duration(save and save.stall_s),
                "" if save is None else save.attempt,
                _when(facts["verified"])[:19] if facts.get("verified") else "",
                ", ".join(
                    copy.place for copy in report.mirrors if facts["name"] in copy.checkpoints
                ),
            ]
        )
    if rows:
        head = (
            "name",
            "step",
            "saved (UTC)",
            "marks",
            "metrics",
            "size",
            "shared",
            "took",
            "loop waited",
            "attempt",
            "verified (UTC)",
            "copies at",
        )
        _table(section, head, rows, numbers=(1, 5, 6, 7, 8, 9))
        told = (
            "Verified: it was read again after its save, by an attempt or before older ones were "
        )
        _add(section, "p", f"{told}deleted, and every digest was right.", **{"class": "soft"})


def _environment(body: ET.Element, report: RunReport) -> None:
    section = _section(body, "What it ran")
    if not report.environments:
        _add(section, "p", "The journal does not say it: the run is from an older version.")
        return
    rows = [[name, _shown(value)] for name, value in report.environments[-1][1].items()]
    _table(section, ("", f"in attempt {report.environments[-1][0]}"), rows)
    found = changes(report.environments)
    if not found:
        _add(section, "p", "Nothing of it changed between attempts.")
    else:
        rows = [[e["attempt"], e["what"], _shown(e["from"]), _shown(e["to"])] for e in found]
        _table(section, ("attempt", "what changed", "from", "to"), rows[-MOST_ROWS:], numbers=(0,))


def _warnings(body: ET.Element, report: RunReport) -> None:
    if report.warnings:
        section = _section(body, "Warnings")
        rows = [[attempt, _when(at_s), line] for attempt, at_s, line in report.warnings]
        _table(section, ("attempt", "when", "warning"), rows, numbers=(0,))


def _section(body: ET.Element, title: str) -> ET.Element:
    section = _add(body, "section")
    _add(section, "h2", title)
    return section


def _table(
    parent: ET.Element,
    head: Iterable[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[int] = (),
    swatches: bool = False,
    stacks: bool = False,
) -> None:
    """Add a table. `stacks`: on a narrow screen each cell is a line below its column's name."""
    kind = {"class": "stacks"} if stacks else {}
    table, head = _add(_add(parent, "div", **{"class": "wide"}), "table", **kind), [*head]

    def cell(line: ET.Element, tag: str, at: int, value: object) -> ET.Element:
        return _add(line, tag, str(value), **({"class": "number"} if at in numbers else {}))

    line = _add(_add(table, "thead"), "tr")
    for at, name in enumerate(head):
        cell(line, "th", at, name)
    body = _add(table, "tbody")
    for row in rows:
        line = _add(body, "tr")
        for at, value in enumerate(row):
            place = cell(line, "td", at, "" if swatches and not at else value)
            if stacks:
                place.set("data-head", head[at])
            if swatches and not at:
                place.set("class", "name")
                _swatch(place, str(value))
                _text(place, str(value))
            elif isinstance(value, str) and value.endswith(" UTC"):
                place.set("class", "name")
            elif isinstance(value, str) and len(value) > LONG:
                place.set("class", "long")


def _swatch(parent: ET.Element, category: str) -> None:
    _add(parent, "span", **{"class": f"swatch {category}"})


def _add(parent: ET.Element, tag: str, text: str = "", **attributes: str) -> ET.Element:
    element = ET.SubElement(
        parent, tag, {name: _clean(value) for name, value in attributes.items()}
    )
    element.text = _clean(text)
    return element


def _text(parent: ET.Element, text: str) -> None:
    """Add text behind the last child of `parent`."""
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + _clean(text)
    else:
        parent.text = (parent.text or "") + _clean(text)


def _with_code(parent: ET.Element, text: str) -> None:
    """Add text; what stands between backticks is code."""
    for at, part in enumerate(text.split("`")):
        if at % 2:
            _add(parent, "code", part)
        else:
            _text(parent, part)


def _clean(text: str) -> str:
    """Return text without characters that no page may hold, or that turn the rest of a line."""
    return printable(legible(text), kept="\n\t")


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_shown(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def _when(time_s: float) -> str:
    return datetime.fromtimestamp(min(max(time_s, 0.0), LATEST_S), UTC).strftime(
        "%Y-%m-%d %H:%M:%S UTC"
    )


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
