"""The state of a training with Stable-Baselines3: the algorithm, its buffers, callbacks and
environments.

Few of these have a state_dict(). Their state is in their attributes: each object is tracked by its
attributes that can be saved, and objects in its other attributes are tracked in the same way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from inspect import signature
from operator import attrgetter
from types import MappingProxyType
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor

from ..errors import Mismatch, UsageError
from ..stateful.fields import Fields
from ..stateful.objects import OBJECTS, STEERED
from ..stateful.tracked import digest_state
from .containers import CODE, ContainerState, GeneratorState, ObjectArrayState, is_plain, members_of

SET_BY_LEARN = {
    "_total_timesteps",
    "_num_timesteps_at_start",
    "start_time",
    "verbose",
    "env",
    "_logger",
    "n_envs",
}
SET_BY_LEARN |= {"rollout_buffer"}  # empty where a rollout begins
DESCRIPTIONS = {"spec", "metadata", "_metadata", "_cached_spec", "render_mode", "_saved_kwargs"}
DISPLAYS = {"screen", "clock", "surf", "window", "viewer", "pbar"}  # None until something is shown
# attributes that are no state, or that belong to the process
BY_CLASS: list[tuple[Any, set[str]]] = [
    (gymnasium.Env, DESCRIPTIONS),
    (Monitor | VecMonitor, {"t_start", "episode_times", "results_writer"}),
    # set in each step, then read
    (DummyVecEnv, {"actions", "buf_obs", "buf_dones", "buf_rews", "buf_infos"}),
    (VecEnv, {*DESCRIPTIONS, "class_attributes"}),
    # references to the algorithm
    (BaseCallback, {"model", "locals", "globals", "parent", "logger"}),
]
EPISODES = ("ep_info_buffer", "ep_success_buffer")


def state_of(model: BaseAlgorithm, root: BaseCallback, own: BaseCallback) -> dict[str, Any]:
    """Return the state that a run tracks between two rollouts: that of `model`, and of the
    callbacks in `root` except `own`.

    Raises:
        UsageError: an environment, a buffer or a callback holds a state that is unknown.
    """
    modules, tensors = model._get_torch_save_params()  # noqa: SLF001
    state: dict[str, Any] = {"algorithm": _AlgorithmFacts(model)}
    state |= {name.replace(".", "_"): attrgetter(name)(model) for name in [*modules, *tensors]}
    STEERED.update(each for each in state.values() if isinstance(each, torch.optim.Optimizer))
    walk = StateWalk()
    state["model"] = [
        _EpisodeRecords(model),
        Fields(model, *_algorithm_attributes(model, [*modules, *tensors], walk)),
    ]
    state["logger"] = Fields(model.logger, "name_to_value", "name_to_count", "name_to_excluded")
    roots = {name: getattr(model, name) for name in ("action_space", "action_noise", "env")}
    others = {
        f"callback {number}": each
        for number, each in enumerate(callbacks_in(root))
        if each is not own
    }
    return state | {
        "buffers": walk.found,
        "objects": EnvironmentStates(roots | others, known=[model, *walk.visited_objects]),
    }


def _algorithm_attributes(
    model: BaseAlgorithm, torch_names: Iterable[str], walk: StateWalk
) -> list[str]:
    """Return the attributes that the algorithm itself changes, without those that a script gives
    it.
    """
    given = {name for kind in type(model).__mro__ for name in _parameters(kind)}
    elsewhere = (
        given | SET_BY_LEARN | {*EPISODES} | {name.partition(".")[0] for name in torch_names}
    )
    plain = []
    for name, value in vars(model).items():
        if name in elsewhere or isinstance(value, torch.nn.Module):
            continue
        if is_plain(value):
            plain.append(name)
        elif not callable(value):
            walk.visit_member(name, value)
    return plain


def _parameters(kind: type) -> Iterable[str]:
    return signature(kind.__init__).parameters if "__init__" in vars(kind) else ()  # type: ignore[misc]


class _AlgorithmFacts:
    """Facts that must be the same when a training continues."""

    def __init__(self, model: BaseAlgorithm) -> None:
        self._facts = {"class": type(model).__name__, "environments": model.n_envs}

    def state_dict(self) -> dict[str, Any]:
        return self._facts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Require that the model is made as it was saved.

        Raises:
            Mismatch: it is not.
        """
        for name, here in self._facts.items():
            if state[name] != here:
                raise Mismatch(
                    f"{name}: {state[name]} in the checkpoint, "
                    f"{here} here; make the model as it was made"
                )


