"""Words of a command line: where a program stands in it, and what it was given. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath


def program_at(command: Sequence[str], named: Callable[[str], bool]) -> int | None:
    """The place of the first word whose last path part is `named` so: behind `mpirun -np 4`, say."""
    return next((place for place, word in enumerate(command) if named(PurePath(word).name)), None)


def value(words: Sequence[str], *options: str) -> str | None:
    """What stands behind the last of `options` in `words`; "" when nothing does, None when it is not there."""
    found = None
    for place, word in enumerate(words):
        if word in options:
            following = words[place + 1] if place + 1 < len(words) else ""
            found = "" if _is_option(following) else following
    return found


def without(words: Sequence[str], option: str) -> list[str]:
    """`words` without `option` and what stands behind it."""
    left, drop = [], False
    for word in words:
        if word == option:
            drop = True
        elif not (drop and not _is_option(word)):
            left.append(word)
            drop = False
        else:
            drop = False
    return left


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()
