"""The harness of benchmarks/: its rounds, with contenders in processes of their own."""

import os

from test_benchmarks import harness


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


def test_who_does_not_run_says_so_once_and_the_others_go_on(tmp_path):
    """A peer that raises, dies or cannot be made costs nobody else a turn."""
    broken = {Raising: "ValueError: no such API", Dying: "exit code 3", Stillborn: "ImportError: no peer here"}
    turns = rounds(tmp_path, *broken, Counting)
    failed = {turn.contender: turn.figures.error for turn in turns if turn.contender != "Counting"}
    assert len(turns) == len(failed) + 3
    assert [kind.__name__ for kind, said in broken.items() if said not in failed.get(kind.__name__, "")] == []
    assert [turn.round for turn in turns if turn.contender == "Counting"] == [0, 1, 2]
