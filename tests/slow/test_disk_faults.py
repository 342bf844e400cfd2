"""A sample of what tests/prove/test_disk_faults_all.py enumerates: each fault of a disk, at some operations."""

import pytest

from clock_jumps import JUMPS, enumerate_jumps
from disk_story import KINDS, STRIKES, bench, enumerate_faults  # noqa: F401  a fixture

STRIDE = 41


@pytest.mark.parametrize(("kind", "lasting"), STRIKES)
def test_a_fault_here_and_there_ends_in_the_same_bits(bench, kind, lasting):  # noqa: F811
    """Training goes on, or the start or the end fails with one line and the next start goes on."""
    assert enumerate_faults(bench, KINDS[kind], lasting=lasting, stride=STRIDE) > 0


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_changes_nothing(bench, jump):  # noqa: F811
    """The same saves, the same checkpoints, the same bits."""
    assert enumerate_jumps(bench, jump, stride=STRIDE) > 0
