"""Files of a checkpoint that are not shards, with any content. The digest of such a file is
computed over blocks.
"""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

from .. import disk, scan
from ..errors import UsageError
from ..legible import is_text
from . import format, source
from .format import MANIFEST, FileEntry


def make_durable(path: Path, kind: str) -> dict[str, FileEntry]:
    """Sync all files and directories below `path`; return the files' entries for the manifest.

    Raises:
        UsageError: there is something other than plain files and directories, or a file has the
            manifest's name.
    """
    files = {}
    for place, folders, names in scan.walk(path):
        for name in itertools.chain(names, folders):
            inside = (Path(place) / name).relative_to(path).as_posix()
            found = Path(place) / name
            mode = os.lstat(found).st_mode
            plain = stat.S_ISREG(mode) or stat.S_ISDIR(mode)  # opening a pipe would block
            if not is_text(inside):
                raise UsageError(
                    f"{inside!r}: a file of a checkpoint has a name in UTF-8; give it another one"
                )
            if not plain or not format.is_inside(inside):
                raise UsageError(
                    f"{inside}: a checkpoint holds plain files only, "
                    f"and its {MANIFEST} is Holdfast's"
                )
            disk.restrict_if_private(found)
        for name in sorted(names):
            disk.sync_file(Path(place) / name)
            files[(Path(place) / name).relative_to(path).as_posix()] = _file_entry(
                Path(place) / name, kind
            )
        disk.sync_dir(Path(place))
    return files


def is_unchanged(path: Path, file: FileEntry, *, cold: bool) -> bool:
    """Return whether the file has the bytes that were committed. With `cold`, read them from the
    medium and not the cache.
    """
    return source.retry_from_medium(
        path, lambda: _digest(path, format.kind_of(file.digest), cold=cold) == file.digest, bool
    )


def _file_entry(path: Path, kind: str) -> FileEntry:
    return FileEntry(path.stat().st_size, _digest(path, kind, cold=False))


def _digest(path: Path, kind: str, *, cold: bool) -> str:
    blocks = source.read_blocks(path, format.BLOCK_BYTES, cold=cold)
    return format.joined_digest((format.digest(block, kind) for block in blocks), kind)
