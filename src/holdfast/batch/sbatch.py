"""sbatch's options: parsed from a command line or from `#SBATCH` lines,
always under their long names. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ..errors import UsageError
from . import bash
from .sbatch_options import ALONE, LONG, NAMES, UNKNOWN, full_option_name, value_kind

DIRECTIVE = "#SBATCH"  # the rest of the value is not checked


class Option(NamedTuple):
    """One option: `--name=value`, or `--name`."""

    name: str
    value: str | None = None
    line: int = 0  # line of the script

    def __str__(self) -> str:
        return f"--{self.name}" + ("" if self.value is None else f"={_quoted(self.value)}")


class SignalOption(NamedTuple):
    """The values of `--signal`."""

    name: str  # "USR1"
    batch: bool  # only the batch shell's process receives it
    lead_s: int


def parse_options(words: Sequence[str], *, line: int = 0) -> list[Option]:
    """Return the options in `words`, in order, under their full names; read as getopt_long reads
    them.

    Raises:
        UsageError: a word belongs to no option.
    """
    found: list[Option] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--" and not rest:
            break
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            found.append(Option(full_option_name(name), value if equals else None, line))
        elif word.startswith("-") and word.strip("-"):
            found += _parse_short_options(word[1:], line)
        else:
            raise UsageError(f"{word!r} is neither an option nor the value of one")
        takes = value_kind(found[-1].name)
        if (
            found[-1].value is None
            and rest
            and (takes == "required" or (not takes and rest[0][:1] != "-"))
        ):
            found[-1] = found[-1]._replace(value=rest.pop(0))
    return found


def merge_options(*layers: Iterable[Option]) -> list[Option]:
    """Return all options; a later one replaces an earlier one of the same name."""
    return list({option.name: option for layer in layers for option in layer}.values())


def last_option(options: Iterable[Option], *names: str) -> Option | None:
    """Return the last of these options that is given; it is the one that counts."""
    return next((option for option in reversed(list(options)) if option.name in names), None)


class Directives(NamedTuple):
    """The `#SBATCH` lines of a script."""

    options: list[Option]
    late: list[int]  # lines that sbatch ignores because they come after a command
    refused: dict[int, str]  # lines for which it refuses the script, and what is wrong with them
    last: int  # line after which another directive may stand


def parse_directives(text: str) -> Directives:
    """Read the `#SBATCH` lines of a script.

    Source: sbatch(1): sbatch ignores lines after the first that is neither a comment nor empty.
    """
    found: list[Option] = []
    late: list[int] = []
    refused: dict[int, str] = {}
    begun, last, first = False, 1, True
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith(DIRECTIVE):
            if begun:
                late.append(number)
                continue
            first = first and line.split()[1:2] not in (["hetjob"], ["packjob"])
            if not first:
                continue  # another component of the job; the script runs in the first
            last = number
            try:
                found += parse_options(_split_directive(line.removeprefix(DIRECTIVE)), line=number)
            except UsageError as error:
                refused[number] = str(error)
        elif line.strip() and not line.lstrip().startswith("#"):
            begun = True
    return Directives(found, late, refused, last)


def with_options(text: str, options: Sequence[Option]) -> str:
    """Return the script with these options instead of those of the same names,
    at the end of its directives.
    """
    ours = {option.name for option in options}
    lines = text.removesuffix("\n").split("\n")  # as `parse_directives` counts them
    kept = parse_directives(text).options
    for number in sorted({option.line for option in kept if option.name in ours}, reverse=True):
        rest = [
            f"#SBATCH {option}"
            for option in kept
            if option.line == number and option.name not in ours
        ]
        lines[number - 1 : number] = rest
    late = parse_directives("\n".join(lines)).late
    last = max(
        (at for at, line in enumerate(lines, 1) if line.startswith(DIRECTIVE) and at not in late),
        default=1,
    )
    lines[last:last] = [f"#SBATCH {option}" for option in options]
    return "\n".join(lines) + "\n"


def requested_signal(options: Iterable[Option]) -> SignalOption | None:
    """Return the signal that Slurm is asked to send before the time is over; None: none is.

    Source: sbatch(1), --signal: [{R|B}:]<sig_num>[@sig_time], 60 s by default.
    """
    option = last_option(options, "signal")
    text = option.value if option else None
    match = re.fullmatch(r"(?:([RB]+):)?(?:SIG)?(\w+)(?:@(\d+))?", text or "", re.IGNORECASE)
    if match is None:
        return None
    where, name, lead = match.groups()
    return SignalOption(signal_name(name), "B" in (where or "").upper(), int(lead or 60))


def time_limit_s(options: Iterable[Option]) -> float:
    """Return the time limit in seconds; infinity if none is requested.

    Source: sbatch(1), --time: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
    """
    option = last_option(options, "time")
    return (parse_time_span_s(option.value or "") if option else None) or float("inf")


def parse_time_span_s(text: str) -> float | None:
    """Return the seconds of a time span as Slurm writes it; None: `text` is no time span.

    Forms: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S.
    """
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        return None
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not days and len(parts) < 3:
        parts = [0, *parts]  # minutes are the first part
    hours, minutes, rest = [*parts, 0, 0][:3]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest)


def signal_name(text: str) -> str:
    """Return a signal's name without SIG: "USR1" for "SIGUSR1", "usr1" and "10"."""
    numbers = {
        "1": "HUP",
        "2": "INT",
        "3": "QUIT",
        "9": "KILL",
        "10": "USR1",
        "12": "USR2",
        "15": "TERM",
        "18": "CONT",
    }
    return numbers.get(text, text.upper().removeprefix("SIG"))


def _parse_short_options(letters: str, line: int) -> list[Option]:
    """Return the options in a word of short ones: -N2, -p long, -HW."""
    letter, rest = letters[0], letters[1:]
    name = LONG.get(letter)
    if letters.partition("=")[0] in NAMES:
        raise UsageError(f"-{letters} has one dash; an option of several letters has two")
    if name is None:
        raise UsageError(f"-{letter}{UNKNOWN}")
    if letter in ALONE and rest:
        return [Option(name, None, line), *_parse_short_options(rest, line)]
    return [Option(name, rest or None, line)]


def _quoted(value: str) -> str:
    if "\n" in value:
        raise UsageError(f"{value!r}: a line of a batch script cannot hold a line break")
    return (
        value
        if re.fullmatch(r"[^\s\"'\\#]+", value)
        else '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'
    )


def _split_directive(text: str) -> list[str]:
    """Split a directive as sbatch does: quotes,
    and a comment wherever a # stands outside of them.
    """
    words: list[str] = []
    for match in re.finditer(r"""(#.*)|((?:\\\S|\\|"(?:\\.|[^"\\])*"|'[^']*'|[^\s\\#])+)""", text):
        if match[1]:
            break
        if re.search(r"""["']""", re.sub(r"""\\\S|"(?:\\.|[^"\\])*"|'[^']*'""", "", match[2])):
            raise UsageError(f"a quote is not closed: {match[2]}")
        words.append(bash.unquote(match[2], "."))
    return words
