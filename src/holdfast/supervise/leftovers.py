"""Leftovers: small files that killed supervisors and submissions left in their directory."""

from __future__ import annotations

import time
from pathlib import Path

from .. import disk, scan
from ..cluster.job_leader import SCRIPT
from .place import JOURNAL, supervisors_maybe_alive

UNSUBMITTED_S = 3600.0  # the age at which an empty script was left by a submission that was killed


def find_leftovers(directory: Path) -> list[Path]:
    """Return the files of supervisors that have ended or are proven dead, and of unfinished
    submissions.
    """
    alive = {str(begin.get("supervisor")) for begin in supervisors_maybe_alive(directory / JOURNAL)}
    signs = [path for word in ("alive-", "leave-") for path in scan.glob(directory, f"{word}*")]
    left = [
        path
        for path in signs
        if path.name.partition("-")[2] not in alive and scan.is_file(directory / JOURNAL)
    ]
    left += [
        path
        for path in scan.glob(directory, ".*.new")
        if was_used_by_supervisor(directory) and disk.is_abandoned(path)
    ]
    script = directory / SCRIPT
    if (
        not scan.exists(directory / JOURNAL)
        and scan.is_file(script)
        and not scan.is_symlink(script)
    ):
        facts = script.stat()
        left += (
            [script] if not facts.st_size and time.time() - facts.st_mtime > UNSUBMITTED_S else []
        )
    return sorted(left)


def was_used_by_supervisor(directory: Path) -> bool:
    """Whether a supervisor or a submission has used this directory."""
    return scan.is_file(directory / JOURNAL) or scan.is_file(directory / SCRIPT)
