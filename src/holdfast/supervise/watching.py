"""Watching: tells once when the command hangs, keeps the stacks, and says whether to end it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from .. import disk, scan
from ..children import processes
from ..children.steps import SlotView, StepMemory
from ..errors import UsageError
from ..legible import duration, printable
from ..run import alive
from ..terminal import say, warn
from . import missing, signs
from .hang import Hang, HangJudge, Observation
from .output import Output, is_writable_now
from .stacks import StackMemory, innermost_user_line

GRACE_S = 60.0  # for a command that hangs: from the last sign of life after SIGTERM to SIGKILL
MOST_GRACE_S = 600.0  # as long as it gives signs of life
STACKS = "hang-{}.txt"


@dataclass(frozen=True)
class HangOptions:
    """The user's options about hangs."""

    restart: bool = False
    after_s: float | None = None
    file: Path | None = None  # that the command touches while it is alive
    grace_s: float | None = None


HANGS = HangOptions()


@dataclass
class HangWatch:
    """Watches the command for hangs over all its starts, and keeps the stacks."""

    options: HangOptions
    directory: Path
    note: Callable[..., None]  # writes events to the journal
    due_s: float = 0.0
    # where the present start has hung, if it is to be ended; equal for two hangs at the same step
    hung: str = ""
    _memory: StepMemory | None = None
    _stacks: StackMemory | None = None
    _told: list[tuple[Hang, float]] = field(default_factory=list)  # and when
    _unsaid: str = ""
    _own: int = 0  # bytes of the output that are ours: they are no sign of life
    _alive_s: float = 0.0  # when a command that is being ended last showed a sign of life
    _hung_s: float = 0.0
    _counts: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._judge = HangJudge(signs.PHASES, self.options.after_s)
        with suppress(OSError):  # without such memory the output decides
            self._memory, self._stacks = StepMemory(), StackMemory()
            alive.announce_memory(self.directory, self._memory.path, self._stacks.path)

    def begin(self) -> None:
        """The command is about to be started."""
        self.hung, self._alive_s, self.due_s, self._own = "", 0.0, 0.0, 0
        self._told.clear()
        self._judge.reset_places()
        if self._memory is not None:
            self._memory.clear()

    def describe_hang(self, checkpoint: int | None) -> str:
        """Return where the current start hung, if it was ended for that; for an app, after
        which checkpoint.
        """
        return (
            f"{self.hung}, after its checkpoint {checkpoint}"
            if self.hung and checkpoint is not None
            else self.hung
        )

    def close(self) -> None:
        """Free what is shared with the command, which has ended."""
        for shared in (self._memory, self._stacks):
            if shared is not None:
                shared.close()
        self._memory = self._stacks = None

    def check_hang(self, pids: Callable[[], Sequence[int]], output: Output) -> bool:
        """Observe signs of life if it is time; return whether to end the command now."""
        now = time.monotonic()
        if now < self.due_s:
            return False
        self.due_s = now + self._judge.interval_s
        self._print_waiting_lines(output)
        seen = [
            each
            for each in (self._memory.read_slots() if self._memory is not None else [])
            if processes.is_running(each.pid)
        ]
        looks = self._observe_places(seen, pids, output)
        self._note_alive(looks, now)
        hangs = self._judge.find_hangs(now, looks)
        self._report_recovery(output)
        # else the other ranks are told, too, one after the other
        if hangs and not self.hung and not self._told:
            self._report_hang(hangs[0], seen, [*pids()], output)
            return bool(self.hung)
        return False

    def kill_at_s(self) -> float:
        """Return when a command that is being ended because it hangs is killed,
        unless it shows a sign of life.
        """
        grace_s = GRACE_S if self.options.grace_s is None else self.options.grace_s
        return min(self._alive_s + grace_s, self._hung_s + max(MOST_GRACE_S, grace_s))

    def _observe_places(
        self, seen: list[SlotView], pids: Callable[[], Sequence[int]], output: Output
    ) -> list[Observation]:
        if self.options.file is not None:
            return signs.observe_file(self.options.file)
        if seen or output.bytes_written is None:
            return signs.observe_ranks(seen)
        volume = output.bytes_written - self._own
        # to look at all processes costs a look at all of the machine
        silent = volume == self._counts.get(signs.OUTPUT)
        return signs.observe_output(volume, traced=silent and any(map(processes.is_traced, pids())))

    def _note_alive(self, looks: list[Observation], now: float) -> None:
        counts = {look.place: look.beats for look in looks}
        if counts != self._counts:
            self._counts, self._alive_s = counts, now

    def _report_recovery(self, output: Output) -> None:
        for hang, told_s in [*self._told]:
            if self._judge.has_recovered(hang.place) and not self.hung:
                self._told.remove((hang, told_s))
                stuck_s = hang.stuck_s + time.monotonic() - told_s
                self.note("hang_over", stuck_s=round(stuck_s, 3))
                self._print_line(f"it goes on after {duration(stuck_s)}", output)

    def _report_hang(
        self, hang: Hang, seen: list[SlotView], pids: list[int], output: Output
    ) -> None:
        """Keep the stacks, and report the hang."""
        found = (
            {}
            if self._stacks is None
            else self._stacks.collect_stacks(pids, {each.pid: each.signal for each in seen})
        )
        file = self._write_stacks(found, output)
        missed, cause = missing.missing_ranks(seen, found), missing.find_blocker(pids, output)
        stuck = next((each for each in [*missed, *seen] if missed or each.slot == hang.place), None)
        where = innermost_user_line(found.get(stuck.pid, "")) if stuck is not None else ""
        self.note(
            "hang",
            step=stuck.step if stuck is not None else None,
            during=hang.phase,
            stuck_s=round(hang.stuck_s, 3),
            limit_s=round(hang.limit_s, 3),
            missing=[each.rank for each in missed] or None,
            where=where or None,
            cause=cause or None,
            stacks=str(file) if file is not None else None,
        )
        self._told.append((hang, time.monotonic()))
        span, at = duration(hang.stuck_s), f"step {stuck.step}" if stuck is not None else hang.phase
        silent = signs.describe_silence(hang.phase, self.options.file)
        what = f" in {hang.phase}, after {at}" if stuck is not None else f": {silent}"
        parts = [
            f"no sign of life for {span}{what}",
            missing.describe_missing(missed, seen),
            where and f"it is at {where}",
            cause,
        ]
        self._print_line(
            "; ".join(filter(None, [*parts, f"stacks: {file}" if file is not None else ""])), output
        )
        if self.options.restart:
            self._decide_to_end(at, output)

    def _decide_to_end(self, at: str, output: Output) -> None:
        self.hung, self._alive_s = at, time.monotonic()
        self._hung_s = self._alive_s
        if output.discard_unread():
            self.note("dropped", why="nobody reads the output")
            self._print_line(
                "what the command prints from now on is dropped: nobody reads it", output
            )

    def _write_stacks(self, found: dict[int, str], output: Output) -> Path | None:
        number = 1
        while scan.exists(file := self.directory / STACKS.format(number)):
            number += 1
        text = "\n\n".join(f"--- process {pid} ---\n{text}" for pid, text in found.items())
        try:
            disk.write(file, [f"{text}\n".encode()])
        except OSError as error:
            self._print_line(
                f"{file}: {os.strerror(error.errno or 0)}; the stacks are not kept", output
            )
            return None
        return file

    def _print_line(self, line: str, output: Output) -> None:
        self._unsaid = "\n".join(filter(None, [self._unsaid, printable(line)]))
        self._print_waiting_lines(output)

    def _print_waiting_lines(self, output: Output) -> None:
        """Print the waiting lines as soon as our reader reads:
        a full pipe must not stop the supervisor, too.
        """
        if self._unsaid and is_writable_now(2):
            before = output.bytes_written or 0
            for line in self._unsaid.splitlines():
                (say if line.startswith("it goes on") else warn)(line)
            self._unsaid = ""
            self._own += (output.bytes_written or 0) - before


def require_parent_directory(file: Path | None) -> None:
    """Require that the file's directory exists.

    Raises:
        UsageError: the file that the command is to touch cannot be there.
    """
    if file is not None and not scan.is_dir(file.parent):
        raise UsageError(f"--alive {file}: there is no directory {file.parent}")
