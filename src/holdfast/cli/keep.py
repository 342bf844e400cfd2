"""`--keep`: a retention rule, as a list that no shell changes,
or as in Python; read without running it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from functools import reduce
from operator import or_
from typing import Any

from ..errors import UsageError
from ..rules import Best, Every, Last, Rule, Within

GRAMMAR = (
    "last=3,best=val_acc:max,best=loss:min:2,every=1000steps,every=30minutes,every=5epochs,"
    "within=5e9, or as in Python: \"Last(3) | Best('val_acc', max)\""
)
_PLAIN = re.compile(r"(last|best|every|within)=([^,=]+)")
_ASSIGNED = re.compile(r"(?!(?:last|best|every|within)=)\w+=[^()]*")
_INTERVAL = re.compile(r"([\d.]+)(steps|minutes|epochs)")
RULES: dict[str, Callable[..., Rule]] = {
    "Last": Last,
    "Best": Best,
    "Every": Every,
    "Within": Within,
}
DIRECTIONS = {"max": max, "min": min}
LONGEST = 1000  # characters; the parser's stack is limited


def parse_keep(text: str) -> Rule:
    """Return the rule in `text`.

    Raises:
        UsageError: `text` is not a rule; the message shows the accepted forms.
    """
    try:
        if len(text) > LONGEST:
            raise _NotARuleError("too long")
        plain = [*map(_PLAIN.fullmatch, text.strip().split(","))]
        if strange := [each for each in text.split(",") if _ASSIGNED.fullmatch(each.strip())]:
            raise _NotARuleError(f"{strange[0].strip()} is no rule")
        if all(plain):
            return reduce(or_, (_plain(*found.groups()) for found in plain if found))
        return _rule(ast.parse(text.strip(), mode="eval").body)
    except (
        _NotARuleError,
        SyntaxError,
        TypeError,
        ValueError,
        RecursionError,
        UsageError,
    ) as problem:
        why = problem.msg if isinstance(problem, SyntaxError) else problem
        raise UsageError(
            f"--keep {text[:LONGEST]!r}: {why}; write one or several of {GRAMMAR}"
        ) from None


class _NotARuleError(Exception):
    pass


def _plain(name: str, value: str) -> Rule:
    match name, value.split(":"):
        case "last", [count]:
            return Last(int(count))
        case "within", [limit]:
            return Within(bytes=float(limit))
        case "best", [metric, direction, *count] if direction in DIRECTIONS and len(count) < 2:
            return Best(metric, DIRECTIONS[direction], *map(int, count))
        case "every", [text] if found := _INTERVAL.fullmatch(text):
            number: Any = float(found[1]) if found[2] == "minutes" else int(found[1])
            return Every(**{found[2]: number})
    raise _NotARuleError(f"{name}={value} is no rule")


def _rule(node: ast.expr) -> Rule:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return _rule(left) | _rule(right)
        case ast.Call(ast.Name(name), args, keywords) if name in RULES:
            named = {
                keyword.arg: _value(keyword.value)
                for keyword in keywords
                if keyword.arg is not None
            }
            if len(named) < len(keywords):
                raise _NotARuleError("** is not understood here")
            return RULES[name](*map(_value, args), **named)
        case _:
            raise _NotARuleError(f"{ast.unparse(node)} is no rule")


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(str() | int() | float() as value):
            return value
        case ast.Name(name) if name in DIRECTIONS:
            return DIRECTIONS[name]
        case _:
            raise _NotARuleError(
                f"{ast.unparse(node)} is neither a number, a quoted name, max nor min"
            )
