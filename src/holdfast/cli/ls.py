"""`holdfast ls`: a run's checkpoints, its quarantine, and its attempts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import click

from .. import journal, scan
from ..cluster.hold import HOLD
from ..errors import HoldfastError
from ..foreign.checkpoint import ForeignFolder
from ..inspect import mirrors
from ..journal import Log
from ..legible import counted, duration, nth, size
from ..state import nodes
from ..store.checkpoint import Checkpoint
from ..store.checkpoint_index import CheckpointIndex
from ..store.locate import Location, best_of, unreadable_reason
from . import options, others
from .attempts import summarize_attempts, summarize_claims
from .formatting import (
    age_s,
    echo,
    echo_json,
    format_metrics,
    format_section,
    format_time,
    print_table,
    showing_progress,
)
from .sources import LocalSource, RemoteSource, open_source

COLUMNS = (  # where a terminal is narrow, the last ones are left out
    *(
        "NAME",
        "STEP",
        "EPOCH",
        "AGE",
        "SIZE",
        "MARKS",
        "METRICS",
        "ON DISK",
        "TIME (UTC)",
        "PARENT",
        "SHARES FILES OF",
    ),
    *("COPIED TO", "NOTE"),
)
_QUARANTINED = re.compile(r"(step-\d{9,18}(?:-end)?)-(.+)")


@click.command()
@options.run
@click.option(
    "--attempts", "each_attempt", is_flag=True, help="Also list each attempt, and how it ended."
)
@options.as_json
def command(run: str, each_attempt: bool, as_json: bool) -> None:
    """List the checkpoints of RUN, oldest first; below them what lies in quarantine, and how the
    last attempt ended.

    ON DISK is what no older checkpoint holds: files whose leaves did not change are shared.

    Of a place this lists the copies there. Below them come those that no start uses, and the
    attempts that claimed it.
    """
    with showing_progress() as tell, open_source(run, tell, foreign=True) as here:
        facts = _list_facts(here)
        tell("")
        if as_json:
            echo_json(facts)
        elif "format" in facts:
            columns = (others.COLUMNS, [*map(others.cells, facts["checkpoints"])])
            print_table(*columns, right=("STEP", "EPOCH", "SIZE", "TENSORS"))
            for line in _damaged_lines(facts):
                echo(line)
        else:
            _print(facts, each_attempt=each_attempt)


def _list_facts(here: LocalSource) -> dict[str, Any]:
    place, there = here.locate(), here if isinstance(here, RemoteSource) else None
    if isinstance(place, ForeignFolder):
        return {
            "path": str(place.path),
            "format": "foreign",
            "checkpoints": [*map(others.row, place.foreign())],
        }
    root = None if place.single else place.root
    logs = journal.logs(root) if root else []
    rows, copies = checkpoint_facts(place, apart=there is not None), mirrors.mirrors_of_run(logs)
    for row in rows:
        row["at"] = [each.place for each in copies if row["name"] in each.checkpoints]
    return {
        "run": str(place.path),
        "held": root is not None and scan.exists(root / HOLD),
        "checkpoints": rows,
        "mirrors": [each._asdict() for each in copies],
        "at_risk": mirrors.at_risk(copies, rows[-1]["name"] if rows else None),
        "quarantine": quarantined_checkpoints(root, logs) if root else [],
        "attempts": summarize_claims(there.seen) if there else summarize_attempts(logs),
        "left_over": there.describe_unused_copies() if there else [],
    }


def checkpoint_facts(
    place: Location, *, apart: bool, checkpoints: Sequence[Checkpoint] | None = None
) -> list[dict[str, Any]]:
    """Return the facts of each checkpoint; if its manifest is damaged, only its name and the error.

    `apart`: they are copies, which share no files. `checkpoints`: only those.
    """
    existing = place.checkpoints() if checkpoints is None else checkpoints
    # of the newest more is shown than its head: it is read whole, and once
    with suppress(HoldfastError, OSError, IndexError):
        existing[-1].manifest  # noqa: B018
    found = [(checkpoint, unreadable_reason(checkpoint)) for checkpoint in existing]
    whole = [checkpoint for checkpoint, why in found if why is None]
    pins = CheckpointIndex(place.root).pins() if place.root else set()
    epochs = epochs_of(whole[-1]) if whole else None  # as the newest one knows them
    newest = None if place.single or not whole else whole[-1]
    best = None if place.single else best_of(whole)
    rows = []
    held: dict[tuple[int, int], str] = {}
    for checkpoint, why in found:
        name = checkpoint.path.name
        if why is not None and why != "gone":
            rows.append({"name": name, "damaged": why})
        elif why is None:
            marks = {
                "pinned": name in pins,
                "best": checkpoint is best,
                "latest": checkpoint is newest,
            }
            own: dict[str, Any] = (
                {"disk_bytes": checkpoint.size_bytes, "shares_with": []}
                if apart
                else _on_disk(checkpoint, held)
            )
            rows.append(_facts(checkpoint, epochs) | own | marks)
    return rows


class Epochs(NamedTuple):
    """The epochs of a run: the first one's number, and how many there are, if that is known."""

    first: int
    total: int | None

    def nth(self, epoch: int) -> str:
        return nth(epoch - self.first, self.total)


