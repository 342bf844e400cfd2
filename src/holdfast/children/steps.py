"""Steps: memory in which a run writes how far it is, and its supervisor reads it. Nothing goes
through the disk.

The memory belongs to the supervisor (memfd). A process of the same user and machine opens it by way
of /proc. It claims a slot of one page and writes into it at every safe point: some words, and a
ring of the moments at which its last phases began.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .. import disk, scan

# What a run is at. A phase with a name of its own has a pace of its own.
OPENING, FIRST, STEP, AFTER_BATCHES, EPOCH, SAVE, CLOSING, OVER = range(8)
PHASES = (
    "the restore",
    "the first step",
    "a step",
    "what follows an epoch's batches",
    "the first step of an epoch",
    "a save",
    "the end",
    "over",
)
MEMORY = "holdfast-steps"  # as /proc/PID/maps shows it
SLOTS = 256
LOCK_S = 5.0
_SLOT_BYTES, _WORD_BYTES = 4096, 8
_WORDS = _SLOT_BYTES // _WORD_BYTES
_PID, _RANK, _WORLD, _SIGNAL, _DEBUGGED, _STEP, _COUNT, _RING = range(8)
_RING_WORDS = _WORDS - _RING


class StepSlot:
    """One run's slot in the supervisor's memory."""

    def __init__(self, path: Path, rank: int, world: int) -> None:
        """Take a free slot in the supervisor's memory.

        Raises:
            OSError: the memory cannot be opened, is not what it should be, or has no free slot.
        """
        descriptor = disk.open_shared(path)
        try:
            if os.fstat(descriptor).st_size != SLOTS * _SLOT_BYTES:
                raise OSError(f"{path} is not the memory of a supervisor")
            whole = memoryview(mmap.mmap(descriptor, 0)).cast("Q")
            _lock(descriptor)
            number = next(
                (number for number in range(SLOTS) if _is_free(whole[number * _WORDS + _PID])), None
            )
            if number is None:
                raise OSError(f"{path} has no free slot")
            self._words = whole[number * _WORDS : (number + 1) * _WORDS]
            self._words[:_RING] = memoryview(bytes(_RING * _WORD_BYTES)).cast("Q")
            self._words[_RANK], self._words[_WORLD] = rank, world
            self._words[_PID] = os.getpid()
        finally:
            # the map keeps the file open, and with it the lock
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)
        self._count = 0

    def mark_phase(self, phase: int, step: int) -> None:
        """Note that this phase begins, and the number of completed steps."""
        words, count = self._words, self._count
        words[_RING + count % _RING_WORDS] = time.monotonic_ns() << 3 | phase
        words[_STEP] = step
        # last: a reader that sees it finds the others written
        self._count = words[_COUNT] = count + 1

    def set_stack_signal(self, number: int) -> None:
        """Note the signal at which this process writes its stacks."""
        self._words[_SIGNAL] = number

    def note_debugger(self) -> None:
        """Note that a debugger may hold this process."""
        self._words[_DEBUGGED] = 1


class SlotView(NamedTuple):
    """One slot, as it was read."""

    slot: int
    pid: int
    rank: int
    world: int
    signal: int  # at which it writes its stacks; 0: none
    debugged: bool
    step: int
    beats: int  # phases that have begun
    phase: int
    ended: list[tuple[int, float]]  # phases that have ended since the last look, with their seconds


class StepMemory:
    """The supervisor's memory in which runs write their steps."""

    def __init__(self) -> None:
        """Create the memory in which runs write their steps.

        Raises:
            OSError: the system has no such memory, or none left.
        """
        self._descriptor = disk.create_shared(MEMORY, SLOTS * _SLOT_BYTES)
        self._words = memoryview(mmap.mmap(self._descriptor, 0)).cast("Q")
        self._counts: dict[int, int] = {}

    @property
    def path(self) -> Path:
        """The path by which another process opens it."""
        return Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def clear(self) -> None:
        """Free all slots. Call it when no process that claimed one is left."""
        for slot in range(SLOTS):
            if self._words[slot * _WORDS + _PID]:
                self._words[slot * _WORDS + _PID] = 0
        self._counts.clear()

    def close(self) -> None:
        """Close the memory: from then on no process can open it."""
        os.close(self._descriptor)

    def read_slots(self) -> list[SlotView]:
        """Return the claimed slots."""
        found = []
        for slot in range(SLOTS):
            words = self._words[slot * _WORDS : (slot + 1) * _WORDS]
            if words[_PID] and words[_COUNT]:
                found.append(self._decode_slot(slot, words))
        return found

    def _decode_slot(self, slot: int, words: memoryview) -> SlotView:
        count, before = words[_COUNT], self._counts.get(slot, 0)
        # a writer may be at the others
        first = max(before - 1 if before <= count else 0, count - _RING_WORDS // 2, 0)
        marks = [words[_RING + number % _RING_WORDS] for number in range(first, count)]
        self._counts[slot] = count
        spans = pairwise(marks)
        ended = [(one & 7, ((two >> 3) - (one >> 3)) / 1e9) for one, two in spans if two > one]
        return SlotView(
            slot,
            words[_PID],
            words[_RANK],
            words[_WORLD],
            words[_SIGNAL],
            bool(words[_DEBUGGED]),
            words[_STEP],
            count,
            marks[-1] & 7,
            ended,
        )


def _lock(descriptor: int) -> None:
    """Lock the file for this process.

    Raises:
        OSError: another process has held the lock for too long: it may be stopped.
    """
    until = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.001)
        else:
            return


def _is_free(pid: int) -> bool:
    return pid in {0, os.getpid()} or not scan.exists(f"/proc/{pid}")
