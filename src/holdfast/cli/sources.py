"""Sources: the checkpoints that a command reads. From a place it fetches files into a temporary
directory.

That directory has the shape of a run: run.json, and each checkpoint's manifest. Other files follow
when the command asks for them. What is printed names the place, and not that directory.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from .. import disk, job, scan
from ..errors import Damaged, NoSpace, NotFound
from ..foreign.checkpoint import find_checkpoints
from ..legible import size
from ..mirror.lineage import HeldCheckpoint, compute_lineage, merge_origins
from ..mirror.records import Copy, PlaceState
from ..mirror.records import copy_folder as inside
from ..mirror.remote import RemoteRun
from ..store import locate
from ..store.checkpoint import Checkpoint, Problem
from ..store.format import MANIFEST, FileEntry, Manifest
from ..store.locate import Location
from . import options
from .formatting import naming_addresses
from .patience import patient_place, wait_longer

if TYPE_CHECKING:
    from ..mirror.retrying import RetryingPlace

Tell = Callable[[str], None]

NO_MANIFEST = "no manifest"  # the copy was never completed


class LocalSource:
    """A local directory: a run's, a checkpoint's, a supervisor's, or a copy of one of them. All
    files are there already.
    """

    def __init__(self, text: str) -> None:
        self.shown = text

    def locate(self) -> Location:
        return options.locate_run(self.shown)

    def attempt_of(self, checkpoint: Checkpoint) -> int:
        """Return the number of the attempt that saved the checkpoint, or that copied it there."""
        return checkpoint.head.attempt

    def unused_copies(self) -> list[Checkpoint]:
        """Return the copies that no start uses: they are damaged, or a superseded attempt
        saved them.
        """
        return []

    def fetch_files(self, checkpoint: Checkpoint, names: Collection[str] | None = None) -> None:
        """Fetch files of a checkpoint so that they can be read locally: the parts of its
        ranks, and `names`; None: all.
        """

    def drop_files(self, checkpoint: Checkpoint) -> None:
        """Remove the files that `fetch_files` has fetched."""

    def problems(self, checkpoint: Checkpoint, *, cold: bool) -> Iterator[Problem]:
        """Read every byte; yield the places that differ from what was committed."""
        return checkpoint.problems(cold=cold)


class ForeignSource(LocalSource):
    """A file or a folder that another program wrote."""

    def __init__(self, text: str, found: Location) -> None:
        super().__init__(text)
        self._found = found

    def locate(self) -> Location:
        return self._found


class RemoteSource(LocalSource):
    """The copies at a place. `folder` holds the files that were fetched."""

    def __init__(self, place: RetryingPlace, folder: Path, tell: Tell) -> None:
        super().__init__(place.shown)
        self.place, self.remote = place, RemoteRun(place)
        self.seen = self.remote.read_state()
        wait_longer(place)
        if self.seen.run is None:
            raise NotFound(f"{self.shown}: no run has copies there")
        self._folder, self._tell = folder, tell
        self.line = current_lineage(self.seen)
        self._paths = {
            folder / "checkpoints" / each.name: inside(each.attempt, each.name)
            for each in self.line
        }
        others = [(each.attempt, each.name) for each in self.seen.copies if each not in self.line]
        others += [(each.attempt, each.name) for each in self.seen.rests if each.why != NO_MANIFEST]
        self._aside = {
            folder / f"{attempt:06d}" / name: inside(attempt, name) for attempt, name in others
        }
        self._paths |= self._aside

    def addresses(self) -> dict[str, str]:
        """The address of each path in the folder."""
        return {str(path): f"{self.shown}/{at}" for path, at in self._paths.items()} | {
            str(self._folder): self.shown
        }

    def fetch_manifests(self) -> None:
        """Fetch the manifests of the run's current lineage."""
        disk.make_dirs(self._folder / "checkpoints")
        disk.write(self._folder / "run.json", [self.seen.run_json.encode()])
        for path in self._paths:
            if path not in self._aside:
                self._fetch_manifest(path)

    def attempt_of(self, checkpoint: Checkpoint) -> int:
        return next(each.attempt for each in self.line if each.name == checkpoint.path.name)

    def unused_copies(self) -> list[Checkpoint]:
        for path in self._aside:
            self._fetch_manifest(path)
        return [Checkpoint(path) for path in self._aside if scan.exists(path / MANIFEST)]

    def describe_unused_copies(self) -> list[dict[str, str]]:
        """Return the copies there that no start uses, and why."""
        damaged = {inside(each.attempt, each.name): each.why for each in self.seen.rests}
        why = (
            dict.fromkeys(self._aside.values(), "saved by an attempt that was superseded") | damaged
        )
        return [{"path": f"{self.shown}/{path}", "why": why[path]} for path in sorted(why)]

    def locate(self) -> Location:
        return locate.locate(self._folder)

    def fetch_files(self, checkpoint: Checkpoint, names: Collection[str] | None = None) -> None:
        self._fetch_parts(checkpoint)
        files = checkpoint.manifest.files
        self._fetch_missing(
            checkpoint,
            {name: file for name, file in files.items() if names is None or name in names},
        )

    def drop_files(self, checkpoint: Checkpoint) -> None:
        disk.remove_tree(checkpoint.path)

    def problems(self, checkpoint: Checkpoint, *, cold: bool) -> Iterator[Problem]:
        """As for a run's directory. Of the big files, one is on this machine at a time."""
        del cold  # what comes from a place was in no page cache of this machine
        with suppress(Damaged):  # of the manifest, as is told next
            self._fetch_parts(checkpoint)
        yield from (whole := [*checkpoint.problems(only=())])
        for rank in range(
            0 if checkpoint.path / MANIFEST in (each.path for each in whole) else checkpoint.world
        ):
            with suppress(Damaged):  # the part of that rank, as was told above
                yield from self._file_problems(checkpoint, checkpoint.as_rank(rank).manifest)

    def _file_problems(self, checkpoint: Checkpoint, manifest: Manifest) -> Iterator[Problem]:
        for name in [name for name in manifest.files if not scan.exists(checkpoint.path / name)]:
            found: list[Problem] = []
            # bytes that were damaged during the transfer are whole the second time
            for _ in range(2):
                self._fetch_missing(checkpoint, {name: manifest.files[name]})
                found = list(checkpoint.problems(only={name}, known=manifest))
                disk.remove_tree(checkpoint.path / name)
                if not found:
                    break
            if found:
                self._require_in_use(checkpoint)
            yield from found

    def _require_in_use(self, checkpoint: Checkpoint) -> None:
        """Require the manifest of a copy that is used.

        Raises:
            NotFound: the copy was removed from its place meanwhile.
        """
        try:
            self._manifest(checkpoint.path)
        except FileNotFoundError:
            disk.remove_tree(checkpoint.path)
            raise NotFound(f"{checkpoint.path}: removed meanwhile") from None

    def _fetch_manifest(self, path: Path) -> None:
        with suppress(FileNotFoundError):  # removed after it was listed
            manifest = self._manifest(path)
            disk.make_dirs(path)
            disk.write(path / MANIFEST, [manifest])

    def _manifest(self, path: Path) -> bytes:
        return self.place.read(f"{self._paths[path]}/{MANIFEST}")

    def _fetch_parts(self, checkpoint: Checkpoint) -> None:
        if checkpoint.head.ranks is not None:
            self._fetch_missing(checkpoint, checkpoint.head.files)

    def _fetch_missing(self, checkpoint: Checkpoint, files: Mapping[str, FileEntry]) -> None:
        missing = {
            name: file for name, file in files.items() if not scan.exists(checkpoint.path / name)
        }
        self._require_space(sum(file.size_bytes for file in missing.values()))
        for name, file in missing.items():
            self._tell(f"fetching {checkpoint.path}/{name}: {size(file.size_bytes)}")
            disk.make_dirs((checkpoint.path / name).parent)
            try:
                self._fetch(checkpoint, name, file.size_bytes)
            except FileNotFoundError:
                self._require_in_use(checkpoint)  # the reader then reports it as missing

    def _fetch(self, checkpoint: Checkpoint, name: str, size_bytes: int) -> None:
        pieces = self.place.get(f"{self._paths[checkpoint.path]}/{name}")
        try:
            disk.write(checkpoint.path / name, _limit_pieces(size_bytes, pieces))
        except BaseException:
            disk.remove_tree(checkpoint.path / name)
            raise

    def _require_space(self, need: int) -> None:
        free = disk.free_bytes(self._folder)
        if need > free:
            raise NoSpace(
                f"{self.shown}: {size(need)} have to be fetched, "
                f"and {size(free)} are free in {self._folder.parent}; "
                "name a folder with more space in TMPDIR"
            )


