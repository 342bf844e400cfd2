"""Saves come when they are due, once; a deadline leaves time for the last one."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.interval import SafePointMark, must_stop, save_is_due
from holdfast.rules import Every

START = SafePointMark(step=0, epoch=0, seconds=0.0, at_end=False)


def safe_points(epochs, steps_per_epoch, step_s=1.0):
    """Every safe point of a run: one after each step, one more after each epoch's body."""
    step, seconds = 0, 0.0
    for epoch in range(epochs):
        for _ in range(steps_per_epoch):
            step, seconds = step + 1, seconds + step_s
            yield SafePointMark(step, epoch, seconds, at_end=False)
        yield SafePointMark(step, epoch, seconds, at_end=True)


def saves(every, marks, forced=()):
    """Where a run saves that asks `due` at each of `marks`, and saves at the `forced` ones besides."""
    last, found = START, []
    for mark in marks:
        is_due = save_is_due(every, last=last, now=mark)
        if is_due:
            found.append(mark)
        if is_due or mark in forced:
            last = mark
    return found


def test_nothing_is_due_without_an_interval():
    """`every=None` saves only when something else asks for it."""
    assert [] == saves(None, safe_points(3, 5))


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 9), st.data())
def test_every_n_steps_saves_at_each_multiple_once(n, epochs, steps_per_epoch, data):
    """Saves forced in between move nothing, and the end of an epoch does not save its last step twice."""
    marks = list(safe_points(epochs, steps_per_epoch))
    off_the_multiples = [mark for mark in marks if mark.step % n]
    forced = data.draw(st.sets(st.sampled_from(off_the_multiples))) if off_the_multiples else ()
    expected = [step for step in range(1, epochs * steps_per_epoch + 1) if step % n == 0]
    assert expected == [mark.step for mark in saves(Every(steps=n), marks, forced)]


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 4), st.data())
def test_every_n_epochs_saves_at_the_end_of_each_nth_once(n, epochs, steps_per_epoch, data):
    """`Every(epochs=2)` saves at the end of epochs 1, 3, 5 (counted from 0), wherever else the run has saved."""
    marks = list(safe_points(epochs, steps_per_epoch))
    forced = data.draw(st.sets(st.sampled_from(marks)))
    found = saves(Every(epochs=n), marks, forced)
    assert [epoch for epoch in range(epochs) if (epoch + 1) % n == 0] == [mark.epoch for mark in found]
    assert all(mark.at_end for mark in found)


@given(st.floats(0.05, 2.0), st.floats(0.5, 30.0))
def test_every_few_minutes_waits_that_long_since_the_last_save(minutes, step_s):
    """No two saves closer than the interval, and none later than the interval and one step."""
    marks = list(safe_points(2, 60, step_s))
    times = [0.0, *(mark.seconds for mark in saves(Every(minutes=minutes), marks))]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert all(60 * minutes <= gap <= 60 * minutes + step_s + 1e-6 for gap in gaps)


def test_a_multiple_that_was_jumped_over_is_due_at_the_next_safe_point():
    """With accumulated groups or steps of another size, the first safe point past a multiple saves."""
    assert save_is_due(Every(steps=10), last=START._replace(step=9), now=START._replace(step=12))
    assert not save_is_due(Every(steps=10), last=START._replace(step=12), now=START._replace(step=19))


@given(st.floats(0, 1e4), st.floats(0, 1e3), st.floats(0, 1e3))
def test_a_run_that_was_not_told_to_stop_has_time_for_a_step_and_a_save(remaining, save_s, step_s):
    """If the answer is no, one more step and then the save still end before the deadline, with a margin."""
    now = 1e5
    if must_stop(now, now + remaining, save_s, step_s):
        assert remaining < 1.5 * save_s + step_s + 1 + 1e-6
    else:
        assert remaining >= save_s + step_s + 0.99


def test_a_deadline_that_has_passed_stops_and_no_deadline_never_does():
    """Infinity is the deadline of a run that has none."""
    assert must_stop(10.0, 9.0, 0.0, 0.0)
    assert not must_stop(10.0, float("inf"), 1e6, 1e6)
