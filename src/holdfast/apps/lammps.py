"""LAMMPS: `lmp -in SCRIPT`, whose script reads the restart file that the variable `rst` names.

Observed with 29Sep2021. A signal kills it at once, so its own `restart` files are the checkpoints;
`timer timeout` ends it early with 0. A resume is exact to the byte if `atom_modify sort 0 0.0` is
set and restarts are multiples of the steps between two neighbour lists (docs/apps.md has a whole
script).
"""

from __future__ import annotations

import re
import signal as signals
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from .. import disk, scan
from ..errors import UsageError
from . import words
from .program import ProgramCheckpoint, ProgramExit, Verdict
from .take import FileState, changed_files, file_states

OVER = "Total wall time:"
EARLY = "Wall time limit reached"
REFUSED = re.compile(
    r"Cannot open restart file|Invalid LAMMPS restart file|"
    r"Incomplete or corrupted LAMMPS restart file"
    r"|Unexpected end of file while reading file"
)
WITHOUT_RST = """\
if "$(is_defined(variable,rst))" then "read_restart ${rst}" else "read_data start.data" """.strip()
_MAGIC = b"LammpS RestartT\0"  # the first and last bytes of a restart file
_RESTART = re.compile(
    r"""["']?\s*restart\s+(?!0\b)(\S+)\s+(?P<first>[^\s"']+)(?:\s+(?P<second>[^\s"']+))?"""
)
_INCLUDE = re.compile(r"""["']?\s*include\s+(?P<file>[^\s"'$]+)""")
_LOG_BYTES = 1 << 16


class Lammps:
    """One input script in one directory.
    Restart files from before `begin` belong to another run.
    """

    def __init__(self, work: Path, room: Path) -> None:
        self._work, self._room = work, room
        self._text = ""  # the text of the script and of what it includes
        self._globs: list[str] = []
        self._log = work / "log.lammps"
        self._before: dict[Path, FileState] = {}

    def begin(
        self, command: Sequence[str], checkpoint: Path | None, time_left_s: float | None
    ) -> Sequence[str]:
        """Return the command with `-var rst FILE`.

        A time limit is passed by an extra script with `timer timeout` that includes the user's.
        """
        found = words.split_at_program(command, "lmp", "lammps")
        if found is None:
            raise UsageError(
                "--app lammps: the command holds no `lmp`; write it as in `-- lmp -in in.melt`"
            )
        start, options = found
        script = words.option_value(options, "-in", "-i", "-input")
        if not script or script == "none":
            raise UsageError(
                "--app lammps: give the input script with `-in FILE`; "
                "from standard input nothing can go on"
            )
        self._parse_script(script, words.option_value(options, "-log", "-l"))
        if time_left_s is not None:
            options = self._with_time_limit(options, script, time_left_s)
        self._before = file_states([*self._restarts(), self._log])
        if checkpoint is not None:
            whole = [path for path in sorted(checkpoint.iterdir()) if _is_whole(path)]
            if not whole:
                raise UsageError(
                    f"{checkpoint}: holds no restart file of LAMMPS; "
                    "another program's? Give another --run"
                )
            options += ["-var", "rst", str(whole[0])]
        return [*start, *options]

    def checkpoint(self) -> ProgramCheckpoint | None:
        """Return the newest complete restart file. It may alternate between two, and writes the
        closing bytes last.
        """
        found = changed_files(self._restarts(), self._before)
        for path in sorted(found, key=lambda path: found[path].mtime_ns, reverse=True):
            if _is_whole(path):
                return ProgramCheckpoint([path], step_of(path), whole=True)
        return None

    def stop(self, signal: int, pid: int) -> int:
        """Return SIGTERM, which kills it: the last restart file remains."""
        del signal, pid
        return signals.SIGTERM

    def verdict(self, ended: ProgramExit) -> Verdict:
        """Done when it reached the end of its script, and not for lack of time."""
        said = ended.tail + self._logged()
        if ended.code == 0 and EARLY not in said and OVER in said:
            return "done"
        if ended.resumed and ended.code != 0 and REFUSED.search(said):
            return "damaged"
        return "stopped" if ended.told or (ended.code == 0 and EARLY in said) else "failed"

    def _parse_script(self, script: str, log: str | None) -> None:
        self._text = _text(self._work, script)
        self._globs = list(_patterns(self._text))
        if not self._globs:
            raise UsageError(
                f"{script}: writes no checkpoints; "
                "add a line such as `restart 1000 ck.a ck.b` before `run`"
            )
        if any("%" in pattern for pattern in self._globs):
            raise UsageError(
                f"{script}: restart files in parts (with % in "
                "their names) are not kept; name them without"
            )
        if not re.search(r"\bvariable,\s*rst\b|\$\{rst\}", self._text):
            raise UsageError(
                f"{script}: does not use ${{rst}}, so it cannot go on from a checkpoint; let it "
                f"begin with this line, your own set-up for read_data start.data: {WITHOUT_RST}"
            )
        self._log = self._work / (log or "log.lammps")

    def _with_time_limit(self, options: list[str], script: str, time_left_s: float) -> list[str]:
        if re.search(r"^\s*timer\b.*\btimeout\b", self._text, re.MULTILINE):
            return options  # the user's own comes later on the command line, and wins
        limit = self._room / "limit.in"
        disk.replace_with(
            limit, [f'timer timeout {max(int(time_left_s), 1)}\ninclude "{script}"\n'.encode()]
        )
        return [*(str(limit) if word == script else word for word in options)]

    def _restarts(self) -> list[Path]:
        return sorted({path for pattern in self._globs for path in scan.glob(self._work, pattern)})

    def _logged(self) -> str:
        """Return the end of its log, which a script may have redirected."""
        if not changed_files([self._log], self._before):
            return ""
        with open(self._log, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _LOG_BYTES))
            return file.read().decode(errors="replace")


