"""Drilled: what an attempt in a drill does at its safe points: it saves, waits for signals and
journals its state.

The drill compares two runs by these journal lines. To write them, nothing is drawn, iterated or
changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..ranks import Ranks
from ..settings import DrillSettings, DrillTarget
from ..stateful.tracked import RESERVED, Tracked, digest_state
from ..store import format
from ..store.format import CheckpointName
from ..terminal import mark
from .capture import StateCapture
from .origin import AttemptOrigin
from .position import Position, RunProgress
from .ranks import merge_digests
from .report import Reporter
from .stop import StopRequest

if TYPE_CHECKING:
    from ..script.witness import VariableRecorder

MOST_S = 30.0  # longest wait; a drill that has died sends no signal
_NAP_S = 0.001

# Sums of metrics (a metric may be a duration), what a clock says, and which objects somebody held
# at that moment.
PROCESSES_OWN = ("means", "durations", "bound_anew")


class DrillHooks(msgspec.Struct):
    """Does what a drill requires of this attempt: saves, waits and journal lines. Inactive
    without a drill.
    """

    wanted: DrillSettings
    _ranks: Ranks
    _tracked: Tracked
    _origin: AttemptOrigin
    _progress: RunProgress
    _position: Position
    _reporter: Reporter
    _entered_in: str  # the function that entered the run
    witness: VariableRecorder | None = None

    def __post_init__(self) -> None:
        if self.wanted.digests:
            from ..script.witness import VariableRecorder

            self.witness = VariableRecorder(
                self._tracked.objects | self._tracked.self_restoring_objects()
            )

    @property
    def step_limit_reason(self) -> str | None:
        """Return the reason to stop when the drill's number of steps is reached; None otherwise."""
        steps = self.wanted.steps
        return "drill limit" if steps is not None and self._position.step >= steps else None

    @property
    def current_target(self) -> DrillTarget | None:
        """Return the first drill target beyond the checkpoint that this attempt restored.

        The drill chooses by the same rule from the journal, so both agree after a restart by a
        launcher, too.
        """
        if not self.wanted.aims:
            return None
        checkpoint = self._origin.checkpoint
        begun = (CheckpointName(0) if checkpoint is None else checkpoint.head.name).order
        return next(
            (aim for aim in self.wanted.aims if CheckpointName(*aim.place).order > begun), None
        )

    @property
    def is_past_target(self) -> bool:
        """Whether the run has reached the place where the drill ends this attempt.

        After it the run must not save, not even a new best: the next attempt would resume
        elsewhere.
        """
        return (
            self.current_target is not None
            and self._position.checkpoint_name.order
            >= CheckpointName(*self.current_target.place).order
        )

    @property
    def must_save_here(self) -> bool:
        return (
            self.current_target is not None
            and self._position.checkpoint_name in self.current_target.saves
        )

    @property
    def must_save_durably(self) -> bool:
        """Whether a save here must be durable before the run continues.

        A later save may replace one that is still written in the background.
        """
        aim = self.current_target
        return aim is not None and self._position.checkpoint_name in (
            aim.brink,
            aim.place if aim.exact else None,
        )

    def wait_for_stop_signal(self, stop: StopRequest, land: Callable[[], None]) -> None:
        """Wait for the drill's signal, at the place where the drill stops the run.

        `land` completes the pending save: that may need the loop to continue.
        """
        if (
            self.current_target is not None
            and self._position.checkpoint_name == self.current_target.hold
        ):
            self._wait_while(stop, land)

    def wait_for_kill(
        self,
        stop: StopRequest,
        land: Callable[[], None],
        saved: Callable[[], CheckpointName | None],
    ) -> None:
        """Wait until the drill kills this process, before the run ends.

        A short run would otherwise end before the drill has seen the save.
        """
        aim = self.current_target
        if aim is not None and self._position.checkpoint_name == aim.brink:
            place = CheckpointName(*aim.place).order
            self._wait_while(
                stop, land, lambda: (newest := saved()) is not None and newest.order >= place
            )

    def _wait_while(
        self, stop: StopRequest, land: Callable[[], None], of_use: Callable[[], bool] = lambda: True
    ) -> None:
        if self._ranks.alone:
            land()
        until = time.monotonic() + MOST_S
        while self._ranks.leads and stop.reason is None and of_use() and time.monotonic() < until:
            time.sleep(_NAP_S)

    def journal_state(self, capture: StateCapture, epoch: int | None) -> None:
        """Journal the digests of the state,
        and mark the place in the output. `epoch`: the one that just ended.
        """
        memory = capture.capture_run_memory(probe=False)
        for name in PROCESSES_OWN:
            memory.pop(name, None)
        found = digests_of_each({**self._tracked.capture(), RESERVED: memory})
        at = self._position.epoch if epoch is None else epoch
        self._reporter.record("digests", epoch=at, leaves=merge_digests(self._ranks, found))
        self.journal_variables("point")
        self._reporter.attempt.flush()
        self.mark_output()

    def mark_output(self) -> None:
        """Write the run's position as a line into the output.
        Several ranks share one output, so they write none.
        """
        if self.wanted.marks and self._ranks.alone:
            step, phase = self._position.checkpoint_name
            mark(f"\x1eholdfast {step} {phase} {self._reporter.attempt.number}\x1e\n")

    def journal_variables(self, at: str) -> None:
        """Journal the values of the script's variables:
        `at` the "begin" of the first loop, or at a safe "point".
        """
        witness, tracked = self.witness, self._tracked
        if witness is None or (at == "begin" and witness.begun):
            return
        from ..script.witness import describe_dataset

        sources = self._progress.sources
        roots: dict[str, Any] = {
            f"loader {name!r}": source.loader for name, source in sources.items()
        }
        roots |= tracked.objects
        own = {f"run.vars.{name}": value for name, value in tracked.captured_variables().items()}
        witness.note_loader_generators(source.loader for source in sources.values())
        facts = witness.record_changes(roots, own) | {
            "datasets": {name: describe_dataset(source.loader) for name, source in sources.items()}
        }
        if at == "begin":
            facts["entered"] = self._entered_in
            facts["state"] = format.digest(format.json_bytes(tracked.digests().of))[:16]
        self._reporter.record("visible", at=at, **facts)


def digests_of_each(captured: Mapping[str, Any]) -> dict[str, str]:
    """Digest each object separately, so that a value shared by two objects is compared by its
    numbers: after a resume it may be two values.
    """
    return {
        key: digest
        for name, each in captured.items()
        for key, digest in digest_state({name: each}).of.items()
    }
