"""Zip files: their members as regions, and checks by their CRC-32.
Hostile ones cost little memory and time.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..errors import Damaged, StoreError
from ..store.problems import Problem
from .limits import DIRECTORY_BYTES, INFLATED_BYTES, PICKLE_BYTES, READ_BYTES
from .region import Region

_LOCAL = struct.Struct("<4s5H3I2H")  # the header before each member
_CHANGED = "the bytes do not have the recorded CRC-32"


class ZipEntry(NamedTuple):
    name: str
    region: Region  # as it lies there, compressed or not
    size: int
    crc: int
    is_compressed: bool


class ZipMembers:
    """The members of a zip file. `has_crc`: whether the program that wrote it computed CRC-32;
    torch can omit that.

    Raises:
        Damaged: the file is cut, or its directory contradicts itself.
        StoreError: it is larger than this reads.
    """

    def __init__(self, region: Region) -> None:
        self.region = region
        self.members = {each.name: each for each in _members(region)}
        self.has_crc = any(each.crc for each in self.members.values() if each.size)

    def read(self, name: str) -> bytes:
        """Return the bytes of a small member, checked."""
        member = self.members.get(name)
        if member is None:
            raise Damaged(f"{self.region.path}: no member {name!r}")
        if member.size > PICKLE_BYTES:
            raise StoreError(
                f"{self.region.path}: {name}: {member.size >> 20} MiB of text, more than is read"
            )
        data = b"".join(map(bytes, self._pieces(member)))
        if len(data) != member.size or (self.has_crc and zlib.crc32(data) != member.crc):
            raise Damaged(f"{self.region.path}: {name}: {_CHANGED}")
        return data

    def problems(self) -> Iterator[Problem]:
        """Read every member; yield the damaged ones."""
        if sum(each.size for each in self.members.values() if each.is_compressed) > INFLATED_BYTES:
            raise StoreError(
                f"{self.region.path}: compressed members of "
                f"more than {INFLATED_BYTES >> 30} GiB; not read"
            )
        for member in self.members.values():
            found = size = 0
            try:
                for piece in self._pieces(member):
                    found, size = zlib.crc32(piece, found), size + len(piece)
            except Damaged as error:
                yield self._problem(member, str(error))
                continue
            if size != member.size or (self.has_crc and found != member.crc):
                yield self._problem(member, _CHANGED)

    def _problem(self, member: ZipEntry, why: str) -> Problem:
        start = member.region.start
        return Problem(self.region.path, start, start + member.region.size, f"{member.name}: {why}")

    def _pieces(self, member: ZipEntry) -> Iterator[Any]:
        if not member.is_compressed:
            yield from member.region.pieces()
            return
        inflate, left = zlib.decompressobj(-zlib.MAX_WBITS), member.size
        try:
            for piece in member.region.pieces():
                data = inflate.decompress(piece, READ_BYTES)
                while data:
                    left -= len(data)
                    if left < 0:
                        raise Damaged(
                            f"{self.region.path}: {member.name}: "
                            f"inflates to more than its {member.size} bytes"
                        )
                    yield data
                    data = inflate.decompress(inflate.unconsumed_tail, READ_BYTES)
        except zlib.error as error:
            raise Damaged(f"{self.region.path}: {member.name}: {error}") from error


def _members(region: Region) -> Iterator[ZipEntry]:
    with region.open() as file:
        try:
            archive = zipfile.ZipFile(_Directory(file, region))
        except (
            zipfile.BadZipFile,
            zipfile.LargeZipFile,
            ValueError,
            struct.error,
            NotImplementedError,
        ) as error:
            raise Damaged(f"{region.path}: no whole zip file: {error}; it may be cut") from error
        behind, names = archive.start_dir, set[str]()
        for info in sorted(archive.infolist(), key=lambda info: info.header_offset, reverse=True):
            start = _data_start(file, info, region)
            if start + info.compress_size > behind or info.orig_filename in names:
                raise Damaged(
                    f"{region.path}: {info.orig_filename!r}: "
                    "overlaps what follows, or is there twice"
                )
            if (
                info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                or info.flag_bits & 1
            ):
                raise StoreError(
                    f"{region.path}: {info.orig_filename!r}: "
                    "encrypted, or packed in a way that is not read"
                )
            behind = info.header_offset
            names.add(info.orig_filename)
            packed = info.compress_type == zipfile.ZIP_DEFLATED
            where = region.subregion(start, info.compress_size)
            yield ZipEntry(info.orig_filename, where, info.file_size, info.CRC, packed)


def _data_start(file: Any, info: zipfile.ZipInfo, region: Region) -> int:
    """Return where a member's bytes begin, from the header in front of them."""
    file.seek(info.header_offset)
    mark, *_, named, extra = _LOCAL.unpack(file.read(_LOCAL.size).ljust(_LOCAL.size, b"\0"))
    name = file.read(named).decode("utf-8" if info.flag_bits & 0x800 else "cp437", "replace")
    if mark != b"PK\3\4" or name != info.orig_filename:
        raise Damaged(
            f"{region.path}: {info.orig_filename!r}: the header in front of it is damaged"
        )
    return int(info.header_offset + _LOCAL.size + named + extra)


class _Directory:
    """A file whose directory, at its end, `zipfile` reads. A directory that is too large is refused
    before that.
    """

    def __init__(self, file: Any, region: Region) -> None:
        self._file, self._region = file, region
        self.seek, self.tell, self.close = file.seek, file.tell, lambda: None

    def read(self, size: int = -1) -> bytes:
        if size > DIRECTORY_BYTES:
            raise StoreError(
                f"{self._region.path}: a zip directory of {size >> 20} MiB; it is not read"
            )
        data: bytes = self._file.read(DIRECTORY_BYTES + 1 if size < 0 else size)
        if len(data) > DIRECTORY_BYTES:
            raise StoreError(f"{self._region.path}: a zip directory of more than is read")
        return data
