"""Vars: variables that the loop itself changes, saved and restored with the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import Damaged, UsageError
from ..legible import is_text
from ..state.fill import NOTHING, Act, InPlaceRestore
from ..state.rebinding import RebindingTracker


class Vars:
    """Attributes that live as long as the run: `run.vars.patience += 1`.

    Their first values come from `Run(..., vars=dict(patience=0))`. A restore fills those that can
    be changed in place (a list, a deque, an array, a tensor: same type, of arrays same dtype and
    shape) and replaces the others.
    """

    __slots__ = ("_given", "_new", "_read", "_values")

    _given: Mapping[str, Any]  # the caller's mapping of first values
    _values: dict[str, Any]
    _read: set[str]  # names that were read as attributes
    _new: set[str]  # names added after the first values, and not checked yet

    def __init__(self, first: Mapping[str, Any] | None = None) -> None:
        if not isinstance(first, Mapping | None):
            raise UsageError(
                "vars are first values by name, as in Run(..., "
                f"vars=dict(patience=0)), not {first!r}"
            )
        for name, value in (
            ("_given", first or {}),
            ("_values", {}),
            ("_read", set()),
            ("_new", set()),
        ):
            object.__setattr__(self, name, value)
        for name, value in (first or {}).items():
            setattr(self, name, value)
        self._new.clear()

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(
                f"run.vars.{name} has no value yet: "
                f"give it the first one by Run(..., vars=dict({name}=...))"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or not is_text(name) or hasattr(type(self), name):
            raise UsageError(f"run.vars cannot hold {name!r}: choose another name")
        if name not in self._values:
            self._new.add(name)
        self._values[name] = value

    def __delattr__(self, name: str) -> None:
        if self._values.pop(name, NOTHING) is NOTHING:
            raise AttributeError(f"run.vars.{name} has no value")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._values]

    def __repr__(self) -> str:
        return f"Vars({self._values})"

    def state_dict(self) -> dict[str, Any]:
        return dict(self._values)

    def load_state_dict(
        self, state: Mapping[str, Any], places: RebindingTracker | None = None
    ) -> None:
        """Fill or replace the values that `state` has;
        others stay. `places`: which of them are set anew.
        """
        fill, acts = self._plan(state, places)
        fill.read_leaves()
        self._values.update({name: put() for name, put in acts.items()})

    def differences(
        self, state: Mapping[str, Any], places: RebindingTracker | None = None
    ) -> list[str]:
        """Return which values in `state` do not fit the live ones; nothing is changed."""
        return self._plan(state, places)[0].misfits

    def given(self) -> Mapping[str, Any]:
        """The caller's mapping of first values, as long as they are compared with the live ones."""
        return self._given

    def take_new(self) -> dict[str, Any]:
        """Return the values added under new names since the last call."""
        found = {name: self._values[name] for name in self._new if name in self._values}
        self._new.clear()
        return found

    def _plan(
        self, state: Mapping[str, Any], places: RebindingTracker | None
    ) -> tuple[InPlaceRestore, dict[str, Act]]:
        if odd := [name for name in state if hasattr(Vars, name) or not is_text(name)]:
            raise Damaged(f"run.vars cannot have held {odd[0]!r}")
        fill = InPlaceRestore(places=places)
        acts = {
            name: fill.plan(f"run.vars.{name}", self._values.get(name, NOTHING), value)
            for name, value in state.items()
        }
        return fill, acts
