"""Protocol: the lines of JSON between a run's `client` and its `worker`:
orders to the worker, and its events.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import msgspec

from ..rules import AnyOf, Best, Every, Last, Rule, Within, parts

Kind = Literal[
    "silent", "refused", "full", "later", "taken", "foreign", "gone", "damaged", "unusable"
]
ALL = -1  # as `WorkerOrder.place`

_RULES = {kind.__name__: kind for kind in (Last, Best, Every, Within)}
_DIRECTIONS = {"max": max, "min": min}


class WorkerOrder(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What the run tells the worker, or asks one place.
    A question has an `id`, and gets one event with that id.
    """

    do: str
    place: int = ALL
    id: int = 0
    args: dict[str, Any] = {}


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """What happened at one place; `Replicator` says which events there are."""

    what: str
    place: int
    id: int = 0
    kind: Kind | None = None  # of an error
    text: str = ""
    name: str = ""  # of a checkpoint
    facts: dict[str, Any] = {}


orders = msgspec.json.Decoder(WorkerOrder)  # made here, where only one thread is
events = msgspec.json.Decoder(Event)


def encode_line(record: WorkerOrder | Event) -> bytes:
    return msgspec.json.encode(record) + b"\n"


def rule_to_json(rule: Rule) -> list[list[Any]]:
    """Return a rule as JSON."""
    return [
        [
            type(each).__name__,
            {name: _json_value(value) for name, value in msgspec.structs.asdict(each).items()},
        ]
        for each in parts(rule)
    ]


def rule_from_json(rows: Sequence[tuple[str, dict[str, Any]]]) -> Rule:
    """Return the rule that `rule_to_json` has encoded."""
    found = []
    for kind, fields in rows:
        if "direction" in fields:
            fields |= {"direction": _DIRECTIONS[fields["direction"]]}
        found.append(_RULES[kind](**fields))
    return AnyOf(tuple(found))


def _json_value(value: Any) -> Any:
    """Return a rule's value as JSON has it: no number of NumPy's, and no infinity."""
    if callable(value):
        return value.__name__
    if value is None or isinstance(value, str):
        return value
    return int(value) if isinstance(value, Integral) else min(float(value), sys.float_info.max)
