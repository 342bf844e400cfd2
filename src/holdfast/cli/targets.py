"""Targets: the destinations of `holdfast copy`: a run's directory on this machine, or a place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from .. import disk, scan
from ..errors import Damaged, NoSpace, NotFound, UsageError
from ..legible import size
from ..mirror import sending
from ..mirror.adding import AttemptFacts as Saved
from ..mirror.adding import ManualCopier
from ..mirror.sending import manifest_digest
from ..store import attempt as attempts
from ..store import claiming, source
from ..store.attempt import Attempt
from ..store.checkpoint import Checkpoint
from ..store.checkpoint_index import CheckpointIndex
from ..store.claiming import RemoteFacts
from ..store.committing import translate_write_errors
from ..store.format import MANIFEST
from ..store.locate import require_run
from .patience import patient_place, wait_longer
from .sources import LocalSource, RemoteSource, Tell, is_place

if TYPE_CHECKING:
    from ..mirror.retrying import RetryingPlace


class CopyItem(NamedTuple):
    """A checkpoint that is to be copied."""

    here: LocalSource  # where it comes from
    checkpoint: Checkpoint
    saved: Saved  # by that attempt

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @property
    def digest(self) -> str:
        return manifest_digest(source.read_whole(self.checkpoint.path / MANIFEST))


class CopyTarget(Protocol):
    """A destination of `holdfast copy`."""

    shown: str

    def digest(self, item: CopyItem) -> str | None:
        """Return the digest of the manifest that is there under the checkpoint's name;
        None if there is none.
        """
        ...

    def add(self, item: CopyItem) -> str:
        """Copy the checkpoint, whole and verified; return how it was verified."""
        ...


class DirectoryTarget:
    """A run's directory as the destination. With its first copy this process becomes an
    attempt of the run.
    """

    def __init__(self, root: Path, known: RemoteFacts, tell: Tell) -> None:
        self.shown, self._root, self._known, self._tell = str(root), root, known, tell
        self._claimed: Attempt | None = None

    @property
    def _attempt(self) -> Attempt:
        if self._claimed is None:
            take_over = os.environ.get("HOLDFAST_TAKE_OVER") == "1"
            with translate_write_errors(self._root):
                self._claimed = claiming.claim(
                    self._root, take_over=take_over, elsewhere=self._known
                )
        return self._claimed

    def close(self) -> None:
        if self._claimed is not None:
            self._claimed.close("end", step=0)

    def digest(self, item: CopyItem) -> str | None:
        try:
            return manifest_digest(
                source.read_whole(self._root / "checkpoints" / item.name / MANIFEST)
            )
        except (NotFound, FileNotFoundError, Damaged):
            return None

    def add(self, item: CopyItem) -> str:
        partial = self._attempt.room / item.name
        with self._attempt.translate_errors("copy"):
            _require_space(self._root, item.checkpoint.size_bytes)
            disk.make_dir(partial)
            try:
                _write_files(partial, item, self._tell)
                self._tell(f"reading back {item.name}")
                for problem in Checkpoint(partial).problems(cold=True):
                    raise Damaged(f"{problem}; the copy was removed: is this disk sound?")
            except BaseException:
                attempts.remove_if_possible(partial)
                raise
            attempts.publish(self._attempt, partial, item.name)
            self._renew_links()
        return "read back"

    def _renew_links(self) -> None:
        """Renew the links for people, as a save does."""
        index = CheckpointIndex(self._root)
        for link, find in (("latest", index.latest), ("best", lambda: index.best(None))):
            with suppress(OSError, Damaged, NotFound):
                attempts.update_link(self._attempt, link, find().path.name)


class MirrorTarget:
    """A mirror as the destination. The copies have the layout of a run's own mirror."""

    def __init__(self, place: RetryingPlace, adding: ManualCopier, tell: Tell) -> None:
        self.shown, self._place, self._adding, self._tell = (
            place.shown,
            place,
            adding,
            tell,
        )
        self._there = {(copy.attempt, copy.name): copy.digest for copy in adding.seen.copies}

    def digest(self, item: CopyItem) -> str | None:
        return self._there.get((item.saved.number, item.name))

    def add(self, item: CopyItem) -> str:
        item.here.fetch_files(item.checkpoint)
        progress = _progress_counter(item, self._tell, "sending")
        with self._place.watching_progress(progress):
            copied = self._adding.add(item.checkpoint.path, item.saved)
        item.here.drop_files(item.checkpoint)
        return copied.how


@contextmanager
def open_target(text: str, run_json: str, known: RemoteFacts, tell: Tell) -> Iterator[CopyTarget]:
    """Yield the target that `text` names. It must be empty, or hold checkpoints of the same run.

    Raises:
        UsageError: it holds something else, or a living attempt owns it.
    """
    if is_place(text):
        with closing(patient_place(text, tell)) as place:
            adding = ManualCopier(place, run_json)
            wait_longer(place)
            yield MirrorTarget(place, adding, tell)
        return
    root = Path(text).absolute()
    _require_free(root, text, known)
    with closing(DirectoryTarget(root, known, tell)) as directory:
        yield directory


def _require_free(root: Path, text: str, known: RemoteFacts) -> None:
    require_run(root)
    if scan.is_file(root / "run.json") and attempts.read_run(root) != known.run:
        raise UsageError(f"{text}: another run lies there; nothing was copied. Name another folder")
    for parent in root.parents:
        if scan.is_file(parent / "run.json") and scan.is_dir(parent / "checkpoints"):
            raise UsageError(f"{text}: lies in the run {parent}; name a folder outside of it")
    if scan.exists(root) and not scan.is_dir(root):
        raise UsageError(f"{text} is a file; name a folder")
    if scan.names(root) and not scan.is_file(root / "run.json"):
        raise UsageError(
            f"{text}: neither empty nor a run's directory; "
            "name an empty folder, or one that is not there"
        )


def _require_space(root: Path, need: int) -> None:
    free = disk.free_bytes(root)
    if need > free:
        raise NoSpace(
            f"{root}: {size(need)} are needed and {size(free)} are free; nothing of it was copied"
        )


def _write_files(partial: Path, item: CopyItem, tell: Tell) -> None:
    """Write a checkpoint's files,
    each byte compared with its digest on the way; the manifest comes last.
    """
    progress = _progress_counter(item, tell, "copying")
    if isinstance(item.here, RemoteSource):
        with item.here.place.watching_progress(progress):
            item.here.remote.fetch(item.saved.number, item.name, partial)
        return
    wanted = sending.read_local_contents(item.checkpoint.path)
    for name in wanted.files:
        disk.make_dirs((partial / name).parent)
        disk.write(
            partial / name,
            _count_pieces(sending.read_pieces(item.checkpoint.path, wanted, name), progress),
        )
    disk.write(partial / MANIFEST, [wanted.raw])
    for folder in {(partial / name).parent for name in wanted.files}:
        disk.sync_dir(folder)


def _progress_counter(item: CopyItem, tell: Tell, word: str) -> Callable[[int], None]:
    """Return a function that adds up sizes, and tells how far the checkpoint is."""
    whole, done = size(item.checkpoint.size_bytes), 0

    def progress(more: int) -> None:
        nonlocal done
        done += more
        tell(f"{word} {item.name}: {size(done)} of {whole}")

    return progress


def _count_pieces(pieces: Iterator[bytes], progress: Callable[[int], None]) -> Iterator[bytes]:
    for piece in pieces:
        progress(len(piece))
        yield piece
