"""Report: what a drill found, as values for a table or for JSON."""

from __future__ import annotations

import msgspec

from ..legible import counted
from .leftovers import Leftover

IDENTICAL = "identical"
DIFFERENT = "different"
OUTPUT_DIFFERS = "state identical, output differs"
NOT_PROVEN = "not proven"
NOT_DETERMINISTIC = "not deterministic by itself"

LIMITS = "A drill is no test of a power cut; the project's own crash tests are."


class DrillAttempt(msgspec.Struct, kw_only=True):
    """One start of the command in the interrupted run."""

    attempt: int
    restored: str | None  # the checkpoint from which it resumed
    restored_step: int
    restored_phase: str = "step"
    reached: int  # its last step
    reached_phase: str = "step"
    signal: str | None = None  # what interrupted it
    in_save: str | None = None  # the checkpoint that was being written at that time
    stop: str | None  # why it stopped, according to its journal
    exit: int | None = None  # of the command; None: its launcher began another attempt
    took_s: float = 0.0
    quarantined: list[str]
    damage: str | None = None  # done to the newest checkpoint after this attempt
    proven: bool = False  # the next attempt resumed at a new place, and ran beyond it


class ResumePoint(msgspec.Struct, kw_only=True):
    """A place from which the run was resumed, and beyond which it ran."""

    step: int
    phase: str
    kind: str  # "in the first epoch", "at an epoch's end", ...


class Fix(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change of the script that would restore what a resume did not bring back."""

    kind: str  # "track" | "fields" | "vars" | "batches" | "enumerate" | "seeded" | "finished"
    names: tuple[str, ...]  # expressions of the script; of "fields" the attributes
    owner: str = ""  # of "fields" the object; of "vars" the function whose local it is
    word: str = ""  # the name under which to track it; of "vars" that of an array


class Divergence(msgspec.Struct, kw_only=True):
    """Where a run diverged from the reference run."""

    step: int
    phase: str
    attempt: int
    resumed_from: int | None  # the step from which this attempt resumed
    leaf: str | None = None  # the name of the first that differs
    leaves: list[str] = []
    metric: str | None = None
    what: str
    cause: str
    advice: str
    lines: list[str] = []  # of the advice: what to write
    fixes: list[Fix] = []


class Loss(msgspec.Struct, frozen=True):
    """Something that a program's own resume did not bring back."""

    kind: str  # "optimizer", "scheduler", "generator", "batches twice", ...
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


class DrillReport(msgspec.Struct, kw_only=True):
    verdict: str
    command: list[str]
    resume_with: str = ""  # the program's own resume, where that is what was drilled
    losses: list[Loss] = []  # what it did not bring back
    seed: int
    kills_asked: int
    kills_proven: int = 0  # distinct places from which the run was resumed after a kill
    places: int = 0  # how many the script has: its safe points but the last
    resumed: list[ResumePoint] = []
    steps: int = 0
    saves: int = 0
    states_compared: int = 0
    metric_lines: int = 0
    lines_compared: int = 0  # lines of the command's output
    metrics: dict[str, float | str] = {}  # the last value of each
    exempt: list[str] = []  # names of metrics that were not compared
    attempts: list[DrillAttempt] = []
    divergence: Divergence | None = None
    final_differences: list[str] = []
    metric_differences: list[str] = []
    output_differences: list[str] = []
    files_compared: int = 0  # that the script itself writes
    file_differences: list[str] = []
    leftovers: list[Leftover] = []
    notes: list[str] = []
    limits: str = LIMITS
    kept: str | None = None
    reference_s: float = 0.0
    total_s: float = 0.0

    @property
    def exit_code(self) -> int:
        return 0 if self.verdict == IDENTICAL else 1

    @property
    def verdict_line(self) -> str:
        """The verdict,
        and how many places there were if they are fewer than the requested kills.
        """
        few = self.verdict == IDENTICAL and self.places < self.kills_asked
        return f"{self.verdict} (all {counted(self.places, 'place')})" if few else self.verdict
