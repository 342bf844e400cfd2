"""Session: one attempt of a run while it is alive: its parts, what it captures for a checkpoint, and its end.

The attempt's state is in four objects that only change themselves: `origin` (where the run came from), `progress`
(where it is), `saves` and `metrics`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DiskError, Stopped, UsageError
from ..job import job
from ..provenance import document
from ..state import rng
from ..state.tree import types_in
from ..store import format
from ..store.checkpoint import NOT_EXACT_FROM
from ..store.store import Facts
from ..terminal import ProgressLine as Display
from ..terminal import say, speak_for, warn
from . import fingerprint, settings
from .alive import Alive
from .forgotten import Forgotten
from .metrics import Metrics
from .objects import STEERED, adapter_for, model_facts
from .options import Options
from .origin import Origin
from .position import Position, Progress
from .ranks import facts, here, present, require_alike
from .saves import Saves
from .stop import Stop
from .tracked import RESERVED, Digests, Tracked, Weighed, digests, framework_modules, still
from .vars import Vars
from .watch import Watch
from .windows import MOST_POINTS, Windows

if TYPE_CHECKING:
    from ..board import Board
    from .mirrors import Mirrors
    from .room import Room
    from .witness import Witness

FLUSH_S = 1.0  # interval at which the journal is shown to readers of a running run


class Session:
    """One attempt: the parts that its loops, saves and restores share."""

    def __init__(self, options: Options, tracked: Tracked, variables: Vars) -> None:
        self.options, self.tracked, self.vars = options, tracked, variables
        tracked.begin()
        self.watch = Watch(tracked, variables)
        self.forgotten = Forgotten(tracked)
        self.ranks = here()
        speak_for(self.ranks.rank)
        self.origin, self.progress, self.alive = Origin(), Progress(options.seed), Alive()
        self._agree()
        self._claim()
        self.metrics, self.saves = Metrics(self), Saves(self)
        self.around = ExitStack()  # contexts that stay open while the attempt is alive
        self.durations: dict[str, Any] = {}  # what a clock says: saved with the run, and compared by no drill
        self.left = False  # its block has ended, or without a block its outermost loop
        self.not_exact_from: int | None = None  # the step from which on other samples than before are trained
        self.over: Stopped | None = None  # it has stopped, and does nothing more
        self.board: Board | None = None
        self.room: Room | None = None
        self._document: dict[str, Any] | None = None
        self.flushed_s = self.noted_s = self.began_s = time.monotonic()  # when readers were shown the journal

    def _agree(self) -> None:
        """Determine the facts on which the attempt depends, and compare them with the other ranks."""
        ranks, options = self.ranks, self.options
        with ranks.together("options"):
            self.drilled = settings.drilled(options.path)
            self.witness: Witness | None = None
            if self.drilled.digests:
                from . import witness

                self.witness = witness.Witness(self.tracked.objects | self.tracked.inside())
            self.stop, self.display = Stop(options.deadline), Display()
            from .job_clock import JobClock  # `import holdfast` should not import what queries schedulers

            self.job_clock = JobClock(
                options.path, self.stop, own_deadline=options.deadline is not None, rank=ranks.rank
            )
            said = {} if ranks.alone else facts(options, self.tracked, self.vars, self.drilled)
        require_alike(ranks, said)
        if not ranks.alone:
            ranks.place = self.place
        most_points = 1 if self.drilled.digests else MOST_POINTS  # a drill wants the stop at exactly this safe point
        self.windows = None if ranks.alone else Windows(ranks, most_points=most_points)

    def _claim(self) -> None:
        """Claim the run when it is this attempt's turn."""
        options = self.options
        with present(self.ranks):
            self.store = options.store(self.ranks)
            mine = self._entry()
            if not options.take_over:
                self.job_clock.await_turn(self.store.root)
            self.mirrors: Mirrors | None = None
            if self.leads and options.mirroring is not None:
                from . import mirror_start  # only such runs need it

                self.mirrors = mirror_start.claim(options, self.store, mine)
            self.attempt = self.store.claim()
            if mine:
                self.attempt.record("entered", **mine)
            self.earlier_logs = self.attempt.earlier  # oldest first; only rank 0 has them

    def _entry(self) -> Mapping[str, Any]:
        """Which submission starts this attempt; empty outside a batch job.

        Raises:
            UsageError: the run is another submission's.
        """
        if job() is None or not self.leads:
            return {}
        from . import submission_guard  # only jobs need it

        mine = submission_guard.entry()
        submission_guard.require_ours(self.store.root, mine, self.options.accept)
        return mine._asdict()

    def begin_listening(self, *, in_block: bool) -> None:
        """Handle the signals, and keep them from the workers of loaders."""
        self.tracked.for_each("enter")
        self.around.callback(self.tracked.for_each, "leave")
        self.alive.begin(self.ranks.rank, self.ranks.world, private=self.options.private)
        self.around.callback(self.alive.end)
        if in_block:
            self.around.enter_context(self.stop)
        else:
            self.around.callback(self.stop.__exit__)  # entered when a loop begins
        self.around.callback(self.progress.sources.clear)  # persistent workers end here, not in the garbage collector
        self.around.callback(self.saves.readback.close)
        self.around.callback(self.job_clock.close)
        if self.mirrors is not None:
            self.around.callback(self.mirrors.close)
        for module in framework_modules():
            self.around.enter_context(module.sheltered())

    def begin_board(self) -> None:
        """Keep a board until the attempt ends, if requested. A drilled run keeps its own next to it."""
        asked = self.options.board
        if asked is not False:
            from ..board import Board

            directory = None if asked is True or settings.is_drilled() else asked
            self.board = Board(self.path, directory, only=self.attempt.number)
            self.around.callback(self.show_board)
            self.show_board()

    def show_board(self) -> None:
        """Update the board from the journal. A board that cannot be written does not stop the training."""
        try:
            if self.board is not None:
                if self.options.private:
                    self.board.make_private()
                self.board.update()
        except OSError as error:
            self.board = None
            warn(f"the board is not kept up any more: {error}; Board({str(self.path)!r}).update() makes it whole")

    def look_for_room(self) -> None:
        """Warn, after a save, if the next ones will not fit."""
        if self.is_stopping or settings.is_drilled():
            return
        if self.room is None:
            from .room import Room  # no run that dies before its first save needs it

            self.room = Room(self.store, self.options.keep)
        self.room.look()

    def show(self) -> None:
        """Show the journal to readers of a running run, with a small delay."""
        now_s = time.monotonic()
        if now_s - self.flushed_s > FLUSH_S:
            note_s = (now_s - self.began_s) / 100  # the journal then shows to a hundredth how much work a kill costs
            if now_s - self.noted_s > min(note_s, self.saves.note_s):
                self.record("at")
                self.noted_s = now_s
            with suppress(DiskError):  # the lines are kept, and written the next time
                self.attempt.show()
            self.show_board()
            self.flushed_s = time.monotonic()

    @property
    def path(self) -> Path:
        return self.options.path

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides, journals and prints for all."""
        return self.ranks.rank == 0

    @property
    def position(self) -> Position:
        """The run's position; the methods of `progress` change it."""
        return self.progress.position

    def place(self) -> str:
        """The position as text for people."""
        return f"step {self.position.step}, epoch {self.position.epoch}"

    def types(self) -> set[type]:
        """The caller's types that a checkpoint may name."""
        return {*self.options.types, *self.tracked.types(), *types_in(self.tracked.captured_variables())}

    @property
    def here(self) -> format.Name:
        """The name of a checkpoint of the present position."""
        return format.Name(self.position.step, self.position.phase)

    @property
    def is_over(self) -> bool:
        """Whether this process does no more work for this attempt."""
        return self.left or self.over is not None or self.attempt.inherited

    @property
    def drill_limit(self) -> str | None:
        """Why to stop, if the drill requires it after so many steps; None otherwise."""
        limit = self.drilled.steps
        return "drill limit" if limit is not None and self.position.step >= limit else None

    @cached_property
    def aim(self) -> settings.Aim | None:
        """What the drill requires of this attempt: the first aim beyond the checkpoint that it restored.

        The drill chooses by the same rule from the journal, so both agree also after a restart by a launcher.
        """
        checkpoint = self.origin.checkpoint
        begun = (format.Name(0) if checkpoint is None else checkpoint.head.name).order
        return next((aim for aim in self.drilled.aims if format.Name(*aim.place).order > begun), None)

    @property
    def is_past_aim(self) -> bool:
        """Whether the place is reached where the drill ends this attempt.

        After it the run must not save, not even a new best: the next attempt would resume elsewhere.
        """
        return self.aim is not None and self.here.order >= format.Name(*self.aim.place).order

    @property
    def drain_s(self) -> float:
        """How long the mirrors' last copies will probably take after the last save."""
        return 0.0 if self.mirrors is None else self.mirrors.drain_s

    @property
    def is_stopping(self) -> bool:
        return self.stop.reason is not None or self.drill_limit is not None

    def begin_inexact(self, step: int | None) -> None:
        """Note that the run is not exact from `step` on, or from an earlier one that is known; None: it is exact."""
        known = [each for each in (self.not_exact_from, step) if each is not None]
        self.not_exact_from = min(known, default=None)

    def stopped(self, reason: str) -> Stopped:
        """Note that the attempt has stopped; return the exception to raise."""
        self.over = Stopped(reason)
        return self.over

    def leave(self) -> None:
        """End the attempt's activity: release signals, terminal, loops and memory."""
        self.left = True
        with suppress(Exception):  # a loader may raise while its loop is closed
            self.progress.walks.close_inside()
        self.around.close()
        self.display.close()
        self.saves.release()
        self.attempt.leave()

    def require_alive(self) -> None:
        """Require that the run has not ended, and belongs to this process.

        Raises:
            Stopped: again; the first was swallowed, perhaps by a bare `except:`.
            UsageError: a generator outlived its block, or continued in a forked child.
        """
        if self.over is not None:
            raise Stopped(self.over.reason)
        if self.left or self.attempt.inherited:
            whose = "its block has ended" if self.left else "it belongs to the parent of this forked process"
            raise UsageError(f"{self.path}: this loop is not the run's any more: {whose}")

    def digests(self, stored: Mapping[str, format.Leaf] | None = None) -> Digests:
        """Digests of the tracked objects and of the restored variables, as they are now; `stored`: see `digests`."""
        known = self.origin.memory["vars"]
        variables = {
            f"run.vars.{name}": value for name, value in self.tracked.captured_variables().items() if name in known
        }
        return digests(self.tracked.capture() | variables, stored, self.tracked.filled if stored else ())

    def memory(self, *, probe: bool = True) -> dict[str, Any]:
        """The run's own state for a checkpoint. Random numbers are captured last."""
        progress = self.progress
        return {
            "position": progress.state_dict(),
            "vars": self.tracked.captured_variables(),
            "seed": progress.seed,
            "overrides": {name: dict(changes) for name, changes in self.options.overrides.items()},
            "fingerprint": {"environment": fingerprint.environment(), "loaders": progress.loader_facts},
            "probe": self.ask_probe() if probe else None,
            **({} if self.ranks.alone else {"reducers": self.tracked.reducers()}),
            **({"nested": nested} if (nested := self.tracked.nested()) else {}),
            **({"bound_anew": places} if (places := self.tracked.bound_anew()) else {}),
            **({"means": means} if (means := self.metrics.means.state_dict()) else {}),
            **({"durations": self.durations} if self.durations else {}),
            "epoch_rng": progress.epoch_rng if self.position.in_epoch else None,
            **({"epoch_generators": kept} if self.position.in_epoch and (kept := progress.epoch_generators) else {}),
            "rng": rng.capture(),
        }

    def state(self) -> Weighed:
        """The complete state for a checkpoint."""
        state, weights = self.tracked.weighed()
        return Weighed({**state, RESERVED: self.memory()}, weights)

    def ask_probe(self) -> Any:
        """Return the probe's result; random numbers and training flags are restored afterwards."""
        if self.options.probe is None:
            return None
        before = rng.capture()
        with still(self.tracked.inside().values()):
            result = self.options.probe()
        rng.restore(before)
        return result

    def facts(self, metrics: Mapping[str, float], epoch: int | None) -> Facts:
        """The facts in the manifest of a checkpoint made now. `epoch`: the one that just ended, at its end."""
        at = self.position.epoch if epoch is None else epoch
        return Facts(self.position.phase, at, metrics, self.options.note, self._describe())

    def _describe(self) -> dict[str, Any]:
        """Origin of this attempt, for people; made once, by rank 0."""
        if not self.leads:
            return {}
        if self._document is None:
            models = {name: facts for name, target in self.tracked.inside().items() if (facts := model_facts(target))}
            made = document(self.options.hyperparameters, self.options.dataset)
            self._document = {**made, "model": models}
        since = self.not_exact_from
        return self._document if since is None else {**self._document, NOT_EXACT_FROM: since}

    def record(self, event: str, /, **facts: Any) -> None:
        """Journal an event at the present position."""
        self.attempt.record(event, **self.here._asdict(), **facts)

    def tell(self, line: str, **facts: str) -> None:
        """Write a warning to the terminal and to the journal."""
        self.attempt.record("told", what=line, **facts)
        warn(line)

    def tell_changed(self, line: str, prefix: str = "changed since the checkpoint: ") -> None:
        """Report and journal that a fact differs from when the checkpoint was saved."""
        self.attempt.record("told", what=line)
        say(f"{prefix}{line}")

    def close(self, event: str, /, **facts: Any) -> None:
        """Write the attempt's last line. The attempt then counts as ended at the present position.

        Then wait for the mirrors, within their limits: a process that is killed meanwhile has ended in order.
        """
        try:
            self.attempt.close(event, **self.here._asdict() | facts)
        except DiskError as error:
            if event != "stop":
                raise
            warn(f"{error}. The state is saved, only the journal's last line is missing: run me again all the same")
        if self.mirrors is not None:
            self.mirrors.drain(self.job_clock.gone_by())


def require_overridable(overrides: Mapping[str, Mapping[str, Any]], tracked: Tracked) -> None:
    """Require that each override names a tracked object with options.

    Raises:
        UsageError: an override names an object that is not tracked, or has no options.
    """
    named = tracked.objects | tracked.inside() if overrides else {}
    for name in overrides:
        if name not in named:
            raise UsageError(f"overrides: nothing is tracked as {name!r}, only {', '.join(named)}")
        if adapter_for(named[name]) is None:
            raise UsageError(f"overrides: {name!r} is a {type(named[name]).__qualname__}, without options to set")
        if named[name] in STEERED and "lr" in overrides[name]:
            raise UsageError(
                f"overrides: the trainer sets the lr of {name!r} before each step; change it in the script"
            )
