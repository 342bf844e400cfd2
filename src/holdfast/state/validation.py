"""Checks that stored content has the form that its reader expects; otherwise the checkpoint is
damaged.

A digest shows that nothing changed since the save, but not who saved. So each reader checks the
stored content alone, before the first live byte is overwritten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Number
from typing import Annotated, Any, TypeVar

import msgspec

from ..errors import Damaged, HoldfastError
from .codec import UNSOUND, is_stored_leaf

T = TypeVar("T")
MOST = 10**18
Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST)]
Whole = Annotated[int, msgspec.Meta(gt=-MOST, lt=MOST)]


def convert_stored(kind: type[T], stored: Any, what: str) -> T:
    """Return `stored` as `kind`, a type of msgspec's.

    Raises:
        Damaged: it is not of that kind.
    """
    with errors_as_damage(what):
        return msgspec.convert(stored, kind)


@contextmanager
def errors_as_damage(what: str) -> Iterator[None]:
    """Raise an error in this block as Damaged. The block must not call the user's code.

    Raises:
        Damaged: instead.
    """
    try:
        yield
    except HoldfastError:
        raise
    except UNSOUND as error:
        raise Damaged(f"{what} is unsound: {type(error).__name__}: {error_text(error)}") from error


def error_text(error: Exception) -> str:
    """Return the beginning of the error's text, even if it contains a number with more digits than
    Python prints.
    """
    try:
        return str(error)[:200]
    except ValueError:
        return "a number of too many digits"


def is_printable_number(value: Any) -> bool:
    """Return whether the value is a number of Python's or NumPy's that can be printed, and not a
    leaf.
    """
    return isinstance(value, Number) and not (isinstance(value, int) and abs(value) >= 2**64)


def is_plain(value: Any) -> bool:
    """Return whether the value can be compared and printed: text, numbers, and containers
    of these.
    """
    if isinstance(value, dict):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(is_plain, value))
    return (
        not is_stored_leaf(value)
        and getattr(value, "shape", ()) == ()
        and (not isinstance(value, int) or is_printable_number(value))
    )
