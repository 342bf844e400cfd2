"""Two live writers of one run, hundreds of times: tests/two_writers.py says how."""

import pytest

from faults import scratched
from two_writers import PAUSE_S, Told, instants, loses, rounds, told

ROUNDS = 100  # of each seed


def play(count: int, seed: int, pause_s: float) -> tuple[int, list[Told]]:
    """How many rounds had a suspended writer, and those in which no writer, or each, lost as it should."""
    with scratched("two") as place:
        counts = instants(place)
        assert min(counts.values()) > 100
        found = list(told(place, rounds(counts, count, seed), pause_s=pause_s))
    return sum(each.struck != "" for each in found), [each for each in found if each.struck and not loses(each)]


@pytest.mark.parametrize("seed", range(5))
def test_one_of_two_live_writers_goes_on_and_the_other_is_superseded(seed, tally):
    """Suspended at any look or change of a claim, save or prune, and woken: one story, and exit code 9 for one."""
    struck, wrong = play(ROUNDS, seed, PAUSE_S)
    tally("One of two live writers sleeps", tried=ROUNDS, observed=struck, survived=struck - len(wrong))
    assert wrong == []
    assert struck > 0.9 * ROUNDS
