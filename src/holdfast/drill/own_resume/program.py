"""Program: runs a program that resumes by itself, twice undisturbed and once with kills, and tells
what its own resume lost.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import chdir
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ... import scan
from ...errors import ChildError, HoldfastError, UsageError
from ...foreign import table
from ...foreign.checkpoint import ForeignCheckpoint
from ...legible import counted
from .. import kill, output, report
from ..files import list_files
from ..places import seeded_fraction
from ..plan import RANK, DrillOptions, fit_budget
from ..report import DrillAttempt, DrillReport, Loss
from . import copies, steps, values
from .copies import CheckpointState
from .steps import ObservedStep

PLACEHOLDER = "{checkpoint}"
OBSERVED = "HOLDFAST_OBSERVED"  # as in observe/sitecustomize.py
_OBSERVE = Path(__file__).with_name("observe")
_SETTLED_S = (
    0.005  # a file that has not changed for so long, and that nobody holds open, is written
)
_SETTLED_FOLDER_S = 0.05  # its files come one after the other
_POLL_S = 0.001
_LEAST_S, _PATIENCE = 120.0, 5
_IN_FILES = ("torn checkpoint", "nothing to resume from")  # no training has differed after these

Say = Callable[[str], None]
Watch = Callable[[int, int | None], None]


class Strike(NamedTuple):
    """A planned kill of one attempt."""

    after: int  # checkpoints that the attempt completes before
    signal: str
    in_save: bool
    delay_s: float


class ProgramEnd(NamedTuple):
    """How one start of the program ended."""

    exit: int
    struck: bool
    saves: list[tuple[float, str]]  # the ends of its saves, in seconds, and what was saved
    took_s: float
    tail: str


class SaveWatch:
    """Counts the checkpoints that a running program completes."""

    def __init__(
        self, place: Path, patterns: Sequence[str], processes: Callable[[], Sequence[int]]
    ) -> None:
        self._place, self._patterns, self._processes = place, patterns, processes
        self._folders = {(place / pattern).parent for pattern in patterns}
        self._known = copies.list_checkpoints(place, patterns)
        self._pending: dict[Path, float] = {}
        self._names = self._list_names()
        self.ends: list[tuple[float, str]] = []  # when saves were seen to be complete, and which
        self.saving = False

    def look(self, now_s: float) -> None:
        """Look at the files once."""
        found, names = copies.list_checkpoints(self._place, self._patterns), self._list_names()
        for path, state in found.items():
            if self._known.get(path) != state:
                self._pending[path] = now_s
        settled = [
            path
            for path, since in self._pending.items()
            if now_s - since > (_SETTLED_FOLDER_S if scan.is_dir(path) else _SETTLED_S)
        ]
        if settled:
            opened = copies.opened_below(self._place, self._processes())
            settled = [
                path for path in settled if not any(each.is_relative_to(path) for each in opened)
            ]
        for path in settled:
            del self._pending[path]
            self.ends.append((now_s, str(path.relative_to(self._place))))
        self.saving = bool(self._pending) or names != self._names
        self._known, self._names = found, names

    def _list_names(self) -> set[Path]:
        return {folder / name for folder in self._folders for name in scan.names(folder)}


class OwnResumeDrill:
    """One drill of a program with a resume of its own."""

    def __init__(
        self, command: Sequence[str], options: DrillOptions, say: Say, watch: Watch, place: Path
    ) -> None:
        self.command, self.options, self._say, self._watch = list(command), options, say, watch
        self._resume, self._place = shlex.split(options.resume_with), place.resolve()
        # whether the program is told its checkpoint; else it finds one
        self._is_given = PLACEHOLDER in options.resume_with
        self._source = Path.cwd()
        self._before: dict[str, dict[str, tuple[int, int]]] = {}
        self._first_s = float("inf")

    def run(self) -> DrillReport:
        """Run the drill and return the findings."""
        first = self._run_undisturbed(1)
        start_s = first.saves[0][0] if first.saves else first.took_s  # to its first checkpoint
        self.options = fit_budget(self.options, first.took_s, start_s, 3)
        self._run_undisturbed(2)
        whole, second = self._steps("first"), self._steps("second")
        found = DrillReport(
            verdict=report.NOT_PROVEN,
            command=self.command,
            resume_with=self.options.resume_with,
            seed=self.options.seed,
            kills_asked=self.options.kills,
            places=max(0, len(first.saves) - 1),
            steps=len(whole),
            saves=len(first.saves),
            reference_s=first.took_s,
        )
        if [each.weights for each in whole] != [each.weights for each in second]:
            found.verdict = report.NOT_DETERMINISTIC
            found.notes.append("two undisturbed runs trained otherwise: seed them, and drill again")
            return found
        if not found.places:
            found.notes.append(
                f"{counted(found.saves, 'checkpoint')} of {', '.join(self.options.checkpoints)} "
                "before the end: there is nothing to resume from and go on to. Let the program "
                "save more often, or name its checkpoints"
            )
            return found
        losses = self._run_killed(found, whole, first)
        if whole and all(each.reached == each.restored_step for each in found.attempts[1:]):
            found.kills_proven = 0  # after the last step a resume has nothing to lose
        if found.attempts[-1].stop is not None:  # else it could not be started to its end
            compared = values.compare_runs(*map(self._left, ("first", "second", "killed")))
            found.files_compared = compared.files
            found.file_differences = [str(each) for each in compared.differences]
            losses += steps.losses_in_values(compared.differences, losses)
        found.losses = steps.merge_losses(losses)
        found.verdict = verdict_of(found)
        return found

    def _next_strike(self, first: ProgramEnd, saved: int, given: int, left: int) -> Strike:
        """Return kill number `given`, when so many of the first run's saves are already made and
        `left` kills are still to come.
        """
        seed, signals = self.options.seed, self.options.signals
        name = signals[given % len(signals)]
        in_save = name == "KILL" and (given + seed) % 2 == 1
        gaps = [b - a for (a, _), (b, _) in pairwise(first.saves)]
        most = max(1, (len(first.saves) - 1 - saved) // left)
        after = 1 + int(seeded_fraction(seed, given, "save") * most)
        delay = seeded_fraction(seed, given, "delay") * statistics.median(gaps) / 2
        return Strike(min(after, most), name, in_save, 0.0 if in_save else delay)

    # -- starts of the program
    # ---------------------------------------------------------------------------------

    def _run_undisturbed(self, number: int) -> ProgramEnd:
        name = ("first", "second")[number - 1]
        self._say(f"undisturbed run {number} of 2: {shlex.join(self.command)}")
        self._prepare(name)
        ended = self._start(name, self.command, None)
        if ended.exit:
            lines = output.last_lines(ended.tail)
            raise ChildError(
                "\n".join([f"undisturbed run {number}: failed with exit {ended.exit}", *lines])
            )
        self._say(
            f"undisturbed run {number}: {counted(len(self._steps(name)), 'step')} in "
            f"{ended.took_s:.1f} s, {counted(len(ended.saves), 'checkpoint')}"
        )
        return ended

    def _prepare(self, name: str) -> None:
        """Make the copy in which this run works."""
        copies.copy_directory(self._source, self._place / name, self.options.checkpoints)
        self._before[name] = list_files(self._place / name)

    def _start(
        self, name: str, command: Sequence[str], strike: Strike | None, attempt: int = 1
    ) -> ProgramEnd:
        """Start the program in the copy, and kill it as planned."""
        place, began = self._place / name, time.monotonic()
        limit = max(_LEAST_S, _PATIENCE * self._first_s)
        paths = [str(_OBSERVE), os.environ.get("PYTHONPATH", "")]
        environment = {
            OBSERVED: str(self._log(name, attempt)),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
        }
        with chdir(place):
            child = kill.ChildTree(command, environment)
        watch = SaveWatch(place, self.options.checkpoints, child.processes)
        due: float | None = None
        struck = False
        with child:
            while not child.ended():
                now = time.monotonic()
                watch.look(now)
                if strike is not None and not struck and len(watch.ends) >= strike.after:
                    due = now + strike.delay_s if due is None else due
                    if now >= due and (watch.saving or not strike.in_save):
                        _send(child, strike.signal, self.options.seed)
                        struck = True
                if now - began > limit:
                    child.finish()
                    lines = output.last_lines(child.tail)
                    raise ChildError("\n".join([f"no end after {limit:.0f} s; killed", *lines]))
                time.sleep(_POLL_S)
            watch.look(time.monotonic())
            watch.look(time.monotonic() + 2 * _SETTLED_FOLDER_S)
            code = child.finish()
        took = time.monotonic() - began
        self._first_s = min(self._first_s, took) if name == "first" else self._first_s
        return ProgramEnd(
            code, struck, [(each - began, saved) for each, saved in watch.ends], took, child.tail
        )

    def _log(self, name: str, attempt: int) -> Path:
        return self._place / f"{name}-{attempt}.jsonl"

    def _steps(self, name: str, attempt: int = 1) -> list[ObservedStep]:
        return steps.read_steps(self._log(name, attempt))

    def _left(self, name: str) -> dict[str, Path]:
        return copies.written_files(self._place / name, self._before[name])

    # -- the killed run
    # ----------------------------------------------------------------------------------------

    def _run_killed(
        self, found: DrillReport, whole: Sequence[ObservedStep], first: ProgramEnd
    ) -> list[Loss]:
        """Kill the program as planned, resume it until it has finished; return what was lost."""
        wanted = min(self.options.kills, found.places)
        self._say(f"killed run: {counted(wanted, 'kill')} over {first.took_s:.0f} s")
        self._prepare("killed")
        losses, refused = list[Loss](), dict[Path, CheckpointState]()
        order = {saved: number for number, (_, saved) in enumerate(first.saves, 1)}
        given = reached = saved = 0
        for attempt in range(1, 2 * wanted + 4):
            checkpoint = self._newest(refused) if attempt > 1 else None
            command = self._resume_command(checkpoint) if attempt > 1 else self.command
            if attempt > 1 and command is None:
                losses.append(Loss("nothing to resume from", "no whole checkpoint was left"))
                command = self.command
            if checkpoint is not None and len(order) == len(first.saves):
                saved = order.get(self._relative(checkpoint), saved)
            strike = (
                self._next_strike(first, saved, given, wanted - given) if given < wanted else None
            )
            ended = self._start("killed", command or self.command, strike, attempt)
            made = self._steps("killed", attempt)
            finished = not ended.struck and ended.exit == 0
            resumed = checkpoint is not None or (attempt > 1 and not self._is_given)
            failed = not ended.struck and ended.exit != 0
            at = steps.resumed_at(whole, made) if resumed and whole and not failed else None
            found.attempts.append(
                DrillAttempt(
                    attempt=attempt,
                    restored=None if checkpoint is None else self._relative(checkpoint),
                    restored_step=at or 0,
                    reached=(at or 0) + len(made),
                    signal=strike.signal if strike and ended.struck else None,
                    in_save="a checkpoint" if strike and strike.in_save and ended.struck else None,
                    stop="finished" if finished else None,
                    exit=ended.exit,
                    took_s=ended.took_s,
                    quarantined=[],
                )
            )
            self._watch((at or 0) + len(made), len(whole))
            if failed:
                self._refuse(losses, refused, checkpoint, ended, attempt)
                if not self._is_given:  # the program would choose the same one again
                    found.notes.append("the program cannot be started any more without a hand")
                    return losses
                continue
            if resumed:
                if all(each.kind in _IN_FILES for each in losses):
                    losses += steps.find_losses(whole, made, reached, finished=finished)
                again = order.get(ended.saves[0][1], saved) if ended.saves else saved
                if not whole and again < saved and len(order) == len(first.saves):
                    text = f"the resumed program saved {ended.saves[0][1]} again, which lies before"
                    losses.append(Loss("started over", f"{text} the checkpoint that it was given"))
                for killed in [each for each in found.attempts[:-1] if each.signal][-1:]:
                    found.kills_proven += not killed.proven
                    killed.proven = True
            reached = max(reached, (at or 0) + len(made))
            if finished:
                return losses
            given, saved = given + ended.struck, saved + len(ended.saves)
        raise ChildError(f"the program did not finish in {counted(attempt, 'attempt')}")

    def _refuse(
        self,
        losses: list[Loss],
        refused: dict[Path, CheckpointState],
        checkpoint: Path | None,
        ended: ProgramEnd,
        attempt: int,
    ) -> None:
        """Note a checkpoint that the program could not resume from.

        Raises:
            ChildError: no checkpoint is damaged.
        """
        lines = output.last_lines(ended.tail)
        there = copies.list_checkpoints(self._place / "killed", self.options.checkpoints)
        tried = [checkpoint] if checkpoint is not None and self._is_given else [*there]
        whole = [*copies.list_checkpoints(self._place / "first", self.options.checkpoints)]
        torn = {path: why for path in tried if attempt > 1 and (why := problem_in(path, whole))}
        if not torn:
            raise ChildError(
                "\n".join([f"attempt {attempt} failed with exit {ended.exit}", *lines])
            )
        path, why = next(iter(torn.items()))
        refused[path] = there[path]
        said = f": {lines[-1]}" if lines else ""
        losses.append(
            Loss(
                "torn checkpoint",
                f"a kill in a save left {self._relative(path)} damaged ({why}), and the resume "
                f"failed{said}",
            )
        )

    def _newest(self, refused: dict[Path, CheckpointState]) -> Path | None:
        found = copies.list_checkpoints(self._place / "killed", self.options.checkpoints)
        whole = [path for path, state in found.items() if refused.get(path) != state]
        return whole[-1] if whole else None

    def _resume_command(self, checkpoint: Path | None) -> list[str] | None:
        """Return the words of the resume; None: it needs a checkpoint, and there is none."""
        if not self._is_given:
            return self._resume
        if checkpoint is None:
            return None
        return [word.replace(PLACEHOLDER, self._relative(checkpoint)) for word in self._resume]

    def _relative(self, checkpoint: Path) -> str:
        return str(checkpoint.relative_to(self._place / "killed"))


def problem_in(checkpoint: Path, whole: Sequence[Path]) -> str:
    """Return what a kill has left undone in a checkpoint; "" if nothing is known to be. A folder
    has to hold what each folder among `whole` holds.
    """
    inside = scan.names(checkpoint)
    always = [{*scan.names(path)} for path in whole if scan.is_dir(checkpoint)]
    if always and (missing := set.intersection(*always) - {*inside}):
        return f"{min(missing)} is missing"
    for path in (checkpoint, *(checkpoint / name for name in inside)):
        try:
            if path.suffix == ".json":
                json.loads(path.read_bytes())
            elif table.is_foreign(path) or not (inside or path.stat().st_size):
                for found in ForeignCheckpoint(path).problems():
                    return str(found)
        except (HoldfastError, OSError, ValueError) as error:
            return f"{path.name}: {error}"
    return ""


def _send(child: kill.ChildTree, name: str, seed: int) -> None:
    if name == RANK:
        child.lose_rank(seeded_fraction(seed, "rank"))
    else:
        child.interrupt(name)


def verdict_of(found: DrillReport) -> str:
    """Return the verdict on what was found, and note why it is no clear one."""
    if found.losses:
        rows = all(each.kind == "rows" for each in found.losses)
        return report.OUTPUT_DIFFERS if rows else report.DIFFERENT
    if found.kills_proven < min(found.kills_asked, found.places):
        found.notes.append(
            f"the program was resumed after {counted(found.kills_proven, 'kill')} of "
            f"{min(found.kills_asked, found.places)}: a kill came too late, or before a "
            "checkpoint. Try another --seed, or fewer --kills"
        )
        return report.NOT_PROVEN
    if not found.files_compared and not found.steps:
        found.notes.append(
            "there was nothing to compare: the program steps no optimizer of torch, "
            "and leaves no file that two undisturbed runs leave alike"
        )
        return report.NOT_PROVEN
    return report.IDENTICAL


def require_patterns(options: DrillOptions) -> None:
    """Check the options of such a drill.

    Raises:
        UsageError: they do not go together, or a pattern leads out of the directory.
    """
    plain = DrillOptions()
    for name in ("steps", "save_every_steps", "exempt", "damage"):
        if getattr(options, name) != getattr(plain, name):
            raise UsageError(f"{name} is for programs with a Run, and not for --resume-with")
    try:
        shlex.split(options.resume_with)
    except ValueError as error:
        raise UsageError(f"--resume-with {options.resume_with}: {error}") from error
    if not options.checkpoints:
        raise UsageError(
            "--resume-with needs --checkpoints 'PATTERN': the files or folders in which the "
            "program saves, such as 'out/*.pt'"
        )
    for pattern in options.checkpoints:
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise UsageError(
                f"--checkpoints {pattern}: name it relative to this directory, and let the program "
                "save below it: each run of the drill works in a copy"
            )
