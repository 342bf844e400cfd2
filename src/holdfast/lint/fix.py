"""Fixes of lint's findings: edits of a script's text where an edit is right, else what to
restructure. Pure.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..batch.bash import ShellCommand
from ..batch.script import C_SHELLS, BatchScript, are_exclusive, interpreter, is_exec
from ..batch.work import is_work, program_index

PREFIX = "exec holdfast run -- "
STEPS = (
    "put {what} into work.sh below the line: trap 'exit 75' TERM; "
    "end this script with: exec holdfast run -- bash work.sh"
)


class Edit(NamedTuple):
    """Replace the characters from `start` to `end`."""

    start: int
    end: int
    new: str


class LintFix(NamedTuple):
    """What to do, in words; and the edits that do it, if edits of this file can."""

    text: str
    edits: tuple[Edit, ...] = ()


def supervise(script: BatchScript, command: ShellCommand) -> LintFix:
    """Replace the shell by `holdfast run`,
    which runs the command, if nothing else would be lost.
    """
    obstacle = _obstacle(script, command)
    if obstacle:
        return LintFix(obstacle)
    branches = [
        each
        for each in script.commands_as_run
        if is_work(each) and not is_exec(each) and are_exclusive(each, command)
    ]
    alike = [each for each in (command, *branches) if not _obstacle(script, each)]
    places = sorted({each.places[program_index(each)] for each in alike})
    lines = " and ".join(str(line) for line in sorted({each.line for each in alike}))
    text = (
        f"begin line {lines} with: {PREFIX.strip()}"
        if len(alike) == 1
        else f"in lines {lines}: {PREFIX}..."
    )
    return LintFix(text, tuple(Edit(place, place, PREFIX) for place in places))


def replace_shell(script: BatchScript, command: ShellCommand) -> LintFix:
    """Write `exec` before a command that runs in the foreground:
    where nothing else would be lost.
    """
    obstacle = _obstacle(script, command)
    if obstacle:
        return LintFix(obstacle)
    place = command.places[program_index(command)]
    return LintFix(f"begin line {command.line} with: exec", (Edit(place, place, "exec "),))


def _obstacle(script: BatchScript, command: ShellCommand) -> str:
    """Return what must be restructured before an `exec` can run the command; empty: nothing."""
    if interpreter(script.text) in C_SHELLS:
        return "write the script for bash, and end it with: exec holdfast run -- ..."
    if command.piped:
        return (
            "write its output to a file (> log 2>&1) in place of the pipe, "
            "then: exec holdfast run -- ..."
        )
    if any(each.kind == "loop" for each in command.within):
        return STEPS.format(what="the loop")
    if command.function is not None:
        return STEPS.format(what=f"{command.function}() and its calls")
    if any(each.kind == "(" for each in command.within) or command.background:
        return STEPS.format(
            what="what runs in the background" if command.background else "the ( ) around it"
        )
    after = script.next_command(command)
    if after is not None:
        return STEPS.format(what=f"lines {min(command.line, after.line)} to the end")
    ending = next(
        (trap for trap in script.traps if trap.handler and set(trap.signals) - {"ERR", "DEBUG"}),
        None,
    )
    if ending is not None:
        return (
            f"take the trap of line {ending.line} out (exec ends it), "
            "then: exec holdfast run -- ..."
        )
    if command.prefix or any(
        word in ("time", "command", "env") for word in command.words[: program_index(command)]
    ):
        return (
            f"take the `{command.prefix or command.words[0]}` away, then: exec holdfast run -- ..."
        )
    return ""


def wait_beside(script: BatchScript, command: ShellCommand) -> LintFix:
    """Run the command in the background and wait for it, so that a trap can run meanwhile."""
    loop = 'while kill -0 "$pid" 2>/dev/null; do wait "$pid" || true; done'
    text = f"run it with & pid=$!, then: {loop}"
    text_after = script.text[command.end :].lstrip(" \t")
    whole = not (
        command.piped
        or command.joined
        or command.prefix
        or command.background
        or is_condition(command)
    )
    if (
        not whole
        or any("<<" in each for each in command.operators)
        or text_after[:1] not in ("\n", ";", "")
    ):
        return LintFix(text)
    return LintFix(text, (Edit(command.end, command.end, f' & pid=$!\n{loop}\nwait "$pid"'),))


def is_condition(command: ShellCommand) -> bool:
    """Whether the command decides an `if` or a loop, or might."""
    return any(
        each.kind == "loop" or (each.kind == "if" and each.part % 2 == 0) or each.kind in ("(", "{")
        for each in command.within
    )


def wait_on(command: ShellCommand) -> LintFix:
    """Repeat a `wait` until the child has ended."""
    alive = (
        f"kill -0 {command.words[1]} 2>/dev/null"
        if len(command.words) == 2
        else '[ -n "$(jobs -pr)" ]'
    )
    what = f"wait {command.words[1]}" if len(command.words) == 2 else "wait"
    if len(command.words) == 2 and '"' not in what:
        alive, what = (re.sub(r"(\$\S+)", r'"\1"', each, count=1) for each in (alive, what))
    loop = f"while {alive}; do {what} || true; done"
    alone = len(command.words) <= 2 and not (
        command.piped or command.joined or command.prefix or command.operators
    )
    return LintFix(
        f"write in place of it: {loop}", (Edit(command.start, command.end, loop),) if alone else ()
    )


def add_directive(script: BatchScript, words: str) -> LintFix:
    """Add a directive below the others."""
    lines = script.text.split("\n")[: script.last]
    place = len("\n".join(lines))
    return LintFix(f"write #SBATCH {words}", (Edit(place, place, f"\n#SBATCH {words}"),))


def change_option_value(script: BatchScript, name: str, new: str) -> LintFix:
    """Change the value of the last option of that name."""
    option = script.option(name)
    text = f"write --{name}={new}"
    if option is None or not option.value:
        return LintFix(text)
    start, end = _line_span(script.text, option.line)
    place = script.text.rfind(option.value, start, end)
    return LintFix(text, (Edit(place, place + len(option.value), new),) if place >= 0 else ())


def remove_line(script: BatchScript, number: int, text: str) -> LintFix:
    """Take a line out."""
    start, end = _line_span(script.text, number)
    return LintFix(text, (Edit(start, min(end + 1, len(script.text)), ""),))


def insert_before_line(script: BatchScript, number: int, new: str) -> LintFix:
    """Add a line before another one."""
    start, _ = _line_span(script.text, number)
    return LintFix(f"write before it: {new}", (Edit(start, start, new + "\n"),))


def replace_in_line(script: BatchScript, number: int, old: str, new: str) -> tuple[Edit, ...]:
    """Return the edit that replaces the first `old` of a line; none if it is not there."""
    start, end = _line_span(script.text, number)
    place = script.text.find(old, start, end)
    return (Edit(place, place + len(old), new),) if place >= 0 and old else ()


def _line_span(text: str, number: int) -> tuple[int, int]:
    """Return where the line begins and ends, without its line break."""
    lines = text.split("\n")
    start = sum(len(line) + 1 for line in lines[: number - 1])
    return start, start + len(lines[number - 1])
