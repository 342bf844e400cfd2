"""The harness of benchmarks/: rounds, ratios, failures. Speed itself is measured there and never tested here."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import harness


class Counting:
    """A contender that says how often it was asked."""

    def __init__(self, place):
        self.place, self.turns = place, 0

    def turn(self):
        self.turns += 1
        (self.place / "asked").open("a").write(f"{type(self).__name__} ")
        return {"turns": self.turns}

    def close(self):
        pass


class Other(Counting):
    pass


class Raising(Counting):
    def turn(self):
        super().turn()
        raise ValueError("no such API\nsecond line")


class Dying(Counting):
    def turn(self):
        super().turn()
        os._exit(3)


class Stillborn(Counting):
    def __init__(self, place):
        raise ImportError("no peer here")


def rounds(place, *contenders, count=2):
    with harness.workers({each.__name__: each for each in contenders}, place) as ring:
        return list(harness.turns(ring, count, "turn"))


@pytest.mark.slow
def test_each_contender_has_one_turn_in_a_round_and_the_order_moves_on(tmp_path):
    """Everybody works once in every round, each time at another place."""
    turns = rounds(tmp_path, Counting, Other)
    assert [(turn.round, turn.contender, turn.figures["turns"]) for turn in turns] == [
        (0, "Counting", 1),
        (0, "Other", 1),
        (1, "Other", 2),
        (1, "Counting", 2),
        (2, "Counting", 3),
        (2, "Other", 3),
    ]
    assert (tmp_path / "asked").read_text().split() == [turn.contender for turn in turns]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "says"),
    [(Raising, "ValueError: no such API"), (Dying, "exit code 3"), (Stillborn, "ImportError: no peer here")],
)
def test_who_does_not_run_says_so_once_and_the_others_go_on(tmp_path, broken, says):
    """A peer that raises, dies or cannot be made costs nobody else a turn."""
    turns = rounds(tmp_path, broken, Counting)
    failed = [turn.figures for turn in turns if turn.contender == broken.__name__]
    assert len(failed) == 1
    assert says in failed[0].error
    assert [turn.round for turn in turns if turn.contender == "Counting"] == [0, 1, 2]


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
