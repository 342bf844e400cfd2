"""The harness of benchmarks/: rounds, ratios, failures. Speed itself is measured there and never tested here."""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import harness

LINES = [
    {"size_mib": 64, "contender": "raw", "round": 0, "s": 100.0},
    {"size_mib": 64, "contender": "ours", "round": 0, "s": 900.0},
    *(
        {"size_mib": 64, "contender": "raw", "round": number, "s": raw}
        for number, raw in ((1, 1.0), (2, 2.0), (3, 4.0))
    ),
    *({"size_mib": 64, "contender": "ours", "round": number, "s": s} for number, s in ((1, 3.0), (2, 2.0), (3, 4.0))),
    {"size_mib": 64, "contender": "peer", "round": 0, "error": "ImportError: none"},
]


def test_ratios_are_formed_within_a_round():
    """A disk that is slow for a round is slow for both; the first round is no part of it."""
    assert [3.0, 1.0, 1.0] == harness.samples(LINES, "ours", harness.Column("", "s", over=("raw", "s")))


def test_a_table_shows_the_median_the_spread_the_first_and_who_does_not_run():
    """Nothing that was measured is left out of the Markdown."""
    table = harness.markdown(
        LINES, [harness.Column("s", "s", digits=1), harness.Column("first, s", "first s", digits=1)]
    )
    assert "| ours | 3.0 (2.0 to 4.0) | 900.0 |" in table
    assert "| peer | does not run: ImportError: none |" in table


def test_what_describes_the_machine_does_not_tell_which_one_it_is():
    """Results are published: neither the host's name nor a path of it is in them."""
    assert os.uname().nodename not in str(harness.machine("."))
    assert os.getcwd() not in str(harness.machine("."))
