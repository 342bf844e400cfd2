"""Overlap: periodic saves whose copy is made beside the loop, of memory that only an optimizer's step changes.

Which memory that is, a framework says, and it may be wrong: `module.weight.data.clamp_()` in a forward pass changes
weights between two steps. So it is tried first: a save is copied at once, and before the next step what was borrowed still
has to be, byte for byte, what was copied. From then on copies are made beside the loop, the step waits for them, and
each is compared: samples taken at the safe point with the copy, and then, until the step comes, the copy with what is
live. That and a write that the framework has counted end the save: a checkpoint appears only after both were asked.

When nearly all of a state is such memory, tried and in its place, the loop keeps a copy of the rest, and the state is laid
out beside the loop as well. Nothing of an earlier save is used for that but the places of what was tried: what was laid
out must lie in exactly these, under the same keys, or the save is made again.

What is not covered: a few bytes of a leaf that are changed without being counted (through `.data`, NumPy's views, C)
between a safe point and the next step, before they were copied and in a round of the loop that was not tried; and
storages that are resized there. `Run(overlap=False)` copies everything at once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from ..errors import RanksError
from ..pages import address, same, sample, sample_at
from ..state.codec import Block
from ..state.snapshot import COPY_THREADS, Arena, Snapshot
from ..store.shards import Abandoned, Staged
from ..store.store import Store
from ..threads import Latch, map_in_threads

LOOK_BYTES = 1 << 20  # compared between two looks at whether the loop goes on
LOOK_S = 0.02  # between two looks at where the loop is
ASK_S = 1.0  # between two questions whether another rank has failed


class Borrowed(Protocol):
    """Memory that changes in a step only, as a framework says; and what it knows of that."""

    @property
    def address(self) -> int: ...
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

    def borrowed(self) -> Mapping[int, Borrowed]:
        """What they alone change, by address."""

    def keeping(self, borrowed: Mapping[int, Borrowed]) -> Keeping:
        """How leaves are kept for later, when `borrowed` lies still."""


class Keeping(Protocol):
    """Leaves that are kept for later: twins of what is borrowed, over its memory, and copies of the others."""

    @property
    def referred(self) -> Collection[int]:
        """The addresses of what was borrowed."""

    def keep(self, leaf: Any) -> Any:
        """A leaf of our own. Moving: it cannot be told what else changes this one, or it is too large."""

    def settle(self) -> None:
        """Moving: leaves that share memory would come apart."""


class Moving(Exception):
    """A state cannot be kept for later: it is laid out while the loop waits."""


Later = Callable[[], Staged]


class _Live(NamedTuple):
    """Leaves in the loop's own memory, and where they are copied to."""

    blocks: Mapping[str, Block]
    borrowed: Mapping[str, Borrowed]
    snapshot: Snapshot

    def written(self) -> str:
        """The first leaf that was written to since, as far as that was counted."""
        return next((key for key, borrowed in self.borrowed.items() if borrowed.written()), "")

    def places(self) -> dict[str, int]:
        """Where each leaf lies."""
        return {key: borrowed.address for key, borrowed in self.borrowed.items()}

    def changed(self) -> str:
        """The first leaf that is not what was copied; asked of every byte."""
        if key := self.written():
            return key

        def differs(key: str) -> bool:
            return self.borrowed[key].gone() or not same(self.blocks[key].data, self.snapshot.blocks[key].data)

        found = map_in_threads(differs, list(self.blocks), COPY_THREADS)
        return next((key for key, differing in zip(self.blocks, found, strict=True) if differing), "")


class _Copying:
    """One copy beside the loop. `verdict`: the leaf that was changed under it; empty: none was; None: not known yet."""

    def __init__(self, borrowed: Iterable[Borrowed], loop: int) -> None:
        self.loop = loop  # its thread
        self.live: _Live | None = None  # when it is laid out
        self.place: object = None  # where the loop was when the copy had ended
        self.verdict: str | None = None
        self.laid_out, self.going_on, self.compared = Latch(), Latch(), Latch()
        self._samples = {each.address: sample_at(each.address, each.size_bytes) for each in borrowed}

    def lie(self, live: _Live | None) -> None:
        """It is laid out; None: it will never be."""
        self.live = live
        self.laid_out.set()

    def compare(self, live: _Live) -> None:
        """Look for a leaf that is not what it was at the safe point, or not any more, until the loop goes on.

        Whoever writes to whole leaves between two steps, counted or not, is found so: by the samples when he was quicker
        than the copy, else by comparing.
        """
        for key, block in live.blocks.items():
            if sample(live.snapshot.blocks[key].data) != self._samples[address(block.data)]:
                self.verdict = key
                return
        for key, block in live.blocks.items():
            copy = live.snapshot.blocks[key].data
            for start in range(0, copy.nbytes, LOOK_BYTES):
                part = slice(start, start + LOOK_BYTES)
                differs = live.borrowed[key].gone() or not same(block.data[part], copy[part])
                if self.going_on.is_set():  # what it does from here on is none of this copy's business
                    return
                if differs:
                    self.verdict = key
                    return


