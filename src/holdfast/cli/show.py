"""`holdfast show`: one checkpoint's origin, leaves, variables and position; or a run's metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from .. import journal
from ..errors import UsageError
from ..foreign.checkpoint import ForeignCheckpoint
from ..legible import counted, duration, size
from ..state import nodes
from ..store import divided
from ..store.checkpoint import Checkpoint
from ..store.format import MOST_NAMES, Manifest
from ..store.locate import run_directory_of
from ..store.stored import Stored, StoredPieces, is_piece
from . import options, others
from .formatting import (
    age_s,
    echo,
    format_metrics,
    format_section,
    format_time,
    json_line,
    limit_lines,
    omitted_lines,
    print_report,
    showing_progress,
)
from .ls import Epochs, epochs_of
from .sources import RemoteSource, open_source

MOST = 12  # leaves of each part, and values, unless --all
MOST_LETTERS = 160  # of a value, unless --all
MOST_LINE = 2000
# title -> the part of the state that the run itself saved
OWN = {"run.vars": "vars", "position": "position"}


@click.command()
@options.run_at
@options.step
@options.rank
@click.option(
    "--metrics",
    is_flag=True,
    help="Print the run's metrics instead, a line for each logging (with --json: JSON).",
)
@options.everything
@options.as_json
def command(
    run: str,
    step: int | str | None,
    rank: int | None,
    metrics: bool,
    everything: bool,
    as_json: bool,
) -> None:
    """Show a checkpoint of RUN: where it came from,
    its leaves, run.vars and position. No tensor is read.
    """
    with showing_progress() as tell, open_source(run, tell, foreign=True) as here:
        if metrics:
            if isinstance(here, RemoteSource):
                raise UsageError(
                    f"{here.shown}: a place has no metrics log; name the run's directory"
                )
            place = here.locate()
            newest = next(reversed(place.checkpoints()), None)
            epochs = None if newest is None else epochs_of(newest)
            for event in journal.metrics(run_directory_of(place)):
                echo(json_line(event) if as_json else _logged(event, epochs))
            return
        found = here.locate().select(step)
        here.fetch_files(found, ())
        checkpoint = options.view_as_rank(found, rank)
        tell("")
        lines = _lines(checkpoint, everything=everything)
        most = None if everything else MOST_LINE
        print_report(facts(checkpoint) if as_json else None, lines, as_json=as_json, most=most)


def facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return everything in a manifest but digests and places;
    of another program's checkpoint, what is known.
    """
    if isinstance(checkpoint, ForeignCheckpoint):
        own = {"path": str(checkpoint.path), "name": checkpoint.name, **others.facts(checkpoint)}
        return own | _held(checkpoint)
    m, tree = checkpoint.manifest, checkpoint.tree
    copied = (
        "step",
        "phase",
        "epoch",
        "created",
        "run",
        "attempt",
        "parent",
        "metrics",
        "note",
        "size_bytes",
        "not_finite",
    )
    return {
        "path": str(checkpoint.path),
        "name": checkpoint.name,
        **{name: getattr(m, name) for name in copied},
        "ranks": m.world,
        "signed": m.signer,
        "document": m.document,
        **{name: nodes.to_json(nodes.node_at(tree, "holdfast", name)) for name in OWN.values()},
        "files": {name: file.size_bytes for name, file in m.files.items()},
        **_held(checkpoint),
    }


def _held(checkpoint: Checkpoint) -> dict[str, Any]:
    leaves = {key: _leaf(leaf) for key, leaf in checkpoint.leaves().items()}
    return {"leaves": leaves, "tree": nodes.to_json(checkpoint.tree)}


def _leaf(leaf: Stored) -> dict[str, Any]:
    facts = {
        "kind": leaf.kind,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "size_bytes": leaf.size_bytes,
    }
    if isinstance(leaf, StoredPieces):
        return {
            **facts,
            "pieces": [{"at": list(each.at), **_leaf(each.leaf)} for each in leaf.pieces],
        }
    return {**facts, "shard": leaf.path.name}


