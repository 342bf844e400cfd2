"""The event files of Keras' TensorBoard callback: the next attempt continues where the last one
stopped.

The writer names each file after the run and the attempt. Events of undone steps are cut off.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .. import disk, scan
from ..terminal import say, warn
from ..trainers.event_files import EventCounter, truncate_events

# attributes of the callback
DIRECTORIES = frozenset({"log_dir", "_log_write_dir", "_train_dir", "_val_dir"})
_FDS = "/proc/self/fd"


class BoardFiles:
    """The event files of one TensorBoard callback."""

    def __init__(self, callback: Any) -> None:
        self._callback, self._token, self._events = callback, "", EventCounter()
        # how many events the checkpoint has, by directory
        self._stored: Mapping[str, int] | None = None

    @property
    def is_remote(self) -> bool:
        return "://" in os.fspath(self._callback.log_dir)

    def reuse_directory(self, known: Any) -> list[str]:
        """Continue in the directory of the earlier attempts, if it exists. Return the facts that
        the next attempt needs.
        """
        callback, self._token = self._callback, uuid.uuid4().hex[:8]
        here = os.fspath(callback.log_dir)
        self._close_first_writer()
        if known is not None:
            was, self._token = known
            if was != here and scan.is_dir(was):
                say(f"TensorBoard goes on in {was}, where this run began, and not in {here}")
                for name in (callback._train_dir, callback._val_dir, here):
                    with suppress(OSError):  # it holds other programs' files
                        disk.remove_dir(Path(name))
                callback.log_dir = callback._log_write_dir = here = was
                callback._train_dir, callback._val_dir = (
                    os.path.join(was, name) for name in ("train", "validation")
                )
        return [here, self._token]

    def cut_and_begin(self) -> None:
        """Cut off events that were written after the checkpoint, and begin a file of this
        attempt.
        """
        callback = self._callback
        wanted = self._stored or {}
        number = 1
        for name, directory in self._directories().items():
            there = self._files(directory)
            number = max([number, *(1 + _attempt_number(path) for path in there)])
            if missing := truncate_events(there, wanted.get(name, 0)):
                warn(
                    f"{directory}: {missing} events that were "
                    "written before the checkpoint are missing"
                )
        callback._summary_module = SummaryWithSuffix(
            callback.summary, f".{self._token}-{number:06d}.v2"
        )
        if self._stored is None and callback.write_graph:
            callback._write_keras_model_summary()
        if self._pushed:
            callback._push_writer(callback._train_writer, callback._global_train_batch)

    def _close_first_writer(self) -> None:
        """Close the writer with which the callback has begun, and remove its file."""
        callback = self._callback
        # whether it stands before ours in the list
        self._pushed = bool(callback._prev_summary_state)
        if self._pushed:
            callback._pop_writer()
        before = _open_events(callback._train_dir)
        self.close_writers()
        callback._writers = {}
        for path in before - _open_events(callback._train_dir):
            disk.remove_file(Path(path))

    def close_writers(self) -> None:
        """Close the writers: nothing may write later into files that the next attempt truncates."""
        self._callback._close_writers()

    def state(self) -> dict[str, int]:
        if not self._token:
            return {}
        for writer in self._callback._writers.values():
            writer.flush()
        return {
            name: self._events.count(self._files(directory))
            for name, directory in self._directories().items()
        }

    def restore(self, stored: Mapping[str, int]) -> None:
        self._stored = stored

    def _directories(self) -> dict[str, Path]:
        callback = self._callback
        return {"train": Path(callback._train_dir), "validation": Path(callback._val_dir)}

    def _files(self, directory: Path) -> list[Path]:
        """Return the event files of this run, in the order of its attempts."""
        return sorted(
            scan.glob(directory, f"events.out.tfevents.*.{self._token}-*.v2"), key=_attempt_number
        )


class SummaryWithSuffix:
    """TensorFlow's summary module, with writers that append a suffix to their files' names."""

    def __init__(self, summary: Any, suffix: str) -> None:
        self._summary, self._suffix = summary, suffix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._summary, name)

    def create_file_writer(self, directory: str) -> Any:
        return self._summary.create_file_writer(directory, filename_suffix=self._suffix)


def _attempt_number(path: Path) -> int:
    """Return the number of the attempt that wrote this file."""
    return int(path.name.removesuffix(".v2").rpartition("-")[2])


def _open_events(directory: str) -> set[str]:
    """Return the event files in `directory` that this process has open."""
    found, begin = set(), os.path.join(os.path.realpath(directory), "events.out.tfevents.")
    for number in os.listdir(_FDS):
        with suppress(OSError):  # it has been closed since
            found.add(os.readlink(f"{_FDS}/{number}"))
    return {path for path in found if path.startswith(begin) and scan.exists(path)}
