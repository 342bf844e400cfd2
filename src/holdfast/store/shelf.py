"""Shelf: the checkpoints and pins that lie in a run's directory, as any process finds them. Nothing here writes."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from .. import retention
from ..errors import Damaged, NotFound
from ..retention import CheckpointFacts
from ..rules import Best
from ..terminal import warn
from . import format, pins
from .checkpoint import Checkpoint
from .format import MANIFEST, Name

T = TypeVar("T")

_MOST_LOOKS = 100  # at a store whose owner saves and prunes meanwhile


class _Card(NamedTuple):
    """What one manifest said. A checkpoint is never changed: this holds while the file is the same one."""

    inode: int
    mtime_ns: int
    facts: CheckpointFacts  # without its pin, which comes and goes
    best_rule: Best | None


class Shelf:
    """What lies below `root`. However often it is asked for facts, it decodes each manifest once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cards: dict[str, _Card] = {}

    def checkpoint(self, name: Name | str) -> Checkpoint:
        return Checkpoint(self.root / "checkpoints" / str(name))

    def names(self) -> list[Name]:
        """Names of what exists, in order."""
        return committed(self.root / "checkpoints")

    def checkpoints(self) -> list[Checkpoint]:
        """As `names`, oldest first."""
        return [self.checkpoint(name) for name in self.names()]

    def latest(self) -> Checkpoint:
        """The newest committed checkpoint.

        Raises:
            NotFound: there is none.
        """
        folder = self.root / "checkpoints"  # older ones are looked at only if the last name is no checkpoint
        last = [name for name in _listed(folder)[-1:] if is_committed(folder, name)] or self.names()[-1:]
        if not last:
            raise NotFound(f"{self.root}: no committed checkpoint")
        return self.checkpoint(last[0])

    def best(self, rule: Best | None) -> Checkpoint:
        """The checkpoint that `rule` ranks first, or, without one, the rule of the newest.

        Raises:
            NotFound: no rule, or no checkpoint with that metric.
        """
        rule = rule or self.best_rule()
        if rule is None:
            raise NotFound(f'{self.root}: nothing says which metric is best; save with keep=Best("metric", max)')
        ranked = retention.ranked(rule, self.facts())
        if not ranked:
            raise NotFound(f"{self.root}: no checkpoint has the metric {rule.metric!r}")
        return self.checkpoint(ranked[0].name)

    def pins(self) -> set[str]:
        """Names that no rule removes."""
        return pins.names(self.root)

    def facts(self) -> list[CheckpointFacts]:
        """What retention goes by, of every checkpoint whose manifest is whole and in its own place; oldest first."""
        cards, pinned = self._read(), self.pins()
        return [card.facts._replace(pinned=card.facts.name in pinned) for card in cards]

    def best_rule(self) -> Best | None:
        """The rule of the newest checkpoint that was saved under one."""
        for card in reversed(self._read()):
            if card.best_rule is not None:
                return card.best_rule
        return None

    def sharing_damage(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Names of the other checkpoints that hold one of the damaged files of `checkpoint`, and which."""
        inodes = {}
        with suppress(Damaged, NotFound):
            shared = {name: facts.st_ino for name, facts in _stats(checkpoint).items() if facts.st_nlink > 1}
            names = {checkpoint.path / name: name for name in shared}
            for problem in checkpoint.problems(cold=True, only=shared) if shared else ():
                if problem.path in names:
                    name = names[problem.path]
                    inodes[shared[name]] = f"shares {name} with {checkpoint.path.name}, where it is damaged"
        found: dict[str, str] = {}
        for other in map(self.checkpoint, self.names() if inodes else ()):
            with suppress(Damaged, NotFound):
                for facts in _stats(other).values():
                    if facts.st_ino in inodes and other.path != checkpoint.path:
                        found[other.path.name] = inodes[facts.st_ino]
        return found

    def read_newest(self, read: Callable[[Checkpoint], T]) -> T:
        """What `read` makes of the newest one; one of which it says Damaged is told, and the next older one is read.

        Raises:
            NotFound: there is none.
            Damaged: none is whole; what was said of the newest.
        """
        damage: list[Damaged] = []
        tried: set[Name] = set()
        while fresh := [name for name in self.names() if name not in tried]:  # its owner may save and prune
            checkpoint = self.checkpoint(fresh[-1])
            tried.add(fresh[-1])
            try:
                return read(checkpoint)
            except Damaged as error:
                warn(f"{error}; an older checkpoint is looked at")
                damage.append(error)
                tried.update(filter(None, map(format.parse_name, self.sharing_damage(checkpoint))))
            except NotFound:
                if is_committed(checkpoint.path.parent, fresh[-1]):
                    raise  # it lacks what is asked for
        if damage:
            raise damage[0]
        raise NotFound(f"{self.root}: no committed checkpoint")

    def _read(self) -> list[_Card]:
        cards = {}
        for name in map(str, self.names()):
            with suppress(Damaged, NotFound, FileNotFoundError):
                cards[name] = self._card(name)
        self._cards = cards  # what is gone is forgotten; one assignment: another thread may read meanwhile
        return [card for name, card in cards.items() if card.facts.name == name]

    def _card(self, name: str) -> _Card:
        checkpoint = self.checkpoint(name)
        now = os.lstat(checkpoint.path / MANIFEST)  # before the reading: what replaces it meanwhile is read anew
        known = self._cards.get(name)
        if known and (known.inode, known.mtime_ns) == (now.st_ino, now.st_mtime_ns):
            return known
        return _Card(now.st_ino, now.st_mtime_ns, checkpoint.facts(), checkpoint.head.best_rule)


def committed(folder: Path) -> list[Name]:
    """Names of the checkpoints in `folder`, in order. If one went between listing and look, it is listed again."""
    for _ in range(_MOST_LOOKS):
        listed = _listed(folder)
        found = [name for name in listed if is_committed(folder, name)]
        if found == listed or all(name in found or (folder / str(name)).exists() for name in listed):
            break
    return found


def is_committed(folder: Path, name: Name) -> bool:
    """Whether the checkpoint `name` exists in `folder`; quicker than `is_checkpoint`, and asked of thousands."""
    try:
        os.stat(f"{folder}/{name}/{MANIFEST}")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False
    return True


def _listed(folder: Path) -> list[Name]:
    names: list[Name] = []
    for _ in range(2):  # a listing is no instant: the only one may have made way for its successor meanwhile
        if folder.is_dir() and not names:
            names = [name for name in map(format.parse_name, os.listdir(folder)) if name]
    return sorted(names, key=lambda name: name.order)


def _stats(checkpoint: Checkpoint) -> dict[str, os.stat_result]:
    """Of each of its files that is there."""
    found = {}
    for name in checkpoint.manifest.files:
        with suppress(OSError):
            found[name] = os.lstat(checkpoint.path / name)
    return found
