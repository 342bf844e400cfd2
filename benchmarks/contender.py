"""Contender: what saves or restores the subject when its turn comes; the raw limit of the machine is one, too."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness import MIB, remove
from subject import Live, Memory, Setting, Watch, arrays, digest, evict, mapped, warm

_REQUEST = 16 * MIB


class Saved(NamedTuple):
    wait_s: float  # the training thread stood still
    durable_s: float  # from the same beginning until the bytes survive a power loss


class Contender:
    """One way to save and restore; a subclass says how, and this class what a turn is."""

    threads: int | None = None  # of torch's own computing

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.home = setting.scratch / f"{type(self).__name__}-{os.getpid()}"
        self.home.mkdir()
        self.turns, self.kept = 0, Path()
        self.prepare()
        self.memory = Memory()

    # -- for a subclass ------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Import what is needed, make live objects: none of it belongs to a save."""
        self.live = Live(self.setting)

    def save(self, path: Path) -> Saved:
        """Save the live state as `path`, durable."""
        raise NotImplementedError

    def restore(self, path: Path) -> None:
        """Put what was saved as `path` into the live objects."""
        raise NotImplementedError

    def forget(self) -> None:
        """Remove what earlier turns saved."""
        remove([each for each in self.home.iterdir() if each != self.kept])

    def bump(self) -> None:
        self.live.bump()

    def clear(self) -> None:
        self.live.clear()

    def let_go(self) -> None:
        """Give back what a restore has made, so that it does not lie beside the next contender's."""
        self.live.rebind()

    def digest(self) -> str:
        return self.live.digest()

    def close(self) -> None:
        """Leave nothing behind; scratch itself is removed by the table."""

    # -- turns ---------------------------------------------------------------------------------------------------

    def save_turn(self) -> dict[str, Any]:
        figures = self.saved()
        self.forget()
        return figures

    def saved(self) -> dict[str, Any]:
        """Save once; what that cost."""
        self.bump()
        self.memory.reset()
        self.turns += 1
        saved = self.save(self.home / str(self.turns))
        return {"wait_s": saved.wait_s, "durable_s": saved.durable_s, "extra_mib": self.memory.extra_mib()}

    def keep(self) -> str:
        """Save the state that later turns restore; its digest."""
        self.kept = self.home / "kept"
        self.save(self.kept)
        return self.digest()

    def restore_turn(self, expected: str) -> dict[str, Any]:
        """A cold restore, then a warm one, each into live memory of zeros, each compared afterwards."""
        figures: dict[str, Any] = {}
        for what, before in (("cold", evict), ("warm", warm)):
            self.clear()
            before(self.kept)
            self.memory.reset()
            watch = Watch()
            self.restore(self.kept)
            figures[f"{what}_s"] = watch()
            figures[f"{what}_extra_mib"] = self.memory.extra_mib()
            if self.digest() != expected:
                raise ValueError("what was restored is not what was saved")
            self.let_go()
        evict(self.kept)
        return figures

    def notices(self, expected: str) -> str:
        """Whether a restore notices one flipped bit; what was kept is spoilt afterwards."""
        largest = max((each for each in self.kept.rglob("*") if each.is_file()), key=lambda each: each.stat().st_size)
        place = largest.stat().st_size // 2
        with largest.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 1]))
        evict(self.kept)
        self.clear()
        try:
            self.restore(self.kept)
        except Exception as error:
            return f"yes: {type(error).__name__}"
        spoilt = self.digest() != expected
        self.let_go()
        return "no" if spoilt else "the bit is not used"


