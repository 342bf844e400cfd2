"""Mirrored: which checkpoints of a run each of its places holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from typing import Any, NamedTuple

from .. import journal
from ..errors import HoldfastError
from ..inspect import mirrors
from ..legible import counted
from ..mirror.backends import open_place
from ..mirror.remote import RemoteRun
from ..mirror.sending import manifest_digest
from ..store import source
from ..store.format import MANIFEST
from ..store.locate import Location
from . import system_error_text
from .sources import LocalSource, RemoteSource, Tell, current_lineage


class PlaceCheckpoints(NamedTuple):
    """The checkpoints at one place."""

    place: str
    copies: list[str]  # names, oldest first
    others: list[str]  # of these, those whose manifest differs from that in the run's directory
    # checkpoints of the run's directory that are newer than all that the place has
    lacking: list[str]
    error: str | None  # why this is not known


def read_places(here: LocalSource, tell: Tell) -> list[PlaceCheckpoints]:
    """Look at the places to which the run in this directory was copied,
    according to its journals.
    """
    place = here.locate()
    if place.root is None or place.single or isinstance(here, RemoteSource):
        return []
    found = []
    try:
        named = [each.place for each in mirrors.mirrors_of_run(journal.logs(place.root))]
    except OSError as error:
        return [
            PlaceCheckpoints(
                "places of this run",
                [],
                [],
                [],
                f"a journal cannot be read: {system_error_text(error)}",
            )
        ]
    for shown in named:
        tell(f"looking at {shown}")
        found.append(_place_checkpoints(shown, place))
    return found


def _place_checkpoints(shown: str, place: Location) -> PlaceCheckpoints:
    try:
        with closing(open_place(shown)) as opened:
            seen = RemoteRun(opened).read_state()
    except (HoldfastError, OSError) as error:
        return PlaceCheckpoints(shown, [], [], [], str(error))
    there = {copy.name: copy.digest for copy in current_lineage(seen)}
    mine = {}
    for each in place.readable():
        with suppress(FileNotFoundError):  # the run has removed it meanwhile
            mine[each.path.name] = manifest_digest(source.read_whole(each.path / MANIFEST))
    names = [*mine]
    newest = max(
        (number for number, name in enumerate(names) if there.get(name) == mine[name]), default=-1
    )
    others = [name for name in there if name in mine and mine[name] != there[name]]
    return PlaceCheckpoints(shown, [*there], others, names[newest + 1 :], None)


def facts_of(held: PlaceCheckpoints) -> dict[str, Any]:
    return held._asdict()


def lines_of(found: Iterable[PlaceCheckpoints]) -> Iterator[str]:
    for held in found:
        if held.error is not None:
            yield f"{held.place}  nobody knows: {held.error}"
            continue
        newest = ", the newest" if len(held.copies) > 1 else ""
        copies = (
            f"{counted(len(held.copies), 'copy', 'copies')}{newest} {held.copies[-1]}"
            if held.copies
            else "no copy"
        )
        yield f"{held.place}  {copies}; holdfast verify {held.place} reads them"
        yield from (f"  {name}: another checkpoint of that name lies there" for name in held.others)
        if held.lacking:
            yield f"  not there yet: {', '.join(held.lacking)}"
