"""Every exception that Holdfast raises.

HoldfastError                  1
├─ UsageError                  2   the caller can mend it: unknown leaf type, bad option, step
│                                  already committed
├─ StoreError                  1
│  ├─ NotFound                 3   no committed checkpoint (at that step)
│  ├─ Damaged                  4   a committed file is missing, short, or its digest differs, twice
│  │  └─ Untrusted             4   a manifest is not signed by the key that was to have signed it
│  ├─ DiskError                1   the file system refused or failed; what was committed before is
│  │  │                            unchanged
│  │  ├─ NoSpace               7   there is no space, or a quota is used up
│  │  └─ Unreadable           12   a file of a checkpoint cannot be read now; nothing says that it
│  │                               is damaged
│  └─ Superseded               9   a later attempt owns the run; this one wrote nothing more
├─ Mismatch                    5   checkpoint and live objects disagree: key, shape, dtype, data
│                                  position
├─ ClusterError                6   the scheduler refused or did not answer
├─ ChildError                  8   a supervised program failed for good
├─ RanksError                 10   the processes of one run disagree, or one did not come in time
└─ NotFinite                   1   weights are infinite or NaN, and the run has stop_on_nan

Stopped (a SystemExit)        75   not a failure: the state is saved, run me again

The number is the exit status of Holdfast's commands. A script of the user's that lets an error pass
exits with Python's own 1; `Stopped` makes 75 of any process.
"""

from __future__ import annotations

from collections.abc import Sequence

from .legible import printable


class HoldfastError(Exception):
    """An error whose message contains what failed, where, and what to do next.

    `exit_code` is the process's exit status.
    """

    exit_code = 1

    def __str__(self) -> str:
        """Return the message. Names from files are in it,
        and Python prints it to the terminal as it is.
        """
        return printable(super().__str__(), kept="\n\t")


class UsageError(HoldfastError):
    exit_code = 2


class StoreError(HoldfastError):
    pass


class NotFound(StoreError):
    exit_code = 3


class Damaged(StoreError):
    exit_code = 4


class Untrusted(Damaged):
    pass


class DiskError(StoreError):
    pass


class Unreadable(DiskError):
    """`files`: those that could not be read,
    each with the host where; empty on ranks that only learned of it.
    """

    exit_code = 12

    def __init__(self, text: str, files: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(text)
        self.files = [*files]


class NoSpace(DiskError):
    exit_code = 7


class Superseded(StoreError):
    exit_code = 9


class Mismatch(HoldfastError):
    exit_code = 5


class ClusterError(HoldfastError):
    exit_code = 6


class RanksError(HoldfastError):
    exit_code = 10


class NotFinite(HoldfastError):
    pass


class ChildError(HoldfastError):
    """`tail`: the last lines that the program printed; `shown`: those that the message repeats."""

    exit_code = 8

    def __init__(self, reason: str, tail: Sequence[str] = (), shown: Sequence[str] = ()) -> None:
        super().__init__("\n".join([f"{reason}; it ended with", *shown]) if shown else reason)
        self.reason, self.tail = reason, [*tail]


class Stopped(SystemExit):
    """A SystemExit, so that no `except Exception` in a training loop swallows it."""

    def __init__(self, reason: str) -> None:
        super().__init__(75)  # EX_TEMPFAIL of sysexits.h: try again later
        self.reason = reason

    def __str__(self) -> str:
        return self.reason