def epochs_of(checkpoint: Checkpoint) -> Epochs | None:
    """Return what the checkpoint says of its run's epochs; None: there are none, or it cannot be
    read. What a script saved to a `Store` has the number that it gave.
    """

    def stored(*parts: str) -> int | None:
        found = nodes.node_at(position, *parts)
        return found if isinstance(found, int) else None

    try:
        position = nodes.node_at(checkpoint.tree, "holdfast", "position")
        if position is None:
            return Epochs(1, None)
        first, total = stored("first_epoch") or 0, stored("targets", "epochs")
        if total is None and stored("epoch") == first and not stored("in_epoch"):
            return None
    except (HoldfastError, OSError):
        return None
    return Epochs(first, total and total - first)


def _on_disk(checkpoint: Checkpoint, held: dict[tuple[int, int], str]) -> dict[str, Any]:
    """Return the bytes that no older checkpoint holds, and whose files it shares; `held` maps a
    file to its first holder.
    """
    own, shared = 0, set()
    for facts in existing_files(checkpoint.path).values():
        first = held.setdefault((facts.st_dev, facts.st_ino), checkpoint.path.name)
        if first != checkpoint.path.name:
            shared.add(first)
        else:
            own += facts.st_size
    return {"disk_bytes": own, "shares_with": sorted(shared)}


def existing_files(place: Path) -> dict[Path, os.stat_result]:
    """Return the files in its directory that exist: its run may remove them in the meantime."""
    found = {}
    for folder, _, names in scan.walk(place):
        for name in names:
            with suppress(OSError):
                found[Path(folder, name)] = os.lstat(os.path.join(folder, name))
    return found


def _facts(checkpoint: Checkpoint, epochs: Epochs | None) -> dict[str, Any]:
    head = checkpoint.head
    copied = (
        "step",
        "phase",
        "epoch",
        "created",
        "size_bytes",
        "metrics",
        "parent",
        "attempt",
        "note",
    )
    return {
        "name": str(head.name),
        "nth_epoch": None if epochs is None or head.epoch is None else epochs.nth(head.epoch),
        "directory": checkpoint.path.name,
        **{name: getattr(head, name) for name in copied},
        "age_s": age_s(head.created),
        "ranks": head.world,
        "not_finite": head.not_finite,
        "not_exact_from": checkpoint.not_exact_from,
        "signed": head.signer,
        "damaged": None,
    }


def quarantined_checkpoints(root: Path, logs: Iterable[Log]) -> list[dict[str, str]]:
    """Return the quarantined checkpoints, each with its reason:
    the journal's, or else the word in its name.
    """
    told = {
        e.get("name"): e.get("why")
        for log in logs
        for e in log.events
        if e["event"] == "quarantined"
    }
    found = []
    for path in scan.glob(root, "quarantine/*"):
        named = _QUARANTINED.fullmatch(path.name)
        name, why = named.groups() if named else (path.name, "no reason given")
        found.append(
            {
                "name": name,
                "why": f"{why}: {told[name]}" if told.get(name) else why,
                "path": str(path),
            }
        )
    return found


