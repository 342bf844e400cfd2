"""Quota: the disk space that this user and its groups may still use, from quota(1). Other quota
tools are not used.
"""

from __future__ import annotations

import re
import shutil
from typing import NamedTuple

from .ask import run_command

_OF = re.compile(r"Disk quotas for (user|group) (\S+)")
_LINE = re.compile(r"^ *(\S+)((?: +\d+\*?){6,})")


class Quota(NamedTuple):
    """One quota. A limit of 0 means unlimited. A soft limit counts only if there is no hard one."""

    owner: str  # "user ada", "group lab"
    place: str  # the mount point
    used_bytes: int
    limit_bytes: int
    used_files: int
    limit_files: int


def quotas() -> list[Quota]:
    """Return the quotas of this user; none where quota(1) is not installed.

    Raises:
        ClusterError: the file server that keeps quotas does not answer.
    """
    if shutil.which("quota") is None:
        return []
    answer = run_command(
        [
            "quota",
            "--no-wrap",
            "--raw-grace",
            "--show-mntpoint",
            "--hide-device",
            "--user",
            "--group",
        ]
    )
    found, owner = [], ""
    for line in answer.out.splitlines():
        if (of := _OF.match(line)) is not None:
            owner = f"{of[1]} {of[2]}"
        elif (told := _LINE.match(line)) is not None:
            found.append(
                _parse_quota(
                    owner, told[1], [int(number.rstrip("*")) for number in told[2].split()]
                )
            )
    return found


def _parse_quota(owner: str, place: str, numbers: list[int]) -> Quota:
    """Read blocks of 1 KiB, soft limit, hard limit,
    grace, then the same of files. Source: quota(1).
    """
    # without a time of grace some versions print none
    second = numbers[4:7] if len(numbers) >= 7 else numbers[3:6]
    (blocks, soft, hard), (files, soft_files, hard_files) = numbers[:3], second
    return Quota(owner, place, blocks << 10, (hard or soft) << 10, files, hard_files or soft_files)
