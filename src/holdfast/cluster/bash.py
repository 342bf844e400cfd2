"""Bash: parses a batch script into its simple commands. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+")
_REDIRECTION = re.compile(r"\d*(&>>|&>|>>|>&|<&|<<<|<<-|<<|<>|>\||[<>](?!\())")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|\([ \t]*\)|[;&|()\n]")
_DEEPEST = 50  # nested brackets; deeper ones are treated as plain characters
_ENDS_WORD = " \t\r\n;&|()<>"
_HEADS = {"if", "then", "elif", "else", "while", "until", "do", "!", "time", "{"}
_BLOCKS = {"for", "select", "case", "function"}  # only the first word of these is a command


class ShellCommand(NamedTuple):
    """One simple command."""

    line: int
    words: tuple[str, ...]  # quotes removed, expansions as they are written
    background: bool = False
    function: str | None = None  # the function whose body contains it
    loop: bool = False  # in a while, until or for


class _Token(NamedTuple):
    line: int
    text: str
    word: bool
    quoted: bool = False


def commands(text: str) -> list[ShellCommand]:
    """The simple commands of a script, in the order in which they are written."""
    return _Reader(list(_tokens(text))).read()


class _Reader:
    """Walks the tokens and tracks the surrounding groups, functions, loops and case patterns."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.found: list[ShellCommand] = []
        self.words: list[_Token] = []
        self.list_start = 0  # first command of the list that an & would affect
        self.groups: list[
            tuple[int, str | None]
        ] = []  # for each open ( and {: its first command, and the function around it
        self.function: str | None = None
        self.defined: str | None = None  # name of the function whose body comes next
        self.loops = 0
        self.patterns = False  # between `in` or `;;` of a case and its `)`

    def read(self) -> list[ShellCommand]:
        for token in self.tokens:
            if token.word:
                self._word(token)
            elif self.patterns:
                self.patterns = token.text != ")"
                self.words = []
            elif self.words and self.words[0].text == "[[" and self.words[-1].text != "]]" and token.text != "\n":
                self.words.append(token)
            elif token.text[0] == "(" and token.text[-1] == ")":  # of a function's definition
                self.defined, self.words = self.words[-1].text if self.words else self.defined, []
            elif token.text == "(":
                self._open()
            else:
                self._operator(token.text)
        self._end()
        return self.found

    def _word(self, token: _Token) -> None:
        if self.patterns and token.text == "esac":
            self.patterns = False
        if not self.patterns:
            self.words.append(token)
        if not token.quoted and len(self.words) == 1:
            self._head(token.text)
        elif self.words and self.words[0].text == "case" and token.text == "in":
            self.patterns, self.words = True, []
        elif self.words and self.words[0].text == "function" and len(self.words) == 2:
            self.defined, self.words = token.text, []

    def _head(self, text: str) -> None:
        """Handle a word where a command may begin."""
        if text in ("while", "until", "for", "select"):
            self.loops += 1
        if text == "{":
            self._open()
        elif text == "}":
            self._close()
        elif text in ("done", "fi", "esac"):
            self.loops -= text == "done"
            self.words = []
        elif text in _HEADS:
            self.words = []

    def _open(self) -> None:
        self.groups.append((len(self.found), self.function))
        self.function, self.defined = self.defined or self.function, None
        self.words = []

    def _close(self) -> None:
        self._end()
        start, self.function = self.groups.pop() if self.groups else (0, None)
        self.list_start = start

    def _operator(self, text: str) -> None:
        if text == ")":
            self._close()
            return
        self._end()
        if text == "&":
            self.found[self.list_start :] = [each._replace(background=True) for each in self.found[self.list_start :]]
        if text in ("&", ";", "\n", ";;", ";&", ";;&"):
            self.list_start = len(self.found)
        self.patterns = text in (";;", ";&", ";;&")

    def _end(self) -> None:
        """End the current command and store it."""
        words, self.words = self.words, []
        if words and words[0].text not in (*_BLOCKS, "}"):
            texts = tuple(word.text for word in words)
            self.found.append(ShellCommand(words[0].line, texts, function=self.function, loop=self.loops > 0))


def _tokens(text: str) -> Iterator[_Token]:
    place, line = 0, 1
    here: list[str] = []  # the ends of this line's here-documents
    while place < len(text):
        start = place
        if match := _BLANK.match(text, place):
            place = match.end()
        elif text[place] == "#":
            place = _line_end(text, place)
        elif match := _REDIRECTION.match(text, place):
            after = _BLANK.match(text, match.end())
            place = _word_end(text, after.end() if after else match.end())
            if match[1] in ("<<", "<<-"):
                here.append(plain(text[match.end() : place].strip()))
        elif text.startswith("((", place):  # arithmetic
            place = _after(text, place)
            yield _Token(line, text[start:place], word=True)
        elif match := _OPERATOR.match(text, place):
            place = match.end()
            yield _Token(line, match[0], word=False)
            if match[0] == "\n":
                for end in here:
                    found = re.compile(rf"^\t*{re.escape(end)}$", re.MULTILINE).search(text, place)
                    place = _line_end(text, found.end()) if found else len(text)
                here = []
        else:
            place = max(_word_end(text, place), place + 1)
            raw = text[start:place]
            yield _Token(line, plain(raw), word=True, quoted=raw[0] in "\"'\\")
        line += text.count("\n", start, place)


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _word_end(text: str, place: int) -> int:
    while place < len(text) and (text[place] not in _ENDS_WORD or _substitutes(text, place)):
        place = _after(text, place)
    return place


def _substitutes(text: str, place: int) -> bool:
    """Whether a substitution or array begins here: <(command), >(command), name=(an array)."""
    return text[place : place + 2] in ("<(", ">(") or (text[place] == "(" and text[place - 1 : place] == "=")


def _after(text: str, place: int, depth: int = 0) -> int:
    """Return the position after the character, quoted text or expansion at `place`."""
    for opening, closing in (("$((", "))"), ("$(", ")"), ("<(", ")"), (">(", ")"), ("(", ")"), ("${", "}")):
        if depth < _DEEPEST and text.startswith(opening, place):
            place += len(opening)
            while place < len(text) and not text.startswith(closing, place):
                place = place + 1 if opening == "${" and text[place] in "()" else _after(text, place, depth + 1)
            return place + len(closing)
    if text[place] == "\\":
        return place + 2
    if text[place] == "'":
        return (text.find("'", place + 1) + 1) or len(text)
    if text[place] in '"`':
        quote, place = text[place], place + 1
        while place < len(text) and text[place] != quote:
            place = place + 1 if text[place] in "'(" or depth >= _DEEPEST else _after(text, place, depth + 1)
        return place + 1
    return place + 1


def plain(raw: str, escaped: str = r'["\\$`]') -> str:
    """Return a word without its quotes. `escaped`: what a backslash escapes within double quotes."""

    def unquoted(match: re.Match[str]) -> str:
        return match[1] or match[2] or re.sub(rf"\\\n|\\({escaped})", r"\1", match[3] or "")

    return re.sub(r"""\\\n|\\(.)|'([^']*)'|"((?:\\.|[^"\\])*)\"""", unquoted, raw)
