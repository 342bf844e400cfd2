"""Finds the format of a path. Files are known by their first bytes, or else by their
names' ending.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .. import scan
from ..errors import Damaged, StoreError
from . import dcp, hdf5, orbax, pt, safetensors, shards
from .content import ForeignContent
from .region import Region, read_small, whole_file

_MOST_NAMES = 100_000  # files in a folder
_HEAD = 8
# https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md
_POINTER = b"version https://git-lfs.github.com/spec/"


class FileFormat(NamedTuple):
    endings: tuple[str, ...]
    begins: re.Pattern[bytes]  # the first eight bytes
    read: Callable[[Region], ForeignContent]


class FolderFormat(NamedTuple):
    has: Callable[[Path, frozenset[str]], bool]  # whether a folder with files of these names is one
    read: Callable[[Path, frozenset[str]], ForeignContent]


FILES = (
    FileFormat((".pt", ".pth", ".ckpt", ".bin", ".pkl"), re.compile(rb"PK\x03\x04"), pt.read),
    FileFormat(
        (".pt", ".pth", ".ckpt", ".bin", ".pkl"), re.compile(rb"\x80[\x02-\x05]"), pt.read_pickle
    ),
    FileFormat((".keras",), re.compile(rb"PK\x03\x04"), hdf5.read_archive),
    FileFormat((".h5", ".hdf5"), re.compile(rb"\x89HDF\r\n\x1a\n"), hdf5.read),
    FileFormat(
        (".safetensors",), re.compile(rb"[^\x00].{2,4}\x00{1,5}", re.DOTALL), safetensors.read
    ),
)
FOLDERS = (
    FolderFormat(lambda _, names: dcp.METADATA in names, dcp.read),
    FolderFormat(orbax.is_folder, orbax.read),
    FolderFormat(lambda _, names: shards.is_folder(names), shards.read),
)
_ALL_ENDINGS = tuple({ending for each in FILES for ending in each.endings})
_ENDINGS = tuple({*_ALL_ENDINGS} - {".bin", ".pkl"})  # other programs write such files, too


def is_foreign(path: Path, *, named: bool = False) -> bool:
    """Return whether `path` is a checkpoint of another program, by its name or by its first bytes;
    with `named`, by both.
    """
    if scan.is_dir(path):
        return _folder_format(path, names_in(path)) is not None
    if not scan.is_file(path) or (named and not path.name.endswith(_ALL_ENDINGS)):
        return False
    return path.name.endswith(_ENDINGS) or _file_format(path) is not None


def read(path: Path) -> ForeignContent:
    """Return what a checkpoint of another program holds.

    Raises:
        Damaged: it is cut, or what it says about itself is contradictory.
        StoreError: it holds more than is read, or in a way that is not read.
    """
    if scan.is_dir(path):
        names = names_in(path)
        folder = _folder_format(path, names)
        if folder is None:
            raise Damaged(f"{path}: no checkpoint of a known format any more")
        return folder.read(path, names)
    form = _file_format(path)
    if form is None or _is_lfs_pointer(path):
        raise Damaged(f"{path}: {_describe_file(path)}")
    return form.read(whole_file(path))


def names_in(folder: Path) -> frozenset[str]:
    """Return the names in a folder.

    Raises:
        StoreError: there are more than are read.
    """
    names = set[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            names.add(entry.name)
            if len(names) > _MOST_NAMES:
                raise StoreError(f"{folder}: more than {_MOST_NAMES:,} files; not read")
    return frozenset(names)


def _folder_format(path: Path, names: frozenset[str]) -> FolderFormat | None:
    return next((each for each in FOLDERS if each.has(path, names)), None)


def _file_format(path: Path) -> FileFormat | None:
    head = read_small(whole_file(path).slice(0, _HEAD))
    named = [each for each in FILES if path.suffix in each.endings]
    if path.suffix == ".safetensors":
        return named[0]
    return next((each for each in named or FILES if each.begins.match(head)), None)


def _is_lfs_pointer(path: Path) -> bool:
    return read_small(whole_file(path).slice(0, len(_POINTER))) == _POINTER


def _describe_file(path: Path) -> str:
    if _is_lfs_pointer(path):
        return "a pointer of Git LFS, not the file itself: `git lfs pull` brings that"
    head = read_small(whole_file(path).slice(0, _HEAD))
    if not head:
        return "an empty file"
    if not any(head):
        return "begins with zeros: it was cut, or never written"
    return f"begins with {head!r}, as no file of a known format with the ending {path.suffix} does"
