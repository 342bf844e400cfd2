"""Windows: all ranks do the same thing at the same safe point, and hardly ever wait for each other."""

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import RanksError
from holdfast.run import ranks as room
from holdfast.run.ranks import MOST_POINTS, NOTHING, OrderWindows
from rank_threads import Shared, everywhere, ranks

POINTS = 150


class Clock:
    """One that a test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def one_rank(**options):
    """Rank 0 of two, of which the other one is never asked."""
    return OrderWindows(ranks(2)[0], **options)


def walk(mine, points, wait, wish_at=None, decide=lambda windows: {}):
    """Orders that are no mere NOTHING, by safe point, until there are no more points, or one says stop."""
    windows, found = OrderWindows(mine), {}
    for point in range(1, points + 1):
        wait(point)
        if point == wish_at:
            mine.leave_request(f"from {mine.rank}")
        order = windows.count_safe_point()
        if order.stop or order.save or order.land:
            found[point] = (order.stop, order.save, order.land)
        if order.stop:
            break
        if windows.leading:
            windows.announce_order(stop=mine.pending_request() or "", **decide(windows))
    return found


@given(
    world=st.integers(2, 4),
    naps=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, POINTS), st.sampled_from([0.001, 0.01, 0.03])), max_size=12
    ),
    saves=st.sets(st.integers(1, POINTS), max_size=20),
    lands=st.sets(st.integers(1, POINTS), max_size=20),
    wish=st.none() | st.tuples(st.integers(0, 3), st.integers(1, POINTS)),
)
def test_all_ranks_do_the_same_at_the_same_safe_point(world, naps, saves, lands, wish):
    """Wherever each of them dawdles, and whoever wishes to stop."""
    slow = {(rank, point): nap_s for rank, point, nap_s in naps}

    def work(mine):
        return walk(
            mine,
            POINTS,
            lambda point: time.sleep(slow.get((mine.rank, point), 0)),
            wish_at=wish[1] if wish is not None and wish[0] % world == mine.rank else None,
            decide=lambda windows: {"save": windows.point in saves, "land": windows.point in lands},
        )

    first, *others = everywhere(world, work)
    assert isinstance(first, dict)
    assert [first] * (world - 1) == others
    if wish is not None and wish[1] < POINTS - 4 * MOST_POINTS:
        assert any(stop for stop, _, _ in first.values())


@pytest.mark.parametrize("behind", [1, 50])
def test_rank_0_waits_for_nobody(behind):
    """Another rank may be 50 safe points behind, and hears everything in its time."""
    leader, follower = ranks(2, timeout_s=0.0)
    ahead, late = OrderWindows(leader), OrderWindows(follower)
    said, heard = [], []
    for point in range(1, 600):
        said.append(ahead.count_safe_point())
        if ahead.leading:
            ahead.announce_order(save=not said[-1].save)
        if point > behind:
            heard.append(late.count_safe_point())
    assert said[: len(heard)] == heard
    assert len([order for order in heard if order.save]) > 2


def would_wait(windows):
    """Whether the next safe point is an edge of which rank 0 has not spoken yet."""
    words = windows._words
    return windows.point + 1 == windows._edge and words._channel.get(f"windows/{words._sent + 1}") is None


def test_a_rank_that_is_less_than_a_window_ahead_does_not_wait():
    """What happens at an edge was said one window before."""
    leader, follower = ranks(2, timeout_s=0.0)
    behind, ahead = OrderWindows(leader), OrderWindows(follower)
    leads = []
    for _ in range(600):
        while not would_wait(ahead):
            ahead.count_safe_point()
        leads.append(ahead.point - behind.point)
        behind.count_safe_point()
        if behind.leading:
            behind.announce_order()
    assert min(leads) >= 1
    assert all(lead >= MOST_POINTS for lead in leads[-200:])


def test_a_rank_that_is_left_alone_says_who_is_missing():
    """Rank 0 does not come: after the deadline an error names it."""
    _, follower = ranks(2, timeout_s=0.2)
    windows = OrderWindows(follower)
    with pytest.raises(RanksError, match=r"rank 0 did not come to 'window' within 0\.2 s \(rank 1 waited"):
        windows.count_safe_point()


def pace(seconds, points=400, **options):
    """Lengths of the windows when each safe point takes `seconds(point)`."""
    clock = Clock()
    windows = one_rank(clock=clock, **options)
    lengths = []
    for point in range(1, points):
        clock.now += seconds(point)
        order = windows.count_safe_point()
        if windows.leading:
            lengths.append(order.points)
            windows.announce_order()
    return lengths


def test_windows_are_as_long_as_steps_allow():
    """A tenth of a second, one step at least, and never so many that slow steps would delay a stop for long.

    One quick step at the beginning says little: they grow by no more than twice.
    """
    assert {1} == set(pace(lambda _: 0.2))
    assert 19 <= pace(lambda _: 0.005)[-1] <= 20
    assert {1} == set(pace(lambda _: 0.0001, most_points=1))
    lengths = pace(lambda _: 0.0001)
    assert MOST_POINTS == lengths[-1]
    assert all(after <= 2 * before for before, after in pairwise(lengths))


def test_a_pause_costs_a_few_short_windows_and_slow_steps_make_them_short_soon():
    """After a worker that was slow, or a collection of garbage, all is as before. Steps that become slower are noticed
    at the next edge, and to the full after three.
    """
    lengths = pace(lambda point: 0.5 if point == 200 else 0.001)
    assert min(lengths[7:]) >= MOST_POINTS // 4
    assert MOST_POINTS == lengths[-1]
    lengths = pace(lambda point: 0.001 if point < 300 else 1.0, points=600)
    assert [1] * 50 == lengths[-50:]


def test_what_is_not_said_now_can_happen_after_the_next_window():
    """`ahead_s` is the time until then, for a deadline that rank 0 alone watches."""
    clock = Clock()
    windows = one_rank(clock=clock)
    for _ in range(50):
        clock.now += 1.0
        windows.count_safe_point()
        if windows.leading:
            assert 2.0 == windows.order_delay_s
            windows.announce_order()


def test_words_do_not_pile_up(monkeypatch):
    """A run of many days leaves rank 0 with no more than a few thousand of them."""
    monkeypatch.setattr(room, "SWEEP", 10)
    shared = Shared()
    pair = ranks(2)
    for mine in pair:
        mine._channel = shared
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda mine: walk(mine, 3000, lambda _: None), pair))
    assert len(shared.values) < 40


def test_nothing_is_forgotten_that_a_slow_rank_has_not_heard(monkeypatch):
    """A rank that is paused between its words loses none of rank 0's."""
    monkeypatch.setattr(room, "SWEEP", 5)

    def work(mine):
        gather = mine.gather
        if mine.rank:
            mine.gather = lambda *word: (gather(*word), time.sleep(0.05))
        return walk(mine, 20, lambda _: time.sleep(0.001))

    assert [{}, {}] == everywhere(2, work, timeout_s=2.0)


def test_between_edges_nothing_is_asked():
    """Most safe points cost a comparison."""
    clock = Clock()
    windows = one_rank(clock=clock)
    asked = []
    windows._words.announce = lambda *word: asked.append(word)
    for _ in range(5000):
        clock.now += 1e-5
        assert NOTHING.stop == windows.count_safe_point().stop
        if windows.leading:
            windows.announce_order()
    assert len(asked) < 5000 / MOST_POINTS + 20
