"""Overlap: periodic saves whose copy is made beside the loop, of memory that only an optimizer's step changes.

Which memory that is, a framework says, and it may be wrong: `module.weight.data.clamp_()` in a forward pass changes
weights between two steps. So it is tried first: a save is copied at once, and before the next step what was lent still
has to be, byte for byte, what was copied. From then on copies are made beside the loop, the step waits for them, and
each is compared: samples taken at the safe point with the copy, and then, until the step comes, the copy with what is
live. That and a write that the framework has counted end the save: a checkpoint appears only after both were asked.

What is not covered: a few bytes of a leaf that are changed without being counted (through `.data`, NumPy's views, C)
between a safe point and the next step, before they were copied and in a round of the loop that was not tried; and
storages that are resized there. `Run(overlap=False)` copies everything at once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ..pages import address, same, sample, side_by_side
from ..state.codec import Block
from ..state.snapshot import COPY_THREADS, Arena, Snapshot
from ..store.shards import Abandoned, Staged
from ..store.store import Store

LOOK_BYTES = 4 << 20  # compared between two looks at whether the loop goes on
LOOK_S = 0.02  # between two looks at where the loop is


class Lent(Protocol):
    """Memory that changes in a step only, as a framework says; and what it knows of that."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    def written(self) -> bool:
        """Whether the framework has counted a write since."""

    def gone(self) -> bool:
        """Whether the memory is another's by now."""


class Steps(Protocol):
    """The steps of a framework's optimizers."""

    def lent(self) -> Mapping[int, Lent]:
        """What they alone change, by address."""


class _Live(NamedTuple):
    """Leaves in the loop's own memory, and where they are copied to."""

    blocks: Mapping[str, Block]
    lent: Mapping[str, Lent]
    snapshot: Snapshot

    def written(self) -> str:
        """The first leaf that was written to since, as far as that was counted."""
        return next((key for key, lent in self.lent.items() if lent.written()), "")

    def changed(self) -> str:
        """The first leaf that is not what was copied; asked of every byte."""
        if key := self.written():
            return key

        def differs(key: str) -> bool:
            return self.lent[key].gone() or not same(self.blocks[key].data, self.snapshot.blocks[key].data)

        found = side_by_side(differs, list(self.blocks), COPY_THREADS)
        return next((key for key, differing in zip(self.blocks, found, strict=True) if differing), "")


class _Copying:
    """One copy beside the loop. `verdict`: the leaf that was changed under it; empty: none was; None: not known yet."""

    def __init__(self, live: _Live, loop: int) -> None:
        self.live, self.loop = live, loop  # the loop's thread
        self.place: object = None  # where the loop was when the copy had ended
        self.verdict: str | None = None
        self.going_on, self.compared = threading.Event(), threading.Event()
        self._samples = {key: sample(block.data) for key, block in live.blocks.items()}

    def compare(self) -> None:
        """Look for a leaf that is not what it was at the safe point, or not any more, until the loop goes on.

        Whoever writes to whole leaves between two steps, counted or not, is found so: by the samples when he was quicker
        than the copy, else by comparing.
        """
        for key in self.live.blocks:
            copy = self.live.snapshot.blocks[key].data
            if sample(copy) != self._samples[key]:
                self.verdict = key
                return
        for key, block in self.live.blocks.items():
            copy = self.live.snapshot.blocks[key].data
            for start in range(0, copy.nbytes, LOOK_BYTES):
                part = slice(start, start + LOOK_BYTES)
                differs = self.live.lent[key].gone() or not same(block.data[part], copy[part])
                if self.going_on.is_set():  # what it does from here on is none of this copy's business
                    return
                if differs:
                    self.verdict = key
                    return