def _print(facts: dict[str, Any], *, each_attempt: bool) -> None:
    if not facts["checkpoints"]:
        echo("no committed checkpoint")
    else:
        print_table(
            COLUMNS,
            [_row(row) for row in facts["checkpoints"]],
            right=("STEP", "EPOCH", "SIZE", "ON DISK"),
        )
    if facts["held"]:
        echo(
            "on hold: once it stops it is neither started "
            "again nor requeued, until holdfast release"
        )
    lines = _damaged_lines(facts) + format_section(
        "mirrors", (_mirror_line(each) for each in facts["mirrors"])
    )
    lines += [facts["at_risk"]] if facts["at_risk"] else []
    lines += format_section(
        "quarantine", (f"{each['name']}: {each['why']}" for each in facts["quarantine"])
    )
    lines += format_section(
        "no start uses these", (f"{each['path']}: {each['why']}" for each in facts["left_over"])
    )
    tried = [*map(_attempt_line, facts["attempts"])]
    if each_attempt or len(tried) < 2:
        lines += format_section(f"attempts: {len(tried)}", tried)
    else:
        lines += ["", f"attempts: {len(tried)} (--attempts lists them); the last one: {tried[-1]}"]
    for line in lines:
        echo(line)


def _damaged_lines(facts: dict[str, Any]) -> list[str]:
    return format_section(
        "damaged",
        (f"{row['name']}: {row['damaged']}" for row in facts["checkpoints"] if row["damaged"]),
    )


def _row(row: dict[str, Any]) -> list[object]:
    if row["damaged"] is not None:
        return [row["name"], *[""] * 4, "damaged", *[""] * 7]
    marks = [mark for mark in ("pinned", "best", "latest") if row[mark]]
    marks += ["not finite"] if row["not_finite"] else []
    marks += (
        [f"not exact from step {row['not_exact_from']}"]
        if row["not_exact_from"] is not None
        else []
    )
    marks += [f"of {row['ranks']} ranks"] if row["ranks"] > 1 else []
    # long enough to distinguish keys
    marks += [f"signed by {row['signed'][:15]}"] if row["signed"] else []
    return [
        row["name"] if row["directory"] == row["name"] else f"{row['name']} ({row['directory']})",
        row["step"],
        row["nth_epoch"] or "",
        duration(row["age_s"]),
        size(row["size_bytes"]),
        ", ".join(marks),
        format_metrics(row["metrics"]),
        size(row["disk_bytes"]),
        format_time(row["created"]),
        row["parent"] or "",
        " ".join(row["shares_with"]),
        " ".join(row["at"]),
        row["note"] or "",
    ]


def _mirror_line(each: dict[str, Any]) -> str:
    count = len(each["checkpoints"])
    newest = f"{counted(count, 'checkpoint')}, to {each['checkpoints'][-1]}" if count else "nothing"
    return f"{each['place']}: {newest}{'; ' * bool(each['trouble'])}{each['trouble']}"


def _attempt_line(each: dict[str, Any]) -> str:
    job = f" (job {each['job']})" if each["job"] else ""
    start = f" from {each['restored']}" if each["restored"] else ""
    reached = f" to step {each['last_step']}" if each["last_step"] else ""
    done = "".join(
        f", {each[what]} {what}" for what in ("saved", "pruned", "quarantined") if each[what]
    )
    last = "; last heard of after" if each["ended"] == "killed" else " after"
    took = f"{last} {duration(round(each['seconds']))}" if each["seconds"] is not None else ""
    if each["ended"].startswith("failed: "):  # the error's text comes last: it may be long
        return (
            f"{each['attempt']}{job}{start}{reached}{done}: "
            f"failed{took}: {each['ended'].removeprefix('failed: ')}"
        )
    return f"{each['attempt']}{job}{start}{reached}{done}: {each['ended']}{took}"
