"""`holdfast copy`: checkpoints, whole and verified, to another directory or to a place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from .. import journal, owner, scan
from ..errors import Damaged, NotFound, UsageError
from ..legible import size
from ..mirror.adding import AttemptFacts
from ..mirror.place import redact_url
from ..mirror.run_lineage import resume_origin_of
from ..store import claiming
from ..store.attempt import read_run
from ..store.checkpoint import Checkpoint
from ..store.claiming import RemoteFacts
from ..store.format import encode_run
from . import options
from .formatting import print_report, showing_progress
from .sources import LocalSource, RemoteSource, open_source
from .targets import CopyItem, CopyTarget, open_target


@click.command()
@click.argument("src", metavar="SRC", shell_complete=options.complete_directories)
@click.argument("dst", metavar="DST", shell_complete=options.complete_directories)
@click.option("--all", "everything", is_flag=True, help="Copy all checkpoints, oldest first.")
@options.as_json
def command(src: str, dst: str, everything: bool, as_json: bool) -> int:
    """Copy the newest checkpoint of SRC to DST, whole and verified. SRC is a RUN, RUN@STEP, or the
    address of a place.

    DST is a folder, which becomes a run's directory, or the address of a place. Nothing is
    overwritten: DST is empty, or holds checkpoints of the same run. Repeat an interrupted copy as
    it was.
    """
    path, step = options.split_step(src)
    if everything and step is not None:
        raise UsageError(f"{redact_url(src)}: --all copies every step; leave @{step} out")
    with showing_progress() as tell, open_source(path, tell) as here:
        chosen = here.locate().readable() if everything else [here.locate().select(step)]
        if not chosen:
            raise NotFound(f"{here.shown}: no whole checkpoint")
        known = RemoteFacts(chosen[-1].head.run, _last_attempt(here, chosen))
        facts: dict[str, Any] = {"source": here.shown, "checkpoints": []}
        with open_target(dst, _run_json(here, known), known, tell) as to:
            facts["target"] = to.shown
            for item in _items_to_copy(here, chosen, known):
                facts["checkpoints"].append(_copy_item(item, to, damage_is_told=everything))
        tell("")
        print_report(facts, _lines(facts), as_json=as_json)
    return Damaged.exit_code if any(each["damaged"] for each in facts["checkpoints"]) else 0


def _last_attempt(here: LocalSource, chosen: Sequence[Checkpoint]) -> int:
    claims = here.seen.claims if isinstance(here, RemoteSource) else []
    return max(*(each.head.attempt for each in chosen), *(claim.attempt for claim in claims), 0)


def _run_json(here: LocalSource, known: RemoteFacts) -> str:
    """Return the text of run.json. A copied single checkpoint has no such file; the run's id is
    then taken from its manifest.
    """
    if isinstance(here, RemoteSource):
        return here.seen.run_json
    root = here.locate().root
    if root is not None and scan.is_file(root / "run.json") and read_run(root) == known.run:
        return (root / "run.json").read_text()
    return encode_run(str(known.run), owner.describe_this_process(), None).decode()


def _items_to_copy(
    here: LocalSource, chosen: Sequence[Checkpoint], known: RemoteFacts
) -> Iterator[CopyItem]:
    saved = _attempts(here)
    for checkpoint in chosen:
        if checkpoint.head.run != known.run:
            raise UsageError(
                f"{checkpoint.path}: of another run than "
                f"{chosen[-1].path}; copy it to another place"
            )
        number = here.attempt_of(checkpoint)
        yield CopyItem(here, checkpoint, saved.get(number, AttemptFacts(number, None, ended=True)))


def _attempts(here: LocalSource) -> dict[int, AttemptFacts]:
    """Return what the source knows of the attempts that saved its checkpoints."""
    if isinstance(here, RemoteSource):
        return {
            each.attempt: AttemptFacts(each.attempt, each.origin, each.ended)
            for each in here.seen.claims
        }
    root = here.locate().root
    if root is None:
        return {}
    alive = {log.attempt for log in claiming.possibly_alive_attempts(root)}
    logs = [log for log in journal.logs(root) if log.restored is not None]
    before = dict(zip((log.attempt for log in logs), [None, *logs], strict=False))
    return {
        log.attempt: AttemptFacts(
            log.attempt, resume_origin_of(log, before[log.attempt]), log.attempt not in alive
        )
        for log in logs
    }


def _copy_item(item: CopyItem, to: CopyTarget, *, damage_is_told: bool) -> dict[str, Any]:
    """Copy a checkpoint unless it is there already; return the result for the user."""
    facts = {
        "name": item.name,
        "size_bytes": item.checkpoint.size_bytes,
        "verified": None,
        "damaged": None,
    }
    there = to.digest(item)
    if there == item.digest:
        return facts
    if there is not None:
        raise UsageError(
            f"{to.shown}: another {item.name} lies there, "
            "and is not overwritten; copy to another place"
        )
    try:
        return facts | {"verified": to.add(item)}
    except Damaged as error:
        if not damage_is_told:
            raise
        return facts | {"damaged": str(error)}


def _lines(facts: dict[str, Any]) -> Iterator[str]:
    for each in facts["checkpoints"]:
        if each["damaged"]:
            yield f"{each['name']}  DAMAGED, not copied: {each['damaged']}"
        elif each["verified"]:
            yield (
                f"{each['name']}  copied  {size(each['size_bytes'])}  verified: {each['verified']}"
            )
        else:
            yield f"{each['name']}  was there already"
    copied = [each for each in facts["checkpoints"] if each["verified"]]
    yield (
        f"{facts['target']}: {len(copied)} copied, "
        f"{size(sum(each['size_bytes'] for each in copied))}"
    )
