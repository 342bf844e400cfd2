"""Waits for threads: whatever Ctrl-C does to the one who waits, nobody waits for ever."""

import itertools
import threading
import time

import pytest

from holdfast import threads as room
from holdfast.threads import Condition, Latch, Worker, WorkerGroup, WorkerPool, map_in_threads
from strikes import strike

WAIT_S = 60  # also on a busy machine: what takes longer hangs


@pytest.fixture
def _soon(monkeypatch):
    """Who lost a word looks soon."""
    for name in ("LOOK_S", "SEEN_S"):
        monkeypatch.setattr(room, name, 0.005)


def ends(work, limit_s=WAIT_S):
    """Whether another thread can do it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(limit_s)
    return not thread.is_alive()


# Ctrl-C ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_soon")
def test_ctrl_c_anywhere_in_a_wait_breaks_a_latch_for_nobody():
    """Who sets it is not kept, and who waits, then or before, hears of it."""
    for nth in itertools.count():
        latch = Latch()
        other = threading.Thread(target=latch.wait, daemon=True)
        other.start()
        struck = strike(nth, lambda latch=latch: latch.wait(0.001))
        assert ends(latch.set), nth
        assert latch.wait(WAIT_S), nth
        other.join(WAIT_S)
        assert not other.is_alive(), nth
        if not struck:
            break
    assert nth > 10


def test_the_same_breaks_an_event():
    """Else the law above would have found nothing."""
    for nth in range(99):
        event = threading.Event()
        strike(nth, lambda event=event: event.wait(0.001))
        if not ends(event.set, 0.05) and not ends(event.set, 0.5):  # nor on a busy machine
            vars(event)["_cond"].release()  # else the threads stay
            return
    pytest.fail("no Event was broken")


@pytest.mark.usefixtures("_soon")
def test_ctrl_c_anywhere_in_setting_leaves_it_set_for_all_or_for_nobody():
    """And a second word is heard."""
    for nth in itertools.count():
        latch = Latch()
        other = threading.Thread(target=latch.wait, daemon=True)
        other.start()
        struck = strike(nth, latch.set)
        if not latch.is_set():
            assert struck
            latch.set()
        other.join(WAIT_S)
        assert not other.is_alive(), nth
        if not struck:
            break
    assert nth > 3


# Threads ---------------------------------------------------------------------------------------------------------


def test_a_latch_wakes_all_who_wait(monkeypatch):
    """At once, not at their next look, which here never comes."""
    monkeypatch.setattr(room, "LOOK_S", 10 * WAIT_S)
    latch, found = Latch(), []
    threads = [threading.Thread(target=lambda: found.append(latch.wait(10 * WAIT_S)), daemon=True) for _ in range(5)]
    for thread in threads:
        thread.start()
    latch.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert [True] * 5 == found


def test_a_wait_that_is_not_over_in_time_says_so():
    """In time, and not much later."""
    began = time.monotonic()
    assert not Latch().wait(0.05)
    assert 0.05 <= time.monotonic() - began < WAIT_S / 2


def test_a_word_that_woke_nobody_is_found(monkeypatch):
    """By the next look: the flag is the truth."""
    latch = Latch()
    monkeypatch.setattr(Condition, "notify_all", lambda _: None)
    threading.Timer(0.05, latch.set).start()
    assert latch.wait(WAIT_S)


def test_work_that_was_withdrawn_is_never_begun():
    """Nor is it waited for, whether its thread was started or not."""
    done = []
    for started in (False, True):
        one = Worker(lambda: done.append(1), "one")
        one.withdraw()
        if started:
            one.start()
        one.wait()
        assert one.is_withdrawn
    assert [] == done


def test_a_thread_that_came_too_late_to_begin_is_gone_too(monkeypatch):
    """Who counts threads afterwards, or forks, does not find it."""
    before, one = threading.active_count(), Worker(list, "late")
    monkeypatch.setattr(one._seen, "wait", lambda _: time.sleep(0.05))
    one.start()
    one.dismiss()
    assert one.is_withdrawn
    assert before == threading.active_count()


def test_who_is_dismissed_has_ended():
    """And the one whose thread was never started never begins."""
    crew, go, done = WorkerGroup(), Latch(), []

    def work():
        go.wait(WAIT_S)
        done.append(crew.dismissed)

    at_work = lambda: crew.is_busy
    assert crew.start_worker(work)
    while not at_work():
        pass
    threading.Timer(0.05, go.set).start()
    crew.dismiss()
    assert not at_work()
    assert done in ([True], [])


def test_side_by_side_gives_what_came_of_each_in_order(monkeypatch):
    """Also without a thread; of several errors, that of the first item."""
    assert [0, -1, -2, -3] == map_in_threads(lambda item: -item, range(4), 3)

    def refused(_):
        raise RuntimeError("can't start new thread")

    def fails(item):
        raise KeyError(item)

    with pytest.raises(KeyError, match="0"):
        map_in_threads(fails, [0, 1], 2)
    monkeypatch.setattr(threading.Thread, "start", refused)
    assert [0, -1, -2, -3] == map_in_threads(lambda item: -item, range(4), 3)


def test_a_pool_does_several_at_a_time_and_no_more():
    """In as many threads as it was told, which are gone when it is closed; what one raises is raised."""
    before, together, pool = {*threading.enumerate()}, threading.Barrier(2), WorkerPool(2)
    assert pool.start_thread()
    for _ in range(4):
        pool.submit(lambda: together.wait(WAIT_S))
    assert [0, 0, 1, 1] == sorted(pool.results(everything=True))
    assert 2 == len({*threading.enumerate()} - before)  # a thread of another test may end meanwhile
    pool.submit(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        list(pool.results())
    pool.close()
    assert {*threading.enumerate()} <= before
