"""Snapshot: a copy of a state in host memory that only this module writes. The memory is kept from
save to save.

First touch of memory costs more than the copy itself, so the arena is touched once, reused, and
released on request.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from ..pages import Data, DistantBytes, Wait, address, allocate_pages, begin_copy, round_to_pages
from ..threads import Latch, WorkerGroup, map_in_threads
from .codec import Block
from .copy_progress import CopyProgress

# makes copies into memory faster; returns a function that undoes it, or None
Pin = Callable[[memoryview], Wait | None]

SPARE_BYTES = 256 << 20  # left free for other users when an arena is made
COPY_THREADS = 2
BORROWED_BYTES = 1 << 20
_THREADS_PAY_BYTES = 32 << 20
# mean size of leaves; copies of smaller ones and a writer compete for the interpreter
_EACH_PAYS_BYTES = 1 << 20
PORTION_BYTES = 4 << 20  # a thread takes this much at a time, and then reports that it is copied
_TOUCH_BYTES = 16 << 20  # interval of the checks whether the memory is needed now


class FileImage(NamedTuple):
    """The layout of a file: its first bytes, then the leaves under `keys` one after another."""

    lead: bytes
    keys: Sequence[str]

    def size(self, blocks: Mapping[str, Block]) -> int:
        """Number of its bytes that are copied."""
        return len(self.lead) + sum(
            blocks[key].data.nbytes for key in self.keys if not is_borrowed(blocks[key])
        )


def common_pin(blocks: Iterable[Block]) -> Pin | None:
    """Return the function that pins memory for these blocks; None if pinning would speed up no
    copy.
    """
    pins = (block.data.pin for block in blocks if isinstance(block.data, DistantBytes))
    return next((pin for pin in pins if pin is not None), None)


class Arena:
    """Reusable host memory for one snapshot at a time."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")
        # the last pin called for this memory, even if it pinned nothing
        self._pinned: Pin | None = None
        self._unpin: Wait | None = None
        self._warming = WorkerGroup()
        self._abandoned = False  # threads that are no longer waited for may be writing into it

    @property
    def size_bytes(self) -> int:
        """Host memory that it holds."""
        return self._memory.nbytes

    @property
    def is_warming(self) -> bool:
        """Whether a thread is still touching the memory: a copy into it would take long."""
        return self._warming.is_busy

    def reserve(self, size: int, pin: Pin | None = None) -> memoryview:
        """Return at least `size` bytes, aligned to pages, pinned if there is a `pin`. An earlier
        snapshot's content is lost.

        Raises:
            MemoryError: the machine has less to spare.
        """
        self._end_warming()
        if self._abandoned:
            self.release()
        self._allocate(size)
        self._pin(self._memory, pin)
        return self._memory

    @contextmanager
    def copying_threads(self) -> Iterator[WorkerGroup]:
        """Within this block, threads copy into its memory.
        If Ctrl-C ends the wait for them, they keep the memory.
        """
        crew, self._abandoned = WorkerGroup(), True
        try:
            yield crew
        finally:
            crew.dismiss()
            self._abandoned = False

    def warm_up(self, size: int, pin: Pin | None = None) -> None:
        """Reserve `size` bytes; a thread touches and pins them until they are needed.

        Raises:
            MemoryError: the machine has less to spare.
        """
        if size > self._memory.nbytes:
            self._allocate(size)
            crew, memory = WorkerGroup(), self._memory
            self._warming = crew
            crew.start_worker(lambda: self._touch_pages(memory, pin, crew), "holdfast-warm")

    def release(self) -> None:
        """Free the memory; the next snapshot takes longer, because it touches new memory."""
        self._end_warming()
        unpin, self._unpin, self._pinned = self._unpin, None, None
        if unpin is not None:
            unpin()
        self._memory, self._abandoned = memoryview(b""), False

    def _allocate(self, size: int) -> None:
        if size <= self._memory.nbytes:
            return
        self.release()
        if size + SPARE_BYTES > available_bytes():
            raise MemoryError(
                f"a snapshot needs {size:,} bytes, and {available_bytes():,} are free"
            )
        try:
            # a state grows a little: a new key, a longer list
            self._memory = allocate_pages(size + size // 128)
        except OSError as error:  # a limit of the process's own
            raise MemoryError(f"a snapshot needs {size:,} bytes: {error.strerror}") from error

    def _pin(self, memory: memoryview, pin: Pin | None) -> None:
        """Pin the memory once; it stays pinned until it is released."""
        if pin is not None and self._pinned is None and memory:
            self._pinned, self._unpin = pin, pin(memory)

    def _touch_pages(self, memory: memoryview, pin: Pin | None, crew: WorkerGroup) -> None:
        for start in range(0, memory.nbytes, _TOUCH_BYTES):
            if crew.dismissed:
                return
            part = memory[start : start + _TOUCH_BYTES]
            ctypes.memset(address(part), 0, part.nbytes)
        self._pin(memory, pin)

    def _end_warming(self) -> None:
        """If interrupted, leave the memory to the touching thread until the next request."""
        self._warming.dismiss()
        self._warming = WorkerGroup()


class _Copy(NamedTuple):
    target: memoryview
    source: Data
    start: int  # of the target, in the snapshot's memory


class Snapshot:
    """Images of files in an arena,
    and the leaves' blocks as they lie there once `copy` has returned.
    """

    def __init__(
        self, arena: Arena, images: Sequence[FileImage], blocks: Mapping[str, Block]
    ) -> None:
        self.blocks: dict[str, Block] = dict(blocks)
        # None: some of its leaves are not copied, and lie elsewhere
        self.images: list[memoryview | None] = []
        self.copied = Latch()  # set when the copy has ended or was abandoned
        self.copied_s = 0.0  # when the copy ended
        self._arena = arena
        self._starts: list[int] = []
        copies: list[_Copy] = []
        sizes = [image.size(blocks) for image in images]
        memory, start, end = (
            arena.reserve(sum(map(round_to_pages, sizes)), common_pin(blocks.values())),
            0,
            0,
        )
        for image, size in zip(images, sizes, strict=True):
            copies += self._plan_copies(image, memory[start : start + size], start)
            end = start + size
            start += round_to_pages(size)
        self._total = sum(each.source.nbytes for each in copies)
        here = all(isinstance(each.source, memoryview) for each in copies)
        self.is_long = here and self._total >= max(
            _THREADS_PAY_BYTES, _EACH_PAYS_BYTES * len(copies)
        )
        self._portions = list(_portions(copies))
        self._filling = CopyProgress(end, [portion[0].start for portion in self._portions])

    def _plan_copies(self, image: FileImage, whole: memoryview, start: int) -> Iterator[_Copy]:
        self.images.append(
            None if any(is_borrowed(self.blocks[key]) for key in image.keys) else whole
        )
        self._starts.append(start)
        whole[: len(image.lead)] = image.lead
        at = len(image.lead)
        for key in image.keys:
            block = self.blocks[key]
            if is_borrowed(block):
                continue
            place = whole[at : at + block.data.nbytes]
            yield _Copy(place, block.data, start + at)
            self.blocks[key] = msgspec.structs.replace(block, data=place, fixed=False)
            at += block.data.nbytes

    def copy(self) -> None:
        """Copy the leaves, unless they are copied already.
        If this raises, the snapshot cannot be used.
        """
        if self.copied_s:
            return
        portions, self._portions = self._portions, []
        done = False
        try:
            with self._arena.copying_threads() as crew:
                _copy_all(
                    portions,
                    COPY_THREADS if self._total >= _THREADS_PAY_BYTES else 1,
                    crew,
                    self._filling,
                )
            self.copied_s, done = time.monotonic(), True
        finally:
            self._end_copies(whole=done)

    def abandon(self) -> None:
        """End all waits for `copy`, if an exception has prevented its end or the report of it."""
        self._end_copies(whole=False)

    def wait(self, index: int, size: int) -> bool:
        """Wait until the first `size` bytes of an image are copied; return False if the copy was
        abandoned.
        """
        return self._filling.wait_until(self._starts[index] + size)

    def wait_for_all(self) -> bool:
        """Wait until all images are copied; return False if the copy was abandoned."""
        return self._filling.wait_until(self._filling.size)

    def _end_copies(self, *, whole: bool) -> None:
        self._filling.end(whole=whole)
        self.copied.set()


def is_borrowed(block: Block) -> bool:
    """Return whether a snapshot uses a leaf's own memory: it cannot change, and copying costs more
    than one more write.
    """
    return block.fixed and block.data.nbytes >= BORROWED_BYTES


def _portions(copies: Iterable[_Copy]) -> Iterator[list[_Copy]]:
    """Divide big copies, and put small ones together."""
    portion: list[_Copy] = []
    size = 0
    for each in copies:
        for part in [each] if each.source.nbytes <= PORTION_BYTES else _split_copy(each):
            portion.append(part)
            size += part.source.nbytes
            if size >= PORTION_BYTES:
                yield portion
                portion, size = [], 0
    if portion:
        yield portion


def _split_copy(whole: _Copy) -> Iterator[_Copy]:
    for start in range(0, whole.source.nbytes, PORTION_BYTES):
        part = slice(start, start + PORTION_BYTES)
        yield _Copy(whole.target[part], whole.source[part], whole.start + start)


def _copy_all(
    portions: Iterable[Sequence[_Copy]], count: int, crew: WorkerGroup, filling: CopyProgress
) -> None:
    todo = deque(enumerate(portions))
    if count == 1:
        _copy_portions(todo, crew, filling)
    else:
        map_in_threads(lambda _: _copy_portions(todo, crew, filling), range(count), count, crew)


def _copy_portions(
    todo: deque[tuple[int, Sequence[_Copy]]], crew: WorkerGroup, filling: CopyProgress
) -> None:
    """Copy portions from `todo` until none is left: begin all their copies, then wait for them.
    Several threads may do this.
    """
    waits: dict[Wait, None] = {}  # without duplicates: all copies from one device have the same
    try:
        while todo and not crew.dismissed:
            try:
                number, portion = todo.popleft()
            except IndexError:  # another thread took the last one
                return
            for each in portion:
                wait = begin_copy(each.target, each.source)
                if wait is not None:
                    waits[wait] = None
            if not waits:
                filling.report_copied(number)
    finally:  # copies under way end before their memory can be freed
        for wait in waits:
            wait()


def available_bytes() -> int:
    """Return how much memory this process may still take: the kernel's estimate, within its control
    groups' limits.

    Source: proc(5), /proc/meminfo and /proc/self/cgroup; Linux's cgroup-v2.rst and
    cgroup-v1/memory.rst.
    """
    found = [
        int(text) << 10 for text in re.findall(r"MemAvailable:\s+(\d+)", _read("/proc/meminfo"))
    ]
    for controllers, path in re.findall(
        r"^\d+:([^:]*):(.*)$", _read("/proc/self/cgroup"), re.MULTILINE
    ):
        if controllers == "":
            found += _cgroup_allowances(
                "/sys/fs/cgroup", path, "memory.max", "memory.current", "file"
            )
        elif "memory" in controllers.split(","):
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"
            found += _cgroup_allowances("/sys/fs/cgroup/memory", path, *names)
    return min(found, default=1 << 62)


def _cgroup_allowances(mount: str, path: str, limit: str, used: str, cache: str) -> Iterator[int]:
    """Yield what the control group at `path`, and each above it, still allows; page cache can be
    reclaimed.
    """
    for place in (Path(path), *Path(path).parents):
        group = Path(mount) / place.relative_to("/")
        most, now = _read(group / limit).strip(), _read(group / used).strip()
        if most.isdecimal() and now.isdecimal():
            spare = re.findall(rf"^{cache} (\d+)", _read(group / "memory.stat"), re.MULTILINE)
            yield int(most) - int(now) + sum(map(int, spare))


def _read(path: str | Path) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
