"""App files: a program without an adapter of its own, described in a few lines of TOML."""

from __future__ import annotations

import glob
import re
import signal as signals
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated

import msgspec

from .. import scan
from ..errors import UsageError
from ..terminal import say
from .back import put_back
from .program import ProgramCheckpoint, ProgramExit, Verdict
from .take import FileState, changed_files, file_states

CHECKPOINT, COMMAND, PID = "{checkpoint}", "{command}", "{pid}"
_WILD = re.compile(r"[*?\[]")
_OURS = ("app", "attempts", "checkpoints", "history", "quarantine")  # folders in a run's directory

# commands and file names cannot contain a zero byte
Word = Annotated[str, msgspec.Meta(pattern=r"^[^\0]*$")]
Words = Annotated[list[Word], msgspec.Meta(min_length=1)]


class Finished(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Conditions that hold when the work is done, and not before. All given ones must hold."""

    files: list[Word] = []
    output: str | None = None


class App(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The content of an app file."""

    start: Words
    checkpoint: Words
    finished: Finished
    resume: Words | None = None  # None: as `start`
    stop: str | Words = "TERM"
    damaged: str | None = None
    newest: bool = False  # use only the newest of each pattern's files
    settle_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 2.0  # finite

    @property
    def reads_its_own(self) -> bool:
        """Whether the program looks for its files where it wrote them,
        and not where `resume` says.
        """
        return not any(CHECKPOINT in word for word in self.resume or [])


msgspec.json.Decoder(App)  # made here for the reason that `format` has


def read(path: Path) -> App:
    """Return the app file at `path`.

    Raises:
        UsageError: it cannot be read, or has a mistake; one line names it.
    """
    try:
        app = msgspec.toml.decode(path.read_bytes(), type=App)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from error
    except RecursionError as error:
        raise UsageError(f"{path}: too many brackets inside of one another") from error
    for problem in _mistakes(app):
        raise UsageError(f"{path}: {problem}")
    return app


class AppFile:
    """One program, as an app file describes it. Files from before `begin` belong to another
    program.

    If the program reads its own files, `begin` makes them those of the checkpoint, and all belong
    to it.
    """

    def __init__(self, app: App, work: Path, room: Path) -> None:
        self._app, self._work, self._room = app, work, room
        place = room.parent  # the supervisor's directory: its store is not part of a checkpoint
        self._ours = room if work.is_relative_to(place) else place
        self._before: dict[Path, FileState] = {}
        self._begun = False
        self.lacks = ""  # which part of `finished` did not hold at the last `verdict`

    def begin(
        self, command: Sequence[str], checkpoint: Path | None, time_left_s: float | None
    ) -> Sequence[str]:
        """Return `start`, or `resume` with the checkpoint's directory filled in,
        or its files put back.
        """
        del time_left_s
        words = self._app.start if checkpoint is None else self._app.resume or self._app.start
        if command and COMMAND not in self._app.start:
            raise UsageError(
                "a command is given, and `start` has no "
                f"{COMMAND} to take it: leave one of them out"
            )
        if not command and COMMAND in words:
            raise UsageError(
                f"`start` takes the command from behind `--` for {COMMAND}, and there is none"
            )
        if self._app.reads_its_own and self._ours == self._room:
            raise UsageError(
                "`resume` has no {checkpoint}, so files are put back here: "
                "give a --run DIR inside of it or elsewhere"
            )
        if self._app.reads_its_own:
            self._put_back(checkpoint)
        self._before = file_states(
            [*self._matching(self._app.checkpoint), *self._matching(self._app.finished.files)]
        )
        return [each for word in words for each in _fill_word(word, command, checkpoint)]

    def checkpoint(self) -> ProgramCheckpoint | None:
        """Return the files; complete if unchanged for `settle_s`,
        or if the program has ended by itself.
        """
        return self._written(self._files())

    def left(self, since_unix_s: float) -> ProgramCheckpoint | None:
        """Return its files that have changed since `since_unix_s`, complete or not; call this
        before `begin`.

        The end of the start that wrote them was not observed. Of a program that reads its own
        files, all are returned.
        """
        files = self._files()
        changed = [path for path, seen in files.items() if seen.mtime_ns > since_unix_s * 1e9]
        return self._written(files if changed and self._app.reads_its_own else changed)

    def found(self) -> ProgramCheckpoint | None:
        """Return the files that a program which reads its own would begin with; call this before
        the first `begin`.
        """
        return self._written(self._files()) if self._app.reads_its_own else None

    def stop(self, signal: int, pid: int) -> int | Sequence[str]:
        """Return the signal or command of the app file; never another signal."""
        del signal
        if isinstance(self._app.stop, str):
            return signals.Signals[f"SIG{self._app.stop}"]
        return [word.replace(PID, str(pid)) for word in self._app.stop]

    def verdict(self, ended: ProgramExit) -> Verdict:
        """Done when all of `finished` holds. If it does not, exit code 0 means "stopped"."""
        self.lacks = ", and ".join(self._missing(ended.tail))
        if ended.code == 0 and not self.lacks:
            return "done"
        if (
            ended.resumed
            and self._app.damaged is not None
            and re.search(self._app.damaged, ended.tail)
        ):
            return "damaged"
        return "stopped" if ended.told or ended.code == 0 else "failed"

    def _written(self, files: Iterable[Path]) -> ProgramCheckpoint | None:
        found = sorted(files)
        return (
            ProgramCheckpoint(found, root=self._work, settle_s=self._app.settle_s)
            if found
            else None
        )

    def _missing(self, tail: str) -> list[str]:
        finished = self._app.finished
        missing = [
            f"{name} was not written"
            for name in finished.files
            if not changed_files(self._matching([name]), self._before)
        ]
        if finished.output is not None and not re.search(finished.output, tail):
            missing.append(f"its last lines do not match {finished.output!r}")
        return missing

    def _put_back(self, checkpoint: Path | None) -> None:
        # What the first start finds may be a user's: its folder is never emptied. Later starts find
        # the program's own.
        aside = self._room / ("replaced" if self._begun else f"found-{time.time_ns()}")
        self._begun = True
        present = file_states(self._matching(self._app.checkpoint))
        moved = put_back(checkpoint, self._work, present, aside, keep_older=self._app.newest)
        if moved:
            names = ", ".join(moved[:3]) + (f" and {len(moved) - 3} more" if moved[3:] else "")
            instead = (
                f"the program goes on from {checkpoint.name}"
                if checkpoint is not None
                else "it starts afresh"
            )
            say(f"{names}: not what was kept, and now in {aside}; {instead}")

    def _files(self) -> dict[Path, FileState]:
        """Return the files of a new checkpoint. If the program reads its own, unchanged files
        belong to it, too.
        """
        others = {} if self._app.reads_its_own else self._before
        chosen: dict[Path, FileState] = {}
        for pattern in self._app.checkpoint:
            found = sorted(changed_files(self._matching([pattern]), others).items(), key=_age_order)
            chosen |= found[-1:] if self._app.newest else found
        return (
            chosen if any(self._before.get(path) != seen for path, seen in chosen.items()) else {}
        )

    def _matching(self, patterns: Sequence[str]) -> list[Path]:
        found = [
            path
            for pattern in patterns
            for path in scan.glob(self._work, pattern)
            if scan.is_file(path)
        ]
        return [
            path
            for path in found
            if not path.is_relative_to(self._ours) and not self._is_of_another_run(path)
        ]

    def _is_of_another_run(self, path: Path) -> bool:
        """Whether a pattern like `**/*.rds` has found the checkpoint of a run that lies further
        down.
        """
        # without the outermost folder, and without `.`
        between = [*path.relative_to(self._work).parents][:-2]
        return any(each.name in _OURS and _is_run(self._work / each.parent) for each in between)


def _is_run(folder: Path) -> bool:
    found = scan.is_file(folder / "run.json") and scan.is_dir(folder / "checkpoints")
    return found or scan.is_file(folder / "supervisor.jsonl")


def _age_order(file: tuple[Path, FileState]) -> tuple[int, Path]:
    return file[1].mtime_ns, file[0]


def _fill_word(word: str, command: Sequence[str], checkpoint: Path | None) -> list[str]:
    """Return the words that replace `word`.

    A pattern in the checkpoint's directory is replaced by the matching files, as in a shell.
    """
    if word == COMMAND:
        return [*command]
    if checkpoint is None or CHECKPOINT not in word:
        return [word]
    head, _, pattern = word.partition(CHECKPOINT)
    if not _WILD.search(pattern):
        return [f"{head}{checkpoint}{pattern}"]
    found = scan.glob(checkpoint.parent, glob.escape(checkpoint.name) + pattern)
    if "/." not in pattern:  # as in a shell, which passes over hidden names
        found = [path for path in found if not re.search(r"/\.", str(path)[len(str(checkpoint)) :])]
    if not found:
        raise UsageError(f"`resume`: nothing in {checkpoint} matches {word!r}")
    return [f"{head}{path}" for path in found]


def _mistakes(app: App) -> Iterator[str]:
    """Yield the mistakes in a file of the right form; the first one is reported."""
    if any(CHECKPOINT in word for word in app.start):
        yield (
            f"`start` has {CHECKPOINT}, and there is none at the first start: write it in `resume`"
        )
    if not app.finished.files and app.finished.output is None:
        yield (
            "`finished` needs `files`, `output` or both: exit codes do not tell whether it is done"
        )
    for key, patterns in (("checkpoint", app.checkpoint), ("finished.files", app.finished.files)):
        for pattern in patterns:
            path = PurePosixPath(pattern)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                yield f"`{key}`: {pattern!r} leads out of the directory in which the program runs"
            if any("**" in part and part != "**" for part in path.parts):
                yield f"`{key}`: {pattern!r}: write ** alone between two slashes"
    for key, text in (("damaged", app.damaged), ("finished.output", app.finished.output)):
        try:
            re.compile(text or "")
        except (re.error, OverflowError, RecursionError) as error:
            yield f"`{key}`: {text!r} is no regular expression: {error}"
    if isinstance(app.stop, str) and f"SIG{app.stop}" not in signals.Signals.__members__:
        yield (
            f"`stop`: {app.stop!r} is no signal; "
            "write one as TERM or INT, or a command as a list of words"
        )
