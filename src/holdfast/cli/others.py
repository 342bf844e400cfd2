"""Others: the facts that `ls` and `show` print about checkpoints of other programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import Damaged, StoreError
from ..foreign.checkpoint import ForeignCheckpoint
from ..legible import counted, duration, size
from ..store.format import utc
from .formatting import age_s, format_time, json_line

COLUMNS = ("NAME", "FORMAT", "STEP", "EPOCH", "AGE", "SIZE", "TENSORS", "TIME (UTC)")
_MOST = 12  # of a fact's members


def row(checkpoint: ForeignCheckpoint) -> dict[str, Any]:
    """Return the facts of one checkpoint for `ls`; if it is damaged, the first reason."""
    created = utc(checkpoint.path.stat().st_mtime)
    known = {
        "name": checkpoint.name,
        "created": created,
        "age_s": age_s(created),
        "size_bytes": checkpoint.size_bytes,
    }
    try:
        found = checkpoint.content
        flaw = next(found.problems, None)
    except Damaged as error:
        return known | {"damaged": str(error)}
    except StoreError as error:
        return known | {"damaged": f"unreadable: {error}"}
    facts = {
        "format": found.format,
        "step": found.step,
        "epoch": found.epoch,
        "tensors": len(found.leaves),
    }
    return known | facts | {"damaged": None if flaw is None else str(flaw)}


def cells(each: dict[str, Any]) -> list[object]:
    """Return a row of the table."""
    numbers = ["" if each.get(name) is None else each[name] for name in ("format", "step", "epoch")]
    last = (each["tensors"] if each["damaged"] is None else "damaged", format_time(each["created"]))
    return [each["name"], *numbers, duration(each["age_s"]), size(each["size_bytes"]), *last]


def facts(checkpoint: ForeignCheckpoint) -> dict[str, Any]:
    """Return what `show` says besides leaves and tree."""
    found = checkpoint.content
    return {
        "format": found.format,
        "step": found.step,
        "epoch": found.epoch,
        "created": checkpoint.manifest.created,
        "size_bytes": checkpoint.size_bytes,
        "values": found.values,
        "files": [str(path) for path in found.files],
        "document": dict(found.facts),
        "problems": [str(problem) for problem in found.problems],
    }


def origin(checkpoint: ForeignCheckpoint) -> Iterator[tuple[str, str]]:
    """Yield a title and a text for each line."""
    known, created = facts(checkpoint), checkpoint.manifest.created
    yield "format", known["format"]
    yield from ((name, str(known[name])) for name in ("step", "epoch") if known[name] is not None)
    yield "time", f"{format_time(created)} ({duration(age_s(created))} ago)"
    leaves = counted(len(checkpoint.leaves()), "leaf", "leaves")
    yield "size", f"{size(known['size_bytes'])} in {counted(len(known['files']), 'file')}, {leaves}"
    if known["values"] != "read":
        yield "values", known["values"]
    for name, value in known["document"].items():
        yield name, _text(value)
    yield from (("damaged", each) for each in known["problems"][:_MOST])


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{key}={each if isinstance(each, str) else json_line(each)}"
            for key, each in value.items()
        )
    if isinstance(value, list):
        more = f", and {len(value) - _MOST} more" if len(value) > _MOST else ""
        return ", ".join(map(str, value[:_MOST])) + more
    return str(value)