def step_of(path: Path) -> int | None:
    """Return the step in the header of a restart file; None when the file cannot be read as such a
    header.

    Source: LAMMPS, src/write_restart.cpp, WriteRestart::header; src/lmprestart.h.
    """
    version, units, step, integers_at_most = 0, 4, 5, 8
    try:
        with open(path, "rb") as file:
            file.seek(len(_MAGIC) + 8)  # skip byte order and revision
            for _ in range(integers_at_most):
                (flag,) = struct.unpack("<i", file.read(4))
                if flag == step:
                    (found,) = struct.unpack("<q", file.read(8))
                    return int(found) if found >= 0 else None
                (number,) = struct.unpack("<i", file.read(4))
                if flag in (version, units):
                    file.seek(number, 1)
    except (OSError, struct.error):
        pass
    return None


def _is_whole(path: Path) -> bool:
    try:
        with open(disk.open_plain(path, follow=True), "rb") as file:
            begins = file.read(len(_MAGIC))
            file.seek(-len(_MAGIC), 2)
            return begins == file.read() == _MAGIC
    except OSError:
        return False


def _text(work: Path, script: str) -> str:
    """Return the script, lines joined and without comments,
    and what it includes by a plain name.
    """
    texts: dict[str, str] = {}
    waiting = [script]
    while waiting:
        name = waiting.pop()
        if name in texts:
            continue
        try:
            text = (work / name).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise UsageError(f"--app lammps: {name}: {error.strerror}") from error
        lines = [line.partition("#")[0] for line in re.sub(r"&[ \t]*\n", " ", text).splitlines()]
        texts[name] = "\n".join(lines)
        included = [found["file"] for line in lines if (found := _INCLUDE.match(line))]
        waiting += [file for file in included if scan.is_file(work / file)]
    return "\n".join(texts.values())


def _patterns(text: str) -> Iterator[str]:
    """Yield globs of the files that the script's `restart` lines write."""
    for line in text.splitlines():
        found = _RESTART.match(line)
        if found is None:
            continue
        first, second = (
            re.sub(r"\$\{\w+\}|\$\w", "*", name or "") for name in found.group("first", "second")
        )
        if second in ("", "fileper", "nfile"):
            yield first if "*" in first else f"{first}.*"
        else:
            yield from (first, second)