class _EpisodeRecords:
    """The records of the last episodes without their times, which differ between any two runs:
    these are restored as NaN.
    """

    def __init__(self, model: BaseAlgorithm) -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        infos, successes = (list(getattr(self._model, name) or ()) for name in EPISODES)
        return {
            "infos": [{key: info[key] for key in info if key != "t"} for info in infos],
            "successes": successes,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        most = self._model._stats_window_size  # noqa: SLF001
        self._model.ep_info_buffer = deque(
            ({**info, "t": np.nan} for info in state["infos"]), maxlen=most
        )
        self._model.ep_success_buffer = deque(state["successes"], maxlen=most)


class EnvironmentStates:
    """The states of environments and callbacks. They are found at each save, since many attributes
    are set only on use.
    """

    def __init__(self, roots: Mapping[str, Any], known: Iterable[Any] = ()) -> None:
        """`known`: objects whose state is held elsewhere."""
        self._roots, self._known = (
            {path: root for path, root in roots.items() if root is not None},
            [*known],
        )
        # refuses what a save would refuse
        self._first = {path: _attribute_digests(each) for path, each in self.walk().items()}
        self._restored: dict[str, set[str]] = {}

    def walk(self, stored: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
        """Return the objects by their paths. One without a random generator that has one in
        `stored` gets one.
        """
        walk = StateWalk(self._known, stored)
        for path, root in self._roots.items():
            walk.visit(path, root)
        return walk.found

    def state_dict(self) -> dict[str, Any]:
        return {path: self._object_state(path, each) for path, each in self.walk().items()}

    def _object_state(self, path: str, each: Any) -> dict[str, Any]:
        """Return an object's state; of a callback only the attributes that training changed:
        others, such as a folder, are the script's.
        """
        state: dict[str, Any] = each.state_dict()
        if not _is_callback(each):
            return state
        first, now, restored = (
            self._first.get(path, {}),
            _attribute_digests(each),
            self._restored.get(path, set()),
        )
        return {
            name: state[name] for name in state if name in restored or first.get(name) != now[name]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the objects in place.

        Raises:
            Mismatch: an object of the state is missing here.
        """
        found = self.walk(state)
        for path, stored in state.items():
            if path not in found:
                raise Mismatch(
                    f"{path}: in the checkpoint, not here; "
                    "make the environments and callbacks as before"
                )
            each = found[path]
            if _is_callback(each):
                self._restored[path] = {*stored}
                if not stored:
                    continue
            if isinstance(each, Fields):
                for name in stored.keys() - vars(each.target).keys():
                    setattr(each.target, name, None)
                each = Fields(each.target, *stored)
            each.load_state_dict(stored)


def _is_callback(each: Any) -> bool:
    return isinstance(each, Fields) and isinstance(each.target, BaseCallback)


def _attribute_digests(each: Any) -> dict[str, dict[str, str]]:
    """Return, for each attribute of a callback,
    a text that differs for other values; for other objects nothing.
    """
    state = each.state_dict() if _is_callback(each) else {}
    return {name: digest_state({name: value}).of for name, value in state.items()}


class StateWalk:
    """Finds the objects that make up a state, each once,
    by the path of attributes that leads to it.
    """

    def __init__(
        self, known: Iterable[Any] = (), stored: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.found: dict[str, Any] = {}
        self._seen, self._stored = {id(each): each for each in known}, stored

    @property
    def visited_objects(self) -> Iterable[Any]:
        return self._seen.values()

    def visit(self, path: str, value: Any) -> None:
        """Add `value` and the objects in its attributes.

        Raises:
            UsageError: the state of one is unknown.
        """
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, SubprocVecEnv):
            self.found[path] = _subprocess_states(path, value)
        elif all(
            callable(getattr(type(value), name, None)) for name in ("state_dict", "load_state_dict")
        ):
            self.found[path] = value
        elif isinstance(value, gymnasium.Space):
            self._visit_space(path, value)
        else:
            self._visit_attributes(path, value)

    def visit_member(self, path: str, value: Any) -> None:
        """Visit the objects in an attribute that cannot be saved itself."""
        if isinstance(value, CODE) or is_plain(value):
            return
        if isinstance(value, list | tuple | deque | dict) or (
            isinstance(value, set) and is_plain([*value])
        ):
            self._visit_container(path, value)
        elif OBJECTS.has(value):
            self.found[path] = GeneratorState(value)
        elif type(value) is np.ndarray and value.dtype == object:
            self.found[path] = ObjectArrayState(path, value)
        elif isinstance(value, np.ndarray):
            raise UsageError(f"{path} is a {type(value).__qualname__}: keep a plain numpy.ndarray")
        elif not hasattr(value, "__dict__") or type(value).__module__.partition(".")[0] in (
            "pandas",
            "threading",
        ):
            raise UsageError(
                f"{path} is a {type(value).__qualname__}, "
                "whose state is unknown: give the object that has it, or "
                "a wrapper around the environment, state_dict() and load_state_dict()"
            )
        else:
            self.visit(path, value)

    def _visit_container(self, path: str, value: Any) -> None:
        """Visit the members of a container, and record which they are; of a user's class also its
        attributes.
        """
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        members = members_of(value)
        self.found[path] = ContainerState(path, value)
        for key, each in members.items():
            self.visit_member(f"{path}[{key!r}]", each)
        if getattr(value, "__dict__", None):
            self._visit_attributes(f"{path}.__dict__", value)

    def _visit_attributes(self, path: str, value: Any) -> None:
        passed = {name for kind, names in BY_CLASS if isinstance(value, kind) for name in names}
        if (
            isinstance(value, gymnasium.Env)
            and self._stored.get(path, {}).get("_np_random") is not None
        ):
            value.np_random  # noqa: B018  makes it
        plain = []
        for name, each in vars(value).items():
            if (
                name in passed
                or isinstance(each, BaseAlgorithm | Logger)
                or (name in DISPLAYS and each is None)
            ):
                continue
            if is_plain(each):
                plain.append(name)
            elif isinstance(each, VecEnv) or not (
                isinstance(value, BaseCallback) or name in DISPLAYS
            ):
                self.visit_member(f"{path}.{name}", each)
        if plain:
            self.found[path] = Fields(value, *plain)

    def _visit_space(self, path: str, space: gymnasium.Space[Any]) -> None:
        inner = getattr(space, "spaces", ())
        for key, each in inner.items() if isinstance(inner, Mapping) else enumerate(inner):
            self.visit(f"{path}[{key!r}]", each)
        if path in self._stored:
            space.np_random  # noqa: B018  makes it
        if space._np_random is not None:  # noqa: SLF001
            self.found[path] = Fields(space, "_np_random")


class Resumable(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gives an environment that runs in a process of its own a state_dict() and a
    load_state_dict().

    make_vec_env("CartPole-v1", 4, wrapper_class=Resumable, vec_env_cls=SubprocVecEnv)
    """

    def state_dict(self) -> dict[str, Any]:
        return EnvironmentStates({"env": self.env}).state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        EnvironmentStates({"env": self.env}).load_state_dict(state)


class _SubprocessStates:
    """The states of environments in processes of their own, through the pipes of SubprocVecEnv."""

    def __init__(self, env: SubprocVecEnv) -> None:
        self._env = env

    def state_dict(self) -> dict[str, Any]:
        return {"environments": self._env.env_method("state_dict")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for number, each in enumerate(state["environments"]):
            self._env.env_method("load_state_dict", each, indices=[number])


def _subprocess_states(path: str, env: SubprocVecEnv) -> _SubprocessStates:
    if not all(env.env_is_wrapped(Resumable)):
        raise UsageError(
            f"{path}: the state of environments in processes "
            "of their own is not to be seen from here: "
            "make_vec_env(..., wrapper_class=holdfast.stable_baselines3.Resumable, "
            "vec_env_cls=SubprocVecEnv)"
        )
    return _SubprocessStates(env)


def callbacks_in(root: BaseCallback) -> Iterator[BaseCallback]:
    """Yield the callback, and those inside it."""
    yield root
    for name in ("callbacks", "callback", "callback_on_new_best"):
        inner = vars(root).get(name)
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(each, BaseCallback):
                yield from callbacks_in(each)


def environments(model: BaseAlgorithm) -> Iterator[Any]:
    """Yield the environments of this process with all their wrappers, outermost first."""
    venv: Any = model.env
    while venv is not None:
        yield venv
        for env in vars(venv).get("envs", ()):
            inner = env
            while inner is not None:
                yield inner
                inner = vars(inner).get("env")
        venv = vars(venv).get("venv")
