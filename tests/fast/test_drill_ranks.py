"""The drill of commands that start several processes: nobody is forgotten, one rank can be lost, restarts are
understood.
"""

import sys

from test_drill import is_gone, planned, until

from holdfast.drill import compare, output
from holdfast.drill.attempts import attempts_of, proven_places
from holdfast.drill.evidence import RunTrace, SafePoint, StateRecord, generator_of
from holdfast.drill.kill import ChildTree, SentSignal
from holdfast.journal import Log

LAUNCHER = """
import os, subprocess, sys, time
worker = "import os, subprocess, time; os.write(1, b'%d\\\\n' % subprocess.Popen(['sleep', '600']).pid); time.sleep(99)"
ranks = [
    subprocess.Popen([sys.executable, "-c", worker], env={**os.environ, "RANK": str(rank)}, start_new_session=True)
    for rank in range(3)
]
os.write(1, " ".join(["ranks", *(str(rank.pid) for rank in ranks)]).encode() + b"\\n")  # whole lines, unlike print
print("ended", [rank.wait() for rank in ranks], flush=True)
"""


def test_one_rank_is_struck_and_no_other():
    """Not the launcher, and not what another rank has started: it has inherited a rank's environment."""
    for which, struck in ((0.0, 0), (0.5, 1), (0.99, 2)):
        with ChildTree([sys.executable, "-c", LAUNCHER], {}) as child:
            until(lambda: child.ended() or len(child.tail.splitlines()) == 4)
            lines = [line.split() for line in child.tail.splitlines()]
            ranks = sorted(int(pid) for words in lines if words[0] == "ranks" for pid in words[1:])
            others = [int(words[0]) for words in lines if words[0] != "ranks"]
            child.lose_rank(which)
            until(lambda: is_gone(ranks[struck]))  # noqa: B023
            assert [number == struck for number in range(3)] == [is_gone(pid) for pid in ranks]
            assert not any(map(is_gone, others))
            assert not child.ended()
        assert all(map(is_gone, [*ranks, *others]))


def test_a_command_without_ranks_is_its_only_one():
    """So that the same words drill it."""
    with ChildTree([sys.executable, "-c", "import time; time.sleep(600)"], {}) as child:
        child.lose_rank(0.9)
        until(child.ended)
        assert -9 == child.finish()


def test_which_rank_is_struck_depends_on_the_seed():
    """And is spread."""
    kills = planned(20, ("RANK",), 3, damage=False)
    assert kills == planned(20, ("RANK",), 3, damage=False)
    assert {0, 1, 2, 3} == {int(4 * kill.which) for kill in kills}


def a_log(attempt, restored, reached):
    name = f"step-{restored:09d}" if restored else None
    begun = {"event": "restored", "step": restored, "checkpoint": name}
    return Log(attempt, None, [begun, {"event": "digests", "step": reached}])


def test_the_attempts_that_a_launcher_makes_in_one_start_are_told_apart():
    """Each has its own strike; the one after it proves the kill."""
    made = attempts_of([a_log(1, 0, 5), a_log(2, 4, 9)], {1: SentSignal("RANK", "step-000000004")})
    assert [SafePoint(4)] == proven_places(made, [SafePoint(4)])
    assert [("RANK", True), (None, False)] == [(each.signal, each.proven) for each in made]
    assert "step-000000004" == made[0].in_save


def test_a_generator_is_idle_on_each_rank_by_itself():
    """A rank that draws is compared with itself in the other run; one that does not, within its run."""

    def seen(own, drawn):
        keys = {"holdfast/rng/numpy/key": own, "@1/holdfast/rng/numpy/key": drawn}
        return StateRecord(SafePoint(len(drawn)), 1, keys)

    first = RunTrace([seen("p", "x"), seen("p", "yy")], [], {1: SafePoint(0)}, {})
    second = RunTrace([seen("q", "x"), seen("q", "yy")], [], {1: SafePoint(0)}, {})
    assert frozenset({"numpy"}) == compare.idle_generators(first, second)
    assert compare.first_state_difference(first, second, frozenset({"numpy"})) is None
    drawn = RunTrace([seen("q", "x"), seen("q", "zz")], [], {1: SafePoint(0)}, {})
    assert ("@1/holdfast/rng/numpy/key",) == compare.first_state_difference(first, drawn, frozenset({"numpy"})).leaves
    assert "numpy of rank 12" == generator_of("@12/holdfast/epoch_rng/numpy/key")
    assert "torch" == generator_of("holdfast/position/feeds/train/members/0/last_rng/torch/cpu")
    assert generator_of("holdfast/position/feeds/train/state/rng_of_mine") is None


def test_what_no_launcher_has_printed_is_shown_as_it_is():
    """The last lines, and all of them when they are few."""
    printed = "".join(f"line {number}\n" for number in range(100))
    assert [f"line {number}" for number in range(80, 100)] == output.last_lines(printed)
    few = ["Traceback (most recent call last):", "KeyError: 3"]
    assert few == output.last_lines("\n".join(few))
