"""Room: whether the next checkpoints will fit, and whether a site's purge will take what the run
keeps.

Each is reported once, before it happens. Nothing is deleted or refused because of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from . import disk, retention, scan, settings
from .cluster.quota import Quota, quotas
from .errors import ClusterError, Damaged, NotFound
from .legible import size
from .retention import CheckpointFacts
from .rules import Rule
from .store.store import Store
from .terminal import warn

AHEAD = 5  # checkpoints that have to fit
WARNED = 0.75  # part of the site's days: older files are reported
LOOK_S = 10.0  # between two looks
ASK_S = 3600.0  # between two questions that may take a while


class SpaceNeed(NamedTuple):
    """The largest additional space that the next saves need, reached before the last of them
    prunes.
    """

    saves: int
    bytes: int
    files: int


def predict_need(
    facts: Sequence[CheckpointFacts], rule: Rule | None, fresh_bytes: int, files: int
) -> SpaceNeed:
    """Predict the next saves under `rule`, at equal intervals.

    `fresh_bytes` and `files` are those of one checkpoint. A pruned checkpoint frees at most that
    much.
    """
    there, most, now = list(facts), 0, len(facts)
    for _ in range(AHEAD if facts else 0):
        there.append(_next_facts(there))
        most = max(most, len(there) - now)
        kept = {each.name for each in there} if rule is None else retention.keep(there, rule)
        there = [each for each in there if each.name in kept]
    return SpaceNeed(AHEAD, most * fresh_bytes, most * files)


def _next_facts(facts: Sequence[CheckpointFacts]) -> CheckpointFacts:
    last, before = facts[-1], facts[-2] if len(facts) > 1 else facts[-1]
    step = last.step + max(1, last.step - before.step)
    epoch = None if last.epoch is None else last.epoch + last.epoch - (before.epoch or 0)
    created = last.created + max(0.0, last.created - before.created)
    return last._replace(
        name=f"{step} to come", step=step, epoch=epoch, created=created, pinned=False
    )


def find_shortages(
    root: Path, wanted: SpaceNeed, limits: Sequence[Quota]
) -> Iterator[tuple[str, str]]:
    """Yield each shortage for the next saves: its kind, and a sentence."""
    told = f"the next {wanted.saves} saves need {size(wanted.bytes)}"
    free, inodes = disk.free_space(root)
    if free < wanted.bytes:
        yield "space", f"{told}, and {size(free)} are free"
    if inodes is not None and inodes < wanted.files:
        yield (
            "files",
            (
                f"the next {wanted.saves} saves need {wanted.files} files, "
                f"and there is room for {inodes}"
            ),
        )
    mount = _mount_point(root)
    for limit in limits:
        if (
            limit.place == mount
            and limit.limit_bytes
            and limit.limit_bytes - limit.used_bytes < wanted.bytes
        ):
            left = size(max(0, limit.limit_bytes - limit.used_bytes))
            yield (
                f"quota of {limit.owner}",
                f"{told}, and the quota of {limit.owner} has {left} left",
            )
        if (
            limit.place == mount
            and limit.limit_files
            and limit.limit_files - limit.used_files < wanted.files
        ):
            files = max(0, limit.limit_files - limit.used_files)
            what = f"the next {wanted.saves} saves need {wanted.files} files"
            yield (
                f"files of {limit.owner}",
                f"{what}, and the quota of {limit.owner} has {files} left",
            )


def describe_purge(root: Path, days: float, now: float) -> str | None:
    """Return which files of the run a purge will take soon; None if there are none.

    A purge goes by the time of the last change or read; here the last change counts, which is never
    later. A linked file has the time at which it was written, also in a new checkpoint.
    """
    old = []
    for folder, _, names in scan.walk(root):
        for name in names:
            with suppress(FileNotFoundError):  # removed meanwhile
                old.append((os.lstat(path := Path(folder, name)).st_mtime, path))
    old = [(at, path) for at, path in old if now - at > WARNED * days * 86400]
    if not old:
        return None
    at, path = min(old)
    due = datetime.fromtimestamp(at + days * 86400).astimezone()
    many = f"{len(old)} files of the run are" if len(old) > 1 else "a file of the run is"
    return (
        f"this site deletes files after {days:g} days, and {many} nearly as old: first goes "
        f"{path.relative_to(root)}, on {due:%Y-%m-%d}; "
        f"copy the run to a place that lasts: holdfast copy {root} PLACE"
    )


class DiskSpaceCheck(msgspec.Struct):
    """Warns after each save, on rank 0, if the next saves will not fit on the disk."""

    _store: Store
    _rule: Rule
    _told: set[str] = set()
    _limits: list[Quota] = []
    _looked_s: float = -ASK_S
    _asked_s: float = -ASK_S

    def check_space(self) -> None:
        """Warn of shortages. Facts that cannot be determined cause no warning."""
        root, now_s = self._store.root, time.monotonic()
        if now_s < self._looked_s + LOOK_S:
            return
        self._looked_s = now_s
        with suppress(OSError, Damaged, NotFound):
            if now_s > self._asked_s + ASK_S:
                self._asked_s = now_s
                self._limits = _read_quotas()
                if (days := settings.purge_days()) is not None and (
                    text := describe_purge(root, days, time.time())
                ) is not None:
                    self._warn_once("purge", text)
            for what, text in find_shortages(
                root, needed_space(self._store, self._rule), self._limits
            ):
                self._warn_once(what, f"{text}: free some, or keep fewer checkpoints")

    def _warn_once(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warn(f"{self._store.root}: {text}")


def needed_space(store: Store, rule: Rule | None) -> SpaceNeed:
    """Return the needs of the next saves of this store, if they are like the last one.

    Raises:
        NotFound, Damaged: there is no last one.
    """
    head = store.latest().head
    links = sum(file.size_bytes for file in head.files.values() if file.links)
    return predict_need(store.facts(), rule, head.size_bytes - links, len(head.files) + 2)


def _read_quotas() -> list[Quota]:
    try:
        return quotas()
    except ClusterError:
        return []


def _mount_point(path: Path) -> str:
    place = Path(os.path.realpath(path))
    while not os.path.ismount(place):
        place = place.parent
    return str(place)
