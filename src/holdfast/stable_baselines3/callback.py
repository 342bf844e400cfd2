"""Holdfast: the callback that makes `model.learn` of Stable-Baselines3 save, stop and resume
between two rollouts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFrequencyUnit

from ..errors import UsageError
from ..terminal import warn
from ..trainers.known import NAMES
from ..trainers.names import require
from ..trainers.training import RunOptions, Training, end_run_on_error, merge_states, require_one
from .state import callbacks_in, environments, state_of

REPLACED = ("collect_rollouts", "train", "dump_logs")
EXCLUDED = "_excluded_save_params"


class Holdfast(BaseCallback):  # type: ignore[misc]
    """Saves a training to the run at `path`, stops it in time, and continues it bit for bit when it
    is started again.

        model.learn(100_000, callback=Holdfast("runs/cartpole"))

    A safe point is where a rollout begins, behind the update before it. `state` names further
    objects of yours that change; the options are those of `Run`. Every call of `learn` needs a
    callback and a directory of its own.

    Raises:
        UsageError: an environment has a state that is unknown, or Stable-Baselines3 lacks what this
            wraps.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        state: Mapping[str, Any] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        super().__init__()
        self._untried = require("stable_baselines3", NAMES["stable_baselines3"])
        self._path, self._given, self._options = path, dict(state or {}), options
        self._begun: Training | None = None
        self._pending = False  # whether a rollout and its update are done and not counted
        self._settled = False

    @property
    def _training(self) -> Training:
        if self._begun is None:
            raise UsageError("holdfast.stable_baselines3.Holdfast: give it to learn(callback=...)")
        return self._begun

    # Methods that learn() calls
    # -------------------------------------------------------------------------------------------

    def _on_training_start(self) -> None:
        if self._begun is not None:
            raise UsageError(
                "this Holdfast was given to learn() before: "
                "each learn() needs its own, with its own path"
            )
        model, root = self.model, self.locals["callback"]
        require_one(callbacks_in(root), Holdfast)
        steps = self._count_rollouts(self.locals["total_timesteps"] - model.num_timesteps)
        before = model.num_timesteps
        self._begun = training = Training(
            self._path,
            merge_states(state_of(model, root, self), self._given),
            self._options,
            steps=steps,
            untried=self._untried,
        )
        training.require_more()
        if model.num_timesteps != before:
            model._num_timesteps_at_start = model.num_timesteps  # noqa: SLF001  frames per second are those of now
        self._wrap_method("collect_rollouts", self._collect)
        self._wrap_method("train", self._train)
        self._dump = model.dump_logs
        if not isinstance(model, OffPolicyAlgorithm):
            training.replace(model, "dump_logs", lambda _=0: None)
        training.replace(model.logger, "dump", self._log_before(model.logger.dump))
        training.replace(model, EXCLUDED, _exclude_ours(getattr(model, EXCLUDED)))

    def _on_step(self) -> bool:
        return True

    def _on_training_end(self) -> None:
        training = self._training
        try:
            self._mark_safe_point()
        except BaseException as error:
            training.end_run(error)
            raise
        training.end_run()

    # Replacements of the model's methods
    # --------------------------------------------------------------

    def _wrap_method(self, name: str, instead: Callable[..., Any]) -> None:
        """Replace a method by `instead`, which gets the method as an argument;
        an error in either ends the run.
        """
        training = self._training
        training.replace(
            self.model, name, end_run_on_error(instead, getattr(self.model, name), training.end_run)
        )

    def _collect(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop, off_policy = self._training.loop, isinstance(self.model, OffPolicyAlgorithm)
        self._mark_safe_point()
        if not self._settled:
            self._settled = True
            loop.settle()
            _warn_of_lost_times(self.model)
        if not loop.goes_on:  # a callback had ended the training before this start
            return RolloutReturn(0, 0, continue_training=False) if off_policy else False
        found = original(*args, **kwargs)
        self._pending = found.continue_training if off_policy else found
        return found

    def _train(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Log before the update of every nth rollout of the run:
        learn() itself counts rollouts since the start.
        """
        interval, rollout = self.locals["log_interval"], self._training.loop.step + 1
        if (
            not isinstance(self.model, OffPolicyAlgorithm)
            and interval is not None
            and rollout % interval == 0
        ):
            self._dump(rollout)
        return original(*args, **kwargs)

    def _log_before(self, dump: Callable[..., None]) -> Callable[..., None]:
        """Return a replacement for the logger's `dump` that logs the numbers in the run first."""

        def logged(step: int = 0) -> None:
            known = self.model.logger.name_to_value
            self._training.run.log(
                **{name: value for name, value in known.items() if _is_number(value)}
            )
            dump(step)

        return logged

    def _mark_safe_point(self) -> None:
        """Mark the safe point after a rollout and its update."""
        if self._pending:
            self._pending = False
            self._training.loop.step_done()

    def _count_rollouts(self, timesteps: int) -> int:
        """Return how many rollouts learn() makes,
        or may make at most if their length is one of episodes.
        """
        model: Any = self.model
        size: int = getattr(model, "n_steps", 1)
        if isinstance(model, OffPolicyAlgorithm):
            unit: Any = model.train_freq
            size = unit.frequency if unit.unit == TrainFrequencyUnit.STEP else 1
        return max(1, math.ceil(timesteps / (size * int(model.n_envs))))


def _exclude_ours(excluded: Callable[[], list[str]]) -> Callable[[], list[str]]:
    """Exclude the replaced attributes from `model.save` during learn():
    it pickles all other attributes.
    """
    return lambda: [*excluded(), *REPLACED, EXCLUDED]


def _is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _warn_of_lost_times(model: Any) -> None:
    """Print what is lost of the episodes before this start: their wall-clock times, a monitor's
    file.
    """
    for env in environments(model):
        missing = (
            len(env.episode_returns) - len(env.episode_times) if isinstance(env, Monitor) else 0
        )
        if missing:
            env.episode_times[:0] = [math.nan] * missing
            if env.results_writer is not None:
                file = env.results_writer.file_handler.name
                warn(f"{file}: Monitor has emptied it; it holds the episodes from now on")
