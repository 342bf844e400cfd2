"""Lint's rules about where a job saves: on a permanent disk,
in its own directory, and not removed by the script.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Sequence

from ..batch import work
from ..batch.bash import ShellCommand
from ..batch.script import BatchScript
from ..batch.variables import fill_variables
from ..batch.work import program_words
from .fix import Edit, LintFix
from .rule import Fault, Rule

_SAVES_TO = re.compile(
    r"--?(?:(ckpt|checkpoint|checkpoints|save|out|output)|"
    r"(?:ckpt|checkpoint|checkpoints|save|out|output|work|"
    r"run|model)[-_]?(?:dir|path|directory|folder))(?:=(.*))?"
)
# files from which no start resumes
_PASSING = re.compile(r"lock|tmp|temp|log|stop|done|core|pid|cache", re.IGNORECASE)
_ALWAYS_THERE = re.compile(r"\$\{?(SLURM_SUBMIT_DIR|HOME|SLURM_TMPDIR|TMPDIR)\}?/?$")
_LOCAL = re.compile(
    r"(/tmp|/dev/shm|/local|/local_?scratch|/scratch/local|/lscratch|\$\(mktemp|"
    r"\$\{?(SLURM_)?(TMPDIR|TMP|JOBFS|L_?SCRATCH|"
    r"LOCAL_?SCRATCH|SCRATCH_?LOCAL|SNIC_TMP|NAISS_TMP))\b"
)
_COPIES = ("cp", "rsync", "mv", "tar", "scp", "rclone")


def wipes_checkpoint(script: BatchScript) -> Iterator[Fault]:
    """A start that removes the last one's checkpoints begins from scratch."""
    chief = script.main_program
    if chief is None:
        return
    used = [
        fill_variables(word.rpartition("=")[2], script.known_variables).rstrip("/")
        for word in chief.words
    ]
    for command in script.commands_as_run[: script.commands_as_run.index(chief)]:
        targets = [
            fill_variables(word, script.known_variables).rstrip("/*")
            for word in command.words[1:]
            if not word.startswith("-")
        ]
        lost = next(
            (each for each in targets if any(_paths_overlap(each, word) for word in used)), None
        )
        sure = not any(each.kind in ("if", "case") for each in command.within)
        if (
            command.words[0] == "rm"
            and lost
            and sure
            and not _PASSING.search(os.path.basename(lost))
        ):
            yield Fault(
                command.line,
                f"each start removes {lost}, with what the last one has saved in it",
                LintFix("remove it by hand before the first submission"),
            )


def local_checkpoint(script: BatchScript) -> Iterator[Fault]:
    """A node's own disk is gone with the job."""
    chief = script.long_main_program
    if chief is None:
        return
    known = script.known_variables
    exported = [known[name] for name in known if re.search(r"CKPT|CHECKPOINT", name)]
    named = [*_output_option_values(chief), *exported]
    place = next((each for each in named if _LOCAL.match(fill_variables(each, known))), None)
    copies = [
        each for each in script.all_commands if each.words[0] in _COPIES and each.line != chief.line
    ]
    beside = any(
        each.background or any(within.kind == "loop" for within in each.within) for each in copies
    )
    if place is not None and not beside and not _copied_by_trap(script):
        yield Fault(
            chief.line,
            f"{place} is on the node's own disk: what is saved there is gone when the job ends",
            LintFix("save to shared storage, or copy it there while the job runs"),
        )


def _copied_by_trap(script: BatchScript) -> bool:
    return any(
        each.words[0] in _COPIES for trap in script.traps for each in script.handler_commands(trap)
    )


def copy_back_late(script: BatchScript) -> Iterator[Fault]:
    """A copy from the node's disk after the work does not happen when the time limit ends the
    job.
    """
    chief = script.long_main_program
    if chief is None or work.has_own_time_limit(chief) or _copied_by_trap(script):
        return
    known = script.known_variables
    before = script.commands_as_run[: script.commands_as_run.index(chief)]
    place = next(
        (
            each.words[1]
            for each in reversed(before)
            if each.words[0] == "cd" and len(each.words) > 1
        ),
        "",
    )
    local_place = bool(_LOCAL.match(fill_variables(place, known)))
    for command in script.commands_after(chief):
        sources = [word for word in command.words[1:-1] if not word.startswith("-")]
        local = any(
            _LOCAL.match(fill_variables(word, known))
            or (local_place and not word.startswith(("/", "$")))
            for word in sources
        )
        if command.words[0] in _COPIES and local and not script.signal:
            yield Fault(
                command.line,
                "this copy is not reached at the time limit: "
                f"{work.program_name(chief)} is still at work then",
                LintFix(
                    "save to shared storage, or copy in a trap that "
                    "runs before the limit (--signal=B:USR1@300)"
                ),
            )
            return


