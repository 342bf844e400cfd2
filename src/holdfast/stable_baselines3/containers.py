"""The states of containers and generators that cannot be saved themselves: they have a user's
class, or contain objects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from ..errors import Mismatch, UsageError
from ..state.tree import flatten
from ..stateful.objects import OBJECTS

CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, torch.device, np.dtype)


def is_plain(value: Any) -> bool:
    """Return whether a checkpoint can hold `value` itself."""
    if isinstance(value, CODE):
        return False
    try:
        flatten({"value": value})
    except UsageError:
        return False
    return True


class ContainerState:
    """The state of a list, deque, dict or set that cannot be saved itself: its class is the user's
    own, or it holds objects.

    The objects restore themselves. Where all members are plain, there may be more or fewer of them
    than at the start.
    """

    def __init__(self, path: str, value: Any) -> None:
        self._path, self._value = path, value

    def state_dict(self) -> dict[str, Any]:
        members = members_of(self._value)
        return {
            "places": _member_places(members),
            "plain": {key: each for key, each in members.items() if is_plain(each)},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the container in place.

        Raises:
            Mismatch: it holds other objects.
        """
        value, plain, here = self._value, state["plain"], members_of(self._value)
        if list(plain) == state["places"] and not isinstance(value, tuple):
            value.clear()
            getattr(value, "update" if isinstance(value, dict | set) else "extend")(
                plain if isinstance(value, dict) else plain.values()
            )
            return
        if _member_places(here) != state["places"] or any(
            key in plain and not is_plain(here[key]) for key in here
        ):
            raise Mismatch(
                f"{self._path} holds other objects than in the checkpoint: "
                "give the object that has it state_dict() "
                "and load_state_dict()"
            )
        if isinstance(value, list | deque | dict):
            for key, each in plain.items():
                value[key] = each


class ObjectArrayState:
    """The state of an array of objects, such as the infos of SB3's HerReplayBuffer. Non-empty
    members are saved by position.
    """

    def __init__(self, path: str, value: Any) -> None:
        self._path, self._value = path, value

    def state_dict(self) -> dict[str, Any]:
        """Return the array's shape and its members.

        Raises:
            UsageError: an object in the array cannot be saved.
        """
        members = {
            place: each for place, each in enumerate(self._value.flat) if not _is_empty(each)
        }
        for place, each in members.items():
            if not is_plain(each):
                raise UsageError(
                    f"{self._path} holds a {type(each).__qualname__} "
                    f"that cannot be saved ({each!r:.60}), at place "
                    f"{place}: let the environment put numbers, "
                    "text and arrays alone into its infos"
                )
        return {"shape": [*self._value.shape], "members": members}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the members in place.

        Raises:
            Mismatch: the array has another shape.
        """
        if state["shape"] != [*self._value.shape]:
            raise Mismatch(
                f"{self._path} has the shape {[*self._value.shape]}, "
                f"in the checkpoint {state['shape']}"
            )
        members = state["members"]
        for place, each in enumerate(self._value.flat):
            if place in members or not _is_empty(each):
                self._value.flat[place] = members.get(place, {})


def _is_empty(value: Any) -> bool:
    return type(value) is dict and not value


def members_of(value: Any) -> dict[Any, Any]:
    return dict(value) if isinstance(value, dict) else dict(enumerate(value))


def _member_places(members: Mapping[Any, Any]) -> list[Any]:
    return list(members) if is_plain(list(members)) else [len(members)]


class GeneratorState:
    """The state of a random generator of a class of the user's own."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def state_dict(self) -> Any:
        return OBJECTS.capture(self._value)

    def load_state_dict(self, state: Any) -> None:
        OBJECTS.restore(self._value, state)