class Overlap:
    """What of an attempt's periodic saves is copied beside the loop."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self.steps: list[Steps] = []
        self._tell = tell  # that it is off: which leaf, and the line
        self._off = False
        self._trusted: set[str] = set()  # leaves that were tried
        self._trial: _Live | None = None
        self._copying: _Copying | None = None
        self._process = os.getpid()

    @property
    def refuted(self) -> bool:
        """Whether the save in flight is worth nothing."""
        return self._copying is not None and bool(self._copying.verdict)

    # -- in the loop's thread --------------------------------------------------------------------------------------

    def stage(self, store: Store, state: Any, arena: Arena, *, due: bool) -> Staged:
        """`state` in `arena`; when the save is one that is due, but for what is left to `finish`."""
        self._trial = self._copying = None  # their copy is overwritten
        lent = self._lent() if due and not self._off else {}
        staged = store.stage(state, arena, lambda block: _is_lent(block, lent))
        if staged.snapshot is not None and staged.snapshot.left:
            self._begin(staged.snapshot, lent)
        return staged

    def before_step(self) -> None:
        """Return when what was lent may change."""
        if (self._copying is None and self._trial is None) or os.getpid() != self._process:
            return
        self.settle()
        trial, self._trial = self._trial, None
        if trial is None:
            return
        if key := trial.changed():
            self._turn_off(key)
        else:
            self._trusted |= trial.blocks.keys()

    def settle(self) -> None:
        """Wait for the copy, and say whether it is worth anything: from here on it does not matter what changes."""
        copying = self._copying
        if copying is None or os.getpid() != self._process:
            return
        copying.live.snapshot.copied.wait()
        copying.going_on.set()
        copying.compared.wait()
        if copying.verdict is None:
            copying.verdict = copying.live.written()
        if not copying.verdict:
            self._copying = None
        elif not self._off:
            self._turn_off(copying.verdict)

    def forget(self) -> None:
        """The save was not begun: nobody makes its copy."""
        self._trial = self._copying = None

    def _lent(self) -> dict[int, Lent]:
        return {place: lent for steps in self.steps for place, lent in steps.lent().items()}

    def _begin(self, snapshot: Snapshot, lent: Mapping[int, Lent]) -> None:
        blocks = dict(snapshot.left)
        live = _Live(blocks, {key: lent[address(block.data)] for key, block in blocks.items()}, snapshot)
        if self._trusted.issuperset(blocks):
            self._copying = _Copying(live, threading.get_ident())
        else:
            snapshot.finish(COPY_THREADS)
            self._trial = live

    def _turn_off(self, key: str) -> None:
        self._off = True
        self._tell(key, _line(key))

    # -- in the writer's thread ------------------------------------------------------------------------------------

    def finish(self, snapshot: Snapshot) -> None:
        """Copy what was left."""
        copying = self._copying_to(snapshot)
        try:
            snapshot.finish()
            if copying is not None:
                copying.compare()
                copying.place = _place(copying.loop)
        finally:
            if copying is not None:
                copying.compared.set()

    def require(self, snapshot: Snapshot | None) -> None:
        """
        Raises:
            Abandoned: the copy is not of one moment.
        """
        copying = self._copying_to(snapshot)
        if copying is not None and copying.verdict:
            raise Abandoned(_line(copying.verdict))

    def confirm(self, snapshot: Snapshot | None) -> None:
        """Return when it is certain that nobody wrote under the copy, as far as writes are counted.

        They are counted when they are done: one that was under way as the copy ended shows only after the loop has
        moved on. So that is waited for, unless the loop itself comes to say it.

        Raises:
            Abandoned: somebody did.
        """
        copying = self._copying_to(snapshot)
        while copying is not None and copying.verdict is None:
            if _place(copying.loop) == copying.place:
                time.sleep(LOOK_S)
                continue
            written = copying.live.written()
            if copying.verdict is None:  # else the loop was quicker, and what is written now is a step's
                copying.verdict = written
        self.require(snapshot)

    def _copying_to(self, snapshot: Snapshot | None) -> _Copying | None:
        copying = self._copying
        return copying if copying is not None and copying.live.snapshot is snapshot else None


def _is_lent(block: Block, lent: Mapping[int, Lent]) -> bool:
    """Whether the block is one of these pieces of memory: not a copy, nor a part, nor more than it."""
    if not lent or block.data.readonly or not block.data.nbytes:
        return False
    found = lent.get(address(block.data))
    return found is not None and (found.size_bytes, found.shape) == (block.data.nbytes, block.shape)


def _line(key: str) -> str:
    return f"overlap is off: {key} changed between two optimizer steps; saves copy the state at once"


def _place(thread: int) -> object:
    """Where a thread is in its Python code: another place than before means that it has moved on."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  documented, if for debuggers
    return None if frame is None else (id(frame), frame.f_lasti)
