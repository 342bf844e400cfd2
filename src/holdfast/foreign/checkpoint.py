"""Checkpoint: another program's checkpoint with the attributes of ours,
so that the commands can read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import scan
from ..errors import Damaged, NotFound, StoreError, UsageError
from ..store.checkpoint import Checkpoint, Problem
from ..store.format import Head, Manifest, utc
from ..store.locate import Location, Step
from ..store.signing import Key
from ..store.source import translate_read_errors

if TYPE_CHECKING:
    from .content import ForeignContent


class ForeignCheckpoint(Checkpoint):
    """A file or a folder that another program wrote, with the attributes of `Checkpoint`. Its
    content is read on demand.
    """

    @cached_property
    def content(self) -> ForeignContent:
        """The tree and leaves of the checkpoint.

        Raises:
            Damaged, StoreError: as `table.read`.
            Unreadable: a file of it cannot be read now.
        """
        from . import table  # imported late: most commands meet no other program's files

        with translate_read_errors(self.path):
            return table.read(self.path)

    def _root_manifest(self) -> Manifest:
        if self._root is None:
            content = self.content
            self._root = Manifest(
                step=content.step or 0,
                phase="step",
                epoch=None,
                created=utc(self.path.stat().st_mtime),
                run="",
                attempt=0,
                parent=None,
                metrics={},
                best=None,
                note=None,
                document={},
                files={},
                leaves={},
                tree=content.tree,
            )
        return self._root

    @property
    def head(self) -> Head:
        return self._root_manifest()

    @property
    def name(self) -> str:
        return self.path.absolute().name

    @property
    def size_bytes(self) -> int:
        """The size of those of its files that exist."""
        files: set[Path] = {self.path}
        with suppress(StoreError):
            files = {*self.content.files}
        return sum(path.stat().st_size for path in files if scan.is_file(path))

    @property
    def main_part(self) -> str | None:
        from .content import find_model_part

        return find_model_part(self.content.tree)

    def signed_by(self, key: Key | None) -> Checkpoint:
        if key is not None:
            raise UsageError(f"{self.path}: other programs sign no checkpoint; leave --key out")
        return self

    def leaf(self, key: str) -> Any:
        return self.content.leaves[key]

    def leaves(self) -> dict[str, Any]:
        return {**self.content.leaves}

    def check_layout(self) -> None:
        for problem in self.problems():
            raise Damaged(str(problem))

    def check_unread(self) -> None:
        """Do nothing: `check_layout` has read all bytes."""

    def require_whole(self) -> None:
        """Read every byte that has a checksum.

        Raises:
            Damaged: it is not what was written.
            StoreError: its values cannot be read here.
        """
        if self.content.values != "read":
            raise StoreError(f"{self.path}: its values {self.content.values}")
        self.check_layout()

    def problems(self, **_: Any) -> Iterator[Problem]:
        """Yield what is missing, cut or contradictory, and each part whose recorded CRC-32 its
        bytes do not have.
        """
        try:
            content = self.content
        except Damaged as error:
            size = self.path.stat().st_size if scan.is_file(self.path) else 0
            yield Problem(self.path, 0, size, str(error).removeprefix(f"{self.path}: "))
            return
        yield from content.problems
        with translate_read_errors(self.path):
            yield from content.check()

    @property
    def assurance(self) -> str:  # type: ignore[override]
        from .content import CRC

        return "complete, CRC-32 holds" if self.content.proof == CRC else "complete, not verifiable"


class ForeignFolder(Location):
    """A location with checkpoints of other programs: one, or several beside each other."""

    def foreign(self) -> list[ForeignCheckpoint]:
        """The checkpoints by step; those without a known step come first, by time."""
        if self.single:
            return [ForeignCheckpoint(self.path)]
        return sorted(map(ForeignCheckpoint, checkpoints_inside(self.path)), key=_sort_key)

    def checkpoints(self) -> list[Checkpoint]:
        return [*self.foreign()]

    def _choose(self, step: Step) -> Checkpoint:
        wanted = [
            each for each in self.foreign() if step in (None, "latest", _step(each), each.name)
        ]
        if wanted:
            return wanted[-1]
        raise NotFound(f"{self.path}: no checkpoint of step {step}; see holdfast ls {self.path}")


def _step(checkpoint: ForeignCheckpoint) -> int | None:
    try:
        return checkpoint.content.step
    except StoreError:
        return None


def _sort_key(checkpoint: ForeignCheckpoint) -> tuple[float, float, str]:
    step = _step(checkpoint)
    return -1 if step is None else step, checkpoint.path.stat().st_mtime, checkpoint.name


def checkpoints_inside(folder: Path) -> list[Path]:
    """Return the checkpoints of other programs in a folder."""
    from . import table

    paths = (folder / name for name in sorted(table.names_in(folder)))
    return [*filter(_looks_like_checkpoint, paths)]


def _looks_like_checkpoint(path: Path) -> bool:
    """Return whether the name and the content are those of a checkpoint. A neighbouring folder that
    is too large or unreadable does not count.
    """
    from . import table

    try:
        return table.is_foreign(path, named=True)
    except (StoreError, OSError):
        return not scan.is_dir(path)


def find_checkpoints(path: Path) -> ForeignFolder | None:
    """Return the checkpoints of other programs at `path`; None if there are none."""
    from . import table

    if table.is_foreign(path):
        return ForeignFolder(path, None, single=True)
    if scan.is_dir(path) and checkpoints_inside(path):
        return ForeignFolder(path, None, single=False)
    return None
