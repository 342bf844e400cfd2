"""What the processes of one run say to each other."""

import os
import random
import time
from itertools import pairwise
from types import SimpleNamespace

import pytest

from holdfast import channel as room
from holdfast.errors import Damaged, NoSpace, RanksError
from holdfast.ranks import ALONE, Ranks
from holdfast.store.shards import SaveAbandoned
from rank_threads import Shared, everywhere, ranks

WORLDS = [1, 2, 3, 8]


@pytest.mark.parametrize("world", WORLDS)
def test_each_verb_tells_whom_it_names(world):
    """`announce`: rank 0 to all; `gather`: all to rank 0, by rank; `agree`: all to all; `collect` and `lead`: work,
    too.
    """
    said, done = [bytes([rank]) for rank in range(world)], []

    def work(mine):
        own = bytes([mine.rank])
        yield mine.announce("word", b"from 0" if mine.rank == 0 else b"ignored")
        yield mine.gather("x", own)
        yield mine.agree("x", own)
        yield mine.run_on_all("save", lambda: own, b"".join)
        yield mine.run_on_rank_0("begin", lambda: done.append(mine.rank) or b"begun")

    expected = [b"from 0", said, said, bytes(range(world)), b"begun"]
    assert [expected, *[[b"from 0", [], *expected[2:]]] * (world - 1)] == everywhere(world, lambda mine: [*work(mine)])
    assert done == [0]


def test_ranks_may_be_far_apart():
    """Nobody waits for those who only listen: rank 0 may be 50 words ahead."""

    def work(mine):
        heard = []
        for number in range(50):
            if mine.rank:
                time.sleep(random.random() / 1000)
            heard.append(mine.announce("step", str(number).encode()))
        return heard

    assert [[str(number).encode() for number in range(50)]] * 4 == everywhere(4, work)


@pytest.mark.parametrize(("world", "most_s", "most_looks"), [(8, 0.5, 1400), (8000, 4.0, 350)])
def test_who_waits_long_asks_seldom_and_hears_soon(monkeypatch, world, most_s, most_looks):
    """Never later than by a twentieth of the wait; the first look is at once, and the last at the deadline."""
    now, times = [100.0], []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(room, "time", clock)
    for waited_s in room.sleep_between_polls(700.0, world):
        assert waited_s == pytest.approx(now[0] - 100.0)
        times.append(waited_s)
    assert [0.0, 600.0] == [times[0], pytest.approx(times[-1])]
    assert all(b - a <= min(most_s, max(0.02, b / 20)) + 1e-9 for a, b in pairwise(times))
    assert len([each for each in times if each < 0.1]) < 15
    assert len(times) < most_looks


def test_long_words_arrive_whole(monkeypatch):
    """Values beyond what a channel takes at a time are cut, and put together again."""
    monkeypatch.setattr(room, "MOST_BYTES", 1000)
    long = os.urandom(12_345)
    assert [[long, long]] * 2 == everywhere(2, lambda mine: mine.agree("long", long))


@pytest.mark.parametrize("error", [NoSpace("full"), Damaged("bits"), ZeroDivisionError("mine"), SaveAbandoned("known")])
def test_what_fails_on_one_rank_fails_on_all(error):
    """There as it is; elsewhere as its kind, if that is one of ours or known, with the rank's number."""

    def work(mine):
        with mine.together("save", known=(SaveAbandoned,)):
            if mine.rank == 1:
                raise error

    first, own, last = everywhere(3, work)
    kind = RanksError if isinstance(error, ZeroDivisionError) else type(error)
    assert own is error
    assert [kind, kind] == [type(first), type(last)]
    assert "rank 1: " in str(first)
    assert str(error) in str(last)


def test_a_missing_rank_is_named_in_time():
    """Every wait has a deadline; the message says who was waited for, where, and how to wait longer."""

    def work(mine):
        return None if mine.rank == 2 else mine.agree("save step-000000004", b"")

    first, second, _ = everywhere(3, work, timeout_s=0.3)
    assert [RanksError] * 2 == [type(first), type(second)]
    assert "rank 2 did not come to 'save step-000000004'" in str(first)
    assert "HOLDFAST_RANKS_TIMEOUT_S" in str(first)


def test_ranks_that_go_different_ways_learn_it():
    """At once: nobody waits for a word that will never be said."""
    outcomes = everywhere(2, lambda mine: mine.agree("save" if mine.rank == 0 else "end"), timeout_s=1.0)
    assert [RanksError] * 2 == [type(each) for each in outcomes]
    assert "rank 1 is at 'end' and rank 0 at 'save'" in str(outcomes[0])


def test_words_do_not_pile_up():
    """What all have heard is forgotten: a run may say a million things."""
    shared = Shared()
    first, second = (Ranks(rank, 2, shared) for rank in range(2))
    for number in range(100):
        first.announce("a", b"x" * number)
        second.announce("a")
        second.gather("b", b"y")
        first.gather("b", b"y")
    assert len(shared.values) <= 1


def test_a_twin_is_a_conversation_of_its_own():
    """Two threads of a rank may talk at once; the serial numbers of one are not the other's."""
    first, second = ranks(2)
    aside = [each.for_thread("writer") for each in (first, second)]
    aside[0].announce("beside", b"1")
    first.announce("main", b"2")
    assert (b"2", b"1") == (second.announce("main"), aside[1].announce("beside"))


def test_alone_nothing_is_said():
    """One process agrees with itself, and its errors are its own."""
    assert (b"x", [b"x"], [b"x"]) == (ALONE.announce("t", b"x"), ALONE.gather("t", b"x"), ALONE.agree("t", b"x"))
    assert ALONE.for_thread("writer") is ALONE
    with pytest.raises(KeyError), ALONE.together("t"):
        raise KeyError


@pytest.mark.parametrize("where", ["lead", "work on 0", "work on 2", "then"])
def test_work_that_fails_on_one_rank_fails_on_all(where):
    """And the conversation goes on: nobody is a word ahead."""

    def fail(_=None):
        raise NoSpace("full")

    def work(mine):
        try:
            if where == "lead":
                mine.run_on_rank_0("begin", fail)
            failing = where == f"work on {mine.rank}"
            mine.run_on_all("save", fail if failing else bytes, fail if where == "then" else b"".join)
        except NoSpace as error:
            return str(error), mine.announce("next", b"goes on")
        return None

    rank = 2 if where == "work on 2" else 0
    expected = [("full" if mine == rank else f"rank {rank}: full", b"goes on") for mine in range(3)]
    assert expected == everywhere(3, work)


def test_of_two_failures_all_ranks_raise_one_kind():
    """What they do about it, to go on or to try once more, has to be the same for all."""

    def work(mine):
        def fail():
            raise [NoSpace("full"), SaveAbandoned("no more"), OSError("mine")][mine.rank - 1]

        return mine.run_on_all("save", fail if mine.rank else bytes, known=(SaveAbandoned,))

    assert [NoSpace] * 4 == [type(error) for error in everywhere(4, work)]


@pytest.mark.parametrize("world", WORLDS)
def test_an_error_keeps_its_cause(world):
    """Told to all, it is raised as it was."""

    def work(mine):
        def fail():
            try:
                raise OSError("EIO")
            except OSError as error:
                raise NoSpace("full") from error

        if mine.rank == world - 1:
            with mine.together("save"):
                fail()
        else:
            mine.report("save")

    found = everywhere(world, work)[-1]
    assert (NoSpace, OSError) == (type(found), type(found.__cause__))
