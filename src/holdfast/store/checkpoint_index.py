"""CheckpointIndex: the checkpoints and pins in a run's directory,
for any process. This module writes nothing.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

from .. import retention, scan
from ..errors import Damaged, NotFound, StoreError, Untrusted
from ..retention import CheckpointFacts
from ..rules import Best
from ..terminal import warn
from . import format, pins
from .checkpoint import Checkpoint
from .format import MANIFEST, CheckpointName
from .signing import Key

T = TypeVar("T")

_MOST_LOOKS = 100  # at a store whose owner saves and prunes meanwhile


class _ManifestFacts(NamedTuple):
    """Facts from one manifest. A checkpoint is never changed,
    so they hold while the file is the same one.
    """

    inode: int
    mtime_ns: int
    facts: CheckpointFacts  # without the pin, which can be set and removed
    best_rule: Best | None


class CheckpointIndex:
    """The checkpoints below `root`. Each manifest is decoded once,
    however often its facts are requested.
    """

    def __init__(self, root: Path, key: Key | None = None) -> None:
        self.root, self.key = root, key  # with a key, every manifest must be signed by it
        self._known: dict[str, _ManifestFacts] = {}

    @property
    def kind(self) -> str:
        """The algorithm of the digests in checkpoints that are saved here."""
        return format.XXH3 if self.key is None else format.SHA256

    def checkpoint_at(self, path: Path, *, rank: int | None = None) -> Checkpoint:
        """The checkpoint at `path`, in or for this run's directory."""
        return Checkpoint(path, rank=rank, key=self.key)

    def checkpoint(self, name: CheckpointName | str) -> Checkpoint:
        return self.checkpoint_at(self.root / "checkpoints" / str(name))

    def names(self) -> list[CheckpointName]:
        """Names of the existing checkpoints, in order."""
        return committed_names(self.root / "checkpoints")

    def checkpoints(self) -> list[Checkpoint]:
        """The existing checkpoints, oldest first."""
        return [self.checkpoint(name) for name in self.names()]

    def latest(self) -> Checkpoint:
        """The newest committed checkpoint.

        Raises:
            NotFound: there is none.
        """
        # older ones are looked at only if the last name is no checkpoint
        folder = self.root / "checkpoints"
        last = [
            name for name in islice(_newest_first(folder), 1) if is_committed(folder, name)
        ] or self.names()[-1:]
        if not last:
            raise NotFound(f"{self.root}: no committed checkpoint")
        return self.checkpoint(last[0])

    def newest_first(self) -> Iterator[Checkpoint]:
        """Yield the existing checkpoints, newest first. Only the run's owner calls this: no other
        process removes checkpoints meanwhile.

        Unreadable checkpoints are included; reading one raises the error.
        """
        folder = self.root / "checkpoints"
        return (
            self.checkpoint(name)
            for name in _newest_first(folder)
            if may_be_committed(folder, name)
        )

    def run(self) -> str | None:
        """Return the id of the run by its newest readable checkpoint; None: there is none."""
        for checkpoint in self.newest_first():
            with suppress(StoreError, OSError):
                return checkpoint.head.run
        return None

    def best(self, rule: Best | None) -> Checkpoint:
        """Return the checkpoint that `rule` ranks first. Without a rule, use that of the newest
        checkpoint.

        Raises:
            NotFound: there is no rule, or no checkpoint has that metric.
        """
        rule = rule or self.best_rule()
        if rule is None:
            raise NotFound(
                f"{self.root}: nothing says which metric is best; "
                'save with keep=Best("metric", max)'
            )
        ranked = retention.rank_by_metric(rule, self.facts())
        if not ranked:
            raise NotFound(f"{self.root}: no checkpoint has the metric {rule.metric!r}")
        return self.checkpoint(ranked[0].name)

    def pins(self) -> set[str]:
        """Names of pinned checkpoints, which no rule removes."""
        return pins.pinned_names(self.root)

    def facts(self) -> list[CheckpointFacts]:
        """The facts for retention rules, of every checkpoint with a valid manifest and its own
        name; oldest first.
        """
        known, pinned = self._read_manifests(), self.pins()
        return [each.facts._replace(pinned=each.facts.name in pinned) for each in known]

    def best_rule(self) -> Best | None:
        """The rule of the newest checkpoint that was saved under one."""
        for each in reversed(self._read_manifests()):
            if each.best_rule is not None:
                return each.best_rule
        return None

    def sharing_damage(self, checkpoint: Checkpoint) -> dict[str, str]:
        """Names of the other checkpoints that share a damaged file with `checkpoint`;
        each mapped to such a file.
        """
        inodes = {}
        with suppress(Damaged, NotFound):
            shared = {
                name: facts.st_ino
                for name, facts in _stat_files(checkpoint).items()
                if facts.st_nlink > 1
            }
            names = {checkpoint.path / name: name for name in shared}
            for problem in checkpoint.problems(cold=True, only=shared) if shared else ():
                if problem.path in names:
                    name = names[problem.path]
                    inodes[shared[name]] = (
                        f"shares {name} with {checkpoint.path.name}, where it is damaged"
                    )
        found: dict[str, str] = {}
        for other in map(self.checkpoint, self.names() if inodes else ()):
            with suppress(Damaged, NotFound):
                for facts in _stat_files(other).values():
                    if facts.st_ino in inodes and other.path != checkpoint.path:
                        found[other.path.name] = inodes[facts.st_ino]
        return found

    def read_newest(self, read: Callable[[Checkpoint], T]) -> T:
        """Apply `read` to the newest checkpoint. If it raises Damaged, report that and try the next
        older one.

        Raises:
            NotFound: there is no checkpoint.
            Damaged: none is sound; this is the newest one's error.
            Untrusted: one is not signed by the key; no older one is tried.
        """
        damage: list[Damaged] = []
        tried: set[CheckpointName] = set()
        # its owner may save and prune meanwhile
        while fresh := [name for name in self.names() if name not in tried]:
            checkpoint = self.checkpoint(fresh[-1])
            tried.add(fresh[-1])
            try:
                return read(checkpoint)
            except Untrusted:
                raise
            except Damaged as error:
                warn(f"{error}; an older checkpoint is looked at")
                damage.append(error)
                tried.update(filter(None, map(format.parse_name, self.sharing_damage(checkpoint))))
            except NotFound:
                if is_committed(checkpoint.path.parent, fresh[-1]):
                    raise  # the state lacks the member that was requested
        if damage:
            raise damage[0]
        raise NotFound(f"{self.root}: no committed checkpoint")

    def _read_manifests(self) -> list[_ManifestFacts]:
        known = {}
        for name in map(str, self.names()):
            with suppress(Damaged, NotFound, FileNotFoundError):
                known[name] = self._manifest_facts(name)
        # drops removed checkpoints; one assignment, because another thread may read meanwhile
        self._known = known
        return [each for name, each in known.items() if each.facts.name == name]

    def _manifest_facts(self, name: str) -> _ManifestFacts:
        checkpoint = self.checkpoint(name)
        # before the read: if the file is replaced meanwhile, the next call reads it anew
        now = os.lstat(checkpoint.path / MANIFEST)
        known = self._known.get(name)
        if known and (known.inode, known.mtime_ns) == (now.st_ino, now.st_mtime_ns):
            return known
        return _ManifestFacts(
            now.st_ino, now.st_mtime_ns, checkpoint.facts(), checkpoint.head.best_rule
        )


