"""Back: puts a checkpoint's files where the program itself looks for them.
What lay there is moved aside, and kept.
"""

from __future__ import annotations

import errno
import filecmp
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from .. import disk, scan
from ..store.format import MANIFEST
from .program import make_empty
from .take import FileState, file_mode, read_blocks


def put_back(
    checkpoint: Path | None,
    work: Path,
    present: Mapping[Path, FileState],
    aside: Path,
    *,
    keep_older: bool,
) -> list[str]:
    """Make the files `present` in `work` those of the checkpoint, byte for byte; None: make them
    disappear.

    A file that differs, or that the checkpoint does not have, is moved to `aside`. What lay there
    before is removed. With `keep_older`, files older than all of the checkpoint's stay. Returns the
    names of those that were moved.
    """
    kept = _stored_files(checkpoint, work) if checkpoint is not None else {}
    filecmp.clear_cache()
    same = {
        path for path in present if path in kept and filecmp.cmp(path, kept[path], shallow=False)
    }
    others = present.keys() - same
    if keep_older and kept:
        written_ns = min(
            _written_ns(path, kept[path], present if path in same else {}) for path in kept
        )
        others = {path for path in others if path in kept or present[path].mtime_ns >= written_ns}
    changing = {os.path.realpath(path) for path in others}
    others |= {path for path in same if os.path.realpath(path) in changing}  # links to what changes
    places = _target_paths(work, present.keys() | kept.keys())
    if others:
        make_empty(aside)
    for path in sorted(others):
        if scan.lexists(places[path]):  # not moved under another name
            _move(places[path], aside / path.relative_to(work))
    for path in sorted(kept.keys() - (same - others)):
        disk.make_dirs(places[path].parent)
        disk.replace_with(places[path], read_blocks(kept[path]), file_mode(kept[path]))
    return [str(path.relative_to(work)) for path in sorted(others)]


def _target_paths(work: Path, paths: Iterable[Path]) -> dict[Path, Path]:
    """Return where each file lies. A link out of `work`,
    to another disk, stays one; one inside is itself the file.
    """
    here, places = os.path.realpath(work), dict[Path, Path]()
    for path in sorted(paths):
        real = Path(os.path.realpath(path))
        places[path] = path if real.is_relative_to(here) or real in places.values() else real
    return places


def _written_ns(path: Path, copy: Path, present: Mapping[Path, FileState]) -> int:
    """Return when the file was written; if it is gone,
    when it was copied into the store, a moment later.
    """
    return present[path].mtime_ns if path in present else copy.stat().st_mtime_ns


def _stored_files(checkpoint: Path, work: Path) -> dict[Path, Path]:
    """Return the checkpoint's files: {where each is put: where it lies in the store}."""
    found = [
        path
        for path in scan.glob(checkpoint, "**/*")
        if scan.is_file(path) and path != checkpoint / MANIFEST
    ]
    return {work / path.relative_to(checkpoint): path for path in found}


def _move(source: Path, target: Path) -> None:
    """Rename the file or link, or copy and remove it if `target` is on another file system."""
    disk.make_dirs(target.parent)
    try:
        disk.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if scan.is_symlink(source):
            disk.symlink(os.readlink(source), target)
        else:
            disk.replace_with(target, read_blocks(source), file_mode(source))
        disk.remove_file(source)