def shared_run(script: BatchScript) -> Iterator[Fault]:
    """Programs that save into one directory overwrite each other's checkpoints."""
    chief = script.main_program
    several = [
        each
        for each in script.commands_as_run
        if work.is_work(each) and each.background and not each.loop
    ]
    places = [place for each in several for place in _output_option_values(each)]
    twice = next((place for place in places if places.count(place) > 1), None)
    alone = None
    if chief is not None and script.array_option is not None and not script.chain_option:
        named = [*_output_option_values(chief), *_overwritten_files(script, chief)]
        alone = next(
            (place for place in named if "$" not in fill_variables(place, script.known_variables)),
            None,
        )
    if chief is not None and (twice or alone):
        who = "the programs" if twice else "all tasks of the array"
        yield Fault(
            chief.line,
            f"{who} save into {twice or alone}: they overwrite one another",
            LintFix(
                "give each its own: "
                + (f"{alone}-$SLURM_ARRAY_TASK_ID" if alone else "another name for each")
            ),
        )


def unguarded_cd(script: BatchScript) -> Iterator[Fault]:
    """When `cd` fails, the following commands run in the wrong directory."""
    strict = any(
        each.words[0] == "set" and re.match(r"-\w*e", " ".join(each.words[1:]))
        for each in script.commands_as_run
    )
    strict = strict or bool(re.match(r"#!.*\s-\w*e", script.text))
    previous: ShellCommand | None = None
    for command in script.commands_as_run if not strict else ():
        removes = command.words[0] == "rm" and any(
            re.match(r"-\w*[rR]", word) for word in command.words
        )
        beside = any(not word.startswith(("-", "/", "$", "~")) for word in command.words[1:])
        if previous and removes and beside:
            guard = (Edit(previous.end, previous.end, " || exit 1"),) if not previous.joined else ()
            yield Fault(
                previous.line,
                f"when this cd fails, the rm of line {command.line} "
                "removes what is in another directory",
                LintFix(f"write: {' '.join(previous.words)} || exit 1", guard),
            )
        unsure = command.words[0] == "cd" and not _ALWAYS_THERE.match(command.words[-1])
        previous = command if unsure and len(command.words) > 1 and not command.joined else None


def _output_option_values(command: ShellCommand) -> list[str]:
    """The values of the options that say where a program saves."""
    words = program_words(command)
    found = []
    for place, word in enumerate(words):
        if match := _SAVES_TO.fullmatch(word):
            value = match[2] or next(iter(words[place + 1 : place + 2]), "")
            is_file = bool(re.search(r"\.\w+$", value))
            output = (match[1] or "").startswith("out")
            if not match[1] or is_file == output or match[1] == "save":
                found.append(value)
    return [each for each in found if each and not each.startswith("-") and "%" not in each]


def _paths_overlap(one: str, other: str) -> bool:
    """Whether two paths are the same, or one contains the other."""
    long_enough = len(one) > 2 and len(other) > 2
    return long_enough and (
        one == other or one.startswith(other + "/") or other.startswith(one + "/")
    )


def _overwritten_files(script: BatchScript, command: ShellCommand) -> list[str]:
    """The files that the command's output replaces."""
    text = script.text[command.start : command.end]
    return [name for name in re.findall(r"(?<![>&\d])>\s*([\w./-]+)", text) if name != "/dev/null"]


RULES: Sequence[Rule] = (
    Rule("loses work", wipes_checkpoint),
    Rule("loses work", local_checkpoint),
    Rule("loses work", copy_back_late),
    Rule("loses work", shared_run),
    Rule("loses work", unguarded_cd),
)
