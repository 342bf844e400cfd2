"""Loggers that continue: the next attempt writes where the last one stopped, and lines of undone
steps are removed.

A logger chooses its directory, or its id at W&B, when it is first used: before any hook of a
callback but one.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
from pathlib import Path
from typing import Any

from .. import disk, scan
from ..errors import UsageError
from ..settings import run_dir
from ..terminal import say, warn
from ..trainers.event_files import EventCounter, truncate_events
from ..trainers.training import Training, newest_recorded
from . import framework

_EVENT = "loggers"  # in the journal: who the loggers are
_LOOKS = "logged"  # among the durations, which no drill compares: what is logged may be a time


class LoggerStates:
    """The loggers of one trainer, prepared to continue before they are used."""

    def __init__(self, trainer: Any, path: str | os.PathLike[str]) -> None:
        self._leads = trainer.is_global_zero
        self._kept = (
            [_record_kind(logger)(trainer, logger) for logger in trainer.loggers]
            if self._leads
            else []
        )
        found = newest_recorded(run_dir(path), _EVENT)
        known = [] if found is None else found.get("are", [])
        self._known = known
        self._looks: dict[str, str] = {}
        if known:  # on each rank alike: they decide together
            for callback in trainer.callbacks:
                # LightningCLI has written its file there by now
                if framework.is_a(callback, "SaveConfigCallback"):
                    callback.overwrite = True
        for kept, (kind, name) in zip(self._kept, known, strict=False):
            if kind == type(kept).__name__ and name is not None:
                kept.reuse(name)

    def begin(self, training: Training, stored: list[Any] | None) -> None:
        """Remove lines that were logged after the checkpoint (all if there is none), and record
        which loggers there are.
        """
        looks = training.loop.durations.setdefault(_LOOKS, {})
        for at, kept in enumerate(self._kept):
            kept.looks = looks.get(str(at), "")
            if kept.reused:
                kept.truncate(stored[at] if stored is not None and at < len(stored) else {})
        are = [[type(kept).__name__, kept.name()] for kept in self._kept]
        if self._leads and are != self._known:
            training.loop.record(_EVENT, are=are)
        self._looks = looks

    def state(self) -> list[Any]:
        found = [kept.state() for kept in self._kept]
        self._looks.update({str(at): kept.looks for at, kept in enumerate(self._kept)})
        return found


class LoggerRecord:
    """What one logger has written. This class: a logger of unknown kind, which begins a new record
    in each attempt.
    """

    def __init__(self, trainer: Any, logger: Any) -> None:
        self.trainer, self.logger = trainer, logger
        self.reused = False
        self.looks = ""  # distinguishes the run's lines up to the last save from another program's

    def name(self) -> Any:
        """The name by which the next attempt continues the same record."""
        return None

    def reuse(self, name: Any) -> None:
        """Continue the record of that name."""

    def state(self) -> dict[str, Any]:
        """Return how much was logged; all of it is flushed."""
        return {}

    def truncate(self, stored: dict[str, Any]) -> None:
        """Remove everything that was logged after the state `stored`."""


class DirectoryRecord(LoggerRecord):
    """The record of a logger that writes a directory, by default `version_0` or the next
    free one.
    """

    def name(self) -> Any:
        return [self.logger.version, os.fspath(self.logger.log_dir)]

    def reuse(self, name: Any) -> None:
        if self.logger._experiment is not None:
            return
        own, (version, place) = self.logger._version, name
        if own is None:
            self.logger._version = version
        self.reused = [version, place] == DirectoryRecord.name(self) and scan.is_dir(place)
        if self.reused:
            self.open()
        else:
            # the script writes elsewhere now: a directory of that number is another training's
            self.logger._version = own

    def open(self) -> None:
        """Note the existing files before this attempt writes."""


class CsvRecord(DirectoryRecord):
    """The record of a CSVLogger. Its writer deletes the file that it finds, and adds columns by
    writing it anew.
    """

    def open(self) -> None:
        writers = framework.module_of(self.trainer, "loggers.csv_logs").ExperimentWriter
        kind = type("KeepingWriter", (writers,), {"_check_log_dir_exists": lambda _: None})
        self.logger._experiment = kind(log_dir=self.logger.log_dir)

    def state(self) -> dict[str, Any]:
        self.logger.save()
        keys, rows = self._content()
        self.looks = _csv_text(keys, rows)
        return {"keys": keys, "rows": len(rows)}

    def truncate(self, stored: dict[str, Any]) -> None:
        """Cut the file back to the rows of the checkpoint.

        Raises:
            UsageError: the file is another program's.
        """
        path, (keys, rows) = self._path(), self._content()
        count, wanted = stored.get("rows", 0), stored.get("keys", [])
        if len(rows) >= count and self.looks not in ("", _csv_text(wanted, rows[:count])):
            raise UsageError(
                f"{path}: its first {count} lines are not those that "
                "this run had logged. Another training may have "
                "written it: move it away, or give the logger another version"
            )
        if len(rows) < count:
            warn(
                f"{path}: {count - len(rows)} lines that were "
                "logged before the checkpoint are missing"
            )
        self.logger.experiment.metrics_keys = list(wanted)
        if (keys, len(rows)) == (wanted, count):
            return
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, wanted, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows[:count])
        if wanted:
            disk.replace_with(path, [text.getvalue().encode()])
        else:
            disk.remove_file(path)

    def _path(self) -> Path:
        return Path(self.logger.experiment.metrics_file_path)

    def _content(self) -> tuple[list[str], list[dict[str, str]]]:
        try:
            with open(self._path(), newline="") as file:
                reader = csv.DictReader(file)
                return list(reader.fieldnames or []), list(reader)
        except FileNotFoundError:
            return [], []


class TensorBoardRecord(DirectoryRecord):
    """The record of a TensorBoardLogger. Each attempt writes an event file of its own, which begins
    with an event of its format.

    The others are counted. The journal has their names: files of other runs in the same directory
    are left alone.
    """

    def __init__(self, trainer: Any, logger: Any) -> None:
        super().__init__(trainer, logger)
        # names of the files of this run's earlier attempts, in their order
        self._earlier: list[str] = []
        self._events = EventCounter()

    def name(self) -> Any:
        return [*super().name(), [path.name for path in self._files()]]

    def reuse(self, name: Any) -> None:
        *known, earlier = name
        super().reuse(known)
        self._earlier = earlier if self.reused else []

    def state(self) -> dict[str, Any]:
        self.logger.experiment.flush()
        return {"events": self._events.count(self._files())}

    def truncate(self, stored: dict[str, Any]) -> None:
        if missing := truncate_events(self._earlier_files(), stored.get("events", 0)):
            warn(
                f"{self.logger.log_dir}: {missing} events that "
                "were logged before the checkpoint are missing"
            )

    def _files(self) -> list[Path]:
        writer = self.logger.experiment._get_file_writer().event_writer
        # tensorboardX has the former
        return [*self._earlier_files(), Path(getattr(writer, "_ev_writer", writer)._file_name)]

    def _earlier_files(self) -> list[Path]:
        return [
            path for name in self._earlier if scan.exists(path := Path(self.logger.log_dir, name))
        ]


class WandbRecord(LoggerRecord):
    """The record of a WandbLogger. The same id continues. Values that W&B has cannot be removed,
    and values that it had not written are lost.
    """

    def name(self) -> Any:
        return self.logger.version

    def reuse(self, name: Any) -> None:
        if self.logger._experiment is None and self.logger._id is None:
            self.logger._id = self.logger._wandb_init["id"] = name
        self.reused = self.logger._id == name

    def truncate(self, stored: dict[str, Any]) -> None:
        del stored
        say(
            f"W&B goes on with run {self.logger._id}: "
            "undone steps that it has appear there twice, and what it had not "
            "written at a kill is missing there"
        )


def _csv_text(keys: list[str], rows: list[dict[str, str]]) -> str:
    return hashlib.sha256(
        repr([[row.get(key) for key in keys] for row in rows]).encode()
    ).hexdigest()


_KINDS: dict[str, type[LoggerRecord]] = {
    "CSVLogger": CsvRecord,
    "TensorBoardLogger": TensorBoardRecord,
    "WandbLogger": WandbRecord,
}


def _record_kind(logger: Any) -> type[LoggerRecord]:
    return next(
        (_KINDS[kind.__name__] for kind in type(logger).__mro__ if kind.__name__ in _KINDS),
        LoggerRecord,
    )
