"""Repair: adds to a script what its drills find missing, line by line, until it is identical or
nothing is left to try.

Each version is a copy beside the script, drilled as the script would be. A line stays only with
evidence: without it the drill fails. A line that changes what an undisturbed run prints is taken
back.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ... import disk, scan
from ...errors import ChildError, HoldfastError, UsageError
from .. import advice, kill, output, report
from ..drill import Drill, Say, Watch
from ..output import Section
from ..plan import DrillOptions
from ..report import Divergence, DrillReport, Fix
from ..safepoint import SafePoint
from . import begin
from .changes import apply_fix
from .source import FixRefused

FAILED = "failed"
# these change the order of the data, or the random draws
_ORDER = ("batches", "enumerate", "seeded")

_LAST = ("finished",)  # tried last


class Addition(msgspec.Struct, kw_only=True):
    """One change that the script needs, and the evidence for it."""

    what: str
    evidence: str  # the drill's result without it
    fix: Fix


class RepairResult(msgspec.Struct, kw_only=True):
    """The result of a repair."""

    script: str
    # the verdict before any change; of a script without a Run, of the first version with one
    first: str
    verdict: str
    additions: list[Addition] = []
    refused: list[str] = []  # additions that were not made, or taken back, and why
    why: str = ""  # why the verdict is not identical
    diff: str = ""
    drills: int = 0
    written: bool = False
    report: DrillReport | None = None  # of the last drill

    @property
    def exit_code(self) -> int:
        return 0 if self.verdict == report.IDENTICAL else 1


class DrilledVersion(msgspec.Struct, kw_only=True):
    """One version of the script, and the result of its drill."""

    text: str
    verdict: str
    divergence: Divergence | None = None
    why: str = ""
    printed: list[str] = []  # of the undisturbed runs
    report: DrillReport | None = None

    @property
    def fixes(self) -> list[Fix]:
        if self.divergence is None:
            return []
        return self.divergence.fixes or (
            [Fix("batches", ())] if self.divergence.cause == "position" else []
        )


def script_index(command: Sequence[str]) -> int:
    """Return which word of the command names its script.

    Raises:
        UsageError: none does.
    """
    for number, word in enumerate(command):
        if word.endswith(".py") and scan.is_file(word):
            return number
    raise UsageError(
        "no word of the command is a script that can be changed: write `-- python train.py`"
    )


class ScriptDrills:
    """Drills several versions of one script."""

    def __init__(
        self, command: Sequence[str], options: DrillOptions, say: Say, watch: Watch
    ) -> None:
        self._number = script_index(command)
        self._command, self._options, self._say, self._watch = list(command), options, say, watch
        self.script = Path(command[self._number])
        self._bytes = self.script.read_bytes()
        try:
            self.text = self._bytes.decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{self.script}: is no UTF-8 text") from error
        self.drills = 0

    @contextmanager
    def _copy(self, text: str) -> Iterator[list[str]]:
        """Yield the command with a copy of the script that has this text,
        in the script's directory.
        """
        copy = self.script.with_name(f".{self.script.stem}.holdfast-{os.getpid()}.py")
        with kill.unwinding_on_signals():
            try:
                disk.write(copy, [text.encode()])
                yield [
                    *self._command[: self._number],
                    str(copy),
                    *self._command[self._number + 1 :],
                ]
            finally:
                disk.remove_tree(copy)

    def run_without_holdfast(self, text: str) -> str:
        """Return what the script prints without Holdfast."""
        with self._copy(text) as command:
            return kill.run_command(
                command, {"PYTHONUNBUFFERED": "1"}, self.script.parent, lambda _: None
            ).printed

    def drill(self, text: str) -> DrilledVersion:
        self.drills += 1
        with self._copy(text) as command:
            work = Drill(command, self._options, self._say, self._watch)
            try:
                found = work.run()
            except (ChildError, UsageError) as error:
                lines = str(error).splitlines()
                why = f"{lines[0]} {lines[-1]}" if len(lines) > 1 else lines[0]
                return DrilledVersion(
                    text=text,
                    verdict=FAILED,
                    divergence=work.failed,
                    why=why,
                    printed=work.undisturbed,
                )
        why = found.divergence.advice if found.divergence is not None else "; ".join(found.notes)
        return DrilledVersion(
            text=text,
            verdict=found.verdict,
            divergence=found.divergence,
            why=f"{found.divergence.cause}: {why}" if found.divergence is not None else why,
            printed=work.undisturbed,
            report=found,
        )

    def first_output_difference(self, before: Sequence[str], after: DrilledVersion) -> str:
        """Return the first line that an undisturbed run prints differently than before;
        empty: none.
        """
        if not before or len(after.printed) < 2:
            return ""
        old, one, two = (_as_section(each) for each in (before[0], *after.printed[:2]))
        if self._options.steps is not None:  # the script itself, without a Run, does not stop there
            old = [old[0]._replace(lines=old[0].lines[: len(one[0].lines)])]
        known = output.find_varying(one, two, self._options.exempt)
        found, _ = output.compare_output(old, one, known)
        return f"{found[0].was!r} became {found[0].now!r}" if found else ""

    def write(self, text: str) -> None:
        """Write the script anew.

        Raises:
            UsageError: it has changed since it was read.
        """
        if self.script.read_bytes() != self._bytes:
            raise UsageError(
                f"{self.script}: changed in the meantime; nothing was written. Run this again"
            )
        disk.replace_with(self.script, [text.encode()], self.script.stat().st_mode & 0o777)


def _as_section(printed: str) -> list[Section]:
    return [Section(SafePoint(0), 1, tuple(printed.splitlines()))]


class RepairSearch:
    """Searches for the changes that a script needs, by drilling versions of it."""

    def __init__(self, bench: ScriptDrills, say: Say) -> None:
        self._bench, self._say = bench, say
        self._tried: list[Fix] = []
        self._made: list[tuple[Fix, DrilledVersion]] = []  # each with the drill before it
        self._instead: dict[Fix, None] = {}  # for additions that were refused
        self._evidence: dict[Fix, str] = {}
        self._together: set[Fix] = set()  # added with others in one round
        self.refused: dict[str, None] = {}

    def run(self, base: DrilledVersion) -> DrilledVersion:
        """Return the last version: it is identical, or no further change helps."""
        now = base
        while now.verdict != report.IDENTICAL:
            wanted = [fix for fix in (*now.fixes, *self._instead) if fix not in self._tried]
            wanted = [fix for fix in wanted if fix.kind not in _LAST] or wanted
            if not wanted:
                break
            self._tried += wanted
            now = self._try_fixes(now, wanted) or now
        return self._remove_unneeded(base, now) if now.verdict == report.IDENTICAL else now

    def additions(self, text: str) -> list[Addition]:
        """Return the additions of this last version over the first one."""
        return [
            Addition(
                what=describe_fix(fix, text),
                evidence=self._evidence.get(fix) or _describe_version(before),
                fix=fix,
            )
            for fix, before in self._made
        ]

    def _try_fixes(self, now: DrilledVersion, wanted: Sequence[Fix]) -> DrilledVersion | None:
        """Make all possible additions at once; if something speaks against them, the first half
        and then the second.
        """
        text, made = now.text, []
        for fix in wanted:
            try:
                text = apply_fix(text, fix)
                made.append(fix)
            except FixRefused as error:
                self._note_refused(fix, str(error))
        if not made:
            return None
        after = self._bench.drill(text)
        why = self._reason_against(now, after, made)
        if not why:
            self._made += [(fix, now) for fix in made]
            self._together |= set(made) if len(made) > 1 else set()
            return after
        if len(made) == 1:
            self._note_refused(made[0], why)
            return None
        last = now
        half = len(made) // 2
        for part in (made[:half], made[half:]):
            last = self._try_fixes(last, part) or last
        return None if last is now else last

    def _note_refused(self, fix: Fix, why: str) -> None:
        self.refused[f"{describe_fix(fix)}: {why}"] = None
        # its attributes cannot be set, but its name can
        if fix.kind == "fields" and "frozen" in why.lower():
            self._instead[Fix("vars", (fix.owner.partition(".")[0].partition("[")[0],))] = None
        self._say(f"not added: {describe_fix(fix)}: {why}")

    def _reason_against(
        self, before: DrilledVersion, after: DrilledVersion, made: Sequence[Fix]
    ) -> str:
        """Return the reason against a version; empty: there is none."""
        if after.verdict == FAILED and before.verdict != FAILED and after.divergence is None:
            return f"with it the script fails: {after.why}"
        if after.verdict == report.NOT_DETERMINISTIC != before.verdict:
            return "with it two undisturbed runs differ"
        changed = (
            ""
            if any(fix.kind in _ORDER for fix in made)
            else self._bench.first_output_difference(before.printed, after)
        )
        return f"with it an undisturbed run prints otherwise: {changed}" if changed else ""

    def _remove_unneeded(self, base: DrilledVersion, now: DrilledVersion) -> DrilledVersion:
        """Drill without each line that was added together with others; leave out lines that
        are not needed.
        """
        for fix in [fix for fix, _ in self._made if fix in self._together and len(self._made) > 1]:
            try:
                text = base.text
                for each, _ in self._made:
                    text = text if each == fix else apply_fix(text, each)
            except FixRefused as error:
                self._evidence[fix] = f"without it another line cannot be added: {error}"
                continue
            self._say(f"without {describe_fix(fix)}:")
            without = self._bench.drill(text)
            if without.verdict == report.IDENTICAL:
                self._made = [each for each in self._made if each[0] != fix]
                now = without
                self._say(
                    f"left out: {describe_fix(fix)}: this drill is identical without it; "
                    "a longer run may need it"
                )
            else:
                self._evidence[fix] = _describe_version(without)
        return now


def _describe_version(found: DrilledVersion) -> str:
    if found.divergence is None:
        return f"{found.verdict}: {found.why}"
    at = SafePoint(found.divergence.step, found.divergence.phase)
    leaf = found.divergence.leaf or found.divergence.metric
    return f"{found.verdict} at {at}: {f'{leaf}: ' if leaf else ''}{found.divergence.what}"


def describe_fix(fix: Fix, text: str = "") -> str:
    """Return one addition in the words of the script, whose text decides between two forms."""
    if fix.kind in ("track", "fields"):
        return advice.tracking_argument(fix)
    names = ", ".join(fix.names)
    if fix.kind == "vars" and f"{names}={names}" in text and f".vars.{names}" not in text:
        return f"{names}={names}"
    made: dict[str, Callable[[], str]] = {
        "vars": lambda: (
            f'Fields(globals(), "{names}")'
            if f'Fields(globals(), "{names}")' in text
            else f"run.vars.{names}"
        ),
        "batches": lambda: f"run.batches({names or 'loader'})",
        "enumerate": lambda: f"run.enumerate for {names}",
        "finished": lambda: f'finished="{names}"',
        "seeded": lambda: "Seeded(dataset, seed=0)",
    }
    return made[fix.kind]()


def repair_script(
    command: Sequence[str],
    options: DrillOptions,
    say: Say,
    watch: Watch,
    *,
    new: bool = False,
    write: bool = False,
) -> RepairResult:
    """Add to the command's script what its resume needs. `new`: the script does not use Holdfast
    yet.

    Raises:
        ChildError: the script fails by itself.
        UsageError: it cannot be changed, or was changed meanwhile.
    """
    bench = ScriptDrills(command, options, say, watch)
    base = _first_version(bench, say) if new else bench.drill(bench.text)
    if base.verdict == FAILED and base.divergence is None:
        raise ChildError(base.why)
    mending = RepairSearch(bench, say)
    last = mending.run(base)
    found = RepairResult(
        script=str(bench.script),
        first=base.verdict,
        verdict=last.verdict,
        additions=mending.additions(last.text),
        refused=list(mending.refused),
        why="" if last.verdict == report.IDENTICAL else last.why,
        diff=unified_diff(bench.text, last.text, str(bench.script)),
        report=last.report,
    )
    if write and found.diff and found.verdict == report.IDENTICAL:
        bench.write(last.text)
        found.written = True
    found.drills = bench.drills
    return found


_REFUSED = re.compile(r".*UsageError: state\['(\w+)'\] is an? .*, without state_dict\(\)")


def _first_version(bench: ScriptDrills, say: Say) -> DrilledVersion:
    """Return the first version with a Run: with batches walked by it if that works, else its
    outermost loop alone; and without objects that a run refuses to track.
    """
    forms, untracked = [True, False], set[str]()
    while True:
        try:
            texts = [
                begin.add_run(bench.text, bench.script.stem, batches=each, untracked=untracked)
                for each in forms
            ]
        except FixRefused as error:
            raise UsageError(f"{bench.script}: {error}") from error
        text, last = texts[0], texts[-1] == texts[0]
        for line in unified_diff(bench.text, text, str(bench.script)).splitlines():
            say(line)
        found = bench.drill(text)
        failed = found.verdict == FAILED and found.divergence is None
        refused = _REFUSED.match(found.why) if failed else None
        if refused is not None and refused[1] not in untracked:
            say(f"not tracked: {refused[1]}: {found.why}")
            untracked.add(refused[1])
            continue
        if failed and not last:
            say(f"with the loader walked by the run: {found.why}")
            forms = forms[1:]
            continue
        if (
            last
            and text != bench.text
            and (
                changed := bench.first_output_difference(
                    [bench.run_without_holdfast(bench.text)], found
                )
            )
        ):
            raise HoldfastError(
                f"{bench.script}: with a Run an undisturbed run prints otherwise: {changed}"
            )
        return found


def unified_diff(before: str, after: str, name: str) -> str:
    """Return a diff that `patch` applies; empty: none."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, name
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )
