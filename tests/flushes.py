"""A real file system on a disk whose writes and flushes are known, so that any writes after a flush may be lost.

The disk is a loop device on a file that this module serves by FUSE: `python flushes.py DIRECTORY IMAGE LOG`. A flush of
the disk's cache arrives there as an fsync. `Disk` mounts such a disk; `Disk.lost` gives images of it after a loss of
power: all writes that a flush has covered, and any subset of the others.
"""

import errno
import os
import random
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SIZE = 48 << 20
PIECE = 4096  # what a disk writes whole
WAIT_S = 30.0
_HEAD = struct.Struct("<cqq")  # "W" or "F", offset, length
MAKE = ["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]  # nothing in the background


def served(place: str, image: str, log: str) -> None:
    """Serve the image as the file `disk`; note in the log what is written and flushed."""
    import mfusepy

    content = bytearray(Path(image).read_bytes())
    notes = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    class OneFile(mfusepy.Operations):
        use_ns = True

        def getattr(self, path: str, fh: Any = None) -> dict[str, Any]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o755, "st_nlink": 2}
            if path == "/disk":
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(content)}
            raise mfusepy.FuseOSError(errno.ENOENT)

        def open(self, path: str, flags: int) -> int:
            return 0

        def read(self, path: str, size: int, offset: int, fh: Any) -> bytes:
            return bytes(content[offset : offset + size])

        def write(self, path: str, data: bytes, offset: int, fh: Any) -> int:
            content[offset : offset + len(data)] = data
            os.write(notes, _HEAD.pack(b"W", offset, len(data)) + data)
            return len(data)

        def fsync(self, path: str, datasync: int, fh: Any) -> int:
            os.write(notes, _HEAD.pack(b"F", 0, 0))
            return 0

    mfusepy.FUSE(OneFile(), place, foreground=True, nothreads=True, direct_io=True)


class Disk:
    """A file system on a disk that notes everything. `options`: of its mount."""

    def __init__(self, place: Path, options: str) -> None:
        self.place, self.options = place, options
        self.mount, self._log, self._image = place / "mount", place / "log", place / "image"
        with self._image.open("wb") as file:
            file.truncate(SIZE)
        subprocess.run([*MAKE, str(self._image)], check=True, capture_output=True)

    @contextmanager
    def mounted(self) -> Iterator[Path]:
        """Serve and mount it; unmount it and take everything down, whatever happens."""
        fuse = self.place / "fuse"
        for each in (fuse, self.mount):
            each.mkdir()
        words = [sys.executable, __file__, str(fuse), str(self._image), str(self._log)]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True) as server:
            try:
                _until((fuse / "disk").exists)
                with looped(fuse / "disk") as device, mounted(device, self.mount, self.options):
                    yield self.mount
            finally:
                subprocess.run(["fusermount3", "-u", "-z", str(fuse)], check=False, capture_output=True)
                with suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)

    def position(self) -> int:
        """How much of the log there is: a moment, for `lost`."""
        return self._log.stat().st_size if self._log.exists() else 0

    def between(self, position: int, end: int) -> list[int]:
        """The moments after each write and flush in that part of the log."""
        found, at = [], position
        for _, _, data in self._noted(end, position):
            at += _HEAD.size + len(data)
            found.append(at)
        return found

    def lost(self, position: int, chosen: random.Random, target: Path) -> int:
        """Write an image as a loss of power at that moment may leave it; how many pieces of writes it has lost."""
        shutil.copyfile(self._image, target)
        pending: list[tuple[int, bytes]] = []
        with target.open("r+b") as file:
            for what, offset, data in self._noted(position):
                if what == b"F":
                    _written(file, pending)
                    pending = []
                else:
                    pending += [(offset + at, data[at : at + PIECE]) for at in range(0, len(data), PIECE)]
            reaches = chosen.choice((0.0, 0.2, 0.5, 0.8, 1.0))
            kept = [piece for piece in pending if chosen.random() < reaches]
            _written(file, kept)
        return len(pending) - len(kept)

    def _noted(self, position: int, begin: int = 0) -> Iterator[tuple[bytes, int, bytes]]:
        with self._log.open("rb") as file:
            file.seek(begin)
            while file.tell() < position:
                what, offset, length = _HEAD.unpack(file.read(_HEAD.size))
                yield what, offset, file.read(length)

    def flushes(self) -> int:
        return sum(what == b"F" for what, _, _ in self._noted(self.position()))


def _written(file: Any, pieces: list[tuple[int, bytes]]) -> None:
    for offset, data in pieces:
        file.seek(offset)
        file.write(data)


@contextmanager
def looped(file: Path) -> Iterator[str]:
    found = subprocess.run(["losetup", "--find", "--show", str(file)], check=True, capture_output=True, text=True)
    device = found.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["losetup", "--detach", device], check=False, capture_output=True)


@contextmanager
def mounted(device: str, place: Path, options: str) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "ext4", "-o", options, device, str(place)], check=True, capture_output=True)
    try:
        yield place
    finally:
        done = subprocess.run(["umount", str(place)], check=False, capture_output=True)
        if done.returncode:
            subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def _until(true: Any) -> None:
    until = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > until:
            raise TimeoutError("the disk is not served")
        time.sleep(0.02)


if __name__ == "__main__":
    served(*sys.argv[1:])
