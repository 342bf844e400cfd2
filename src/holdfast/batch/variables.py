"""Variables: the values of a batch script's variables,
where the script assigns plain text. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from . import bash
from .bash import ShellCommand

_NAMED = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_DEEPEST = 3  # variables whose values name variables
_MOST = 4000  # characters


def assigned_values(commands: Iterable[ShellCommand]) -> dict[str, str]:
    """Return the assigned values; the last one if a variable is assigned several times."""
    found: dict[str, str] = {}
    for command in commands:
        first, words = command.words[0], command.words
        if first == "set" and words[2:3] == ("=",) and len(words) == 4:
            found[words[1]] = words[3]  # csh
        for word in words if first == "export" or re.match(r"\w+=", first) else ():
            if match := re.fullmatch(r"(\w+)=(.*)", word, re.DOTALL):
                found[match[1]] = match[2]
    return found


def fill_variables(text: str, known: Mapping[str, str]) -> str:
    """Return the text with the values of its variables; those that are not known stay."""
    for _ in range(_DEEPEST):
        new = _NAMED.sub(lambda match: known.get(match[1] or match[2], match[0]), text)
        if new == text or len(new) > _MOST:
            break
        text = new
    return text


def resolve_command(command: ShellCommand, known: Mapping[str, str]) -> ShellCommand:
    """Return `$CMD` and `eval $CMD` with the words that the variable holds.
    Their place stays that of the variable.
    """
    by_eval = command.words[0] == "eval" and len(command.words) == 2
    named = command.words[1] if by_eval else command.words[0]
    if not _NAMED.match(named) or (value := fill_variables(named, known)) == named:
        return command
    inner = next(iter(bash.commands(value)), None)
    if inner is None:
        return command
    rest = () if by_eval else command.words[1:]
    places = (command.places[0],) * len(inner.words) + (() if by_eval else command.places[1:])
    prefix = "eval" if by_eval else command.prefix
    return command._replace(words=(*inner.words, *rest), places=places, prefix=prefix)
