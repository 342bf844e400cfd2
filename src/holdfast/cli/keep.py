"""`--keep`: a retention rule, written as in Python and read without running it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from ..errors import UsageError
from ..rules import Best, Every, Last, Rule, Within

GRAMMAR = (
    "Last(3) | Best('val_acc', max) | Best('loss', min, n=2) | Every(steps=1000) | Every(minutes=30) | Every(epochs=5) "
    "| Within(bytes=5e9)"
)
RULES: dict[str, Callable[..., Rule]] = {"Last": Last, "Best": Best, "Every": Every, "Within": Within}
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
        return _rule(ast.parse(text.strip(), mode="eval").body)
    except (_NotARuleError, SyntaxError, TypeError, ValueError, RecursionError, UsageError) as problem:
        why = problem.msg if isinstance(problem, SyntaxError) else problem
        raise UsageError(f"--keep {text[:LONGEST]!r}: {why}; write one of, or several joined by |: {GRAMMAR}") from None


class _NotARuleError(Exception):
    pass


def _rule(node: ast.expr) -> Rule:
    match node:
        case ast.BinOp(left, ast.BitOr(), right):
            return _rule(left) | _rule(right)
        case ast.Call(ast.Name(name), args, keywords) if name in RULES:
            named = {keyword.arg: _value(keyword.value) for keyword in keywords if keyword.arg is not None}
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
            raise _NotARuleError(f"{ast.unparse(node)} is neither a number, a quoted name, max nor min")
