"""Output: what a command printed between two safe points, compared with what the reference run
printed there. Pure.

A drilled run marks each safe point in its own standard output. Lines before the first mark of an
attempt belong to its start and are not compared. What differs between the two undisturbed runs is
not compared either: a number in lines of one wording, a wording, or a place. Standard error is not
compared: progress bars, warnings and Holdfast's own lines go there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, zip_longest
from typing import NamedTuple

from .evidence import SafePoint

MARK = re.compile(r"\x1eholdfast (\d+) (\w+) (\d+)\x1e\r?\n")
_NUMBER = re.compile(
    r"0x[0-9a-fA-F]+|[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?\b(?:nan|inf)\b"
)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?(?:[.,]\d+)?")
_UNIT = re.compile(
    r"(?:\s?(?:s|ms|us|µs|ns|secs?|seconds?|mins|"
    r"minutes?|hours?|[\w/]*/s(?:ec(?:ond)?)?)|m|min|h)\b"
)
# a number in a field of fixed width has more or fewer spaces around it
_PADDED = re.compile(r"[ \t]*#[ \t]*")
LAST_LINES = 20
_LOGGED = re.compile(r"[WEI]\d{4} [\d:.]+ +\d+ .*\btorch/distributed/(elastic|run)\b")
_RAISED = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_FIRST = re.compile(r"Root Cause.*?rank +: (\d+) .*?exitcode +: (-?\d+)", re.DOTALL)
_MOVES = re.compile(r"\x1b\[[\d;]*[A-HJKST]")  # the cursor: a line that a progress bar writes over
_TIMED = re.compile(
    r"(?:time|elapsed|took|eta|duration|seconds|speed|throughput)\W{0,3}$", re.IGNORECASE
)


class Section(NamedTuple):
    """The lines printed from one safe point to the next one."""

    after: SafePoint
    attempt: int
    lines: tuple[str, ...]


class LineDifference(NamedTuple):
    after: SafePoint
    attempt: int
    was: str | None  # None: the reference run printed no such line
    now: str | None

    def __str__(self) -> str:
        was, now = ("nothing" if line is None else repr(line) for line in (self.was, self.now))
        return f"printed after {self.after}: {was} became {now}"


class LineParts(NamedTuple):
    """A line, with its numbers separate."""

    wording: str
    numbers: tuple[str, ...]


class VaryingOutput(NamedTuple):
    """What differs between two undisturbed runs."""

    places: set[SafePoint]  # where they printed different numbers of lines
    positions: set[tuple[SafePoint, int]]  # the nth line there
    wordings: set[str]
    numbers: set[tuple[str, int]]  # the nth number in lines of that wording
    exempt: Sequence[str]  # patterns of lines that the user does not want to be compared

    def comparable_part(self, line: str) -> LineParts | None:
        """Return the part of the line to compare; None: nothing."""
        wording, numbers = split_numbers(line)
        if (
            "\r" in line
            or _MOVES.search(line)
            or wording in self.wordings
            or any(fnmatchcase(line, pattern) for pattern in self.exempt)
        ):
            return None
        kept = tuple(
            "" if (wording, place) in self.numbers else number
            for place, number in enumerate(numbers)
        )
        return LineParts(wording, kept)


def without_marks(text: str) -> str:
    return MARK.sub("", text)


def split_sections(text: str, *, finished: bool) -> list[Section]:
    """Return the sections of one start's output;
    the last one is complete only if the command finished.
    """
    _, *rest = MARK.split(text)  # then, for each mark, its three groups and the text after it
    marked = zip(*(rest[part::4] for part in range(4)), strict=True)
    cut = [
        Section(SafePoint(int(step), phase), int(attempt), tuple(piece.splitlines()))
        for step, phase, attempt, piece in marked
    ]
    whole = [*(one.attempt == after.attempt for one, after in pairwise(cut)), finished]
    return [section for section, is_whole in zip(cut, whole, strict=False) if is_whole]


def find_varying(
    first: Sequence[Section], second: Sequence[Section], exempt: Sequence[str] = ()
) -> VaryingOutput:
    """Return what two undisturbed runs printed differently."""
    others, found = _by_place(second), VaryingOutput(set(), set(), set(), set(), exempt)
    for section in first:
        beside = others.get(section.after)
        if beside is None or len(beside.lines) != len(section.lines):
            found.places.add(section.after)
            continue
        for at, (line, other) in enumerate(zip(section.lines, beside.lines, strict=True)):
            (wording, mine), (another, theirs) = split_numbers(line), split_numbers(other)
            if wording != another:
                found.wordings.update((wording, another))
                # a third run may have a third wording there
                found.positions.add((section.after, at))
            else:
                found.numbers.update(
                    (wording, place) for place, was in enumerate(mine) if was != theirs[place]
                )
    return found


def compare_output(
    reference: Sequence[Section], other: Sequence[Section], known: VaryingOutput
) -> tuple[list[LineDifference], int]:
    """Return the lines of `other` that the reference run lacks there, and how many lines were
    compared.

    The lines are in the order of the run.
    """
    expected, found, compared = _by_place(reference), list[LineDifference](), 0
    for section in sorted(other, key=lambda section: (section.after.order, section.attempt)):
        beside = expected.get(section.after)
        if beside is None or section.after in known.places:
            continue
        mine, theirs = (list(_comparable_lines(each, known)) for each in (beside, section))
        compared += len(theirs)
        for was, now in zip_longest(mine, theirs):
            if was is None or now is None or was[1] != now[1]:
                lines = (None if each is None else each[0] for each in (was, now))
                found.append(LineDifference(section.after, section.attempt, *lines))
                break  # later lines may only be moved
    return found, compared


def _comparable_lines(section: Section, known: VaryingOutput) -> Iterator[tuple[str, LineParts]]:
    for at, line in enumerate(section.lines):
        said = known.comparable_part(line)
        if said is not None and (section.after, at) not in known.positions:
            yield line, said


def _by_place(sections: Sequence[Section]) -> Mapping[SafePoint, Section]:
    return {section.after: section for section in sections}


def split_numbers(line: str) -> LineParts:
    """Return the wording of a line, and its numbers except times of day and timings."""
    line = _CLOCK.sub("@", line)
    wording, numbers, end = "", [], 0
    for match in _NUMBER.finditer(line):
        wording += line[end : match.start()] + "#"
        timing = _UNIT.match(line, match.end()) or _TIMED.search(line[: match.start()])
        numbers.append("" if timing else match[0])
        end = match.end()
    return LineParts(_PADDED.sub("#", wording + line[end:]), tuple(numbers))


def last_lines(printed: str) -> list[str]:
    """Return the end of a command's output.

    torchrun ends with some fifty lines that only report which process ended first; they are left
    out.
    """
    lines = [line for line in printed.splitlines() if not _LOGGED.match(line)]
    raised = [number for number, line in enumerate(lines) if line.startswith(_RAISED)]
    if not raised:
        return lines[-LAST_LINES:]
    begins = (
        number
        for number in range(raised[-1])
        if lines[number] == "Traceback (most recent call last):"
    )
    begin = max(begins, default=raised[-1])
    first = _FIRST.search("\n".join(lines[raised[-1] :]))
    said = [f"torchrun: rank {first[1]} was the first to end, with {first[2]}"] if first else []
    return lines[max(0, begin - LAST_LINES) : begin] + said
