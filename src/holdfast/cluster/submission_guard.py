"""Submission guard: refuses a run that another submission began with other arguments, before
anything is changed.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .. import journal
from ..errors import UsageError
from ..job import job
from ..provenance import redact
from ..settings import ARGUMENTS
from . import job_leader, sweep

# sys.argv names a file that the frontend made
NOTEBOOKS = ("ipykernel_launcher.py", "colab_kernel_launcher.py")


class SubmissionEntry(NamedTuple):
    """The submission that started a process, and its command line."""

    submission: str
    command: list[str]


def current_entry() -> SubmissionEntry:
    """Return the submission and command line of this process, if a batch job runs it."""
    here, submitted = job(), job_leader.submission_directory()
    by = str(submitted) if submitted is not None else f"job {here.id if here is not None else ''}"
    # an argument that contains the job's own id, such as a log folder, counts as equal; a chain's
    # task has three ids
    names = {here.id, here.array, os.environ.get("SLURM_JOB_ID")} if here is not None else set()
    either = "|".join(
        re.escape(name) for name in sorted(filter(None, names), key=len, reverse=True)
    )
    redacted = redact(sys.argv) or [""]  # embedded Python may have no argv
    words = [
        re.sub(rf"(?<!\d)(?:{either})(?!\d)", "JOB", word) if either else word for word in redacted
    ]
    program = os.path.basename(words[0])
    given = words[1:] if program not in NOTEBOOKS else []
    task = os.environ.get(sweep.VARIABLE)
    return SubmissionEntry(by, [program, *given, *([f"{sweep.VARIABLE}={task}"] if task else [])])


def require_same_submission(root: Path, mine: SubmissionEntry, accepted: Collection[str]) -> None:
    """Require that the last batch job of the run at `root` is of this submission or had the same
    arguments.

    Raises:
        UsageError: it is not. The supervisor is told not to try again.
    """
    events = (event for log in reversed(journal.logs(root)) for event in log.newest("entered"))
    require_same_entry(str(root), next(events, {}), mine, accepted)


def require_same_entry(
    where: str, last: Mapping[str, Any], mine: SubmissionEntry, accepted: Collection[str]
) -> None:
    """Check that the `last` entry of the run that lies at `where` is of this submission, or has the
    same arguments.

    Raises:
        UsageError: it is not. The supervisor is told not to try again.
    """
    if ARGUMENTS in accepted:
        return
    by, command = last.get("submission"), last.get("command")
    if (
        not isinstance(by, str)
        or not isinstance(command, list)
        or by == mine.submission
        or command == mine.command
    ):
        return
    place = _shown(where)
    line = (
        f"{place}: {_shown(by)} began this run with `{shlex.join(map(str, command))}`; "
        f"{_shown(mine.submission)} would "
        f"go on with its weights as `{shlex.join(mine.command)}`. Give each a run of its own: "
        f'Run(f"{place}-{{{_first_differing_option(command, mine.command)}}}"); '
        "or go on with this one on purpose: "
        f'Run(..., accept={{"{ARGUMENTS}"}})'
    )
    job_leader.report_refusal(line)
    raise UsageError(line)


def _shown(path: str) -> str:
    """Return a path below the working directory as the script may have written it."""
    return path.removeprefix(f"{os.getcwd()}/")


def _first_differing_option(before: Sequence[object], now: Sequence[str]) -> str:
    """Return the name of the first option that differs, for a line of the user's code."""
    for at, word in enumerate(now):
        if at >= len(before) or before[at] != word:
            if word.startswith(f"{sweep.VARIABLE}="):
                return f"os.environ['{sweep.VARIABLE}']"
            option = re.match(r"--?([A-Za-z][\w-]*)(=|$)", word) or re.match(
                r"--?([A-Za-z][\w-]*)()$", now[at - 1]
            )
            return option[1].replace("-", "_") if option else "seed"
    return "seed"
