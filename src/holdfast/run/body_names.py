"""Body names: the variables that the body of the script's loop sets, and that the code behind the loop reads."""

from __future__ import annotations

from ..state.captured import Attributes
from .carried import left_by_body
from .tracked import Tracked
from .visible import frames


def names_of_body(tracked: Tracked) -> list[str]:
    """Return them for the `for` statement of the run's present loop, without variables that a restore restores."""
    walking = frames()
    if not walking:
        return []
    frame = walking[-1]
    held = {id(each) for each in tracked.inside().values()} | {id(each) for each in tracked.objects.values()}
    fields = [each for each in tracked.objects.values() if isinstance(each, Attributes)]
    kept = {name for each in fields if each.target is frame.f_globals for name in each.names}
    values = {**frame.f_globals, **frame.f_locals}
    left = left_by_body(frame.f_code, frame.f_lasti) - kept
    return sorted(name for name in left if id(values.get(name)) not in held)
