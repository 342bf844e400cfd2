"""Rules: small values that define which checkpoints to keep and when the next one is due.

As a user writes them:

    keep=Last(3) | Best("val_acc", max) | Every(steps=1000)
    every=Every(minutes=10)
    every=Auto()

"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from numbers import Integral, Real
from typing import Any

import msgspec

from .errors import UsageError
from .legible import legible


class _Suggesting(msgspec.StructMeta):
    """Answers an argument that a rule does not have with the one that may be meant."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        fields: tuple[str, ...] = getattr(self, "__struct_fields__", ())
        for name in named.keys() - {*fields}:
            raise UsageError(describe_unknown_argument(f"{self.__name__}(...)", name, fields))
        return super().__call__(*args, **named)


def describe_unknown_argument(what: str, name: str, names: Iterable[str]) -> str:
    """Say that `what` has no argument `name`, and which of `names` may be meant."""
    from difflib import get_close_matches

    close = get_close_matches(name, names := [*names], n=1)
    return f"{what} has no {name}=" + (
        f": did you mean {close[0]}=?" if close else f"; it has {', '.join(names)}"
    )


# each dataclass would cost half a millisecond of every start
class _JoinableRule(msgspec.Struct, frozen=True, metaclass=_Suggesting):
    """The base of all rules: `a | b` keeps what `a` keeps and what `b` keeps."""

    def __or__(self, other: object) -> AnyOf:
        if not isinstance(other, _JoinableRule):
            return NotImplemented
        return AnyOf(parts(self) + parts(other))


class Last(_JoinableRule, frozen=True):
    """Keep the newest `n`."""

    n: int

    def __post_init__(self) -> None:
        _whole("Last", self.n)


class Best(_JoinableRule, frozen=True):
    """Keep the `n` checkpoints whose `metric` is largest (`max`) or smallest (`min`)."""

    metric: str
    direction: Callable[..., Any]
    n: int = 1

    def __post_init__(self) -> None:
        if self.direction not in (builtins.max, builtins.min):
            raise UsageError(
                f'Best("{self.metric}", ...) needs its direction: the builtin max or min'
            )
        if not (isinstance(self.metric, str) and self.metric):
            raise UsageError(
                f'Best takes the name of a metric, as in Best("val_acc", max), not {self.metric!r}'
            )
        # spelled as in checkpoints and the log
        msgspec.structs.force_setattr(self, "metric", legible(self.metric))
        _whole("Best", self.n)


class Every(_JoinableRule, frozen=True):
    """An interval in steps, minutes or epochs (one of the three): when to save, or which
    checkpoints to keep.
    """

    steps: int | None = None
    minutes: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.steps, self.minutes, self.epochs) if value is not None]
        if len(given) != 1:
            raise UsageError("Every takes exactly one of steps=, minutes=, epochs=")
        check = _whole if self.minutes is None else _positive
        check("Every", given[0])


class Auto(msgspec.Struct, frozen=True, metaclass=_Suggesting):
    """Save as often as loses the least, as measured: what saves cost, and how often the run is
    interrupted.

    `interrupted_hours`: the time between interruptions without notice that you expect; what is seen
    corrects it. It is 24 hours unless given.
    """

    interrupted_hours: float | None = None

    def __post_init__(self) -> None:
        if self.interrupted_hours is not None:
            _positive("Auto(interrupted_hours=...)", self.interrupted_hours)


class Within(_JoinableRule, frozen=True):
    """Keep as many of the newest as fit into `bytes`."""

    bytes: float

    def __post_init__(self) -> None:
        _positive("Within", self.bytes)


class AnyOf(_JoinableRule, frozen=True):
    """The rule `a | b`: keep what any of `rules` keeps."""

    rules: tuple[Rule, ...]


Rule = Last | Best | Every | Within | AnyOf


def rule_text(rule: Rule) -> str:
    """Return the rule as a user writes it in Python: `Last(3) | Best('val_acc', max)`."""
    return " | ".join(map(_part_text, parts(rule)))


def _part_text(rule: Rule) -> str:
    match rule:
        case Best(metric, direction, n):
            return f"Best({metric!r}, {direction.__name__}, {n})"
        case Last(value) | Within(value):
            return f"{type(rule).__name__}({value!r})"
    given = {name: value for name, value in msgspec.structs.asdict(rule).items() if value}
    return f"{type(rule).__name__}({', '.join(f'{name}={given[name]!r}' for name in given)})"


class Whole(msgspec.Struct, frozen=True, metaclass=_Suggesting):
    """How often unchanged bytes are written anew:
    at most so many checkpoints share one file, and damage to it.
    """

    checkpoints: int = 20
    hours: float = 24

    def __post_init__(self) -> None:
        _whole("Whole(checkpoints=...)", self.checkpoints)
        _positive("Whole(hours=...)", self.hours)


def parts(rule: Any) -> tuple[Rule, ...]:
    """Return the single rules that `rule` joins."""
    return rule.rules if isinstance(rule, AnyOf) else (rule,)


def _positive(name: str, value: Any) -> None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not (is_number and value > 0):
        raise UsageError(f"{name} takes a number above 0, not {value!r}")


def _whole(name: str, value: Any) -> None:
    _positive(name, value)
    if not isinstance(value, Integral):
        raise UsageError(f"{name} takes a whole number, not {value!r}")