def is_committed(folder: Path, name: CheckpointName) -> bool:
    """Return whether the checkpoint `name` exists in `folder`. Faster than `is_checkpoint`, because
    it is called very often.
    """
    try:
        os.stat(f"{folder}/{name}/{MANIFEST}")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False
    return True


def may_be_committed(folder: Path, name: CheckpointName) -> bool:
    """Return whether the checkpoint exists; true if that cannot be read, so that its reader gets
    the error.
    """
    try:
        return is_committed(folder, name)
    except OSError:
        return True


def committed_names(
    folder: Path, exists: Callable[[Path, CheckpointName], bool] = is_committed
) -> list[CheckpointName]:
    """Names of the checkpoints in `folder`, in order.
    Lists again if one was removed after it was listed.
    """
    for _ in range(_MOST_LOOKS):
        listed = _list_names(folder)
        found = [name for name in listed if exists(folder, name)]
        if found == listed or all(
            name in found or scan.exists(folder / str(name)) for name in listed
        ):
            break
    return found


def _list_names(folder: Path) -> list[CheckpointName]:
    names: list[CheckpointName] = []
    # a listing takes time: the only checkpoint may have been replaced by the next one meanwhile
    for _ in range(2):
        names = names or [name for name in map(format.parse_name, scan.names(folder)) if name]
    return sorted(names, key=lambda name: name.order)


def _newest_first(folder: Path) -> Iterator[CheckpointName]:
    """The names of checkpoints in `folder`, the newest first.
    It parses only those that are asked for.
    """
    texts = sorted(
        scan.names(folder), key=lambda text: (len(text.removesuffix("-end")), text), reverse=True
    )
    return filter(None, map(format.parse_name, texts))


def _stat_files(checkpoint: Checkpoint) -> dict[str, os.stat_result]:
    """The stat result of each of its files that exists."""
    found = {}
    for name in checkpoint.manifest.files:
        with suppress(OSError):
            found[name] = os.lstat(checkpoint.path / name)
    return found
