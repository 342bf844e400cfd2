"""Bash: parses a batch script into its simple commands and their places. Runs nothing."""

from __future__ import annotations

from typing import NamedTuple

from .words import Token, tokenize, unquote

__all__ = ["EnclosingCommand", "ParsedScript", "ShellCommand", "commands", "parse", "unquote"]

_HEADS = {"then", "elif", "else", "do", "!", "time"}  # another command may begin after them
_OPENING = {"if": "if", "while": "loop", "until": "loop", "for": "loop", "select": "loop"}
_CLOSING = {"fi": "if", "done": "loop", "esac": "case", "}": "{"}
_BLOCKS = {"for", "select", "case", "function"}  # only the first word of these is a command
# parts of an `if`: odd ones are its branches
_PART = {"then": 1, "elif": 1, "else": 2, ";;": 1, ";&": 1, ";;&": 1}


class EnclosingCommand(NamedTuple):
    """A compound command around a command, and the part of it that holds the command."""

    kind: str  # "if", "loop", "case", "{" or "("
    number: int  # of the compound command in the script
    part: int


class ShellCommand(NamedTuple):
    """One simple command."""

    line: int
    words: tuple[str, ...]  # without quotes; expansions are not evaluated
    background: bool = False
    function: str | None = None  # the function whose body contains it
    piped: bool = False  # it, or what contains it, is part of a pipeline
    joined: bool = False  # && or || stands before or after it
    prefix: str = ""  # "!" or "time" before it
    within: tuple[EnclosingCommand, ...] = ()  # from the outermost
    start: int = 0  # its place in the text, with assignments and redirections
    end: int = 0
    places: tuple[int, ...] = ()  # where each word begins
    operators: tuple[str, ...] = ()  # of its redirections: ">", "<<"

    @property
    def loop(self) -> bool:
        """Whether it may run several times."""
        return any(each.kind == "loop" for each in self.within)


class ParsedScript(NamedTuple):
    """What a script consists of."""

    commands: list[ShellCommand]
    comments: frozenset[int]  # lines that hold a comment


def parse(text: str) -> ParsedScript:
    """Return the simple commands of a script, in the order in which they are written."""
    found = list(tokenize(text))
    lines = frozenset(token.line for token in found if token.kind == "comment")
    return ParsedScript(
        _Parser([token for token in found if token.kind != "comment"]).read(), lines
    )


def commands(text: str) -> list[ShellCommand]:
    return parse(text).commands


class _SavedState(NamedTuple):
    """What the reader returns to when a compound command ends."""

    within: EnclosingCommand
    function: str | None
    list_start: int
    pipe_start: int
    piped: bool


