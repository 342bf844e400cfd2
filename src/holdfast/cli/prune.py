"""`holdfast prune`: remove what a rule does not keep."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from .. import journal
from ..errors import UsageError
from ..legible import size
from ..rules import Best, Rule, parts, rule_text
from ..store.checkpoint import Checkpoint
from ..store.locate import run_directory_of, unreadable_reason
from ..store.store import Store
from . import ls, options
from .formatting import echo, echo_json, print_table
from .keep import GRAMMAR, parse_keep


@click.command()
@options.run_here
@click.option("--keep", metavar="RULE", help=f"What stays: {GRAMMAR}. Default: the run's own rule.")
@click.option(
    "--quarantine", is_flag=True, help="Remove what was set aside as damaged; with --keep both."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go; nothing is written.")
@options.as_json
def command(run: str, keep: str | None, quarantine: bool, dry_run: bool, as_json: bool) -> None:
    """Remove the checkpoints of RUN that the rule does not keep. The newest, pinned and damaged
    ones always stay.

    Refused while the run may be going on: it prunes for itself.
    """
    place = options.locate_run(run)
    if place.single:
        raise UsageError(f"{run} is one checkpoint; prune takes a run's directory")
    root = run_directory_of(place)
    rule = None if quarantine and keep is None else parse_keep(keep or _own_rule(root))
    store = Store(root)
    found = {}
    if rule is not None:
        _require_measured(rule, store)
        found = {
            c.path.name: (_row(c), ls.existing_files(c.path).values()) for c in store.checkpoints()
        }
    aside = ls.quarantined_checkpoints(root, journal.logs(root)) if quarantine else []
    held = [ls.existing_files(Path(each["path"])).values() for each in aside]
    try:
        take = store.prunable if dry_run else store.prune
        gone = {c.path.name for c in ([] if rule is None else take(rule))}
        if aside and not dry_run:
            store.empty_quarantine()
    finally:
        store.close()
    rows = [
        row | {"goes": name in gone} for name, (row, _) in found.items() if row["damaged"] != "gone"
    ]
    held += [held for name, (_, held) in found.items() if name in gone]
    facts = {
        "run": run,
        "dry_run": dry_run,
        "rule": rule and rule_text(rule),
        "checkpoints": rows,
        "quarantine": [
            {"name": each["name"], "why": each["why"], "size_bytes": _freed_bytes([kept])}
            for each, kept in zip(aside, held, strict=False)
        ],
        "freed_bytes": _freed_bytes(held),
    }
    if as_json:
        echo_json(facts)
    else:
        _print(facts)


def _own_rule(root: Path) -> str:
    """Return the rule of the run's newest start.

    Raises:
        UsageError: no journal has it.
    """
    for log in reversed(journal.logs(root)):
        for event in log.newest("restored"):
            if isinstance(event.get("keep"), str):
                return str(event["keep"])
    raise UsageError(f"{root}: its journals have no rule; say what stays: --keep last=3")


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
    why = unreadable_reason(checkpoint)
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
    aside = facts["quarantine"]
    if aside:
        cells = [[goes, each["name"], size(each["size_bytes"]), each["why"]] for each in aside]
        print_table(("", "IN QUARANTINE", "SIZE", "DAMAGE"), cells, right=("SIZE",))
    count, rule = sum(row["goes"] for row in facts["checkpoints"]), facts["rule"]
    told = [f"{count} of {len(rows)} checkpoints {removed} by {rule}"] if rule else []
    told += [f"{len(aside)} in quarantine {removed}"] if aside or not rule else []
    echo(f"{', '.join(told)}, {size(facts['freed_bytes'])} freed")
