"""Every fault of a disk at every operation of a start, of saves, prunes and read-backs: once, and as an outage."""

import pytest

from clock_jumps import JUMPS, enumerate_jumps
from disk_story import KINDS, STRIKES, bench, enumerate_faults  # noqa: F401  a fixture

FAULTS = {
    "EIO": "The disk reports an error",
    "ESTALE": "A file handle is stale",
    "EACCES": "Permission is denied",
    "EROFS": "The file system becomes read-only",
    "ENOSPC": "The disk is full",
    "EDQUOT": "The quota is used up",
    "EINTR": "A signal interrupts the operation",
    "short write": "A write is short",
    "done, and EIO": "An operation happens, and is reported as failed",
    "done, and told as done twice": "An operation happens, is repeated, and the second try fails (NFS)",
    "gone": "The run's directory vanishes, and comes back",
    "a bit": "A bit flips between a write and its read-back",
}


def test_all_kinds_are_counted():
    assert FAULTS.keys() == KINDS.keys()


@pytest.mark.timeout(1800)  # about 900 operations
@pytest.mark.parametrize(("kind", "lasting"), STRIKES)
def test_a_fault_at_any_operation_ends_in_the_same_bits(bench, tally, kind, lasting):  # noqa: F811
    """Training goes on, or the start or the end fails with one line and the next start goes on.

    No committed checkpoint is lost, saves that are due after the fault succeed, and the end has the bits of the
    undisturbed run.
    """
    survived = enumerate_faults(bench, KINDS[kind], lasting=lasting)
    assert survived > 0
    fault = f"{FAULTS[kind]}, at an operation of a start, a save or a prune{' and three steps on' * lasting}"
    tally(fault, tried=survived)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_at_any_look_changes_nothing(bench, tally, jump):  # noqa: F811
    """The same saves, the same checkpoints, the same bits."""
    survived = enumerate_jumps(bench, jump)
    assert survived > 0
    tally(f"{jump.capitalize()}, at a look at it", tried=survived)
