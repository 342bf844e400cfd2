"""Retention keeps what its rule says, and never loses what must stay."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.retention import CheckpointFacts, beats, keep
from holdfast.rules import AnyOf, Best, Every, Last, Within

VALUES = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 0.5, 1.0])


def facts(step, phase="step", *, epoch=None, created=None, size_bytes=1, pinned=False, finite=True, **metrics):
    name = f"step-{step:09d}" + ("-end" if phase == "end" else "")
    created = float(step if created is None else created)
    return CheckpointFacts(name, step, phase, epoch, created, metrics, size_bytes, pinned, finite)


@st.composite
def checkpoints(draw):
    places = draw(st.sets(st.tuples(st.integers(0, 60), st.sampled_from(["step", "end"])), max_size=8))
    return [
        facts(
            step,
            phase,
            epoch=draw(st.none() | st.integers(0, 10)),
            created=draw(st.floats(1.6e9, 1.8e9)),
            size_bytes=draw(st.integers(0, 10)),
            pinned=draw(st.booleans()),
            finite=draw(st.booleans()),
            **draw(st.dictionaries(st.sampled_from(["acc", "loss"]), VALUES)),
        )
        for step, phase in draw(st.permutations(sorted(places)))
    ]


SINGLE = st.one_of(
    st.builds(Last, st.integers(1, 15)),
    st.builds(Best, st.sampled_from(["acc", "loss", "none"]), st.sampled_from([max, min]), st.integers(1, 15)),
    st.builds(Every, steps=st.integers(1, 30)),
    st.builds(Every, minutes=st.floats(0.1, 1e6)),
    st.builds(Every, epochs=st.integers(1, 5)),
    st.builds(Within, bytes=st.integers(1, 60)),
)
RULES = SINGLE | st.builds(lambda a, b: a | b, SINGLE, SINGLE) | st.just(AnyOf(()))


def newest(all_of_them):
    return max(all_of_them, key=lambda each: (each.step, each.phase == "step" and -1)).name


def newest_finite(all_of_them):
    finite = [each for each in all_of_them if each.finite]
    return {newest(finite)} if finite else set()


@given(checkpoints(), RULES, RULES, st.randoms())
def test_what_is_kept_is_what_the_rule_says_and_never_less_than_must_stay(all_of_them, rule, other, random):
    """The newest, the newest with finite weights and the pinned stay whatever the rule; `a | b` keeps the union.

    The order of a listing does not matter, and a rule agrees with itself on what it has left.
    """
    kept = keep(all_of_them, rule)
    assert {each.name for each in all_of_them if each.pinned} <= kept
    assert not all_of_them or newest(all_of_them) in kept
    assert newest_finite(all_of_them) <= kept
    assert kept <= {each.name for each in all_of_them}
    assert kept | keep(all_of_them, other) == keep(all_of_them, rule | other)
    assert kept == keep(random.sample(all_of_them, len(all_of_them)), rule)
    assert kept == keep([each for each in all_of_them if each.name in kept], rule)


@given(checkpoints(), st.integers(1, 12), st.integers(0, 12), st.sampled_from([max, min]))
def test_a_larger_rule_keeps_at_least_as_much(all_of_them, n, more, direction):
    """`Last`, `Best` and `Within` are monotone in their number; `Every` in its multiples."""
    assert keep(all_of_them, Last(n)) <= keep(all_of_them, Last(n + more))
    assert keep(all_of_them, Best("acc", direction, n)) <= keep(all_of_them, Best("acc", direction, n + more))
    assert keep(all_of_them, Within(bytes=n)) <= keep(all_of_them, Within(bytes=n + more))
    assert keep(all_of_them, Every(steps=n * (more + 1))) <= keep(all_of_them, Every(steps=n))


@given(checkpoints(), SINGLE.filter(lambda rule: not isinstance(rule, Within)))
def test_pruning_after_every_save_ends_where_pruning_once_at_the_end_does(all_of_them, rule):
    """What the rule wants at the end has not been pruned on the way."""
    ordered = sorted(all_of_them, key=lambda each: (each.step, each.phase == "end"))
    present = []
    for each in ordered:
        present.append(each)
        kept = keep(present, rule)
        present = [one for one in present if one.name in kept]
    assert keep(ordered, rule) <= {each.name for each in present}


@given(checkpoints(), VALUES, st.builds(Best, st.just("acc"), st.sampled_from([max, min]), st.integers(1, 4)))
@example([facts(1, acc=0.5)], 0.5, Best("acc", max))
@example([], math.inf, Best("acc", max))
@example([facts(1, acc=math.inf)], 0.5, Best("acc", max))
@example([facts(1, acc=math.nan)], math.nan, Best("acc", min))
@example([], math.nan, Best("acc", min))
def test_a_value_beats_exactly_when_its_checkpoint_would_be_kept(all_of_them, value, rule):
    """`beats` forces a save of those that `keep` would keep for being best, and of no others."""
    unpinned = [each._replace(pinned=False) for each in all_of_them]
    later = facts(1000)  # the newest stays anyway, so the candidate must not be it
    candidate = facts(999, acc=value, finite=False)  # nor would it be the newest with finite weights
    assert beats(value, rule, unpinned) == (candidate.name in keep([*unpinned, candidate, later], rule))


def test_of_equals_the_older_is_best():
    """The older one earned it first; a tie is no new best."""
    both = [facts(1, acc=0.5), facts(2, acc=0.5), facts(3)]
    assert {"step-000000001", "step-000000003"} == keep(both, Best("acc", max))
    assert not beats(0.5, Best("acc", max), both)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("direction", [max, min])
def test_what_is_not_finite_is_never_best(value, direction):
    """A run that has diverged does not push out the good weights."""
    diverged = [facts(1, loss=0.5), facts(2, loss=value), facts(3)]
    assert {"step-000000001", "step-000000003"} == keep(diverged, Best("loss", direction, n=2))
    assert not beats(value, Best("loss", direction), [])


def test_the_newest_whose_weights_are_finite_stays_beside_any_number_of_others():
    """Of those with finite weights only the newest; the rule counts as if it were not so."""
    saved = [facts(1), facts(2), *(facts(step, finite=False) for step in (3, 4, 5, 6))]
    assert {"step-000000002", "step-000000005", "step-000000006"} == keep(saved, Last(2))
    assert {"step-000000006"} == keep(saved[2:], Last(1))
    assert {"step-000000006", "step-000000007"} == keep([*saved, facts(7)], Last(2))


def test_every_keeps_the_first_of_each_group():
    """The first checkpoint at or past each multiple stays, also when none lies exactly on it."""
    saved = [facts(step) for step in (0, 400, 900, 1100, 1900, 2000, 2500, 2600)]
    expected = {f"step-{step:09d}" for step in (0, 1100, 2000, 2600)}
    assert expected == keep(saved, Every(steps=1000))


def test_every_few_epochs_counts_those_that_are_done():
    """The end of epoch 1 (counted from 0) is the first moment at which two epochs are done."""
    saved = [facts(10 * (epoch + 1), "end", epoch=epoch) for epoch in range(5)]
    assert {f"step-{step:09d}-end" for step in (10, 20, 40, 50)} == keep(saved, Every(epochs=2))


def test_every_few_minutes_goes_by_the_time_of_the_commit():
    """One checkpoint of each half hour stays."""
    saved = [facts(minute, created=1_700_000_100 + 60 * minute) for minute in range(0, 100, 10)]
    kept = keep(saved, Every(minutes=30))
    assert {f"step-{step:09d}" for step in (0, 20, 50, 80, 90)} == kept


def test_within_stops_at_the_first_that_does_not_fit():
    """Newest first, without gaps; and the newest stays even when it alone is too big."""
    saved = [facts(1, size_bytes=1), facts(2, size_bytes=50), facts(3, size_bytes=5), facts(4, size_bytes=5)]
    assert {"step-000000003", "step-000000004"} == keep(saved, Within(bytes=12))
    assert {"step-000000004"} == keep(saved, Within(bytes=1))
