"""Fields: attributes of an object without state_dict(), or variables of a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from ..state.captured import AttributeSet, capture_objects, is_frozen
from ..state.fill import InPlaceRestore
from .objects import OBJECTS


class Fields(AttributeSet):
    """Tracks named attributes of an object: `state=dict(buffer=Fields(buffer, "observations",
    "pos", "full"))`.

    A restore fills in place the attributes for which that is possible (arrays, tensors, lists,
    models, optimizers). It sets the others (numbers, strings).

    For a dict, the names are keys. `Fields(globals(), "x", "y", "best_loss")` tracks variables of a
    script at module level, even if its loop binds them to new objects, as in `x, y = get_batch()`.

    Raises:
        UsageError: no such attribute or name exists, or it cannot be set: a method, a read-only
            property, an attribute of a frozen class.
    """

    def __init__(self, target: Any, *names: str) -> None:
        if not names:
            raise UsageError(
                'Fields: name the attributes that change, as in Fields(buffer, "pos", "full")'
            )
        for name in names:
            if why := _why_untrackable(target, name):
                raise UsageError(f"Fields({type(target).__qualname__}, {name!r}): {why}")
        super().__init__(target, tuple(dict.fromkeys(names)))

    def __repr__(self) -> str:
        return f"Fields({type(self.target).__qualname__}, {', '.join(map(repr, self.names))})"

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes by name; arrays and tensors by reference."""
        state: dict[str, Any] = capture_objects(self, OBJECTS)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Fill or set the attributes.

        Raises:
            UsageError: `state` has other names, or its values do not fit.
        """
        fill = InPlaceRestore(OBJECTS, compare=True)
        put = fill.plan(repr(self), self, dict(state))
        if fill.misfits:
            raise UsageError("; ".join(fill.misfits))
        fill.read_leaves()
        put()


def _why_untrackable(target: Any, name: Any) -> str:
    """Why this attribute, or this value of a dict, cannot be tracked; empty if it can."""
    if not isinstance(name, str):
        return "attributes and values are named by strings"
    if type(target) is dict:
        return (
            ""
            if name in target
            else "it has no such name; one that is set later needs a first value"
        )
    if not hasattr(target, name):
        return "it has no such attribute; one that is set later needs a first value"
    from inspect import getattr_static  # takes milliseconds to import

    kind = type(target)
    described = getattr_static(kind, name, None)
    if isinstance(described, property) and described.fset is None:
        return "it is a property that cannot be set: name the attributes behind it"
    if callable(getattr(target, name)) and hasattr(getattr(target, name), "__func__"):
        return "it is a method"
    if is_frozen(kind):
        return "its class is frozen: track the variable that holds the object"
    return ""
