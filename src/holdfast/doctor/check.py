"""Check: the result of one check."""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["ok", "warning", "problem"]


class Check(NamedTuple):
    """What was checked, the result, and what to do about it."""

    name: str
    level: Level
    what: str
    todo: str = ""


def ok(name: str, what: str) -> Check:
    return Check(name, "ok", what)


def warning(name: str, what: str, todo: str) -> Check:
    return Check(name, "warning", what, todo)


def problem(name: str, what: str, todo: str) -> Check:
    return Check(name, "problem", what, todo)
