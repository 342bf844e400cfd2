"""Preflight: finds reasons for which a job would fail at its start,
before it waits in the queue.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from .. import scan
from ..batch.sbatch import Option
from ..cluster import script, slurm, sweep
from ..cluster.ask import run_command
from ..cluster.script import LAUNCHERS, JobRequest
from ..errors import ClusterError, UsageError
from ..terminal import warn

# PROGRAM [options] SCRIPT
_READERS = re.compile(r"python[\d.]*|Rscript|bash|sh|julia|perl|octave(-cli)?")
_APART = {"-X", "-W"}  # options of Python with a value of their own
_ALONE = {  # how its name begins -> options without a value
    "py": re.compile(r"-[bBdEiIOPqRsSuvx]+"),
    "ba": re.compile(r"-[aefhluvx]+|--no.*"),
    "sh": re.compile(r"-[aefhluvx]+"),
    "Rs": re.compile(r"--vanilla|--quiet|--no-.*"),
}
_NONE = re.compile(r"(?!)")
_MOVES = re.compile(r"\b(cd|pushd|chdir)\b")


def check_command(order: JobRequest, words: Sequence[str], base: Path) -> None:
    """Check that the command's script file exists, and its program.

    A path is only certain if no line of the set-up can change the folder, and nothing is staged.

    Raises:
        UsageError: the job would fail at once.
    """
    certain = not order.stage and not any(map(_MOVES.search, order.setup))
    file = script_file(words) if certain else None
    if file is not None and not scan.exists(base / file):
        raise UsageError(
            f"{base / file} does not exist, and the job would fail of it; nothing was submitted"
        )
    if file is not None and _has_directives(base / file):
        warn(
            f"{file}: its #SBATCH lines do not count here: "
            "write them before --, or sbatch it itself"
        )
    if file is not None and file == words[0] and not os.access(base / file, os.X_OK):
        raise UsageError(
            f"{file} is not executable, and the job would fail of it: "
            f"chmod +x {file}, or name its program"
        )
    if "/" in words[0] or shutil.which(words[0]):
        return
    if words[0].endswith(".py") and scan.is_file(base / words[0]):
        raise UsageError(
            f"{words[0]} is a file and no program on PATH: write -- python {shlex.join(words)}"
        )
    if not order.setup and not any(option.name == "export" for option in order.options):
        raise UsageError(
            f"{words[0]} is not on PATH, and the job would fail of it; "
            "if the job's nodes have it, name its path, "
            "or the line that brings it: --setup 'module load ...'"
        )
    warn(f"{words[0]} is not on PATH here; the set-up lines must bring it")


def _has_directives(file: Path) -> bool:
    try:
        if not scan.is_file(file):
            return False  # opening a pipe would block
        with file.open("rb") as opened:
            head = opened.read(65536)
    except OSError:
        return False
    return head.startswith(b"#!") and b"\n#SBATCH " in head


def warn_if_tasks_equal(words: Sequence[str], tasks: sweep.ArrayTasks) -> None:
    """Warn when each task of a sweep would run the same command."""
    if any(sweep.TASK in word for word in words):
        return
    chain = f"; one after the other at one work: --chain {len(tasks.numbers)} instead of --array"
    warn(
        f"no word of the command holds {sweep.TASK}: "
        f"each task runs the same, and only ${sweep.VARIABLE} tells it "
        f"which it is{chain if tasks.at_once == 1 else ''}"
    )


def refuse_double_launch(order: JobRequest, lines: Sequence[str]) -> None:
    """Refuse a command that starts itself once per task.

    Raises:
        UsageError: we start the commands of `lines` once per task of the job, and one of them does
            that itself.
    """
    itself = next((line for line in lines if os.path.basename(line.split()[0]) in LAUNCHERS), None)
    if itself is not None and script.has_several_tasks(order.options):
        raise UsageError(
            f"`{itself}`: the script starts each command with srun; leave {itself.split()[0]} out"
        )


def require_usable_directory(path: str) -> None:
    """Require a path that a batch script can name.

    Raises:
        UsageError: a script cannot name the directory, or Slurm would read it as another one.
    """
    if re.search(r"[\n\r%\\]", path):
        raise UsageError(
            f"--run {path!r}: a batch script cannot name it; "
            "give one without line break, % and backslash"
        )


def warn_of_missing_files(paths: Sequence[str]) -> None:
    """Warn of files that do not exist on this machine:
    if the job's node lacks them too, the job ends at once.
    """
    for path in paths:
        if not scan.exists(path):
            warn(
                f"--stage {path}: it is not on this machine; "
                "if the job's node does not have it either, the job ends"
            )


def script_file(words: Sequence[str]) -> str | None:
    """Return the path of the file that the command runs, if that is certain."""
    words = list(words)
    if os.path.basename(words[0]) in LAUNCHERS and len(words) > 1:
        if words[0] == "torchrun" or words[1].startswith("-"):
            return None
        words.pop(0)
    file: str | None = words[0] if "/" in words[0] else None
    if _READERS.fullmatch(os.path.basename(words[0])):
        rest = iter(words[1:])
        file = None
        for word in rest:
            if word in _APART:
                next(rest, None)
            elif not word.startswith("-"):
                file = word
                break
            elif not _ALONE.get(os.path.basename(words[0])[:2], _NONE).fullmatch(word):
                break  # -c, -m, -: no file; or an option that may take the next word
    return file if file and not re.search(r"[{}$*?~`]", file) else None


def check_set_up_lines(lines: Sequence[str]) -> None:
    """Check that bash can read each line by itself.

    Raises:
        UsageError: it cannot.
    """
    for line in lines:
        answer = run_command(["bash", "-n", "-c", line])
        wrong = answer.err.strip().splitlines()
        if answer.code or wrong or re.search(r"(?<!\\)(\\\\)*\\$", line):
            why = (
                wrong[0].partition("line 1: ")[2] or wrong[0]
                if wrong
                else "it goes on behind its end"
            )
            raise UsageError(f"--setup {shlex.quote(line)}: bash cannot read it: {why}")


def check_array(tasks: sweep.ArrayTasks, commands: str | None) -> None:
    """Require task numbers that the cluster accepts.

    Raises:
        UsageError: Slurm takes no array with such numbers.
    """
    try:
        size = slurm.read_config().get("MaxArraySize", "")
    except ClusterError:
        return  # sbatch says it itself
    if size.isdecimal() and tasks.numbers[-1] >= int(size):
        most = int(size) - 1
        parts = f"split {commands} into files" if commands else "write the commands into files"
        raise UsageError(
            f"task {tasks.numbers[-1]}: this cluster numbers "
            f"the tasks of an array up to {most} (MaxArraySize); "
            f"{parts} of at most {most} lines, and submit each with --commands"
        )


def require_this_cluster(options: Sequence[Option]) -> None:
    """Refuse a job for another cluster.

    Raises:
        UsageError: the job would go to another cluster, and we ask this one what became of it.
    """
    named = any(option.name == "clusters" for option in options)
    how = (
        "--clusters"
        if named
        else next(filter(os.environ.get, ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")), None)
    )
    if how is not None:
        raise UsageError(
            f"{how}: jobs are submitted to, and looked for in, "
            "the cluster of this machine; leave it out, and call "
            "holdfast submit where the other cluster is the default"
        )
