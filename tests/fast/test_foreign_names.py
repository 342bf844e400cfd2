"""Foreign names: an adapter refuses a framework that it cannot wrap, and tells of one whose functions have changed."""

import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

from holdfast import Run
from holdfast.errors import UsageError
from holdfast.trainers import names
from holdfast.trainers.names import ForeignName, require, why_not_wrapped
from holdfast.trainers.training import RunOptions
from sample import drawn


class Engine:
    """What a framework calls its loop."""

    def advance(self, batch, *, index=0):
        """Take a step."""
        return batch, index  # a comment

    @property
    def done(self):
        return True


@pytest.fixture
def module(monkeypatch):
    made: Any = ModuleType("made_up")
    made.Engine = type("Engine", (), dict(vars(Engine)))
    monkeypatch.setitem(sys.modules, "made_up", made)
    return made


ADVANCE = ForeignName(
    "made_up:Engine.advance", ("self", "batch", "index"), frozenset({names.source_digest(Engine.advance)})
)


def test_a_known_name_is_accepted(module):
    assert not require(
        "made_up", [ADVANCE, ForeignName("made_up:Engine"), ForeignName("made_up:Engine.done", ("self",))]
    )
    module.__version__ = "2.7.0"
    assert require("made_up", [ADVANCE]) is None


def test_a_name_that_differs_is_refused_with_one_line_that_names_it(module):
    def more(self, batch, index, gradient):
        return batch

    for change, why in (
        (lambda: setattr(module.Engine, "advance", more), "takes (self, batch, index, gradient) and not"),
        (lambda: delattr(module.Engine, "advance"), "does not exist"),
        (lambda: sys.modules.pop("made_up"), "does not exist"),
    ):
        change()
        with pytest.raises(UsageError, match=r"made_up:Engine[.]advance") as refused:
            require("made_up", [ADVANCE])
        assert why in str(refused.value)
        assert "\n" not in str(refused.value)


def test_another_body_is_told_and_no_refusal(module):
    """With the version, and the names of what has changed; the digest is one of this version and these bodies."""

    def other(self, batch, *, index=0):
        return index, batch

    def another(self, batch, *, index=0):
        return batch, index + 1

    module.__version__ = "2.7.0"
    found = set()
    for body in (other, another):
        module.Engine.advance = body
        untried = require("made_up", [ADVANCE, ForeignName("made_up:Engine")])
        assert untried == require("made_up", [ADVANCE])
        assert (untried.kind, untried.changed) == ("made_up 2.7.0", "Engine.advance has changed")
        found.add(untried.code)
    module.__version__ = "2.7.1"
    found.add(require("made_up", [ADVANCE]).code)
    assert [len(code) for code in found] == [32] * 3
    done = ForeignName("made_up:Engine.done", ("self",), frozenset({"0" * 16}))
    assert require("made_up", [ADVANCE, done]).changed == "Engine.advance and Engine.done have changed"
    assert require("made_up", [ADVANCE, done]).code not in found


def test_comments_docstrings_and_layout_are_no_change_of_a_source():
    class Twin:
        def advance(self, batch, *, index=0):
            return (
                batch,
                index,
            )

    assert names.source_digest(Twin.advance) == names.source_digest(Engine.advance)


def test_a_wrapped_function_counts_as_itself(module):
    assert why_not_wrapped(ForeignName("made_up:Engine.done", ("self", "more"))) == "takes (self) and not (self, more)"


def test_a_callback_takes_each_option_of_a_run():
    assert {"path", "state", "finished", *RunOptions.__annotations__} == set(inspect.signature(Run).parameters)


def test_a_sample_has_one_case_of_each_law():
    """The same for the same word; in the end another word draws each."""
    cases = [
        "test_a.py::test_fits[tf]",
        "test_a.py::test_fits[jax]",
        "test_a.py::test_fits_all",
        "test_b.py::test_fits[tf]",
    ]
    samples = [drawn(cases, word) for word in range(20)]
    assert {len(sample) for sample in samples} == {3}
    assert set().union(*samples) == set(cases)
    assert drawn(reversed(cases), 3) == samples[3]