class Raw(Contender):
    """The limit: one copy into warm memory, an O_DIRECT write, the fastest of a few reads.

    Reads and writes go through one buffer a thread, of huge pages and used again and again: a disk that reads straight
    into many small pages is slower.
    """

    def prepare(self) -> None:
        self._arrays = arrays(self.setting)
        self._size = self.setting.size_mib * MIB
        self._buffers = [huge(_REQUEST) for _ in range(4)]
        for buffer in self._buffers:
            buffer[:] = memoryview(mapped(self.setting))[:_REQUEST]  # of a state's numbers, which do not compress

    def bump(self) -> None:
        for array in self._arrays:
            array[:1] += 1

    def saved(self) -> dict[str, Any]:
        figures = super().saved()
        del figures["extra_mib"]
        return figures

    def save(self, path: Path) -> Saved:
        wait_s = self.memcpy()
        watch = Watch()
        self.write(path)
        return Saved(wait_s, watch())

    def memcpy(self) -> float:
        """Seconds to copy the state, tensor by tensor, into memory that was touched before."""
        target = np.frombuffer(huge(self._size), dtype=np.float32)
        each = self._arrays[0].size
        parts = [target[i * each : (i + 1) * each] for i in range(len(self._arrays))]
        for _ in range(2):
            watch = Watch()
            for part, array in zip(parts, self._arrays, strict=True):
                ctypes.memmove(part.ctypes.data, array.ctypes.data, part.nbytes)
            seconds = watch()
        return seconds

    def write(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        descriptor = os.open(path / "raw", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _direct(path), 0o644)
        with suppress(OSError):
            os.posix_fallocate(descriptor, 0, self._size)
        self._parallel(2, lambda buffer, start: os.pwrite(descriptor, buffer, start))
        os.fsync(descriptor)
        os.close(descriptor)
        for directory in (path, path.parent):
            place = os.open(directory, os.O_RDONLY)
            os.fsync(place)
            os.close(place)

    def restore_turn(self, expected: str) -> dict[str, Any]:
        """The reads alone."""
        cold = {}
        for how, flag, threads in (
            ("direct", _direct(self.kept), 2),
            ("direct", _direct(self.kept), 4),
            ("buffered", 0, 4),
        ):
            evict(self.kept)
            cold[f"{how}, {threads} threads"] = self.read(flag, threads)
        warm(self.kept)
        fastest = min(cold, key=lambda each: cold[each])
        memory = memoryview(mapped(self.setting))
        warm_s, into_state_s = self.read(0, 2), self.read(0, 2, memory)
        evict(self.kept)
        return {"cold_s": cold[fastest], "warm_s": warm_s, "into_state_s": into_state_s, "fastest": fastest, **cold}

    def read(self, flag: int, threads: int, memory: memoryview | None = None) -> float:
        """Seconds to read the file once, through the buffers or straight into `memory`."""

        def act(buffer: memoryview, start: int) -> int:
            place = buffer if memory is None else memory[start : start + buffer.nbytes]
            return os.preadv(descriptor, [place], start)

        watch = Watch()
        descriptor = os.open(self.kept / "raw", os.O_RDONLY | flag)
        self._parallel(threads, act)
        os.close(descriptor)
        return watch()

    def digest(self) -> str:
        return digest(self._arrays)

    def notices(self, expected: str) -> str:
        return ""

    def _parallel(self, threads: int, act: Callable[[memoryview, int], int]) -> None:
        """Every request of the file once, each thread with a buffer of its own."""

        def each(buffer: memoryview, first: int) -> None:
            for start in range(first * _REQUEST, self._size, threads * _REQUEST):
                part = buffer[: min(_REQUEST, self._size - start)]
                if act(part, start) != part.nbytes:
                    raise OSError("a short read or write")

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(each, self._buffers[:threads], range(threads)))


def huge(size: int) -> memoryview:
    """Memory of huge pages, where there are any."""
    whole = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):
        whole.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(whole)


def _direct(path: Path) -> int:
    """O_DIRECT where the file system takes it."""
    probe = path.parent / "probe"
    try:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644))
    except OSError:
        return 0
    finally:
        probe.unlink(missing_ok=True)
    return os.O_DIRECT
