"""Kill: starts the user's command, follows its journal, interrupts it as planned, damages what it left behind."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path
from types import FrameType, TracebackType
from typing import NamedTuple, Self

import msgspec

from .. import disk
from ..children import child as children
from ..children import processes, warden
from ..children.warden import Streams
from ..data.order import key
from ..errors import ChildError, StoreError
from ..store.checkpoint import Checkpoint
from ..store.format import MANIFEST
from ..store.store import Store
from . import output, tail
from .evidence import SafePoint
from .plan import RANK, Kill

POLL_S = 0.002
POLL_SAVE_S = 0.0002  # a save of a small model takes a few ms
TAIL_LINES, TAIL_BYTES = 200, 1 << 16
PRINTED_BYTES = 64 << 20  # of one start; what is printed after that is not compared


class Fired(NamedTuple):
    """An interruption that was delivered."""

    signal: str
    in_save: str | None  # the checkpoint that was being written


class ChildExit(NamedTuple):
    """How one start of the command went."""

    exit: int  # as subprocess has it: -9 for SIGKILL
    fired: Fired | None
    tail: str
    took_s: float
    strikes: Mapping[int, Fired] = {}  # by attempt: a launcher that lost a rank may begin another one by itself
    printed: str = ""  # to standard output, with the marks of safe points


class Wound(NamedTuple):
    """Damage done on purpose to a committed checkpoint."""

    checkpoint: str
    what: str


class ChildTree:
    """The command, and all that it starts. Leaving the block ends all of it, in whichever sessions it is."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._tail, self._printed = bytearray(), bytearray()
        with ExitStack() as opened:
            nothing, (self._out, out), (self._err, err) = os.open(os.devnull, os.O_RDONLY), os.pipe(), os.pipe()
            for descriptor in (nothing, out, err):
                opened.callback(os.close, descriptor)
            for pipe in (self._out, self._err):
                os.set_blocking(pipe, False)
            try:
                streams = Streams(nothing, out, err, sources=(self._out, self._err))
                self._child = children.Child(command, {**os.environ, **environment}, streams)
            except BaseException:
                os.close(self._out)
                os.close(self._err)
                raise
        self._open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def ended(self) -> bool:
        """Whether the command itself is over; what it left behind may not be."""
        self._child.look()
        self._read()  # or it would wait for room in the pipe
        return self._child.code is not None

    def send(self, name: str) -> None:
        """SIGKILL strikes every process of the command's, as a lost machine does; anything else the command itself."""
        self._child.send(signal.Signals[f"SIG{name}"], alone=name != "KILL")

    def lose_rank(self, which: float) -> None:
        """SIGKILL to one of the processes that have a rank, and to nothing else. A command without ranks is its only one."""
        ranks = sorted(processes.workers(self._child.pid, "RANK")) or [self._child.pid]
        warden.send([ranks[int(which * len(ranks))]], signal.SIGKILL)

    def finish(self) -> int:
        """End whatever still runs of it; the command's exit status."""
        if self._open:
            self._child.__exit__()
            self._read()
            os.close(self._out)
            os.close(self._err)
            self._open = False
        return self._child.code if self._child.code is not None else -signal.SIGKILL

    @property
    def tail(self) -> str:
        """The end of what it has printed by now, on both streams."""
        self._read()
        shown = output.without_marks(self._tail.decode(errors="replace"))
        return "".join(shown.splitlines(keepends=True)[-TAIL_LINES:])

    @property
    def printed(self) -> str:
        """What it has printed to standard output by now, as far as it is kept."""
        self._read()
        return self._printed.decode(errors="replace")

    def _read(self) -> None:
        for pipe in (self._out, self._err):
            with suppress(BlockingIOError):
                while self._open and (piece := os.read(pipe, 1 << 16)):
                    self._tail += piece
                    del self._tail[:-TAIL_BYTES]
                    if pipe == self._out and len(self._printed) < PRINTED_BYTES:
                        self._printed += piece


class Follow:
    """The journal of the attempt that began last, read as it grows."""

    def __init__(self, root: Path, after: int) -> None:
        self._root = root
        self._begin(after)

    def _begin(self, after: int) -> None:
        self._after = after
        self._file: FileIO | None = None
        self._rest = b""
        self.attempt = 0
        self.room: Path | None = None
        self.restored: SafePoint | None = None  # the place it came back to; step 0: it began afresh
        self.at = SafePoint(0)  # the safe point that it has reached
        self.kept = SafePoint(0)  # the last place of which a checkpoint is durable, as far as its journal tells

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def overtaken(self) -> bool:
        """Whether a later attempt has begun."""
        return 0 < self.attempt < self._newest()

    def go_on(self) -> None:
        """Follow that one."""
        self.__exit__()
        self._begin(self.attempt)

    def look(self) -> None:
        """Take in what was written since the last look."""
        self._file = self._file or self._find()
        if self._file is None:
            return
        *whole, self._rest = (self._rest + self._file.readall()).split(b"\n")
        for line in whole:
            with suppress(msgspec.DecodeError):
                self._take(msgspec.json.decode(line) if line else {})

    def saving(self) -> str | None:
        """The checkpoint that is being written now."""
        if self.room is None:
            return None
        return next((name for name in _names(self.room) if name.startswith("step-")), None)

    def _find(self) -> FileIO | None:
        newest = self._newest()
        if newest <= self._after:
            return None
        self.attempt, self.room = newest, self._root / "attempts" / str(newest)
        return FileIO(self.room / f"attempt-{newest}.jsonl")

    def _newest(self) -> int:
        return max((int(name) for name in _names(self._root / "attempts") if name.isdecimal()), default=0)

    @property
    def step(self) -> int:
        """The step it has reached."""
        return self.at.step

    def _take(self, event: Mapping[str, object]) -> None:
        step, phase, what = event.get("step"), event.get("phase", "step"), event.get("event")
        if not isinstance(step, int) or not isinstance(phase, str):
            return
        place = SafePoint(step, phase)
        if what == "restored":
            self.restored = place if event.get("checkpoint") is not None else SafePoint(0)
        if what == "saved" or (what == "restored" and event.get("checkpoint") is not None):
            self.kept = max(self.kept, place, key=lambda each: each.order)
        if what in ("restored", "digests"):
            self.at = place