def current_lineage(seen: PlaceState) -> list[Copy]:
    """Return the copies of the run's current lineage,
    oldest first: for each name that of the newest attempt.
    """
    came_from = merge_origins((each.attempt, each.origin) for each in seen.claims)
    copies = {(each.attempt, each.name): each for each in seen.copies}
    held = [HeldCheckpoint(0, each.attempt, each.name, each.digest) for each in seen.copies]
    found = {
        each.name: copies[each.attempt, each.name]
        for each in reversed(compute_lineage(came_from, held))
    }
    return [*found.values()]


def _limit_pieces(size_bytes: int, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the pieces; of a file that is too long, only enough to show that it is."""
    for piece in pieces:
        yield piece[: size_bytes + 1]
        size_bytes -= len(piece)
        if size_bytes < 0:
            return


@contextmanager
def open_source(text: str, tell: Tell, *, foreign: bool = False) -> Iterator[LocalSource]:
    """Yield the checkpoints that `text` names: a path, or the address of a place.

    Fetched files are removed at the block's end. `foreign`: checkpoints of other programs are
    accepted, too.
    """
    if not is_place(text):
        yield _foreign_or_local(text) if foreign else LocalSource(text)
        return
    folder = job.tmpdir() / f"holdfast-{uuid.uuid4().hex}"
    with closing(patient_place(text, tell)) as place:
        tell(f"looking at {place.shown}")
        there = RemoteSource(place, folder, tell)
        before = os.umask(0o077)  # other users must not read fetched files
        try:
            disk.make_dir(folder)
        finally:
            os.umask(before)
        try:
            with naming_addresses(there.addresses()):
                there.fetch_manifests()
                yield there
        finally:
            disk.remove_tree(folder)


def _foreign_or_local(text: str) -> LocalSource:
    """Return the checkpoint of another program that `text` names;
    None if a run or checkpoint of ours is there.
    """
    here = LocalSource(text)
    try:
        here.locate()
    except NotFound:
        found = find_checkpoints(Path(text))
        if found is not None:
            return ForeignSource(text, found)
        if scan.is_file(text):
            raise NotFound(
                f"{text}: neither a run's directory nor a checkpoint of a format that is known"
            ) from None
    return here


def is_place(text: str) -> bool:
    """Whether `text` is an address, or a folder that is a mirror."""
    return "://" in text or locate.is_mirror(Path(text))
