"""Numbered checkpoint directories, and the link to the latest complete one. The names are those of
cycling_utils.

Moving the link is the commit. A directory with a higher number than the link's target is
incomplete.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import disk, scan
from ..errors import NotFound, StoreError, UsageError

_DELETING = ".deleting-"


class NumberedDirectory(NamedTuple):
    """A checkpoint directory's number, and whether it was forced."""

    name: str
    number: int
    forced: bool  # `keep_last` must not remove it


class NumberedDirectories(NamedTuple):
    """The checkpoint directories of one name in a directory."""

    root: Path  # absolute
    name: str

    @property
    def link(self) -> Path:
        return self.root / f"{self.name}.latest_checkpoint"

    def parse_name(self, name: str) -> NumberedDirectory | None:
        """Return the number in a directory's name; None if the name has another form."""
        match = re.fullmatch(rf"{re.escape(self.name)}_checkpoint_(\d+)(_force)?", name)
        return match and NumberedDirectory(name, int(match[1]), bool(match[2]))

    def list_all(self) -> list[NumberedDirectory]:
        """Return all existing directories, complete or not, by number."""
        found = (
            self.parse_name(each.name)
            for each in os.scandir(self.root)
            if each.is_dir(follow_symlinks=False)
        )
        return sorted((each for each in found if each), key=lambda each: each.number)

    def latest(self) -> NumberedDirectory | None:
        """Return the directory *here* whose name the link has. Its path is ignored: directories may
        be moved.

        Raises:
            NotFound: the link names one that is not here.
            StoreError: there is no link, so that it is unknown which directories are complete.
        """
        listed, lost = self.list_all(), ""
        here = f"here are: {', '.join(each.name for each in listed) or 'none'}"
        if not scan.lexists(self.link):
            # number 1 is created only when a link names number 0
            if not listed or listed[-1].number == 0:
                return None
            lost = f"{self.root} has no {self.link.name} (a copy that left links out?)"
        elif not scan.is_symlink(self.link):
            lost = f"{self.link} is no link (a copy that followed links?); remove it"
        if lost:
            raise StoreError(
                f"{lost}; make it anew for the newest whole checkpoint: "
                f"ln -s NAME {self.link}; {here}"
            )
        name = os.path.basename(os.readlink(self.link))
        for each in listed:
            if each.name == name:
                return each
        raise NotFound(f"{self.link} names {name}, which is not in {self.root}; {here}")

    def point_link(self, at: NumberedDirectory, *, absolute: bool = False) -> None:
        """Point the link at that directory, in one step and durably,
        even if a temporary link was left over.
        """
        fresh = self.root / f"{self.link.name}_temp"
        with suppress(FileNotFoundError):
            disk.remove_file(fresh)
        disk.symlink(str(self.root / at.name) if absolute else at.name, fresh)
        disk.sync_dir(self.root)  # first, because the directory's own name may not be synced yet
        disk.replace(fresh, self.link)
        disk.sync_dir(self.root)

    def make_link_relative(self) -> None:
        """Change the link's text to a bare name, so that the directory can be moved."""
        latest = self.latest()
        if latest is not None and os.readlink(self.link) != latest.name:
            self.point_link(latest)

    def make_next(self, *, forced: bool) -> tuple[NumberedDirectory, list[str]]:
        """Make a new, empty directory after the latest.
        Remove the incomplete ones; return their names.
        """
        latest = self.latest()
        number = latest.number + 1 if latest else 0
        unfinished = [each for each in self.list_all() if each.number >= number]
        for each in unfinished:
            self.discard(each)
        made = NumberedDirectory(
            f"{self.name}_checkpoint_{number}{'_force' if forced else ''}", number, forced
        )
        disk.make_dir(self.root / made.name)
        return made, [each.name for each in unfinished]

    def keep_newest(self, last: int) -> None:
        """Remove all complete directories but the `last` newest and the forced ones; none if `last`
        is 0 or less.
        """
        latest = self.latest()
        if latest and last > 0:
            for each in self.list_all():
                if each.number <= latest.number - last and not each.forced:
                    self.discard(each)

    def discard(self, gone: NumberedDirectory) -> None:
        """Rename a directory, then remove it,
        so that readers never see a part of it under its own name.
        """
        aside = self.root / f"{_DELETING}{gone.name}"
        disk.remove_tree(aside)
        disk.rename_new(self.root / gone.name, aside)
        disk.sync_dir(self.root)
        disk.remove_tree(aside)

    def finish_removals(self) -> None:
        """Complete the removals that a crash interrupted."""
        for each in os.scandir(self.root):
            if each.name.startswith(_DELETING) and self.parse_name(
                each.name.removeprefix(_DELETING)
            ):
                disk.remove_tree(Path(each.path))


def checked_name(name: str) -> str:
    """Return `name` if file names can begin with it.

    Raises:
        UsageError: no file name can begin with it.
    """
    if not name or name != os.path.basename(name) or "\0" in name:
        raise UsageError(f"name={name!r} is to be the beginning of a file's name")
    return name


def sync_tree(tree: Path) -> None:
    """Sync `tree` and all plain files and directories below it. Another process may rename or
    remove some meanwhile.
    """
    for each in sorted(os.scandir(tree), key=lambda entry: entry.name):
        with suppress(FileNotFoundError):
            if each.is_dir(follow_symlinks=False):
                sync_tree(Path(each.path))
            elif each.is_file(follow_symlinks=False):
                disk.sync_file(Path(each.path))
    disk.sync_dir(tree)
