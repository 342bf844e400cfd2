"""Numbered checkpoint directories, and the link that says which is the latest whole one.

The link is the commit: what has a higher number than the link names was never finished. Names as cycling_utils has them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import disk
from ..errors import NotFound, StoreError, UsageError

_DELETING = ".deleting-"


class Numbered(NamedTuple):
    name: str
    number: int
    forced: bool  # kept whatever `keep_last` says


class NumberedDirectories(NamedTuple):
    """The checkpoint directories of one name in a directory."""

    root: Path  # absolute
    name: str

    @property
    def link(self) -> Path:
        return self.root / f"{self.name}.latest_checkpoint"

    def read(self, name: str) -> Numbered | None:
        """What a directory's name says, or None when it is not one of ours."""
        match = re.fullmatch(rf"{re.escape(self.name)}_checkpoint_(\d+)(_force)?", name)
        return match and Numbered(name, int(match[1]), bool(match[2]))

    def listed(self) -> list[Numbered]:
        """All that are there, finished or not, by number."""
        found = (self.read(each.name) for each in os.scandir(self.root) if each.is_dir(follow_symlinks=False))
        return sorted((each for each in found if each), key=lambda each: each.number)

    def latest(self) -> Numbered | None:
        """The one that the link names *here*, wherever the link's text leads: directories are moved and copied.

        Raises:
            NotFound: the link names one that is not here.
            StoreError: the link is lost, and which directories are whole with it.
        """
        listed = self.listed()
        if not os.path.lexists(self.link):
            if listed and listed[-1].number > 0:  # number 1 is begun only when a link names number 0
                raise StoreError(
                    f"{self.root} has no {self.link.name} that says which checkpoint is the latest (a copy that left "
                    f"links out?); make it again, with the newest that is whole: ln -s NAME {self.link}; here are: "
                    f"{_names(listed)}"
                )
            return None
        if not self.link.is_symlink():
            raise StoreError(
                f"{self.link} is no link (a copy that followed links?); remove it, and make it again, with the "
                f"newest that is whole: ln -s NAME {self.link}; here are: {_names(listed)}"
            )
        name = os.path.basename(os.readlink(self.link))
        for each in listed:
            if each.name == name:
                return each
        raise NotFound(f"{self.link} names {name}, which is not in {self.root}; here are: {_names(listed)}")

    def point(self, at: Numbered, *, absolute: bool = False) -> None:
        """Let the link name that directory, in one step and durably; a temporary link left over is no obstacle."""
        fresh = self.root / f"{self.link.name}_temp"
        with suppress(FileNotFoundError):
            disk.remove_file(fresh)
        disk.symlink(str(self.root / at.name) if absolute else at.name, fresh)
        disk.sync_dir(self.root)  # the directory's own name first, which nobody has synced yet
        disk.replace(fresh, self.link)
        disk.sync_dir(self.root)

    def relative(self) -> None:
        """Let the link's text be a bare name, so that the directory can be moved."""
        latest = self.latest()
        if latest is not None and os.readlink(self.link) != latest.name:
            self.point(latest)

    def begin(self, *, forced: bool) -> tuple[Numbered, list[str]]:
        """A new, empty directory after the latest, and the names of those that were begun, never finished, and removed."""
        latest = self.latest()
        number = latest.number + 1 if latest else 0
        unfinished = [each for each in self.listed() if each.number >= number]
        for each in unfinished:
            self.discard(each)
        made = Numbered(f"{self.name}_checkpoint_{number}{'_force' if forced else ''}", number, forced)
        disk.make_dir(self.root / made.name)
        return made, [each.name for each in unfinished]

    def keep(self, last: int) -> None:
        """Remove what is older than the `last` ones up to the latest, but for the forced; none when `last` is 0 or less."""
        latest = self.latest()
        for each in self.listed() if latest and last > 0 else []:
            if latest and each.number <= latest.number - last and not each.forced:
                self.discard(each)

    def discard(self, gone: Numbered) -> None:
        """Remove a directory; whoever looks meanwhile sees it whole or under another name."""
        aside = self.root / f"{_DELETING}{gone.name}"
        disk.remove_tree(aside)
        disk.rename_new(self.root / gone.name, aside)
        disk.sync_dir(self.root)
        disk.remove_tree(aside)

    def sweep(self) -> None:
        """Finish removals that were cut short."""
        for each in os.scandir(self.root):
            if each.name.startswith(_DELETING) and self.read(each.name.removeprefix(_DELETING)):
                disk.remove_tree(Path(each.path))


def checked_name(name: str) -> str:
    """The name, if a file can be called so.

    Raises:
        UsageError: it cannot.
    """
    if not name or name != os.path.basename(name) or "\0" in name:
        raise UsageError(f"name={name!r} is to be the beginning of a file's name")
    return name


def settle(tree: Path) -> None:
    """Make all of a directory survive power loss; what others still rename or remove in it is theirs to settle."""
    for path, is_dir in _within(tree):
        with suppress(FileNotFoundError):
            disk.sync_dir(path) if is_dir else disk.sync_file(path)


def _within(tree: Path) -> Iterator[tuple[Path, bool]]:
    """Plain files and directories, and whether they are directories; each directory after what is in it."""
    for name in sorted(os.listdir(tree)):
        with suppress(FileNotFoundError):
            mode = os.lstat(tree / name).st_mode
            if stat.S_ISDIR(mode):
                yield from _within(tree / name)
            elif stat.S_ISREG(mode):
                yield tree / name, False
    yield tree, True


def _names(listed: list[Numbered]) -> str:
    return ", ".join(each.name for each in listed) or "none"
