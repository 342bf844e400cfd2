"""Bash's words: splits a script into words, operators, redirections and comments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+")
_REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(&>>|&>|>>|>&|<&|<<<|<<-|<<|<>|>\||[<>](?!\())")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|\([ \t]*\)|[;&|()\n]")
_DEEPEST = 50  # nested brackets; deeper ones are treated as plain characters
_ENDS_WORD = " \t\r\n;&|()<>"


class Token(NamedTuple):
    line: int
    text: str
    kind: str  # "word", "operator", "redirection" or "comment"
    start: int
    end: int
    quoted: bool = False


def tokenize(text: str) -> Iterator[Token]:
    """Split `text`. The bodies of here-documents belong to no token."""
    place, line = 0, 1
    here: list[str] = []  # the ends of this line's here-documents
    while place < len(text):
        start = place
        if match := _BLANK.match(text, place):
            place = match.end()
        elif text[place] == "#":
            place = _line_end(text, place)
            yield Token(line, "#", "comment", start, place)
        elif match := _REDIRECTION.match(text, place):
            after = _BLANK.match(text, match.end())
            place = _word_end(text, after.end() if after else match.end())
            yield Token(line, match[1], "redirection", start, place)
            if match[1] in ("<<", "<<-"):
                here.append(unquote(text[match.end() : place].strip()))
        elif text.startswith("((", place):  # arithmetic
            place = _position_after(text, place)
            yield Token(line, text[start:place], "word", start, place)
        elif match := _OPERATOR.match(text, place):
            place = match.end()
            yield Token(line, match[0], "operator", start, place)
            if match[0] == "\n":
                place = _skip_here_documents(text, place, here)
                here = []
        else:
            place = max(_word_end(text, place), place + 1)
            raw = text[start:place]
            yield Token(line, unquote(raw), "word", start, place, quoted=raw[0] in "\"'\\")
        line += text.count("\n", start, place)


def _skip_here_documents(text: str, place: int, ends: list[str]) -> int:
    """Return the position after the here-documents that begin at `place`."""
    for end in ends:
        found = re.compile(rf"^\t*{re.escape(end)}$", re.MULTILINE).search(text, place)
        place = _line_end(text, found.end()) if found else len(text)
    return place


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _word_end(text: str, place: int) -> int:
    while place < len(text) and (text[place] not in _ENDS_WORD or _is_substitution(text, place)):
        place = _position_after(text, place)
    return place


def _is_substitution(text: str, place: int) -> bool:
    """Whether a substitution or array begins here: <(command), >(command), name=(an array)."""
    return text[place : place + 2] in ("<(", ">(") or (
        text[place] == "(" and text[place - 1 : place] == "="
    )


def _position_after(text: str, place: int, depth: int = 0) -> int:
    """Return the position after the character, quoted text or expansion at `place`."""
    for opening, closing in (
        ("$((", "))"),
        ("$(", ")"),
        ("<(", ")"),
        (">(", ")"),
        ("(", ")"),
        ("${", "}"),
    ):
        if depth < _DEEPEST and text.startswith(opening, place):
            place += len(opening)
            while place < len(text) and not text.startswith(closing, place):
                place = (
                    place + 1
                    if opening == "${" and text[place] in "()"
                    else _position_after(text, place, depth + 1)
                )
            return place + len(closing)
    if text[place] == "\\":
        return place + 2
    if text[place] == "'":
        return (text.find("'", place + 1) + 1) or len(text)
    if text[place] in '"`':
        quote, place = text[place], place + 1
        while place < len(text) and text[place] != quote:
            place = (
                place + 1
                if text[place] in "'(" or depth >= _DEEPEST
                else _position_after(text, place, depth + 1)
            )
        return place + 1
    return place + 1


def unquote(raw: str, escaped: str = r'["\\$`]') -> str:
    """Return a word without its quotes. `escaped`:
    what a backslash escapes within double quotes.
    """

    def unquoted(match: re.Match[str]) -> str:
        return match[1] or match[2] or re.sub(rf"\\\n|\\({escaped})", r"\1", match[3] or "")

    return re.sub(r"""\\\n|\\(.)|'([^']*)'|"((?:\\.|[^"\\])*)\"""", unquoted, raw)