class Overlap:
    """What of an attempt's periodic saves is copied beside the loop."""

    def __init__(self, tell: Callable[[str, str], None], in_flight: Callable[[], bool]) -> None:
        self.steps: list[Steps] = []
        self._tell = tell  # that it is off: which leaf, and the line
        self._in_flight = in_flight  # whether a save is under way beside the loop
        self._off = False
        self._trusted: set[str] = set()  # leaves that were tried
        self._known: dict[str, int] = {}  # those of the last copy beside the loop, and their places
        self._keeps = True  # states can be kept for later, as far as was seen
        self._strayed = False  # one was kept whose tensors lay otherwise
        self._trial: _Live | None = None
        self._copying: _Copying | None = None
        self._process = os.getpid()

    @property
    def refuted(self) -> bool:
        """Whether the save in flight is worth nothing."""
        return self._copying is not None and bool(self._copying.verdict)

    # -- in the loop's thread --------------------------------------------------------------------------------------

    def stage(self, store: Store, state: Any, arena: Arena, *, due: bool) -> Staged:
        """`state` in `arena`; when the save is one that is due, but for what is left to `finish`.

        When its copy takes long, and nothing is left, it is laid out only: the caller copies it.
        """
        self._trial = self._copying = None  # their copy is overwritten
        borrowed = self._borrowed() if due and not self._off else {}
        staged = store.lay_out(state, arena, lambda block: _is_borrowed(block, borrowed))
        snapshot = staged.snapshot
        if snapshot is not None and (snapshot.left or not snapshot.is_long or not store.ranks.alone):
            snapshot.copy()
            if snapshot.left:
                self._begin(snapshot, borrowed)
        return staged

    def later(
        self, store: Store, state: Mapping[str, Any], arena: Arena, *, due: bool, own: Collection[int]
    ) -> Later | None:
        """What stages `state` beside the loop, as it is now; None where only the loop can.

        Values whose ids are `own` are nobody else's and need not be kept.
        """
        self._trial = self._copying = None
        if not due or self._off or not self._keeps or not self._known or store.may_link(self._known):
            return None
        borrowed = self._borrowed()
        keeping = [steps.keeping(borrowed) for steps in self.steps]
        try:
            kept = _kept(state, keeping, own)
        except (Moving, RuntimeError):  # of a framework's, or a state so deep that only a message helps
            self._keeps = False
            return None
        places = set(self._known.values())
        if places != {place for each in keeping for place in each.referred}:
            return None
        copying = self._copying = _Copying((borrowed[place] for place in places), threading.get_ident())
        return lambda: self._laid_out(store, kept, arena, borrowed, copying)

    def before_step(self) -> None:
        """Return when what was borrowed may change."""
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
        if not self._in_flight():  # Ctrl-C came before it was
            self.forget()
            return
        copying.laid_out.wait()
        if copying.live is None:  # what the save ends with says why
            self._copying = None
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
        """Nothing is copied beside the loop: the save was not begun, or the loop makes it itself."""
        self._trial = self._copying = None

    def _borrowed(self) -> dict[int, Borrowed]:
        return {place: borrowed for steps in self.steps for place, borrowed in steps.borrowed().items()}

    def _begin(self, snapshot: Snapshot, borrowed: Mapping[int, Borrowed]) -> None:
        live = _live(snapshot, borrowed)
        if self._trusted.issuperset(live.blocks):
            self._copying = _Copying(live.borrowed.values(), threading.get_ident())
            self._copying.lie(live)
            self._known = live.places()
        else:
            self._known = {}
            snapshot.finish(COPY_THREADS)
            self._trial = live

    def _turn_off(self, key: str) -> None:
        self._off, self._known = True, {}
        self._tell(key, _line(key))

    # -- in the writer's thread ------------------------------------------------------------------------------------

    def _laid_out(
        self, store: Store, kept: Any, arena: Arena, borrowed: Mapping[int, Borrowed], copying: _Copying
    ) -> Staged:
        """What was kept, staged: every leaf that is borrowed is left for `finish`, and lies under its key where it was tried.

        Raises:
            Abandoned: it does not, or there is no memory: the loop stages the next save.
        """
        live = None
        try:
            staged = store.stage(kept, arena, lambda block: _is_borrowed(block, borrowed))
            found = _live(staged.snapshot, borrowed) if staged.snapshot is not None else None
            if found is None or found.places() != self._known:
                self._strayed, self._keeps = True, not self._strayed  # twice: its tensors take turns
                raise Abandoned("its tensors have other names, or lie otherwise, than in the save before")
            live = found
        except MemoryError as error:
            raise Abandoned(str(error)) from error
        finally:
            if live is None:
                self._known = {}
            copying.lie(live)
        return staged

    def finish(self, snapshot: Snapshot) -> None:
        """Copy what was left."""
        copying = self._copying_to(snapshot)
        try:
            snapshot.finish()
            if copying is not None and copying.live is not None:
                copying.compare(copying.live)
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

    def confirm(self, snapshot: Snapshot | None, failed: Callable[[], str] = str) -> None:
        """Return when it is certain that nobody wrote under the copy, as far as writes are counted.

        They are counted when they are done: one that was under way as the copy ended shows only after the loop has
        moved on. So that is waited for, unless the loop itself comes to say it. `failed`: a rank that has, for which the
        loop may wait as long as that one waits for this save.

        Raises:
            Abandoned: somebody did.
            RanksError: it will not be certain any more.
        """
        copying, next_s = self._copying_to(snapshot), time.monotonic() + ASK_S
        while copying is not None and copying.verdict is None:
            if _place(copying.loop) == copying.place:
                if time.monotonic() >= next_s:
                    next_s += ASK_S
                    if rank := failed():
                        raise RanksError(f"rank {rank} has failed, and the loop waits for it")
                time.sleep(LOOK_S)
                continue
            written = copying.live.written() if copying.live is not None else ""
            if copying.verdict is None:  # else the loop was quicker, and what is written now is a step's
                copying.verdict = written
        self.require(snapshot)

    def _copying_to(self, snapshot: Snapshot | None) -> _Copying | None:
        copying = self._copying
        if copying is None or copying.live is None or copying.live.snapshot is not snapshot:
            return None
        return copying


