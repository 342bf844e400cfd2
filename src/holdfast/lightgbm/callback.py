"""Holdfast: the callback that makes a training of LightGBM save, stop and resume between two
rounds.

LightGBM adds a stored model's trees to a score one after the other, as it did in training, and
goes on from there (`init_model`). The generators of its samplers are in no model
(https://github.com/lightgbm-org/LightGBM/issues/6610), so a training that draws rows or columns
draws those of each round from seeds of the round.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Unpack

import lightgbm
import lightgbm.basic
import lightgbm.callback
import lightgbm.engine

from ..errors import UsageError
from ..trainers.rounds import OtherCallbacks, Rounds, frame_of
from ..trainers.training import RunOptions, require_one

_DRAWN = ("feature_fraction", "feature_fraction_bynode")
_BAGGED = ("bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction")
_INEXACT: dict[
    str, tuple[Any, ...]
] = {  # parameters with values whose state is in no model; (): all
    "boosting": ("dart", "rf", "random_forest", "goss"),
    "data_sample_strategy": ("goss",),
    "objective": ("rank_xendcg", "xendcg", "xe_ndcg", "xe_ndcg_mart", "xendcg_mart"),
    "device_type": ("gpu", "cuda"),  # not tried
    "linear_tree": (),
    "use_quantized_grad": (),
    "cegb_penalty_split": (),
    "cegb_penalty_feature_lazy": (),
    "cegb_penalty_feature_coupled": (),
}
_SEEDS = ("bagging_seed", "feature_fraction_seed", "extra_seed")
_ORDERS = ("force_col_wise", "force_row_wise")  # in which numbers are added
_ALIASES = lightgbm.basic._ConfigAliases  # noqa: SLF001  nothing public knows them
_Result = getattr(lightgbm.basic, "EvalResult", lambda *values: values)  # until 4.6 a tuple


class Holdfast:
    """Saves a training to the run at `path`, stops it in time, and continues it to the same model,
    byte for byte, when it is started again.

        lightgbm.train(parameters, data, 1000, callbacks=[Holdfast("runs/trees")])

    The estimators take it as `fit(..., callbacks=[...])`. A safe point is behind each round.
    `state` names further objects of yours that change; the options are those of `Run`.

    Raises:
        UsageError: LightGBM lacks what this wraps.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        state: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self._rounds = Rounds("lightgbm", self._capture, path, state, options)
        self._history: list[list[list[Any]]] = []  # the evaluations of each round
        self.order = -(1 << 30)  # before all others

    @property
    def before_iteration(self) -> bool:
        """True. train() asks for it when its datasets are known and no booster exists: the time to
        restore.
        """
        train = frame_of(lightgbm.engine.train.__code__)
        if train is not None:
            self._begin(train.f_locals)
        return True

    def __call__(self, env: Any) -> None:
        """Begin the first round. Other methods take this one's place then."""
        self._enter(env)(env)

    # The model
    # -------------------------------------------------------------------------------------------

    def _begin(self, train: Mapping[str, Any]) -> None:
        """Enter the run, and let the booster that train() makes begin with the stored trees."""
        rounds, parameters = self._rounds, train["params"]
        require_one(train["callbacks_set"], Holdfast)
        self._datasets = [train["train_set"], *train["reduced_valid_sets"]]
        self._parameters = {
            name: repr(value) for name, value in parameters.items() if name != "num_iterations"
        }
        self._total = train["num_boost_round"]
        rounds.begin(self._total)
        if not any(_value(parameters, each, False) for each in _ORDERS):
            parameters[_ORDERS[0]] = True  # else a clock decides, at each start
            rounds.say_first(f"{_ORDERS[0]} is set, as {_ORDERS[1]} is not")
        self._draws = (
            any(_value(parameters, each, 1.0) < 1 for each in _DRAWN)
            or bool(_value(parameters, "extra_trees", False))
            or self._bags(parameters)
        )
        if why := self._why_never(parameters):
            self._draws = False
        elif self._draws:
            rounds.say_first("each round draws from seeds of its own")
        if any(each._handle is not None and each.data is None for each in self._datasets):  # noqa: SLF001
            why = why or "a Dataset has freed its raw data (free_raw_data=False keeps it)"
        if why:
            rounds.train_again(why)
        if rounds.skips(0):
            rounds.tell_changed(self._parameters, "this one counts from now on")
            self._history = rounds.stored["history"]
            self._stored = lightgbm.Booster(model_str=rounds.stored["model"].decode())
            trees = lightgbm.basic._InnerPredictor.from_booster(  # noqa: SLF001
                booster=self._stored, pred_parameter={**self._stored.params, **parameters}
            )
            for each in self._datasets:
                each._set_predictor(trees)  # noqa: SLF001  as init_model does

    def _enter(self, env: Any) -> Callable[[Any], None]:
        """Replace the booster's methods and the callbacks; return what begins a round."""
        rounds, self._model, self._known = self._rounds, env.model, env.params
        train = frame_of(lightgbm.engine.train.__code__)
        if train is None or not rounds.begun:
            raise UsageError("holdfast.lightgbm.Holdfast: give it to train(), or to an estimator")
        before, after = (train.f_locals[f"callbacks_{when}_iter"] for when in ("before", "after"))
        first = [each for each in before if each is not self]
        others = [*first, *after]
        begin = rounds.guarded(self._begin_round, _calling(first))
        before[:], after[:] = [begin], [rounds.guarded(self._end_round, _calling([*after]))]
        library = [each for each in others if type(each).__module__ == lightgbm.callback.__name__]
        self._others = OtherCallbacks(each for each in others if each not in library)
        for name in ("update", "eval_train", "eval_valid"):
            method = rounds.guarded(getattr(self, f"_{name}"), getattr(env.model, name))
            rounds.training.replace(env.model, name, method)
        if rounds.skips(0):
            for each in self._datasets:
                each._predictor = None  # noqa: SLF001  the next booster begins without it
                each.init_score = None
                each.set_field("init_score", None)
            self._others.restore(rounds.stored["callbacks"])
            for number, found in enumerate(self._history):
                past = replace(
                    env,
                    iteration=env.begin_iteration + number,
                    evaluation_result_list=[_Result(*each) for each in found],
                )
                for each in library:
                    _remind(each, past)
        rounds.training.loop.settle()
        return begin  # type: ignore[no-any-return]

    def _capture(self) -> dict[str, Any]:
        text = self._model.model_to_string(num_iteration=-1)
        return {  # the total may be another one after a resume
            "model": re.sub(r"\[num_iterations: \d+\]\n", "", text).encode(),
            "parameters": self._parameters,
            "history": self._history,
            "callbacks": self._others.changed(),
        }

    def _update(self, original: Any, fobj: Any = None) -> Any:
        if self._is_past:
            if self._draws and self._rounds.walked + 1 == self._rounds.done:
                self._seed()  # the model's text names the last seeds
            return False
        if self._draws and fobj is None:
            self._seed()

        def seeded(*given: Any) -> Any:  # behind the last thing that draws before the round
            self._seed()
            return fobj(*given)

        return original(fobj=seeded if self._draws and fobj else fobj)

    def _eval_train(self, original: Any, *given: Any) -> Any:
        return [] if self._is_past else original(*given)

    def _eval_valid(self, original: Any, *given: Any) -> Any:
        return [_Result(*each) for each in self._history[-1]] if self._is_past else original(*given)

    @property
    def _is_past(self) -> bool:
        return self._rounds.skips(self._rounds.walked)

    def _begin_round(self, others: Any, env: Any) -> None:
        if not self._is_past:
            others(env)

    def _end_round(self, others: Any, env: Any) -> None:
        """Call the other callbacks; mark the safe point."""
        rounds, number, ended = self._rounds, env.iteration - env.begin_iteration, None
        if rounds.skips(number):
            rounds.end(number, {})
            if rounds.walked == rounds.done and rounds.stopped is not None:
                score = [_Result(*each) for each in rounds.stopped["best_score"]]
                ended = lightgbm.callback.EarlyStopException(
                    rounds.stopped["best_iteration"], score
                )
        else:
            try:
                others(env)
            except lightgbm.callback.EarlyStopException as stop:
                ended = stop
            found = [list(each)[:4] for each in env.evaluation_result_list or ()]
            if number >= rounds.done:
                self._history.append(found)
            stopped = ended and {
                "best_iteration": ended.best_iteration,
                "best_score": [list(each)[:4] for each in ended.best_score],
            }
            metrics = {f"{data}-{metric}": float(value) for data, metric, value, _ in found}
            rounds.end(number, metrics, stopped)
        if ended or rounds.walked == self._total:
            rounds.training.end_run()
        if ended:
            raise ended

    # What it draws
    # -------------------------------------------------------------------------------------------

    def _why_never(self, parameters: Mapping[str, Any]) -> str:
        """Return why LightGBM cannot continue this training exactly; empty if it can."""
        for name, kinds in _INEXACT.items():
            found = _value(parameters, name, None)
            if found and (not kinds or found in kinds):
                return f"LightGBM continues no training exactly with {name}={found}"
        if any(each.init_score is not None or each.position is not None for each in self._datasets):
            return "a Dataset has an init_score or positions"
        return ""

    @staticmethod
    def _bags(parameters: Mapping[str, Any]) -> bool:
        return _value(parameters, "bagging_freq", 0) > 0 and any(
            _value(parameters, each, 1.0) < 1 for each in _BAGGED
        )

    def _seed(self) -> None:
        """Let this round draw from its own seeds; the rows from that of the last bagging.

        LightGBM takes another seed for its rows only if bagging_freq has changed, too.
        """
        parameters, number = self._known, self._rounds.walked
        often = _value(parameters, "bagging_freq", 0)
        places = dict.fromkeys(_SEEDS, number)
        if self._bags(parameters):
            places["bagging_seed"] = number // often
            self._model.reset_parameter({"bagging_freq": often + 1})
        base = _value(parameters, "seed", 0)
        seeds = {
            name: _seed_of(_value(parameters, name, base), name, place)
            for name, place in places.items()
        }
        self._model.reset_parameter({"bagging_freq": often, **seeds})


def _value(parameters: Mapping[str, Any], name: str, default: Any) -> Any:
    """Return the parameter `name` under any of its names."""
    return next(
        (parameters[each] for each in [name, *sorted(_ALIASES.get(name))] if each in parameters),
        default,
    )


def _seed_of(base: Any, name: str, place: int) -> int:
    made = hashlib.sha256(f"{base} {name} {place}".encode()).digest()
    return int.from_bytes(made[:4], "little") >> 2


def _calling(callbacks: Sequence[Callable[[Any], None]]) -> Callable[[Any], None]:
    def call(env: Any) -> None:
        for each in callbacks:
            each(env)

    return call


def _remind(callback: Any, past: Any) -> None:
    """Show a past round to one of LightGBM's own callbacks, but for the one that prints."""
    if type(callback).__name__ != "_LogEvaluationCallback":
        with suppress(lightgbm.callback.EarlyStopException):  # the run knows it
            callback(past)