class _Parser:
    """Walks the tokens and tracks the surrounding groups,
    functions, loops, branches, lists and pipelines.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.found: list[ShellCommand] = []
        self.words: list[Token] = []
        self.redirections: list[Token] = []
        self.frames: list[_SavedState] = []
        self.list_start = 0  # first command of the list that an & would affect
        self.pipe_start = 0  # first command of the pipeline
        self.piped = False  # the commands to come are part of a pipeline
        self.joined = False  # the last operator was && or ||
        self.prefix = ""
        self.function: str | None = None
        self.defined: str | None = None  # name of the function whose body comes next
        self.opened = 0
        self.patterns = False  # between `in` or `;;` of a case and its `)`

    def read(self) -> list[ShellCommand]:
        last = ""
        for token in self.tokens:
            if token.kind == "redirection":
                self.redirections.append(token)
            elif token.kind == "word":
                self._add_word(token)
            elif self.patterns:
                self.patterns = token.text != ")"
                self.words = []
            elif self._in_test(token):
                self.words.append(token)
            elif token.text[0] == "(" and token.text[-1] == ")":  # of a function's definition
                self.defined, self.words = self.words[-1].text if self.words else self.defined, []
            elif token.text == "(":
                self._open_compound("(")
            elif not (token.text == "\n" and last in ("|", "|&", "&&", "||")):
                self._handle_operator(token.text)
            last = (
                token.text
                if token.kind == "operator" and token.text != "\n"
                else last * (token.text == "\n")
            )
        self._end_command()
        return self.found

    def _in_test(self, token: Token) -> bool:
        return (
            bool(self.words)
            and self.words[0].text == "[["
            and self.words[-1].text != "]]"
            and token.text != "\n"
        )

    def _add_word(self, token: Token) -> None:
        if self.patterns and token.text == "esac":
            self.patterns = False
        if not self.patterns:
            self.words.append(token)
        if not token.quoted and len(self.words) == 1:
            self._handle_first_word(token.text)
        elif self.words and self.words[0].text == "case" and token.text == "in":
            self._open_compound("case")
            self.patterns = True
        elif self.words and self.words[0].text == "function" and len(self.words) == 2:
            self.defined, self.words = token.text, []

    def _handle_first_word(self, text: str) -> None:
        """Handle a word where a command may begin."""
        if text in _OPENING:
            self._open_compound(_OPENING[text], keep=text in _BLOCKS)
        elif text == "{":
            self._open_compound("{")
        elif text in _CLOSING:
            self.words = []
            self._close_compound(_CLOSING[text])
        elif text in _HEADS:
            self._begin_part("if", _PART.get(text, 0))
            self.words, self.prefix = [], text if text in ("!", "time") else ""

    def _open_compound(self, kind: str, *, keep: bool = False) -> None:
        self.opened += 1
        within = EnclosingCommand(kind, self.opened, 0)
        self.frames.append(
            _SavedState(within, self.function, self.list_start, self.pipe_start, self.piped)
        )
        if kind in ("(", "{"):
            self.function, self.defined = self.defined or self.function, None
        self.list_start = self.pipe_start = len(self.found)
        if not keep:
            self.words = []

    def _begin_part(self, kind: str, further: int) -> None:
        if further and self.frames and self.frames[-1].within.kind == kind:
            frame = self.frames.pop()
            self.frames.append(
                frame._replace(within=frame.within._replace(part=frame.within.part + further))
            )

    def _close_compound(self, kind: str) -> None:
        self._end_command()
        if self.frames and self.frames[-1].within.kind == kind:
            _, self.function, self.list_start, self.pipe_start, self.piped = self.frames.pop()

    def _handle_operator(self, text: str) -> None:
        if text == ")":
            self._close_compound("(")
            return
        self._end_command()
        if text == "&":
            self._set_fact(self.list_start, "background")
        if text in ("|", "|&"):
            self._set_fact(self.pipe_start, "piped")
            self.piped = True
            return
        self.piped = bool(self.frames) and self.frames[-1].piped
        self.pipe_start = len(self.found)
        self.joined = text in ("&&", "||")
        if self.joined:
            self._set_fact(max(self.list_start, len(self.found) - 1), "joined")
        else:
            self.list_start = len(self.found)
        if text in (";;", ";&", ";;&"):
            self._begin_part("case", _PART[text])
            self.patterns = True

    def _set_fact(self, first: int, fact: str) -> None:
        for index in range(first, len(self.found)):
            self.found[index] = self.found[index]._replace(**{fact: True})  # type: ignore[arg-type]

    def _end_command(self) -> None:
        """End the current command and store it."""
        words, self.words = self.words, []
        redirections, self.redirections = self.redirections, []
        prefix, self.prefix = self.prefix, ""
        if not words or words[0].text in _BLOCKS:
            return
        command = ShellCommand(
            words[0].line,
            tuple(word.text for word in words),
            function=self.function,
            piped=self.piped,
            joined=self.joined,
            prefix=prefix,
            within=tuple(frame.within for frame in self.frames),
            start=min(token.start for token in (*words, *redirections)),
            end=max(token.end for token in (*words, *redirections)),
            places=tuple(word.start for word in words),
            operators=tuple(token.text for token in redirections),
        )
        self.found.append(command)
