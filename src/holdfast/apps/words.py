"""Words of a command line: where a program stands in it, and its options. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import PurePath


def split_at_program(command: Sequence[str], *names: str) -> tuple[list[str], list[str]] | None:
    """Return the command up to the program of that name, and the program's options; None without
    the program.

    For `lmp` the first part may be `mpirun -np 4 lmp_mpi`.
    """
    for place, word in enumerate(command, 1):
        if PurePath(word).name.partition("_")[0] in names:
            return list(command[:place]), list(command[place:])
    return None


def option_value(words: Sequence[str], *options: str) -> str | None:
    """Return the word after the last of `options` in `words`;
    "" if none follows, None if no option is there.
    """
    found = None
    for word, following in pairwise([*words, ""]):
        if word in options:
            found = "" if _is_option_word(following) else following
    return found


def without_option(words: Sequence[str], option: str) -> list[str]:
    """Return `words` without `option` and the word after it."""
    pairs = pairwise(["", *words])
    return [
        word
        for before, word in pairs
        if word != option and (before != option or _is_option_word(word))
    ]


def _is_option_word(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()