def _names(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except FileNotFoundError:
        return []


class ChildStart(NamedTuple):
    """What is started, where, and for how long it may go on."""

    command: Sequence[str]
    environment: Mapping[str, str]
    root: Path
    timeout_s: float
    after: int = 0  # the attempts of the run that lie behind


Aiming = Callable[[Follow], Kill | None]  # what to do next, given how far it is
GoesOn = Callable[[Mapping[int, Fired]], None]  # told, after a strike, that the launcher has begun another attempt


def run(start: ChildStart, aim: Aiming, goes_on: GoesOn = lambda _: None) -> ChildExit:
    """Start the command and see it to its end.

    Raises:
        ChildError: it did not end in time; it was killed.
    """
    began, strikes = time.monotonic(), dict[int, Fired]()
    fired: Fired | None = None
    with ChildTree(start.command, start.environment) as child, Follow(start.root, start.after) as view:
        while not child.ended():
            if fired is not None and view.overtaken():
                goes_on(strikes)
                view.go_on()
                fired = None
            view.look()
            kill = aim(view) if fired is None else None
            near = kill is not None and is_near(kill, view)
            if kill is not None and near and is_ripe(kill, view):
                fired = _fire(child, view, kill)
                strikes |= {view.attempt: fired} if fired is not None else {}
            if time.monotonic() - began > start.timeout_s:
                child.finish()
                lines = [f"no end after {start.timeout_s:.0f} s, at step {view.step}; killed", *tail.shown(child.tail)]
                raise ChildError("\n".join(lines))
            time.sleep(POLL_SAVE_S if near else POLL_S)
        code = child.finish()
        return ChildExit(code, fired, child.tail, time.monotonic() - began, strikes, child.printed)


def is_near(kill: Kill, view: Follow) -> bool:
    """Whether the attempt is where the kill is to come, but for the save inside which it is to come."""
    reached = kill.reached is None or view.at.order >= kill.reached.order
    return reached and (kill.kept is None or view.kept.order >= kill.kept.order)


def is_ripe(kill: Kill, view: Follow) -> bool:
    """Whether the kill may come. A save that was to be struck may be over already: its checkpoint will do."""
    return is_near(kill, view) and (
        kill.in_save is None or view.saving() is not None or view.kept.order >= kill.in_save.order
    )


def _fire(child: ChildTree, view: Follow, kill: Kill) -> Fired | None:
    """Interrupt the child; None, and nothing done, when it is over already."""
    until = time.monotonic() + kill.delay_s
    while not child.ended() and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, POLL_S))
    if child.ended():
        return None
    saving = view.saving()
    if kill.signal == RANK:
        child.lose_rank(kill.which)
        return Fired(RANK, saving)
    child.send(kill.signal)
    if kill.signal == "KILL":
        child.finish()
        saving = view.saving()  # what a killed save left: the proof that it was one
    return Fired(kill.signal, saving)


def exits_of(name: str) -> tuple[int, int]:
    """Exit statuses of a command that died of a signal: seen directly, and through a shell."""
    number = signal.Signals[f"SIG{name}"]
    return -number, 128 + number


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """While entered, SIGTERM and SIGHUP unwind this process as Ctrl-C does, so that no child outlives it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def unwind(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def damage(root: Path, kind: str, seed: int) -> Wound | None:
    """Damage the newest checkpoint of the run at `root`; None, and nothing done, without an older one that is whole."""
    found = Store(root).checkpoints()
    if not any(_is_whole(checkpoint) for checkpoint in found[:-1]):
        return None
    newest = found[-1]
    names = sorted(name for name, file in newest.manifest.files.items() if file.size_bytes) or [MANIFEST]
    name = names[key(seed, kind, "shard") % len(names)]
    path = newest.path / name
    data = bytearray(path.read_bytes())
    place = key(seed, kind, "place") % len(data)
    if kind == "flipped bit":
        bit = key(seed, kind, "bit") % 8
        data[place] ^= 1 << bit
        what = f"bit {bit} of byte {place:,} of {name} flipped"
    else:
        what = f"{name} cut from {len(data):,} to {place:,} bytes"
        del data[place:]
    disk.replace_with(path, [data])
    return Wound(newest.name, what)


def resumes_at(root: Path, besides: str | None = None) -> SafePoint | None:
    """The newest checkpoint of the run at `root` but for the one of that name: where the next attempt will go on."""
    found = [checkpoint for checkpoint in Store(root).checkpoints() if checkpoint.path.name != besides]
    return SafePoint(*found[-1].head.name) if found else None


def _is_whole(checkpoint: Checkpoint) -> bool:
    try:
        return checkpoint.step > 0 and not any(checkpoint.problems())
    except (StoreError, OSError):
        return False
