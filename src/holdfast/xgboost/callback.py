"""Holdfast: the callback that makes a training of XGBoost save, stop and resume between two rounds.

XGBoost continues a stored model exactly, but for what it draws: its generators are in no model
(https://github.com/dmlc/xgboost/issues/10324). So a training that draws rows, columns or dropped
trees draws those of each round from a seed of the round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

import xgboost
import xgboost.callback
import xgboost.training
from xgboost import collective

from ..errors import UsageError
from ..trainers.rounds import ONCE, OtherCallbacks, Rounds, frame_of
from ..trainers.training import RunOptions, require_one

_DRAWS = ("subsample", "colsample_bytree", "colsample_bylevel", "colsample_bynode")
_PROCESS = ("nthread", "n_jobs", "verbosity")  # of this start


class Holdfast(xgboost.callback.TrainingCallback):  # type: ignore[misc]
    """Saves a training to the run at `path`, stops it in time, and continues it to the same model,
    byte for byte, when it is started again.

        xgboost.train(parameters, data, 1000, callbacks=[Holdfast("runs/trees")])

    The estimators take it as `XGBRegressor(callbacks=[...])`. A safe point is behind each round.
    `state` names further objects of yours that change; the options are those of `Run`.

    Raises:
        UsageError: XGBoost lacks what this wraps, or the training is one of several processes.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        state: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__()
        self._rounds = Rounds("xgboost", self._capture, path, state, options)
        self._draws = False  # whether each round draws from a seed of its own

    def before_training(self, model: Any) -> Any:
        if self._rounds.begun:
            raise UsageError(ONCE)
        train = frame_of(_code(xgboost.train))
        around = frame_of(_code(xgboost.callback.CallbackContainer.before_training))
        if train is None or around is None:
            raise UsageError("holdfast.xgboost.Holdfast: give it to train(), or to an estimator")
        if collective.is_distributed():
            raise UsageError("holdfast.xgboost: a training of several processes is not supported")
        self._given_here, self._container = train.f_locals, around.f_locals["self"]
        # until 2.1 it has them as a set, in no order
        self._container.callbacks = list(dict.fromkeys(self._given_here["callbacks"]))
        require_one(self._container.callbacks, Holdfast)
        for name, instead in (
            ("before_iteration", self._before),
            ("after_iteration", self._after),
            ("after_training", self._end),
        ):
            original = getattr(self._container, name)
            setattr(self._container, name, self._rounds.guarded(instead, original))
        return model

    # Instead of the methods that train() calls
    # -------------------------------------------------------------------------------------------

    def _before(self, original: Any, model: Any, number: int, *given: Any) -> bool:
        if not self._rounds.begun:
            self._begin(model)
        if self._rounds.skips(number):
            return False
        if self._rounds.ended:
            return True
        if self._draws:
            self._renew_sampler()
        return bool(original(model, number, *given))

    def _update(self, original: Any, data: Any, iteration: int, **given: Any) -> None:
        if not self._rounds.skips(iteration):
            original(data, iteration=iteration, **given)

    def _after(self, original: Any, model: Any, number: int, *given: Any) -> bool:
        if self._rounds.skips(number):
            self._rounds.end(number, {})
            return False
        stops = bool(original(model, number, *given))
        metrics = {
            f"{data}-{metric}": float(values[-1])
            for data, found in self._container.history.items()
            for metric, values in found.items()
        }
        self._rounds.end(number, metrics, stops or None)
        return stops

    def _end(self, original: Any, model: Any) -> Any:
        if self._rounds.begun:
            self._rounds.training.end_run()
        return original(model)

    # The model
    # -------------------------------------------------------------------------------------------

    def _begin(self, model: Any) -> None:
        """Enter the run, and restore the model, the evaluations and the other callbacks."""
        rounds, self._model = self._rounds, model
        self._others = OtherCallbacks(
            each for each in self._container.callbacks if each is not self
        )
        self._parameters = dict(_leaves(json.loads(model.save_config())["learner"]))
        found = {name.rpartition(".")[2]: value for name, value in self._parameters.items()}
        rounds.begin(self._given_here["num_boost_round"])
        rounds.training.replace(model, "update", rounds.guarded(self._update, model.update))
        self._draws = found["booster"] == "dart" or any(
            float(found.get(each, 1)) < 1 for each in _DRAWS
        )
        if why := self._why_again(found):
            rounds.train_again(why)
            self._draws = False
        elif self._draws:
            model.set_param("seed_per_iteration", True)
            rounds.say_first("each round draws from a seed of its own")
        self._method = found.get("tree_method")
        if rounds.skips(0):
            rounds.tell_changed(self._parameters, "the checkpoint's counts")
            self._parameters = rounds.stored["parameters"]
            model.load_model(bytearray(rounds.stored["model"]))
            model.load_config(rounds.stored["config"])
            self._container.history.update(rounds.stored["history"])
            self._others.restore(rounds.stored["callbacks"])
        rounds.training.loop.settle()

    def _capture(self) -> dict[str, Any]:
        return {
            "model": bytes(self._model.save_raw("ubj")),
            "config": self._model.save_config(),
            "parameters": self._parameters,
            "history": {name: dict(each) for name, each in self._container.history.items()},
            "callbacks": self._others.changed(),
        }

    def _why_again(self, found: Mapping[str, str]) -> str:
        """Return why XGBoost cannot continue this training exactly; empty if it can."""
        given = dict(self._given_here["params"])
        if found.get("process_type") == "update":
            return "a model holds no trees that are still to be updated"
        if found.get("lambdarank_unbiased") == "1":
            return "a model lacks the biases of lambdarank_unbiased"
        if found.get("tree_method") == "approx" and float(found.get("subsample", 1)) < 1:
            return "approx with subsample predicts rows otherwise after a load"
        if "updater" in given and self._draws:
            return "an updater of one's own draws from a generator that is in no model"
        if not found.get("device", "cpu").startswith("cpu"):
            return "it was tried on CPUs alone"
        return ""

    def _renew_sampler(self) -> None:
        """Let the next round draw its columns anew: another tree method and back makes a new
        updater, which has a new generator.
        """
        if self._method is not None:
            self._model.set_param("tree_method", "hist" if self._method == "exact" else "exact")
            self._model.save_config()  # configures it
            self._model.set_param("tree_method", self._method)


def _code(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function.__code__


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the parameters of a configuration, of all its depths, without those of the process."""
    for name, each in tree.items():
        if isinstance(each, dict):
            yield from _leaves(each, f"{above}{name}.")
        elif isinstance(each, str) and name not in _PROCESS:
            yield above + name, each
