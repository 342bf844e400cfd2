"""Kill: starts the user's command, follows its journal,
interrupts it as planned, and damages its checkpoints.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from io import FileIO
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec

from .. import disk
from ..children import child as children
from ..children import processes, warden
from ..children.warden import Streams
from ..data.order import derive_key
from ..errors import ChildError, StoreError
from ..journal import Event
from ..legible import UNREADABLE
from ..store.checkpoint import Checkpoint
from ..store.format import MANIFEST
from ..store.store import Store
from . import output
from .plan import RANK, Kill
from .safepoint import SafePoint, place_of

POLL_S = 0.002
POLL_SAVE_S = 0.0002  # a save of a small model takes a few ms
TAIL_BYTES = 1 << 16
PRINTED_BYTES = 64 << 20  # of one start; later output is not compared


class SentSignal(NamedTuple):
    """A signal that was sent to the command."""

    signal: str
    in_save: str | None  # the checkpoint that was being written
    damage: str | None = None  # the damage to be done after it, one of plan.DAMAGE


class ChildExit(NamedTuple):
    """How one start of the command ended."""

    exit: int  # in subprocess's notation: -9 for SIGKILL
    fired: SentSignal | None
    tail: str
    took_s: float
    # by attempt: a launcher that lost a rank may begin another attempt itself
    strikes: Mapping[int, SentSignal] = {}
    printed: str = ""  # to standard output, with the marks of safe points


class DamageDone(NamedTuple):
    """Damage that the drill did to a committed checkpoint."""

    checkpoint: str
    what: str


class ChildTree(children.Child):
    """The command, and all that it starts. Leaving the block ends all of it, in any session."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._tail, self._printed = bytearray(), bytearray()
        (self._out, out), (self._err, err) = os.pipe(), os.pipe()
        for pipe in (self._out, self._err):
            os.set_blocking(pipe, False)
        streams = Streams(
            os.open(os.devnull, os.O_RDONLY), out, err, sources=(self._out, self._err)
        )
        self._open = False
        try:
            super().__init__(command, {**os.environ, **environment}, streams)
            self._open = True
        finally:
            streams.close(sources=not self._open)

    def __exit__(self, *_: object) -> None:
        self.finish()

    def ended(self) -> bool:
        """Whether the command itself has ended; processes that it left may still run."""
        self.update()
        self._read()  # otherwise it would wait for space in the pipe
        return self.code is not None

    def interrupt(self, name: str) -> None:
        """Send SIGKILL to every process of the command, as a lost machine does; any other signal
        only to the command itself.
        """
        self.send(signal.Signals[f"SIG{name}"], alone=name != "KILL")

    def lose_rank(self, which: float) -> None:
        """Send SIGKILL to one process that has a rank,
        and to no other; without ranks, to the command.
        """
        ranks = sorted(processes.rank_workers(self.pid)) or [self.pid]
        warden.send_signal([ranks[int(which * len(ranks))]], signal.SIGKILL)

    def finish(self) -> int:
        """End all of its processes that still run; return the command's exit status."""
        if self._open:
            super().__exit__()
            self._read()
            os.close(self._out)
            os.close(self._err)
            self._open = False
        return -signal.SIGKILL if self.code is None else self.code

    @property
    def tail(self) -> str:
        """The end of its output, on both streams, as of the last read of `ended`."""
        return output.without_marks(self._tail.decode(errors="replace"))

    @property
    def printed(self) -> str:
        """Its standard output at that time, as far as it is kept."""
        return self._printed.decode(errors="replace")

    def _read(self) -> None:
        for pipe in (self._out, self._err):
            with suppress(BlockingIOError):
                while self._open and (piece := os.read(pipe, 1 << 16)):
                    self._tail += piece
                    del self._tail[:-TAIL_BYTES]
                    if pipe == self._out and len(self._printed) < PRINTED_BYTES:
                        self._printed += piece


class AttemptProgress:
    """How far the newest attempt has come, by its journal while it grows."""

    def __init__(self, root: Path, after: int) -> None:
        self._root = root
        self._reset(after)

    def _reset(self, after: int) -> None:
        self._after = after
        self._file: FileIO | None = None
        self._rest = b""
        self.attempt = 0
        self.room: Path | None = None
        self.restored: SafePoint | None = None  # where it resumed; step 0: it began afresh
        self.at = SafePoint(0)  # the safe point that it has reached
        # the last place with a durable checkpoint, according to its journal
        self.kept = SafePoint(0)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def has_later_attempt(self) -> bool:
        """Whether a later attempt has begun."""
        return 0 < self.attempt < self._newest_attempt()

    def follow_later_attempt(self) -> None:
        """Follow the later attempt."""
        self.close()
        self._reset(self.attempt)

    def read_new_events(self) -> None:
        """Read what was written since the last call."""
        self._file = self._file or self._open_journal()
        if self._file is None:
            return
        *whole, self._rest = (self._rest + self._file.readall()).split(b"\n")
        for line in whole:
            with suppress(*UNREADABLE):  # empty, or incomplete
                self._handle_event(msgspec.json.decode(line))

    def checkpoint_being_saved(self) -> str | None:
        """Return the checkpoint that is being written now."""
        if self.room is None:
            return None
        return next((name for name in _names(self.room) if name.startswith("step-")), None)

    def _open_journal(self) -> FileIO | None:
        newest = self._newest_attempt()
        if newest <= self._after:
            return None
        self.attempt, self.room = newest, self._root / "attempts" / str(newest)
        return FileIO(self.room / f"attempt-{newest}.jsonl")

    def _newest_attempt(self) -> int:
        return max(
            (int(name) for name in _names(self._root / "attempts") if name.isdecimal()), default=0
        )

    def _handle_event(self, event: Event) -> None:
        what, place = event.get("event"), place_of(event)
        durable = what == "saved" or (what == "restored" and event["checkpoint"] is not None)
        if what == "restored":
            self.restored = place if durable else SafePoint(0)
        if durable:
            self.kept = max(self.kept, place, key=lambda each: each.order)
        if what in ("restored", "digests"):
            self.at = place


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


