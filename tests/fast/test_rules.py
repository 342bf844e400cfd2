"""Rules are plain values, and `--keep` reads them back from text without running it."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.keep import parse_keep
from holdfast.errors import UsageError
from holdfast.rules import AnyOf, Best, Every, Last, Within, parts, rule_text

WHOLE = st.integers(1, 10**6)
SINGLE = st.one_of(
    st.builds(Last, WHOLE),
    st.builds(Best, st.text("abc_/'\"\\ é", min_size=1), st.sampled_from([max, min]), WHOLE),
    st.builds(Every, steps=WHOLE),
    st.builds(Every, minutes=st.floats(0.1, 1e6)),
    st.builds(Every, epochs=WHOLE),
    st.builds(Within, bytes=st.floats(1, 1e15) | WHOLE),
)


@given(st.lists(SINGLE, min_size=1, max_size=6))
def test_a_written_rule_reads_back_as_itself(rules):
    """`--keep` understands whatever can be said in Python, and means the same by it."""
    joined = rules[0]
    for rule in rules[1:]:
        joined = joined | rule
    assert parts(joined) == parts(parse_keep(rule_text(joined)))


PLAIN = {  # as on a command line -> the rule
    "last=3": Last(3),
    "best=val_acc:max": Best("val_acc", max),
    "best=loss:min:2": Best("loss", min, 2),
    "every=1000steps": Every(steps=1000),
    "every=2.5minutes": Every(minutes=2.5),
    "every=5epochs": Every(epochs=5),
    "within=5e9": Within(bytes=5e9),
}


@given(st.lists(st.sampled_from([*PLAIN]), min_size=1, max_size=6))
def test_a_rule_that_no_shell_changes_reads_as_the_one_in_python(words):
    """Joined by commas; no character in it means anything to a shell."""
    text = ",".join(words)
    assert shlex.quote(text).strip("'") == text
    assert tuple(PLAIN[word] for word in words) == parts(parse_keep(text))


def test_joining_is_flat_and_keeps_the_order():
    """`a | (b | c)` and `(a | b) | c` are the same value."""
    a, b, c = Last(3), Best("loss", min), Every(steps=10)
    assert AnyOf((a, b, c)) == a | b | c == a | (b | c)


NO_RULES = [
    "last=0",
    "last=three",
    "last=3,",
    "last=3,forever=1",
    "last=3, Best('acc', max)",
    "best=acc",
    "best=acc:sorted",
    "best=acc:max:2:3",
    "every=5",
    "every=1.5steps",
    "every=1.2.3minutes",
    "every=5hours",
    "within=-1",
    "within=much",
    "",
    "Last",
    "Last()",
    "Last(0)",
    "Last(-1)",
    "Last(2.5)",
    "Last('3')",
    "Last(True)",
    "Last(3) & Last(4)",
    "Last(3) |",
    "Last(3) | 4",
    "Last(n=3, n=4)",
    "Last(**{'n': 3})",
    "Last(*[3])",
    "Best('acc')",
    "Best('acc', sorted)",
    "Best('acc', 'max')",
    "Best(3, max)",
    "Best('', max)",
    "Every()",
    "Every(5)x",
    "Every(steps=1, epochs=1)",
    "Every(steps=1.5)",
    "Every(hours=1)",
    "Within(bytes='5GB')",
    "Within(bytes=-1)",
    "Forever()",
    "__import__('os').abort()",
    "Last(__import__('os').abort())",
    "(lambda: Last(3))()",
    "Last(3)\x00",
    "(" * 500,
    "Last(3)|" * 400 + "Last(3)",
    "Last(3)" + " " * 2000 + "| Last(4)",
    "-" * 5000 + "1",
]


def test_what_is_no_rule_is_refused_with_the_accepted_forms():
    """One clear error for whatever else is written, and nothing of it is run."""
    for text in NO_RULES:
        with pytest.raises(UsageError, match=r"Best\('val_acc', max\)") as refused:
            pytest.fail(f"{text!r} is read as {parse_keep(text)}")
        assert "\n" not in str(refused.value)


def test_a_rule_that_means_nothing_is_refused_where_it_is_written():
    """A mistake in a rule surfaces before the first step, not at the first prune."""
    for make in (
        lambda: Last(0),
        lambda: Last("3"),
        lambda: Last(1.5),
        lambda: Best("acc", sum),
        lambda: Best("acc", max, n=0),
        lambda: Best(None, max),
        Every,
        lambda: Every(steps=1, minutes=1),
        lambda: Every(minutes=float("nan")),
        lambda: Within(bytes=0),
    ):
        with pytest.raises(UsageError):
            pytest.fail(f"taken for {make()}")


def test_a_rule_joins_only_rules():
    """`Last(3) | 4` is a TypeError, as between any two types that do not fit."""
    with pytest.raises(TypeError):
        Last(3) | 4
