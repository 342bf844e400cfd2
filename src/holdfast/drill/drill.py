"""The drill itself: two undisturbed runs, an interrupted run, and a verdict."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from .. import disk, journal, settings
from ..errors import ChildError, UsageError
from ..journal import Event, Log
from ..legible import counted
from ..run import deferred_saves
from ..run.loops import EXITS
from ..run.metrics import TIMINGS
from . import compare, evidence, files, judge, kill, leftovers, output, report
from .aim import KillSchedule, classify_end
from .attempts import (
    attempts_of,
    describe_attempt,
    proven_places,
    require_progress,
    undetected_damage,
)
from .evidence import RunTrace
from .kill import AttemptProgress, ChildExit
from .output import Section
from .own_resume import program
from .places import AGAIN, SafePointSequence
from .plan import DrillOptions, Kill, RunPace, fit_budget, measure_pace
from .report import Divergence, DrillReport, ResumePoint
from .safepoint import SafePoint

Say = Callable[[str], None]
Watch = Callable[[int, int | None], None]  # receives the step, and the last step if known


class Drill:
    """One drill of one command."""

    def __init__(
        self, command: Sequence[str], options: DrillOptions, say: Say, watch: Watch
    ) -> None:
        self.command, self.options, self.say, self._watch = list(command), options, say, watch
        self._exempt = (*TIMINGS, *options.exempt)
        self._idle: frozenset[str] = frozenset()
        self._began_ns = time.time_ns()
        self._printed: dict[str, list[Section]] = {}  # by run
        # by run: what the script's own files held at its end
        self._files: dict[str, files.Contents] = {}
        self.undisturbed: list[str] = []  # what the undisturbed runs printed
        # the first difference of a resumed attempt that failed
        self.failed: Divergence | None = None
        # by run: the file in which its processes note the files that they open
        self._opened: dict[str, Path] = {}

    def run(self) -> DrillReport:
        """Run the drill and return the findings."""
        began, here = time.monotonic(), files.list_files(Path.cwd())
        try:
            with kill.unwinding_on_signals(), _runs_directory(self.options.keep) as place:
                found = self._run(place)
        finally:
            if line := files.describe_overwritten(Path.cwd(), here):
                self.say(line)
        found.total_s = time.monotonic() - began
        found.kept = None if self.options.keep is None else str(self.options.keep)
        return found

    def _run(self, place: Path) -> DrillReport:
        first = self._run_undisturbed(place / "first", 1)
        times = 3 + (1 if self.options.steps is None else 0)
        self.options = fit_budget(self.options, first.total_s, first.start_s, times)
        took_s = first.total_s * times + first.start_s * (self.options.kills + 2)
        self.say(
            f"the whole drill will take about {max(1, round(took_s / 60))} min"
            if took_s > 60
            else f"the whole drill will take about {took_s:.0f} s"
        )
        self._run_undisturbed(place / "second", 2)
        reference, second = (
            evidence.read_trace(place / "first"),
            evidence.read_trace(place / "second"),
        )
        self._idle = compare.idle_generators(reference, second)
        found = self._empty_report(reference, first)
        self._judge_run(found, reference, second, place, "second")
        if found.verdict != report.IDENTICAL:
            found.verdict = report.NOT_DETERMINISTIC
            return found
        reference = reference._replace(second=second.sights)
        if self._idle:
            names = ", ".join(sorted(self._idle))
            found.notes.append(
                f"the script does not use the random numbers of {names}: compared within each run"
            )
        if cut := max((sight.cut for sight in reference.sights.all), default=0):
            found.notes.append(
                f"of the script's variables the first {cut:,} were read, and there are more"
            )
        course = SafePointSequence(reference.states)
        schedule = KillSchedule(course, first, self.options)
        found.places = len(course.places)
        if schedule.wanted:
            places, steps = counted(found.places, "place"), counted(first.last, "step")
            self.say(f"killed run: {schedule.wanted} of {places} to resume from, over {steps}")
            try:
                self._run_interrupted(found, place / "killed", schedule)
            except ChildError as error:
                self.failed = judge.failure_divergence(
                    reference, evidence.read_trace(place / "killed"), self._idle
                )
                raise ChildError(f"{error}{judge.describe_failure_cause(self.failed)}") from error
            interrupted = evidence.read_trace(place / "killed")
            found.states_compared, found.metric_lines = (
                len(interrupted.states),
                len(interrupted.metrics),
            )
            self._judge_run(found, reference, interrupted, place, "killed")
            if found.verdict == report.IDENTICAL:
                self._judge_files(found, reference, interrupted)
            if found.verdict == report.IDENTICAL and self.options.steps is None:
                self._start_again(found, reference, place / "killed", schedule)
            judge.require_comparable(found, reference)
        why = judge.why_not_proven(found, schedule.wanted)
        if found.verdict == report.IDENTICAL and why is not None:
            found.verdict = report.NOT_PROVEN
            found.notes.append(why)
        if found.verdict == report.IDENTICAL and any(
            each.phase == "step" for each in found.resumed
        ):
            found.notes += _record_proofs(place / "killed")
        return found

    def _empty_report(self, reference: RunTrace, first: RunPace) -> DrillReport:
        return DrillReport(
            verdict=report.NOT_PROVEN,
            command=self.command,
            seed=self.options.seed,
            kills_asked=self.options.kills,
            steps=first.last,
            saves=first.saves,
            metrics={
                name: value for line in reference.metrics for name, value in line.values.items()
            },
            exempt=compare.exempt_metrics(reference.metrics, self._exempt),
            reference_s=first.total_s,
        )

    # -- the two undisturbed runs
    # ----------------------------------------------------------------------------------

    def _run_undisturbed(self, root: Path, number: int) -> RunPace:
        self.say(f"undisturbed run {number} of 2: {' '.join(self.command)}")
        ended = kill.run_command(
            self.command, self._environment(root), root, partial(self._next_kill, None, None)
        )
        log = next(reversed(_logs(root)), None)
        if classify_end(ended, log) != "finished":
            raise ChildError(f"undisturbed run {number}: {_describe_failure(ended, log)}")
        if log is None:
            raise UsageError(
                "the command ended well, but without a Run: "
                f"it left nothing in {settings.RUN_DIR}. A drill needs a "
                "script with `with Run(...) as run:`; `holdfast init` proposes these lines"
            )
        if log.last.get("event") == "failed":  # the script ended well
            raise ChildError(
                f"undisturbed run {number}: the command ended well, "
                f"and its run did not: {log.last.get('error')}. The "
                "run ends with its outermost loop: "
                "a loop that takes its batches by next() asks for one more in "
                "the end, and a generator of them that has more returns there"
            )
        self._printed[root.name] = output.split_sections(ended.printed, finished=True)
        self.undisturbed.append(output.without_marks(ended.printed))
        self._files[root.name] = files.read_files(leftovers.written_files(root.parent))
        learnt = measure_pace(log.events, ended.took_s)
        self.say(
            f"undisturbed run {number}: {learnt.last} steps in "
            f"{ended.took_s:.1f} s, {learnt.saves} saves on the way"
        )
        return learnt

    def _environment(
        self, root: Path, aims: tuple[settings.DrillTarget, ...] = ()
    ) -> dict[str, str]:
        if root.name not in self._opened:
            self._run_began_ns = time.time_ns()
            self._opened[root.name] = leftovers.prepare_file_log(
                root.parent, root.name, self._run_began_ns
            )
        drilled = settings.DrillSettings(
            self.options.steps,
            self.options.save_every_steps,
            digests=True,
            marks=True,
            aims=aims,
            opened=str(self._opened[root.name]),
            since_ns=(self._began_ns, self._run_began_ns),
        )
        wishes = msgspec.json.encode(drilled).decode()
        return {settings.RUN_DIR: str(root), settings.DRILL: wishes, "PYTHONUNBUFFERED": "1"}

    def _next_kill(
        self, schedule: KillSchedule | None, last: int | None, view: AttemptProgress
    ) -> Kill | None:
        self._watch(view.at.step, last)
        return None if schedule is None else schedule(view)

    # -- the interrupted one
    # -----------------------------------------------------------------------------------------

    def _run_interrupted(self, found: DrillReport, root: Path, schedule: KillSchedule) -> None:
        """Start the command, kill it as planned, and start it again until it has finished."""
        attempts, proven, resumes_at = found.attempts, list[SafePoint](), SafePoint(0)
        self._printed[root.name] = []
        for _ in range(3 * self.options.kills + 10):
            after = attempts[-1].attempt if attempts else 0
            environment = self._environment(
                root, schedule.targets_of_next_start(resumes_at, proven)
            )
            aim = partial(self._next_kill, schedule, schedule.pace.last)
            ended = kill.run_command(
                self.command, environment, root, aim, schedule.pace.timeout_s, after
            )
            schedule.note_delivered(ended.strikes.values())
            logs = _logs(root, after)
            log = next(reversed(logs), None)
            what = classify_end(ended, log)
            if what == "failed" or log is None:
                raise ChildError(
                    f"attempt {after + 1} of the killed run: {_describe_failure(ended, log)}"
                )
            self._printed[root.name] += output.split_sections(
                ended.printed, finished=what == "finished"
            )
            made = attempts_of(logs, ended.strikes)
            made[-1].exit, made[-1].took_s = ended.exit, ended.took_s
            attempts += made
            proven = proven_places(attempts, schedule.course.places)
            if log.last.get("behind"):
                resumes_at = self._avoid_last_batches(found, root, schedule, log.last)
            elif what != "finished":
                attempts[-1].damage, resumes_at = self._damage(root, schedule, ended)
            for attempt in made:
                self.say(describe_attempt(attempt))
            if what == "finished":
                self._files[root.name] = files.read_files(leftovers.written_files(root.parent))
                self._add_attempts(found, proven, schedule)
                return
            require_progress(attempts)
        often = counted(len(attempts), "attempt")
        raise ChildError(
            f"the command did not finish in {often}; the last reached step {attempts[-1].reached}"
        )

    def _avoid_last_batches(
        self, found: DrillReport, root: Path, schedule: KillSchedule, failed: Event
    ) -> SafePoint:
        """Note that the script fails after an epoch's last batch; return where its next
        attempt resumes.
        """
        name = str(failed["checkpoint"])
        schedule.avoid_last_batches()
        before = kill.next_resume_place(root, besides=name)
        note = (
            "resumed behind an epoch's last batch, "
            f"the code that follows failed ({failed['error']}), and the run went "
            "on from the checkpoint before by itself. "
            "Keep in run.vars what that code reads and the loop's body sets"
        )
        found.notes += [note] if note not in found.notes else []
        return before

    def _damage(
        self, root: Path, schedule: KillSchedule, ended: ChildExit
    ) -> tuple[str | None, SafePoint]:
        """Return what was damaged, and where the next attempt will resume."""
        due = schedule.due if ended.fired is not None else []
        damaged = kill.damage_newest(root, due[0], self.options.seed) if due else None
        if damaged is None:  # after a later kill there will be an older checkpoint
            return None, kill.next_resume_place(root)
        schedule.due.pop(0)
        return f"{damaged.checkpoint}: {damaged.what}", kill.next_resume_place(
            root, besides=damaged.checkpoint
        )

    def _add_attempts(
        self, found: DrillReport, proven: list[SafePoint], schedule: KillSchedule
    ) -> None:
        soon = {kill.target.place for kill in schedule.queue if kill.target.kind == AGAIN}
        kinds = [
            AGAIN if place in soon else schedule.course.kind_of_place(place) for place in proven
        ]
        found.kills_proven = len(proven)
        found.resumed = [
            ResumePoint(step=place.step, phase=place.phase, kind=kind)
            for place, kind in zip(proven, kinds, strict=True)
        ]
        for kind in schedule.due:
            found.notes.append(
                f"no {kind} was planted: there was never an older whole checkpoint to fall back to"
            )

    # -- the verdict
    # ----------------------------------------------------------------------------------------------

    def _judge_run(
        self, found: DrillReport, reference: RunTrace, other: RunTrace, place: Path, name: str
    ) -> None:
        metrics = compare.metric_differences(reference.metrics, other.metrics, self._exempt)
        found.final_differences = evidence.final_differences(
            place / "first", place / name, self._idle
        )
        found.metric_differences = [str(each) for each in metrics]
        found.leftovers = leftovers.find_leftovers(place)
        runs, others = evidence.compare_further_runs(place, name, self._idle)
        if runs and name == "killed":
            found.notes.append(
                f"{counted(len(runs) + 1, 'run')} in this script: "
                "kills are planned by the first one alone"
            )
        parted = compare.first_state_difference(reference, other, self._idle)
        unseen = undetected_damage(found.attempts)
        lines = self._output_differences(found) if name == "killed" else []
        read = [each for each in found.leftovers if each.reader == name]
        found.verdict = report.IDENTICAL
        if parted is not None or metrics or found.final_differences:
            found.verdict = report.DIFFERENT
            found.divergence = judge.find_divergence(reference, other, parted, metrics, read)
        elif others:
            found.verdict, found.final_differences = report.DIFFERENT, others
            found.divergence = judge.other_run_divergence(others[0], reference, other)
        elif lines:
            found.verdict, found.divergence = (
                report.OUTPUT_DIFFERS,
                judge.output_divergence(reference, other, lines[0], read),
            )
        if unseen:
            found.verdict = report.DIFFERENT
            found.notes.append(f"damage went unseen, and was restored: {unseen}")

    def _judge_files(self, found: DrillReport, reference: RunTrace, interrupted: RunTrace) -> None:
        """Compare what the runs wrote into files of the script itself."""
        unlike, found.files_compared = files.compare_files(
            *(self._files[run] for run in ("first", "second", "killed"))
        )
        found.file_differences = [str(each) for each in unlike]
        if unlike:
            found.verdict, found.divergence = (
                report.OUTPUT_DIFFERS,
                judge.file_divergence(unlike, reference, interrupted),
            )

    def _start_again(
        self, found: DrillReport, reference: RunTrace, root: Path, schedule: KillSchedule
    ) -> None:
        """Start the finished command once more, as after a kill after its loop; compare what it
        prints and writes.
        """
        self.say("the finished run is started once more")
        after = found.attempts[-1].attempt
        ended = kill.run_command(
            self.command,
            self._environment(root),
            root,
            partial(self._next_kill, None, None),
            schedule.pace.timeout_s,
            after,
        )
        log = next(reversed(_logs(root, after)), None)
        what = []
        if classify_end(ended, log) != "finished":
            what = [_describe_failure(ended, log).partition("\n")[0]]
        elif log is not None and not any(event["event"] == EXITS for event in log.events):
            first, second = self._printed["first"], self._printed["second"]
            known = output.find_varying(first, second, self.options.exempt)
            lines, _ = output.compare_output(
                first, output.split_sections(ended.printed, finished=True), known
            )
            found.output_differences = what = [str(each) for each in lines]
        whole = {
            path
            for path, each in self._files["first"].items()
            if each == self._files["second"].get(path)
        }
        contents = files.read_files(whole)
        kept = {path: self._files["second"][path] for path in whole}
        found.file_differences = [
            str(each) for each in files.compare_files(kept, kept, contents)[0]
        ]
        if what := [*what, *found.file_differences]:
            found.verdict = report.OUTPUT_DIFFERS
            found.divergence = judge.restart_divergence(
                what[0], reference, evidence.read_trace(root)
            )

    def _output_differences(self, found: DrillReport) -> list[output.LineDifference]:
        """Return the lines that the killed run printed differently."""
        first, second, killed = (self._printed[name] for name in ("first", "second", "killed"))
        known = output.find_varying(first, second, self.options.exempt)
        lines, found.lines_compared = output.compare_output(first, killed, known)
        found.output_differences = [str(each) for each in lines]
        return lines


def _record_proofs(root: Path) -> list[str]:
    """Note for the next starts that loaders and frameworks resume inside an epoch;
    return a line for each.
    """
    lines = {}
    for log in _logs(root):
        for event in log.newest(deferred_saves.EVENT):
            path, kind = Path(str(event["run"])), str(event["kind"])
            where = deferred_saves.record_proven(path, {str(event["code"]): kind})
            lines[kind] = (
                f"{kind} resumed exactly: {where} lets the next starts of {path} save anywhere"
            )
    return [*lines.values()]


def _logs(root: Path, after: int = 0) -> list[Log]:
    return [log for log in journal.logs(root) if log.attempt > after]


def _describe_failure(ended: ChildExit, log: Log | None) -> str:
    last = log.last if log is not None and log.closed else {}
    if last.get("event") == "stop":
        how = (
            f"stopped by itself ({last.get('reason')}); "
            "give it more time, or drill fewer steps with --steps"
        )
    else:
        how = (
            f"killed by signal {-ended.exit}"
            if ended.exit < 0
            else f"failed with exit {ended.exit}"
        )
    why = f", {last['error']}" if last.get("event") == "failed" and "error" in last else ""
    return "\n".join(
        [f"the command {how}{why}; the end of its output:", *output.last_lines(ended.tail)]
    )


@contextmanager
def _runs_directory(keep: Path | None) -> Iterator[Path]:
    """Yield the directory of the runs;
    it is removed with the drill, unless the user wants to keep it.
    """
    if keep is None:
        place = Path(tempfile.gettempdir()) / f"holdfast-drill-{uuid.uuid4().hex}"
        before = os.umask(0o077)  # other users must not read the training data
        try:
            disk.make_dir(place)
        finally:
            os.umask(before)
        try:
            yield place
        finally:
            disk.remove_tree(place)
        return
    disk.make_dirs(keep.absolute())
    if any(keep.iterdir()):
        raise UsageError(
            f"--keep {keep}: not empty; name a directory that is, or that does not exist yet"
        )
    yield keep.absolute()  # absolute, because the command may change its directory


def drill(
    command: Sequence[str], options: DrillOptions, say: Say, watch: Watch = lambda *_: None
) -> DrillReport:
    """Drill `command`. Reports progress to `say` line by line, and the step to `watch` many times a
    second.

    Raises:
        UsageError: the command cannot be drilled.
        ChildError: the command failed without a kill.
    """
    if not options.resume_with:
        return Drill(command, options, say, watch).run()
    program.require_patterns(options)
    began = time.monotonic()
    with kill.unwinding_on_signals(), _runs_directory(options.keep) as place:
        found = program.OwnResumeDrill(command, options, say, watch, place).run()
    found.total_s = time.monotonic() - began
    found.kept = None if options.keep is None else str(options.keep)
    return found
