"""GROMACS: `gmx mdrun` in one directory.

Observed with 2022.5. SIGTERM makes it write a checkpoint and exit with 1, as a fatal error does.
`-maxh` ends it early with 0. Only the end of the simulation writes the final structure. With
`-reprod`, resuming with `-cpi -append` gives the same trajectory, energies and structure, byte for
byte, as an uninterrupted simulation.
"""

from __future__ import annotations

import re
import signal as signals
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from .. import disk, scan
from ..errors import UsageError
from . import words
from .program import ProgramCheckpoint, ProgramExit, Verdict
from .take import FileState, changed_files, file_states

EARLY = re.compile(
    r"Received the \S* ?\w+ signal, stopping|Run time exceeded \S+ hours, will terminate"
)
REFUSED = re.compile(
    r"Checkpoint file corrupted/truncated|checkpoint file is empty/corrupted"
    r"|The file has been\s+replaced or its contents have been modified"
)
_BEGIN, _END = 171817, 171819  # the first and the last number of a checkpoint file, in XDR
_OLDEST = 14  # the first version of the format with the header that `step_of` reads: GROMACS 4.5


class Gromacs:
    """One simulation. Files from before `begin` belong to another:
    they are no checkpoint and no sign of the end.
    """

    def __init__(self, work: Path, _room: Path) -> None:
        self._work = work
        self._stem = work / "state"
        self._structure: Path | None = work / "confout.gro"
        self._before: dict[Path, FileState] = {}

    def begin(
        self, command: Sequence[str], checkpoint: Path | None, time_left_s: float | None
    ) -> Sequence[str]:
        """Return the command with `-cpi FILE -append` and `-maxh` where these apply."""
        found = words.split_at_program(command, "mdrun")
        if found is None:
            raise UsageError(
                "--app gromacs: the command holds no `mdrun`; "
                "write it as in `-- gmx mdrun -deffnm run`"
            )
        start, options = found
        if "-multidir" in options:
            raise UsageError(
                "--app gromacs: -multidir runs several simulations; "
                "run each under a supervisor of its own"
            )
        self._parse_options(options)
        self._before = file_states([*self._checkpoints(), *self._structures()])
        if checkpoint is not None:
            files = _matching(checkpoint, self._pattern)
            if not files:
                raise UsageError(
                    f"{checkpoint}: holds no {self._stem.name}.cpt; "
                    "another run's? Give another --run"
                )
            append = [] if {"-append", "-noappend"} & set(options) else ["-append"]
            options = [*words.without_option(options, "-cpi"), "-cpi", str(files[0]), *append]
        elif (given := words.option_value(options, "-cpi")) is not None:
            # mdrun refuses a log without a checkpoint, which a very early kill leaves
            there = scan.exists(self._named(given, "state", ".cpt"))
            options = options if there else words.without_option(options, "-cpi")
        return [*start, *_with_time_limit(options, time_left_s)]

    def checkpoint(self) -> ProgramCheckpoint | None:
        """Return the complete checkpoint file with the highest step.

        A complete file begins and ends with a fixed number.
        """
        found = changed_files(self._checkpoints(), self._before)
        steps = {path: step for path in found if (step := step_of(path)) is not None}
        if not steps:
            return None
        newest = max(
            steps, key=lambda path: (steps[path], len(path.name) == len(self._stem.name) + 4)
        )
        return ProgramCheckpoint([newest], steps[newest], whole=True)

    def stop(self, signal: int, pid: int) -> int:
        """Return SIGTERM: a checkpoint within some steps.
        SIGUSR1 has no effect, and SIGHUP kills it without one.
        """
        del signal, pid
        return signals.SIGTERM

    def verdict(self, ended: ProgramExit) -> Verdict:
        """Done when it has written the final structure;
        with `-noconfout` only its output can tell.
        """
        early = EARLY.search(ended.tail) is not None
        finished = self._structure is None or changed_files(self._structures(), self._before)
        if ended.code == 0 and not early and finished:
            return "done"
        if ended.resumed and ended.code > 0 and REFUSED.search(ended.tail):
            return "damaged"
        return "stopped" if early or ended.told else "failed"

    def _parse_options(self, options: Sequence[str]) -> None:
        """Note where this command line makes it write."""
        name = words.option_value(options, "-deffnm")
        self._stem = self._named(
            words.option_value(options, "-cpo") or name, "state", ".cpt"
        ).with_suffix("")
        unwritten = {"-noconfout", "-rerun"} & set(options)
        self._structure = (
            None
            if unwritten
            else self._named(words.option_value(options, "-c") or name, "confout", ".gro")
        )

    def _named(self, given: str | None, otherwise: str, suffix: str) -> Path:
        path = self._work / (given or otherwise)
        return (
            path if path.suffix in {suffix, ".g96", ".pdb"} else path.with_name(path.name + suffix)
        )

    def _checkpoints(self) -> list[Path]:
        """Return `run.cpt`, and what `-cpnum` or an interrupted rename leaves:
        `run_step1234.cpt`.
        """
        return _matching(self._stem.parent, self._pattern)

    @property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self._stem.name) + r"(_prev|_step\d+)?\.cpt")

    def _structures(self) -> list[Path]:
        """Return `run.gro`, or `run.part0002.gro` with `-noappend`."""
        if self._structure is None:
            return []
        stem, suffix = re.escape(self._structure.stem), re.escape(self._structure.suffix)
        return _matching(self._structure.parent, re.compile(rf"{stem}(\.part\d+)?{suffix}"))


def step_of(path: Path) -> int | None:
    """Return the step of a complete checkpoint file; None if it is incomplete or another kind of
    file.

    Source: GROMACS, src/gromacs/fileio/checkpoint.cpp, do_cpt_header.
    """
    try:
        with open(disk.open_plain(path, follow=True), "rb") as file:
            file.seek(-4, 2)
            if _number(file) != _END:
                return None
            file.seek(0)
            if _number(file) != _BEGIN:
                return None
            for _ in ("version", "build time", "builder", "build host", "program", "time"):
                _skip_text(file)
            if _number(file) < _OLDEST:
                return None
            _number(file)  # the precision of the build
            _skip_text(file)  # the host
            for _ in (
                "atoms",
                "baths",
                "chain length",
                "barostats",
                "lambdas",
                "integrator",
                "part",
            ):
                _number(file)
            step = _number(file, ">q")
    except (OSError, struct.error):
        return None
    return step if step >= 0 else None


def _number(file: BinaryIO, form: str = ">i") -> int:
    (number,) = struct.unpack(form, file.read(struct.calcsize(form)))
    return int(number)


def _skip_text(file: BinaryIO) -> None:
    file.seek((_number(file) + 3) // 4 * 4, 1)


def _matching(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    return [path for path in scan.glob(folder, "*") if pattern.fullmatch(path.name)]


def _with_time_limit(options: list[str], time_left_s: float | None) -> list[str]:
    """Return the options with `-maxh`, unless the user gave one."""
    if time_left_s is None:
        return options
    hours = max(time_left_s, 1.0) / 3600
    given = words.option_value(options, "-maxh")
    try:
        own = float(given) if given else 0.0
    except ValueError:
        return options  # mdrun itself reports the error
    return (
        options
        if 0.0 < own <= hours
        else [*words.without_option(options, "-maxh"), "-maxh", f"{hours:.5f}"]
    )
