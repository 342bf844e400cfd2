"""The state of the other callbacks of a fit(): their attributes that change while it runs, and
their files.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
from keras.src.callbacks.monitor_callback import MonitorCallback
from keras.src.callbacks.progbar_logger import ProgbarLogger
from keras.src.utils import file_utils

from ..errors import Mismatch, UsageError
from ..settings import run_dir
from ..state.fill import restore_value
from ..stateful.tracked import digest_state
from ..terminal import warn
from ..trainers.training import Training, newest_recorded
from .board import DIRECTORIES, BoardFiles
from .state import as_trackable

_EVENT = "boards"  # in the journal: where TensorBoard's callbacks write
_KERAS = "keras:"  # prefix of attributes that are saved by their variables
_NOT_STATE = frozenset(
    {
        *("_model", "params", "model"),  # of a callback
        # of TensorBoard: times of the clock
        *("_epoch_start_time", "_batch_start_time", "_train_accumulated_time"),
        # of a PyDataset: how it is read, not what
        *("_workers", "_use_multiprocessing", "_max_queue_size"),
    }
)


class ChangedAttributes:
    """The attributes of an object that have changed since this record was made.

    Attributes that cannot be saved are left out. An argument that never changes, such as a
    patience, keeps the script's value. Objects of Keras are saved by their variables, but for those
    that are `kept` elsewhere.
    """

    def __init__(
        self,
        target: Any,
        kept: Callable[[], Iterable[Any]] = tuple,
        apart: frozenset[str] = frozenset(),
    ) -> None:
        self.target, self._kept, self._apart = target, kept, apart | _NOT_STATE
        self._restored: set[str] = set()
        self.unsaved: list[str] = []  # names that could not be saved at the last look
        self.first: dict[str, dict[str, str]] = {
            name: printed for name, (_, printed) in self._current_values().items()
        }

    def _current_values(self) -> dict[str, tuple[Any, Any]]:
        """Return the value of each attribute that can be saved,
        and a text that differs for other values.
        """
        found: dict[str, tuple[Any, Any]] = {}
        self.unsaved = []
        for name, value in vars(self.target).items():
            held = as_trackable(value)
            of_keras = held is not value
            if name in self._apart or (of_keras and held.is_subset_of(self._kept())):
                continue
            state = held.state_dict() if of_keras else value
            # the paths have numbers of the process
            printed = _text_of([*state.values()] if of_keras else state)
            if printed is not None:
                found[_KERAS + name if of_keras else name] = state, printed
            elif not callable(value):
                self.unsaved.append(name)
        return found

    def changed(self) -> dict[str, Any]:
        return {
            name: value
            for name, (value, printed) in self._current_values().items()
            if name in self._restored or printed != self.first.get(name)
        }

    def restore(self, stored: Mapping[str, Any]) -> None:
        self._restored.update(stored)
        for name, value in stored.items():
            # in place: the script may have given the callback a list of its own
            if not name.startswith(_KERAS):
                setattr(
                    self.target,
                    name,
                    restore_value(vars(self.target).get(name), copy.deepcopy(value)),
                )
                continue
            here = getattr(self.target, name.removeprefix(_KERAS), None)
            held = as_trackable(here)
            if held is here:
                where = f"{type(self.target).__name__}.{name.removeprefix(_KERAS)}"
                raise Mismatch(
                    f"{where} was an object of Keras when this was saved: make it before fit()"
                )
            held.load_state_dict(value)


def _text_of(value: Any) -> Any:
    """Return a text that differs for other values; None if the value cannot be saved."""
    try:
        return digest_state({"": value}).of
    except UsageError:
        return None


class DatasetState:
    """The state of a PyDataset: its attributes that change from epoch to epoch, such as an order
    that it shuffles.

    The others are compared: they decide which samples a position means.
    """

    def __init__(self, dataset: Any) -> None:
        self._own = all(
            callable(getattr(dataset, each, None)) for each in ("state_dict", "load_state_dict")
        )
        self._dataset, self._attributes = dataset, ChangedAttributes(dataset)
        self._changed: dict[str, Any] = {}
        self._ahead = dataset.workers > 1 or (dataset.workers > 0 and dataset.use_multiprocessing)
        if self._ahead:
            warn(
                f"{type(dataset).__name__} has workers={dataset.workers}, "
                "which fetch ahead: what its __getitem__ "
                "draws or counts is not kept; workers=1 without use_multiprocessing keeps it"
            )

    def note_attributes(self) -> None:
        """Read its attributes again: it may change as an epoch begins or ends."""
        self._changed = {} if self._own else copy.deepcopy(self._attributes.changed())

    def state_dict(self) -> Any:
        if self._own:
            return self._dataset.state_dict()
        if not self._ahead:
            self.note_attributes()  # its __getitem__ may have changed it since
        same = {
            name: looks
            for name, looks in self._attributes.first.items()
            if name not in self._changed
        }
        return {"changed": self._changed, "same": same}

    def load_state_dict(self, stored: Any) -> None:
        if self._own:
            self._dataset.load_state_dict(stored)
            return
        first, stored_names = (
            self._attributes.first,
            stored["same"].keys() | stored["changed"].keys(),
        )
        other = [name for name, looks in stored["same"].items() if first.get(name) != looks]
        other += sorted(first.keys() - stored_names)
        if other:
            kind = type(self._dataset).__name__
            raise Mismatch(
                f"{kind}.{other[0]} is not as it was when this was saved, "
                "so that a position would mean other samples. "
                f"Seed before {kind} is made, or give it state_dict() and load_state_dict()"
            )
        self._attributes.restore(copy.deepcopy(stored["changed"]))
        self.note_attributes()


class CallbackStates:
    """The states of the other callbacks, by their classes and their order."""

    def __init__(self, callbacks: Iterable[Any], kept: Callable[[], Iterable[Any]]) -> None:
        seen, self._all = Counter[str](), dict[str, CallbackState]()
        for each in callbacks:
            if isinstance(each, ProgbarLogger):
                continue
            kind = type(each).__name__
            seen[kind] += 1
            ours = next(
                (ours for theirs, ours in _KINDS if isinstance(each, theirs)), CallbackState
            )
            self._all[kind if seen[kind] == 1 else f"{kind}#{seen[kind]}"] = ours(each, kept)

    def begin(self, training: Training, *, goes_on: bool) -> None:
        """Let the files of CSVLogger and TensorBoard continue, once the run has begun. `goes_on`:
        epochs are left.
        """
        for each in self._all.values():
            if isinstance(each, CsvLoggerState) and goes_on:
                each.begin()
        boards = {
            name: each.board
            for name, each in self._all.items()
            if isinstance(each, TensorBoardState)
        }
        for name in [name for name, board in boards.items() if board.is_remote]:
            warn(
                f"{name} does not write into files: "
                "points after the last checkpoint come a second time"
            )
            del boards[name]
        found = newest_recorded(run_dir(training.run.path), _EVENT) if boards else None
        known = {} if found is None else found.get("are", {})
        are = {name: board.reuse_directory(known.get(name)) for name, board in boards.items()}
        if are != known:
            training.loop.record(_EVENT, are=are)
        for board in boards.values():
            board.cut_and_begin()

    def leave(self) -> None:
        for each in self._all.values():
            if isinstance(each, TensorBoardState):
                each.board.close_writers()

    def state_dict(self) -> dict[str, Any]:
        return {name: each.state_dict() for name, each in self._all.items()}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        for name in stored.keys() - self._all.keys():
            if stored[name]:
                warn(
                    f"the callback {name} was there when this was saved, "
                    "and is not in fit(callbacks=[...]) now"
                )
        for name, each in self._all.items():
            if stored.get(name):
                each.load_state_dict(stored[name])


class CallbackState:
    """The state of one other callback: its attributes that change."""

    apart: frozenset[str] = frozenset()  # attributes that are no state

    def __init__(self, callback: Any, kept: Callable[[], Iterable[Any]]) -> None:
        self.callback = callback
        self._own = all(
            callable(getattr(callback, each, None)) for each in ("state_dict", "load_state_dict")
        )
        if isinstance(callback, MonitorCallback) and callback.monitor_op is None:
            callback._set_monitor_op()  # noqa: SLF001  at the first epoch's end it would turn min_delta's sign around
        self._attributes = ChangedAttributes(callback, kept, self.apart)
        bases = {
            base.__module__.partition(".")[0]
            for base in type(callback).__mro__
            if base is not keras.callbacks.Callback
        }
        # Keras' own callbacks know what they need
        self._to_warn = not self._own and "keras" not in bases

    def state_dict(self) -> Any:
        if self._own:
            return self.callback.state_dict()
        changed = self._attributes.changed()
        if self._to_warn and self._attributes.unsaved:
            self._to_warn = False
            warn(
                f"the callback {type(self.callback).__name__} has what cannot be saved: "
                f"{', '.join(self._attributes.unsaved)}; if it changes, "
                "give it state_dict() and load_state_dict()"
            )
        return changed

    def load_state_dict(self, stored: Any) -> None:
        if self._own:
            self.callback.load_state_dict(stored)
        else:
            self._attributes.restore(stored)


class CsvLoggerState(CallbackState):
    """The state of a CSVLogger, whose file is cut back to the rows of the checkpoint."""

    def __init__(self, callback: Any, kept: Callable[[], Iterable[Any]]) -> None:
        super().__init__(callback, kept)
        self._text: str | None = None  # what the checkpoint has

    def state_dict(self) -> Any:
        return {**self._attributes.changed(), "text": self._written()}

    def load_state_dict(self, stored: Any) -> None:
        """Cut the file back to the rows of the checkpoint.

        Raises:
            UsageError: the file has other rows, which are not ours to remove.
        """
        logger, text = self.callback, stored["text"]
        self._attributes.restore({name: value for name, value in stored.items() if name != "text"})
        if logger.csv_file is None or logger.csv_file.closed:
            return
        logger.csv_file.flush()
        if not (written := self._written()).startswith(text):
            if not text.startswith(written):
                raise UsageError(
                    f"{logger.filename}: it begins with other rows "
                    "than this run had written. Move it away, or give "
                    "CSVLogger another file"
                )
            self._write(text)
        self._text = text

    def begin(self) -> None:
        """Remove the rows of epochs that are repeated. After a finished fit() others may have
        written rows, which stay.
        """
        if self._text is not None and self._written() != self._text:
            self._write(self._text)
        self._text = None

    def _written(self) -> str:
        name = self.callback.filename
        if not file_utils.exists(name):
            return ""
        with file_utils.File(name, "rb") as file:
            text: bytes = file.read()
        return text.decode()

    def _write(self, text: str) -> None:
        logger = self.callback
        logger.csv_file.close()
        with file_utils.File(logger.filename, "wb") as file:
            file.write(text.encode())
        logger.csv_file = file_utils.File(logger.filename, "a")
        logger.append_header, logger.writer = not text, None


class TensorBoardState(CallbackState):
    """The state of a TensorBoard callback, whose event files continue where the checkpoint has
    them.
    """

    apart = DIRECTORIES

    def __init__(self, callback: Any, kept: Callable[[], Iterable[Any]]) -> None:
        super().__init__(callback, kept)
        self.board = BoardFiles(callback)

    def state_dict(self) -> Any:
        return {**self._attributes.changed(), "events": self.board.state()}

    def load_state_dict(self, stored: Any) -> None:
        self._attributes.restore(
            {name: value for name, value in stored.items() if name != "events"}
        )
        self.board.restore(stored["events"])


_KINDS: tuple[tuple[type, type[CallbackState]], ...] = (
    (keras.callbacks.CSVLogger, CsvLoggerState),
    (keras.callbacks.TensorBoard, TensorBoardState),
)
