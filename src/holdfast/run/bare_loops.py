"""Bare loops: loops over a loader without run.batches(), inside an epoch's body, so that the epoch is a single step."""

from __future__ import annotations

import dis
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..data.advice import Advice
from ..data.facts import known_length
from .session import Session
from .visible import frames

# a name in the body of a loop that trains; a metric has an update(), too
_TRAINS = re.compile(r"(?!val|eval|test|predict)(.*_)?(step|backward|train|learn|fit)(s|_|$)")


class _Loop(NamedTuple):
    name: str  # the loader's variable
    line: int | None
    batches: int


def tell(session: Session) -> None:
    """Report such a loop, once, in the body of the epoch that ends, if the epoch had no step inside."""
    position = session.position
    if position.step != position.epoch_began or not session.progress.look_at_body():
        return
    walking = frames()
    if not walking:
        return
    frame = walking[-1]
    values = {**frame.f_globals, **frame.f_locals}
    found = next(_loops(frame.f_code, frame.f_lasti, values), None)
    if found is not None:
        advice = Advice("a bare loop", f"Write `in run.batches({found.name}):` there")
        session.tell(
            f"epoch {position.epoch} counts as one step, although the loop at line {found.line} trained "
            f"{found.batches} batches of {found.name}: the run is saved and stopped at ends of epochs alone. {advice}",
            kind="bare_loop",
            name=found.name,
        )


def _loops(code: Any, at: int, values: Mapping[str, Any]) -> Iterator[_Loop]:
    """Yield the loops over loaders that train, in the body of the `for` at byte `at`."""
    found = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    outer = next((each for each in found if each.offset == at and each.opname == "FOR_ITER"), None)
    if outer is None:
        return
    inside = [each for each in found if outer.offset < each.offset < outer.argval]
    for number, each in enumerate(inside):
        if each.opname != "FOR_ITER":
            continue
        line = each.positions.lineno if each.positions else None
        head = [one for one in inside[:number] if one.positions and one.positions.lineno == line]
        body = [one for one in inside if each.offset < one.offset < each.argval]
        if any(_TRAINS.match(name) for one in body for name in _names(one)):
            for name in (name for one in head for name in _names(one)):
                count = known_length(values.get(name)) if _is_loader(values.get(name)) else None
                if count is not None and count > 1:
                    yield _Loop(name, line, count)


def _names(each: dis.Instruction) -> list[str]:
    is_read = each.opname.startswith("LOAD_") and each.opname != "LOAD_CONST"
    return [each.argval] if is_read and isinstance(each.argval, str) else []


def _is_loader(value: Any) -> bool:
    """Whether it is a loader, like torch's, and not a list or a model."""
    return hasattr(value, "batch_size") and hasattr(value, "dataset") and hasattr(type(value), "__iter__")