Aiming = Callable[
    [AttemptProgress], Kill | None
]  # returns the next kill, given how far the attempt is


def run_command(
    command: Sequence[str],
    environment: Mapping[str, str],
    root: Path,
    aim: Aiming,
    timeout_s: float = float("inf"),
    after: int = 0,
) -> ChildExit:
    """Start the command, whose run is in `root`, and wait for its end. Earlier attempts have
    numbers up to `after`.

    After a strike, a launcher may begin another attempt itself.

    Raises:
        ChildError: it did not end in time; it was killed.
    """
    began, strikes = time.monotonic(), dict[int, SentSignal]()
    with ChildTree(command, environment) as child, closing(AttemptProgress(root, after)) as view:
        while not child.ended():
            if view.attempt in strikes and view.has_later_attempt():
                view.follow_later_attempt()
            view.read_new_events()
            kill = aim(view) if view.attempt not in strikes else None
            near = kill is not None and is_at_kill_point(kill, view)
            if (
                kill is not None
                and is_kill_due(kill, view)
                and (fired := _deliver_kill(child, view, kill)) is not None
            ):
                strikes[view.attempt] = fired
            if time.monotonic() - began > timeout_s:
                child.finish()
                line = f"no end after {timeout_s:.0f} s, at step {view.at.step}; killed"
                raise ChildError("\n".join([line, *output.last_lines(child.tail)]))
            time.sleep(POLL_SAVE_S if near else POLL_S)
        code = child.finish()
        return ChildExit(
            code,
            strikes.get(view.attempt),
            child.tail,
            time.monotonic() - began,
            strikes,
            child.printed,
        )


def is_at_kill_point(kill: Kill, view: AttemptProgress) -> bool:
    """Whether the attempt has reached the kill's place. The save that the kill must hit may
    not have begun.
    """
    reached = kill.reached is None or view.at.order >= kill.reached.order
    return reached and (kill.kept is None or view.kept.order >= kill.kept.order)


def is_kill_due(kill: Kill, view: AttemptProgress) -> bool:
    """Whether to send the kill now. If the save to be hit is already over, its checkpoint is
    accepted.
    """
    return is_at_kill_point(kill, view) and (
        kill.in_save is None
        or view.checkpoint_being_saved() is not None
        or view.kept.order >= kill.in_save.order
    )


def _deliver_kill(child: ChildTree, view: AttemptProgress, kill: Kill) -> SentSignal | None:
    """Interrupt the child; return None, and do nothing, if it has already ended."""
    until = time.monotonic() + kill.delay_s
    while not child.ended() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, POLL_S))
    if child.ended():
        return None
    saving = view.checkpoint_being_saved()
    if kill.signal == RANK:
        child.lose_rank(kill.which)
        return SentSignal(RANK, saving, kill.damage)
    child.interrupt(kill.signal)
    if kill.signal == "KILL":
        child.finish()
        saving = view.checkpoint_being_saved()  # the partial files prove that a save was killed
    return SentSignal(kill.signal, saving, kill.damage)


def exit_codes_of_signal(name: str) -> tuple[int, int]:
    """Return the exit statuses of a command killed by a signal:
    seen directly, and through a shell.
    """
    number = signal.Signals[f"SIG{name}"]
    return -number, 128 + number


@contextmanager
def unwinding_on_signals() -> Iterator[None]:
    """Within this block, SIGTERM and SIGHUP raise like Ctrl-C, so that all children are ended."""

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def damage_newest(root: Path, kind: str, seed: int) -> DamageDone | None:
    """Damage the newest checkpoint of the run at `root`; return None, and do nothing, without an
    older intact one.
    """
    found = Store(root).checkpoints()
    if not any(_is_whole(checkpoint) for checkpoint in found[:-1]):
        return None
    newest = found[-1]
    names = sorted(name for name, file in newest.manifest.files.items() if file.size_bytes) or [
        MANIFEST
    ]
    name = names[derive_key(seed, kind, "shard") % len(names)]
    path = newest.path / name
    data = bytearray(path.read_bytes())
    place = derive_key(seed, kind, "place") % len(data)
    if kind == "flipped bit":
        bit = derive_key(seed, kind, "bit") % 8
        data[place] ^= 1 << bit
        what = f"bit {bit} of byte {place:,} of {name} flipped"
    else:
        what = f"{name} cut from {len(data):,} to {place:,} bytes"
        del data[place:]
    disk.replace_with(path, [data])
    return DamageDone(newest.name, what)


def next_resume_place(root: Path, besides: str | None = None) -> SafePoint:
    """Return where the next attempt will resume: at the newest checkpoint of the run at `root`, or
    step 0.

    `besides`: a checkpoint that does not count.
    """
    found = [
        checkpoint for checkpoint in Store(root).checkpoints() if checkpoint.path.name != besides
    ]
    return SafePoint(*found[-1].head.name) if found else SafePoint(0)


def _is_whole(checkpoint: Checkpoint) -> bool:
    try:
        return checkpoint.step > 0 and not any(checkpoint.problems())
    except (StoreError, OSError):
        return False