def _lines(checkpoint: Checkpoint, *, everything: bool) -> Iterator[str]:
    m, tree = checkpoint.manifest, checkpoint.tree
    yield str(checkpoint.path)
    origin = (
        others.origin(checkpoint)
        if isinstance(checkpoint, ForeignCheckpoint)
        else _origin(m, epochs_of(checkpoint))
    )
    for name, text in origin:
        yield f"  {name:<16}{text}"
    yield from _leaves(checkpoint.leaves(), None if everything else MOST)
    held = {leaf.shard for leaf in m.leaves.values()} | {each.part for each in m.ranks or ()}
    loose = {name: file for name, file in m.files.items() if name not in held}
    shown = [f"{name}  {size(file.size_bytes)}" for name, file in loose.items()]
    yield from format_section("files", limit_lines(shown, None if everything else MOST))
    for title, name in OWN.items():
        found = nodes.describe_members(
            nodes.node_at(tree, "holdfast", name), None if everything else MOST_LETTERS
        )
        yield from format_section(title, [f"{part} = {text}" for part, text in found])
    own = tuple(f"holdfast/{name}/" for name in OWN.values())
    rest = [each for each in nodes.iterate_values(tree) if not each[0].startswith(own)]
    shown = [_value(*each, everything=everything) for each in (rest if everything else rest[:MOST])]
    yield from format_section(
        f"values: {len(rest)}", [*shown, *omitted_lines(len(rest) - len(shown))]
    )


def _origin(m: Manifest, epochs: Epochs | None) -> Iterator[tuple[str, str]]:
    """Yield the known facts about its origin: a title and a text for each line."""
    yield "step", f"{m.step}" + (" (the end of its epoch)" if m.phase == "end" else "")
    if m.epoch is not None and epochs is not None:
        yield "epoch", epochs.nth(m.epoch)
    yield "time", f"{format_time(m.created)} ({duration(age_s(m.created))} ago)"
    leaves = counted(len(divided.leaf_keys(m.leaves)), "leaf", "leaves")
    yield "size", f"{size(m.size_bytes)} in {counted(len(m.files), 'file')}, {leaves}"
    if m.world > 1:
        pieces = sum(map(is_piece, m.leaves.values()))
        own = sum(key.startswith("@") for key in m.leaves) - pieces
        yield (
            "ranks",
            (
                f"{m.world}; {counted(own, 'leaf', 'leaves')} "
                f"of one rank alone, {counted(pieces, 'piece')}"
            ),
        )
    yield "attempt", f"{m.attempt} of run {m.run}"
    yield "parent", m.parent or "none"
    if m.not_finite:
        more = " and perhaps others" if len(m.not_finite) == MOST_NAMES else ""
        yield "not finite", f"infinite or NaN numbers in {', '.join(m.not_finite)}{more}"
    if m.signer:
        yield "signed", f"by key {m.signer}; holdfast verify --key checks that"
    if m.metrics:
        yield "metrics", format_metrics(m.metrics)
    if m.note:
        yield "note", m.note
    for name, value in m.document.items():
        yield from _document(str(name), value)


def _document(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is None or value == {}:
        return
    if name == "git" and isinstance(value, Mapping):
        yield (
            name,
            f"{value.get('commit')}"
            + (", with changes that are not committed" if value.get("dirty") else ""),
        )
    elif name == "command" and isinstance(value, list):
        yield name, " ".join(map(str, value))
    elif name == "model" and isinstance(value, Mapping):
        yield from ((name, _model(str(key), each)) for key, each in value.items())
    elif isinstance(value, Mapping):
        yield name, ", ".join(f"{key}={_text(each)}" for key, each in value.items())
    else:
        yield name, _text(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_line(value)


def _model(name: str, facts: Any) -> str:
    if not isinstance(facts, Mapping):
        return f"{name}: {facts}"
    count = facts.get("parameters")
    return f"{name}: {facts.get('class')}" + (
        f", {counted(count, 'parameter')}" if isinstance(count, int) else ""
    )


def _leaves(leaves: Mapping[str, Stored], most: int | None) -> Iterator[str]:
    parts: dict[str, dict[str, Stored]] = {}
    for key, leaf in leaves.items():
        part, slash, _ = key.partition("/")
        parts.setdefault(part if slash or len(leaves) == 1 else "state", {})[key] = leaf
    for part, found in parts.items():
        width = max(map(len, [*found][:most]))
        lines = [
            f"{key:<{width}}  {it.dtype} {list(it.shape)}  {size(it.size_bytes)}"
            for key, it in found.items()
        ]
        total = size(sum(leaf.size_bytes for leaf in found.values()))
        yield from format_section(
            f"{part}: {counted(len(found), 'leaf', 'leaves')}, {total}", limit_lines(lines, most)
        )


def _value(path: str, node: Any, *, everything: bool) -> str:
    return f"{path} = {nodes.format_node(node, None if everything else MOST_LETTERS)}"


def _logged(event: Mapping[str, Any], epochs: Epochs | None) -> str:
    logged = event.get("values")
    at = event.get("epoch")
    epoch = "" if at is None or epochs is None else f"  epoch {epochs.nth(at)}"
    phase = "" if event.get("phase", "step") == "step" else f" ({event['phase']})"
    return (
        f"step {event.get('step')}{phase}{epoch}  "
        f"{format_metrics(logged) if isinstance(logged, Mapping) else ''}"
    )
