"""FitRun: the run around one call of fit(), and the functions of Keras that it wraps."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import repeat
from typing import Any

import keras
from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

from ..data.promise import UnprovenCode
from ..errors import UsageError
from ..run.weights import StartFrom
from ..terminal import warn
from ..trainers.training import RunOptions, Training, merge_states
from . import generators
from .attributes import ModelAttributes
from .call import FitCall, build_variables, depends_on_process
from .export import load_initial_weights
from .feed import BatchFeed, BatchGroup
from .others import CallbackStates, DatasetState
from .sources import source_of
from .state import Metrics, Variables, as_trackable, optimizers, variables_of


class FitRun:
    """Runs one call of fit(): replaces functions that Keras calls, so that safe points come after
    all other callbacks.
    """

    def __init__(
        self,
        call: FitCall,
        ours: Any,
        path: str | os.PathLike[str],
        state: Mapping[str, Any] | None,
        options: RunOptions,
        untried: UnprovenCode | None,
    ) -> None:
        build_variables(call)
        self._call, model = call, call.model
        self._metrics = Metrics(model)
        self._memory: dict[str, Any] = {"logs": {}}
        self._own: dict[str, Any] = {
            "model": Variables("the model", lambda: model.variables, model),
            **optimizers(model),
            "metrics": self._metrics,
            "attributes": ModelAttributes(model),
        }
        others = [each for each in call.callbacks.callbacks if each is not ours]
        self._others = CallbackStates(others, lambda: variables_of(model))
        self._own["callbacks"] = self._others
        adapter = call.iterator.data_adapter
        self._dataset = (
            DatasetState(adapter.py_dataset) if isinstance(adapter, PyDatasetAdapter) else None
        )
        if self._dataset is not None:
            self._own["dataset"] = self._dataset
        options = {"seed": generators.global_seed(), **options}
        start_from = options.pop("start_from", None)
        if isinstance(start_from, StartFrom):
            raise UsageError(
                "holdfast.keras takes a path in start_from: a file of Keras, a run or a checkpoint"
            )
        given = {name: as_trackable(each) for name, each in (state or {}).items()}
        tracked = merge_states({**self._own, "fit": self._memory}, given)
        with ExitStack() as kept:
            kept.enter_context(
                generators.with_generators(tensorflow=keras.backend.backend() == "tensorflow")
            )
            self._training = Training(path, tracked, options, epochs=call.epochs, untried=untried)
            self._kept = kept.pop_all()  # until the run is left
        self._loop, self.run = self._training.loop, self._training.run
        with self._watch_updates():
            self._training.require_more()
            if start_from is not None and self._loop.step == 0:
                load_initial_weights(model, start_from)
            if (
                self._loop.epoch > call.epochs.start
                and self._loop.goes_on
                and depends_on_process(call.validation)
            ):
                warn(
                    "the validation data are not in arrays and change "
                    "from epoch to epoch: where these begin is not "
                    "kept, so that the values of the validation "
                    "differ from those of an undisturbed fit()"
                )
            self._others.begin(self._training, goes_on=self._loop.goes_on)
            self._start_run()

    def _start_run(self) -> None:
        call = self._call
        inside = self._loop.in_epoch
        # a copy: some of it may be the very lists and memory that a callback is about to change
        self._saved = (
            copy.deepcopy({name: each.state_dict() for name, each in self._own.items()})
            if inside
            else {}
        )
        self._size = max(1, call.model.steps_per_execution)
        if self._dataset is not None:
            call.iterator.data_adapter.enqueuer = None  # our own adapter of the rest has one
        source = source_of(call.iterator, self._loop.seed)
        self._batches = BatchFeed(source, call.iterator.steps_per_epoch, self._size)
        self._hand: Callable[[BatchGroup], Any] = _whole_group if source.by_keras else _first_batch
        if keras.backend.backend() == "tensorflow" and not source.by_keras:
            from .tfdata import TensorFlowHandover

            self._hand = TensorFlowHandover(call.iterator).iterate_group
        # groups of this epoch: begun; ended; ended without a safe point
        self._taken = self._done = self._undone = 0
        self._group: BatchGroup | None = None
        self._idle = False  # whether the step in progress does nothing
        self._replace_functions()

    def _replace_functions(self) -> None:
        call, put = self._call, self._training.replace
        model, callbacks, iterator = call.model, call.callbacks, call.iterator
        put(model, "_initial_epoch", self._loop.epoch if self._loop.goes_on else call.epochs.stop)
        put(model, "evaluate", self._guarded(model.evaluate))
        if keras.backend.backend() == "torch":  # elsewhere catch_stop_iteration is around it
            put(model, "train_function", self._guarded(model.train_function))
        put(iterator, "catch_stop_iteration", self._run_inside(iterator.catch_stop_iteration))
        put(iterator, "_enumerate_iterator", self._enumerate)
        for name, ours in (
            ("on_epoch_begin", self._epoch_begins),
            ("on_train_batch_begin", self._batch_begins),
            ("on_train_batch_end", self._batch_ends),
            ("on_epoch_end", self._epoch_ends),
            ("on_train_end", self._fit_ends),
        ):
            put(callbacks, name, self._guarded(functools.partial(ours, getattr(callbacks, name))))

    # An exception that leaves one of Keras' functions leaves fit(): it has no callback for that
    # --------------------

    @contextmanager
    def _watch_updates(self) -> Iterator[None]:
        try:
            yield
        # Keras leaves our iteration when TensorFlow has found the end of the data
        except GeneratorExit:
            raise
        except BaseException as error:
            self._end_run(error)
            raise

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*arguments: Any, **named: Any) -> Any:
            with self._watch_updates():
                return function(*arguments, **named)

        return guarded

    def _run_inside(self, theirs: Callable[[], Any]) -> Callable[[], Any]:
        @contextmanager
        def watched() -> Iterator[None]:
            with self._watch_updates(), theirs():
                yield

        return watched

    def _end_run(self, error: BaseException | None = None) -> None:
        with self._kept:
            self._others.leave()
            self._training.end_run(error)

    # What Keras calls, in its order; `theirs` calls everybody else's callbacks
    # -------------------------------------

    def _epoch_begins(self, theirs: Callable[..., None], epoch: int, logs: Any = None) -> None:
        self._restore_again()
        self._loop.begin_epoch()
        self._metrics.inside = True
        self._taken = self._done = self._undone = 0
        theirs(epoch, logs)

    def _restore_again(self) -> None:
        """Restore the state again: in mid-epoch Keras begins that epoch once more, which resets
        metrics and calls callbacks.
        """
        for name, saved in self._saved.items():
            self._own[name].load_state_dict(saved)

    def _enumerate(self) -> Iterator[tuple[int, int, Any]]:
        with self._watch_updates():
            adapter, inside = self._call.iterator.data_adapter, bool(self._saved)
            adapter.on_epoch_begin()
            self._note_dataset()
            self._restore_again()
            self._saved = {}
            for group in self._loop.batches(self._batches):
                self._taken, self._group = self._taken + 1, group
                yield group.first, group.first + self._size - 1, self._hand(group)
            if inside and not self._taken:
                yield from self._empty_step()
            adapter.on_epoch_end()
            self._note_dataset()

    def _note_dataset(self) -> None:
        if self._dataset is not None:
            self._dataset.note_attributes()

    def _empty_step(self) -> Iterator[tuple[int, int, Any]]:
        """Make a step that does nothing: all batches were done before, and Keras needs the logs of
        a step.
        """
        model, logs = self._call.model, dict(self._memory["logs"])
        kept, jax = model.train_function, keras.backend.backend() == "jax"
        model.train_function = (lambda state, _: (logs, state)) if jax else (lambda _: logs)
        self._idle = True
        yield 0, 0, repeat(())
        self._idle, model.train_function = False, kept

    def _batch_begins(self, theirs: Callable[..., None], batch: int, logs: Any = None) -> None:
        if not self._idle:
            theirs(batch, logs)

    def _batch_ends(self, theirs: Callable[..., None], batch: int, logs: Any = None) -> None:
        if self._idle or self._group is None:
            return
        theirs(batch, logs)
        self._done += 1
        self._memory["logs"] = single_numbers(logs)
        if self._group.last or self._call.model.stop_training:
            self._undone = 1  # the validation comes first
        else:
            self.run.log(**self._memory["logs"])
            self._loop.step_done()

    def _epoch_ends(self, theirs: Callable[..., None], epoch: int, logs: Any = None) -> None:
        if self._taken > self._done:
            self._batches.note_end_of_pass()
        theirs(epoch, logs)
        self._metrics.inside, self._memory["logs"] = False, {}
        self.run.log(**single_numbers(logs))
        self._loop.end_epoch(self._undone, last=self._call.model.stop_training)

    def _fit_ends(self, theirs: Callable[..., None], logs: Any = None) -> None:
        theirs(logs)
        self._end_run()


def _whole_group(group: BatchGroup) -> Any:
    return group.batches


def _first_batch(group: BatchGroup) -> Any:
    return iter(group.batches)


def single_numbers(logs: Mapping[str, Any] | None) -> dict[str, float]:
    """Return those of Keras' logs that are single numbers."""
    found = {}
    for name, value in (logs or {}).items():
        with suppress(TypeError, ValueError):  # an array of several
            found[name] = float(value)
    return found