def _kept(state: Any, keeping: Collection[Keeping], own: Collection[int]) -> Any:
    """`state` in containers of its own, so that nobody changes it.

    Raises:
        Moving: there is something in it of which that cannot be known.
    """

    def kept(value: Any) -> Any:
        kind = type(value)
        if kind in _FIXED or id(value) in own:
            return value
        if kind is dict:
            if not _FIXED.issuperset(map(type, value)):
                raise Moving
            return {key: kept(each) for key, each in value.items()}
        if kind is list or kind is tuple:
            return kind(map(kept, value))
        return leaf(value)

    leaf = next(iter(keeping)).keep
    found = kept(state)
    for each in keeping:
        each.settle()
    return found


_FIXED = frozenset({str, int, float, bool, bytes, complex, type(None)})


def _live(snapshot: Snapshot, borrowed: Mapping[int, Borrowed]) -> _Live:
    blocks = dict(snapshot.left)
    return _Live(blocks, {key: borrowed[address(block.data)] for key, block in blocks.items()}, snapshot)


def _is_borrowed(block: Block, borrowed: Mapping[int, Borrowed]) -> bool:
    """Whether the block is one of these pieces of memory: not a copy, nor a part, nor more than it."""
    if not borrowed or not isinstance(block.data, memoryview) or block.data.readonly or not block.data.nbytes:
        return False
    found = borrowed.get(address(block.data))
    return found is not None and (found.size_bytes, found.shape) == (block.data.nbytes, block.shape)


def _line(key: str) -> str:
    return f"overlap is off: {key} changed between two optimizer steps; saves copy the state at once"


def _place(thread: int) -> object:
    """Where a thread is in its Python code: another place than before means that it has moved on."""
    frame = sys._current_frames().get(thread)  # noqa: SLF001  documented, if for debuggers
    return None if frame is None else (id(frame), frame.f_lasti)
