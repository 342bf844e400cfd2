"""`holdfast prune`: remove what a rule does not keep."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

import click

from ..errors import UsageError
from ..legible import size
from ..rules import Best, Rule, parts
from ..store.checkpoint import Checkpoint
from ..store.locate import fault, run_of
from ..store.store import Store
from . import options
from .formatting import echo, echo_json, print_table
from .keep import GRAMMAR, parse_keep
from .ls import existing_files


@click.command()
@options.run_here
@click.option("--keep", metavar="RULE", required=True, help=f"What stays: {GRAMMAR}.")
@click.option("--dry-run", is_flag=True, help="Only say what would go; nothing is written.")
@options.as_json
def command(run: str, keep: str, dry_run: bool, as_json: bool) -> None:
    """Remove the checkpoints of RUN that the rule does not keep. The newest, pinned and damaged
    ones always stay.

    Refused while the run may be going on: it prunes for itself.
    """
    rule = parse_keep(keep)
    place = options.locate_run(run)
    if place.single:
        raise UsageError(f"{run} is one checkpoint; prune takes a run's directory")
    store = Store(run_of(place))
    _require_measured(rule, store)
    found = {c.path.name: (_row(c), existing_files(c).values()) for c in store.checkpoints()}
    if dry_run:
        doomed = store.prunable(rule)
    else:
        try:
            doomed = store.prune(rule)
        finally:
            store.close()
    gone = {c.path.name for c in doomed}
    rows = [
        row | {"goes": name in gone} for name, (row, _) in found.items() if row["damaged"] != "gone"
    ]
    facts = {
        "run": run,
        "dry_run": dry_run,
        "checkpoints": rows,
        "freed_bytes": _freed_bytes(held for name, (_, held) in found.items() if name in gone),
    }
    if as_json:
        echo_json(facts)
    else:
        _print(facts)


def _require_measured(rule: Rule, store: Store) -> None:
    """Refuse a rule that would keep nothing.

    Raises:
        UsageError: `Best` ranks by a metric that no checkpoint has.
    """
    known = sorted({name for facts in store.facts() for name in facts.metrics})
    for each in parts(rule):
        if isinstance(each, Best) and known and each.metric not in known:
            raise UsageError(
                f"no checkpoint of {store.root} has the metric "
                f"{each.metric!r}; they have {', '.join(known)}"
            )


def _freed_bytes(gone: Iterable[Iterable[os.stat_result]]) -> int:
    """Return the size of the files that have no name any more."""
    names = Counter(
        (facts.st_ino, facts.st_dev, facts.st_nlink, facts.st_size)
        for each in gone
        for facts in each
    )
    return sum(size_bytes for (*_, links, size_bytes), count in names.items() if links <= count)


def _row(checkpoint: Checkpoint) -> dict[str, Any]:
    why = fault(checkpoint)
    return {
        "name": checkpoint.path.name,
        "size_bytes": None if why else checkpoint.size_bytes,
        "damaged": why,
    }


def _print(facts: dict[str, Any]) -> None:
    goes, removed = ("would go", "would be removed") if facts["dry_run"] else ("removed", "removed")
    rows = []
    for row in facts["checkpoints"]:
        size_text = "" if row["size_bytes"] is None else size(row["size_bytes"])
        rows.append(
            [goes if row["goes"] else "stays", row["name"], size_text, row["damaged"] or ""]
        )
    if rows:
        print_table(("", "NAME", "SIZE", "DAMAGE"), rows, right=("SIZE",))
    count = sum(row["goes"] for row in facts["checkpoints"])
    echo(f"{count} of {len(rows)} {removed}, {size(facts['freed_bytes'])} freed")
