"""Words of a command line: where a program stands in it, and what it was given. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath


def after(command: Sequence[str], *names: str) -> tuple[list[str], list[str]] | None:
    """The command up to the program of that name, `mpirun -np 4 lmp_mpi` for `lmp`, and its options; None
    without one.
    """
    for place, word in enumerate(command, 1):
        if PurePath(word).name.partition("_")[0] in names:
            return list(command[:place]), list(command[place:])
    return None


def value(words: Sequence[str], *options: str) -> str | None:
    """What stands behind the last of `options` in `words`; "" when nothing does, None when it is not there."""
    found = None
    for word, following in pairwise([*words, ""]):
        if word in options:
            found = "" if _is_option(following) else following
    return found


def without(words: Sequence[str], option: str) -> list[str]:
    """`words` without `option` and what stands behind it."""
    pairs = pairwise(["", *words])
    return [word for before, word in pairs if word != option and (before != option or _is_option(word))]


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()
