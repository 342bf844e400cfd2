"""`holdfast show`: one checkpoint's origin, leaves, variables and position; or a run's metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from .. import journal
from ..inspect import nodes
from ..store import divided
from ..store.checkpoint import Checkpoint
from ..store.format import Manifest
from ..store.locate import locate, run_of
from ..store.stored import Stored, StoredLeaf, is_piece
from . import options
from .shown import age_s, duration, echo, echo_json, json_line, moment, numbers, size

MOST_LEAVES = 12  # of each part, unless --all


@click.command(short_help="Show what a checkpoint holds and where it came from.")
@options.run
@options.step
@options.rank
@click.option(
    "--metrics", is_flag=True, help="Print the run's metrics instead, a line for each logging (with --json: JSON)."
)
@options.everything
@options.as_json
def command(run: str, step: int | str | None, rank: int | None, metrics: bool, everything: bool, as_json: bool) -> None:
    """Show a checkpoint of RUN: where it came from, its leaves, run.vars and position. No tensor is read."""
    place = locate(run)
    if metrics:
        _print_metrics(journal.metrics(run_of(place)), as_json=as_json)
        return
    checkpoint = options.as_rank(place.select(step), rank)
    if as_json:
        echo_json(facts(checkpoint))
    else:
        _print(checkpoint, everything=everything)


def facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """All of a manifest but digests and places."""
    m, tree = checkpoint.manifest, checkpoint.tree
    own = {name: nodes.plain(nodes.at(tree, "holdfast", name)) for name in ("vars", "position")}
    return {
        "path": str(checkpoint.path),
        "name": checkpoint.name,
        "step": m.step,
        "phase": m.phase,
        "epoch": m.epoch,
        "created": m.created,
        "run": m.run,
        "attempt": m.attempt,
        "parent": m.parent,
        "metrics": m.metrics,
        "note": m.note,
        "size_bytes": m.size_bytes,
        "ranks": m.world,
        "document": m.document,
        **own,
        "files": {name: file.size_bytes for name, file in m.files.items()},
        "leaves": {key: _leaf(leaf) for key, leaf in checkpoint.leaves().items()},
        "tree": nodes.plain(tree),
    }


def _leaf(leaf: Stored) -> dict[str, Any]:
    facts = {"kind": leaf.kind, "dtype": leaf.dtype, "shape": list(leaf.shape), "size_bytes": leaf.size_bytes}
    if isinstance(leaf, StoredLeaf):
        return {**facts, "shard": leaf.path.name}
    return {**facts, "pieces": [{"at": list(each.at), **_leaf(each.leaf)} for each in leaf.pieces]}


def _print(checkpoint: Checkpoint, *, everything: bool) -> None:
    m, tree = checkpoint.manifest, checkpoint.tree
    echo(f"{checkpoint.path}")
    for name, text in _lines(m):
        echo(f"  {name:<16}{text}")
    for line in _leaves(checkpoint.leaves(), everything=everything):
        echo(line)
    held = {leaf.shard for leaf in m.leaves.values()} | {each.part for each in m.ranks or ()}
    loose = [name for name in m.files if name not in held]
    if loose:
        echo()
        echo("files")
    for name in loose:
        echo(f"  {name}  {size(m.files[name].size_bytes)}")
    for name in ("vars", "position"):
        node = nodes.at(tree, "holdfast", name)
        members = nodes.opened(node).members if node is not None else None
        if members:
            echo()
            echo("run.vars" if name == "vars" else name)
            for part, member in members.items():
                _print_value(part, nodes.spelled(member), everything=everything)
    _print_values(tree, everything=everything)


def _lines(m: Manifest) -> Iterator[tuple[str, str]]:
    """The document: what is known, a line each."""
    at = "the end of its epoch" if m.phase == "end" else ""
    yield "step", f"{m.step}" + (f" ({at})" if at else "")
    if m.epoch is not None:
        yield "epoch", str(m.epoch)
    yield "time", f"{moment(m.created)} ({duration(age_s(m.created))} ago)"
    yield "size", f"{size(m.size_bytes)} in {len(m.files)} files, {_count(m)} leaves"
    if m.world > 1:
        yield "ranks", f"{m.world}; {_own(m)} leaves are one rank's own, {_divided(m)} are pieces"
    yield "attempt", f"{m.attempt} of run {m.run}"
    yield "parent", m.parent or "none"
    if m.metrics:
        yield "metrics", numbers(m.metrics)
    if m.note:
        yield "note", m.note
    for name, value in m.document.items():
        yield from _document(str(name), value)


def _count(m: Manifest) -> int:
    """A leaf that one process has divided counts once."""
    places = ((divided.parse(key), key) for key in m.leaves)
    return len({place.leaf if place is not None else key for place, key in places})


def _own(m: Manifest) -> int:
    return sum(key.startswith("@") for key in m.leaves) - _divided(m)


def _divided(m: Manifest) -> int:
    return sum(map(is_piece, m.leaves.values()))


def _document(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if value is None or value == {}:
        return
    if name == "git" and isinstance(value, Mapping):
        yield name, f"{value.get('commit')}" + (", with changes that are not committed" if value.get("dirty") else "")
    elif name == "command" and isinstance(value, list):
        yield name, " ".join(map(str, value))
    elif name == "model" and isinstance(value, Mapping):
        yield from ((name, _model(str(key), each)) for key, each in value.items())
    elif isinstance(value, Mapping):
        yield (
            name,
            ", ".join(f"{key}={each if isinstance(each, str) else json_line(each)}" for key, each in value.items()),
        )
    else:
        yield name, value if isinstance(value, str) else json_line(value)


def _model(name: str, facts: Any) -> str:
    if not isinstance(facts, Mapping):
        return f"{name}: {facts}"
    count = facts.get("parameters")
    return f"{name}: {facts.get('class')}" + (f", {count:,} parameters" if isinstance(count, int) else "")


def _leaves(leaves: Mapping[str, Any], *, everything: bool) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for key in leaves:
        groups.setdefault(key.partition("/")[0], []).append(key)
    for part, keys in groups.items():
        total = sum(leaves[key].size_bytes for key in keys)
        yield ""
        yield f"{part}: {len(keys)} leaves, {size(total)}"
        shown = keys if everything else keys[:MOST_LEAVES]
        width = max(len(key) for key in shown)
        for key in shown:
            leaf = leaves[key]
            yield f"  {key:<{width}}  {leaf.dtype} {list(leaf.shape)}  {size(leaf.size_bytes)}"
        if len(shown) < len(keys):
            yield f"  ... and {len(keys) - len(shown)} more (--all)"


def _print_values(tree: Any, *, everything: bool) -> None:
    """What the tree holds besides leaves: numbers, text, values of types that are not at hand."""
    found = [
        (path, text) for path, text in values(tree) if not path.startswith(("holdfast/vars/", "holdfast/position/"))
    ]
    if found:
        echo()
        echo(f"values: {len(found)}")
        for path, text in found if everything else found[:MOST_LEAVES]:
            _print_value(path, text, everything=everything)
        if len(found) > MOST_LEAVES and not everything:
            echo(f"  ... and {len(found) - MOST_LEAVES} more (--all)")


def _print_value(path: str, text: str, *, everything: bool) -> None:
    echo(f"  {path} = {text if everything or len(text) <= 160 else text[:157] + '...'}")


def values(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Everything below `node` that is neither a leaf nor full of others."""
    if nodes.tagged(node)[0] in nodes.LEAVES:
        return
    kind, members, _ = nodes.opened(node)
    inner = (members or {}).values()
    in_a_row = kind == "list" and all(not isinstance(each, list | dict) for each in inner)
    compact = not inner or kind in ("tuple", "set", "frozenset") or in_a_row
    if compact and not any(nodes.places(node)):
        yield path or "state", nodes.spelled(node)
        return
    for part, member in (members or {}).items():
        yield from values(member, f"{path}/{part}" if path else part)


def _print_metrics(events: list[dict[str, Any]], *, as_json: bool) -> None:
    for event in events:
        if as_json:
            echo(json_line(event))
            continue
        logged = event.get("values")
        epoch = "" if event.get("epoch") is None else f"  epoch {event['epoch']}"
        phase = "" if event.get("phase", "step") == "step" else f" ({event['phase']})"
        echo(f"step {event.get('step')}{phase}{epoch}  {numbers(logged) if isinstance(logged, Mapping) else ''}")
