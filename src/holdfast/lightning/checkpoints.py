"""The files of Lightning's own ModelCheckpoint, which belong to the user: a repeated step writes
under the same name.

A killed attempt may have written `epoch=1-step=12.ckpt` after the run's last save. The step is done
again, and without this its file would be called `epoch=1-step=12-v1.ckpt`. The journal has the
names that the run has written: a file of another training in the same directory keeps its name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ..errors import Stopped, UsageError
from ..trainers.training import Training, all_recorded

_EVENT = "file"  # in the journal, before it is written
# in the state of a callback: its directory, which another run of the script numbers otherwise
_HERE = "<dirpath>"


class CheckpointFiles:
    """The files in the directories of a trainer's ModelCheckpoints."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._undone: dict[str, set[str]] = {}  # names that no step of this attempt has written yet

    def names(self) -> dict[str, list[str]]:
        return {
            key: sorted(_file_names(each) - self._undone.get(key, set()))
            for key, each in _callbacks(self._trainer)
        }

    def begin(self, training: Training, known: dict[str, list[str]]) -> None:
        """Record the files that are written from now on. Ignore files that an earlier attempt wrote
        and that are not in `known`.
        """
        written = {(each["folder"], each["name"]) for each in all_recorded(training.path, _EVENT)}
        for key, callback in _callbacks(self._trainer):
            folder = os.path.realpath(callback.dirpath)
            later = _file_names(callback) - {*known.get(key, ())}
            undone = {
                name for name in later if (_journal_text(folder), _journal_text(name)) in written
            }
            self._undone[key] = undone = self._trainer.strategy.broadcast(undone)
            training.replace(callback, "file_exists", _wrap_exists(callback, undone))
            training.replace(
                callback, "_save_checkpoint", self._wrap_save(callback, undone, training)
            )

    def _wrap_save(
        self, callback: Any, undone: set[str], training: Training
    ) -> Callable[..., None]:
        plain, leads = callback._save_checkpoint, self._trainer.is_global_zero

        def save(trainer: Any, filepath: str) -> None:
            folder, name = os.path.split(os.path.realpath(filepath))
            undone.discard(name)
            if leads:
                with suppress(Stopped, UsageError):  # saved on an exception, when the run is over
                    training.loop.record(
                        _EVENT, folder=_journal_text(folder), name=_journal_text(name)
                    )
            plain(trainer, filepath)

        return save


def without_directory(value: Any, callback: Any) -> Any:
    """Return the state of a ModelCheckpoint in which its directory has a name that is the same for
    every run.
    """
    place = getattr(callback, "dirpath", None)
    return value if not place else _replace_prefix(value, os.fspath(place), _HERE)


def with_directory(value: Any, callback: Any) -> Any:
    place = getattr(callback, "dirpath", None)
    return value if not place else _replace_prefix(value, _HERE, os.fspath(place))


def _replace_prefix(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {
            _replace_prefix(key, old, new): _replace_prefix(each, old, new)
            for key, each in value.items()
        }
    if isinstance(value, str) and (value == old or value.startswith(old + os.sep)):
        return new + value.removeprefix(old)
    return value


def _callbacks(trainer: Any) -> Iterator[tuple[str, Any]]:
    for callback in trainer.checkpoint_callbacks:
        if hasattr(callback, "file_exists") and callback.dirpath:
            yield callback.state_key, callback


def _file_names(callback: Any) -> set[str]:
    with suppress(OSError):
        return {
            name for name in os.listdir(callback.dirpath) if name.endswith(callback.FILE_EXTENSION)
        }
    return set()


def _wrap_exists(callback: Any, undone: set[str]) -> Callable[..., bool]:
    plain = callback.file_exists
    return lambda filepath, trainer: (
        os.path.basename(filepath) not in undone and plain(filepath, trainer)
    )


def _journal_text(name: str) -> str:
    """Return a file's name in the journal's encoding."""
    return os.fsencode(name).decode(errors="replace")
