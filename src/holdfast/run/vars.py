"""Vars: numbers that the loop itself changes, saved and restored with the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from ..legible import is_text


class Vars:
    """Attributes that live as long as the run: `run.vars.patience += 1`.

    Their first values come from `Run(..., vars=dict(patience=0))`; a restore puts the saved ones in their place.
    """

    def __init__(self, first: Mapping[str, Any] | None = None) -> None:
        if not isinstance(first, Mapping | None):
            raise UsageError(f"vars are first values by name, as in Run(..., vars=dict(patience=0)), not {first!r}")
        for name, value in (first or {}).items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"run.vars.{name} has no value yet: give it the first one by Run(..., vars=dict({name}=...))"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or not is_text(name) or hasattr(type(self), name):
            raise UsageError(f"run.vars cannot hold {name!r}: choose another name")
        self.__dict__[name] = value

    def __repr__(self) -> str:
        return f"Vars({self.__dict__})"

    def state_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
