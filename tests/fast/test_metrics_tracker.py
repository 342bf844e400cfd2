"""Metrics of many ranks, and the timer: each number counts once, on one process and on several."""

import json
import math
import time

import pytest
import torch

from holdfast import Every, Run
from holdfast.errors import UsageError
from holdfast.torch.metrics import MetricsTracker
from holdfast.torch.timing import TimestampedTimer


def test_a_step_is_local_and_an_epoch_is_agg():
    """Sums of the step since reset_local, of the epoch since end_epoch; what was never updated is 0."""
    metrics, locals_ = MetricsTracker(), []
    for epoch in range(2):
        for step in range(3):
            metrics.update({"seen": 4, "loss": step + epoch}).reduce()
            locals_.append(dict(metrics.local))
            metrics.reset_local()
        assert dict(metrics.agg) == {"seen": 12.0, "loss": 3.0 + 3 * epoch}
        metrics.end_epoch()
    assert locals_[:3] == [{"seen": 4.0, "loss": float(step)} for step in range(3)]
    assert metrics.epoch_reports == [{"seen": 12.0, "loss": 3.0}, {"seen": 12.0, "loss": 6.0}]
    assert (metrics.local["seen"], metrics.agg["never"]) == (0.0, 0.0)


def test_a_mean_counts_each_value_with_its_weight():
    """A short last batch does not count as much as a whole one."""
    metrics = MetricsTracker()
    metrics.update({"loss": 1.0}, weight=30).reduce().reset_local()
    metrics.update({"loss": 4.0}, weight=10).update({"seen": 10}).reduce()
    assert dict(metrics.local) == {"loss": 4.0, "seen": 10.0}
    assert dict(metrics.agg) == {"loss": 1.75, "seen": 10.0}
    metrics.update({"loss": 9.0}, weight=0).reduce()
    assert metrics.agg["loss"] == 1.75
    nothing = MetricsTracker().update({"loss": 9.0}, weight=0).reduce()
    assert math.isnan(nothing.local["loss"])


def test_nothing_is_added_twice():
    """Reducing again, or without a reset in between, counts what is new and no more."""
    metrics = MetricsTracker()
    metrics.update({"seen": 1}).reduce().reduce()
    metrics.update({"seen": 10}).reduce()
    assert (metrics.local["seen"], metrics.agg["seen"]) == (11.0, 11.0)


def test_what_was_not_reduced_is_not_left_out_silently():
    """An epoch ends with all that was counted in it, or says what is missing."""
    metrics = MetricsTracker().update({"seen": 1, "loss": 2})
    assert (metrics.local["seen"], metrics.agg["seen"]) == (1.0, 0.0)
    with pytest.raises(UsageError, match=r"loss, seen was updated and not reduced: call reduce\(\)"):
        metrics.end_epoch()
    metrics.reset_local().end_epoch()
    assert metrics.epoch_reports == [{}]


def test_tensors_count_as_their_values():
    """Of any type and shape of one number; those that require gradients keep no graph; a double is kept whole."""
    weights = torch.tensor(2, dtype=torch.int32)
    parameter = torch.nn.Parameter(torch.tensor([0.5]))
    metrics = MetricsTracker()
    metrics.update({"loss": parameter.sum(), "half": torch.tensor([[0.25]], dtype=torch.bfloat16)}, weight=weights)
    metrics.update({"big": 2**53 - 1}).update({"big": torch.tensor(1)}).reduce()
    assert dict(metrics.local) == {"loss": 0.5, "half": 0.25, "big": float(2**53)}


def test_what_is_not_one_number_is_refused():
    """With its name; and a metric is a sum or a mean, not now this, now that."""
    metrics = MetricsTracker().update({"seen": 1}).update({"loss": 1}, weight=1)
    for value, why in (("x", "is a str"), (torch.zeros(2), r"of shape \(2,\)"), (None, "is a NoneType")):
        with pytest.raises(UsageError, match=f"metric 'bad' {why}|metric 'bad' is a tensor {why}"):
            metrics.update({"bad": value})
    with pytest.raises(UsageError, match="metric 'seen' is a sum: it cannot be a mean as well"):
        metrics.update({"seen": 1}, weight=2)
    with pytest.raises(UsageError, match="metric 'loss' is a mean: it cannot be a sum as well"):
        metrics.reduce().reset_local().update({"loss": 1})


def test_what_is_handed_out_is_no_way_in():
    """Mappings and states that somebody keeps or changes do not change the metrics."""
    metrics = MetricsTracker().update({"seen": 1}).reduce()
    state = metrics.state_dict()
    state["agg"]["seen"] = 7.0
    kept = metrics.local
    metrics.update({"seen": 1}).reduce()
    assert (kept["seen"], metrics.agg["seen"]) == (1.0, 2.0)
    with pytest.raises(TypeError):
        metrics.local["seen"] = 3  # type: ignore[index]
    other = MetricsTracker().load_state_dict(metrics.end_epoch().state_dict())
    other.end_epoch()
    assert (metrics.epoch_reports, other.epoch_reports) == ([{"seen": 2.0}], [{"seen": 2.0}, {}])


def test_a_state_goes_on_where_it_was():
    """Sums and means of half an epoch; a state of nothing but sums, as others write it, too."""
    metrics = MetricsTracker()
    metrics.update({"seen": 3}).update({"loss": 1.0}, weight=3).reduce().reset_local()
    state = json.loads(json.dumps(metrics.state_dict()))
    metrics = MetricsTracker().load_state_dict(state)
    metrics.update({"seen": 1}).update({"loss": 5.0}, weight=1).reduce().end_epoch()
    assert metrics.epoch_reports == [{"seen": 4.0, "loss": 2.0}]
    old = MetricsTracker().load_state_dict({"epoch_reports": [{"a": 1.0}], "agg": {"b": 2.0}})
    assert (old.epoch_reports, dict(old.agg)) == ([{"a": 1.0}], {"b": 2.0})


def test_a_run_restores_them(tmp_path):
    """Tracked like anything else, cut in the middle of an epoch."""

    def train(path, cut=None):
        metrics, timer = MetricsTracker(), TimestampedTimer(tell=lambda line: None, running=5.0)
        state = {"metrics": metrics, "timer": timer}
        with Run(path, state, every=Every(steps=1), background=False, take_over=True) as run:
            for _ in run.epochs(2):
                for batch in run.batches([1, 2, 3]):
                    metrics.update({"sum": batch}).update({"mean": batch}, weight=batch).reduce()
                    run.log(**metrics.local)
                    metrics.reset_local()
                    if run.step == cut:
                        raise KeyboardInterrupt
                metrics.end_epoch()
        return metrics.epoch_reports, [line["values"] for line in run.metrics()], timer.running

    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", 4)
    assert train(tmp_path / "cut") == whole
    assert whole[0] == [{"sum": 6.0, "mean": 14 / 6}] * 2


# The timer ------------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self, monkeypatch):
        self.seconds, self.wall = 100.0, 1_700_000_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(time, "time", lambda: self.wall)

    def passes(self, seconds, *, set_back=0.0):
        self.seconds += seconds
        self.wall += seconds - set_back


def test_the_timer_says_each_part_and_the_total(monkeypatch):
    """Whoever sets the wall's clock meanwhile changes neither."""
    clock, said = Clock(monkeypatch), []
    timer = TimestampedTimer(tell=said.append)
    clock.passes(2, set_back=3600)
    assert timer.report("loading") == 2.0
    clock.passes(1234.5)
    assert timer.report("an epoch") == 1234.5
    parts = [line[line.index("]") + 2 :].split("  ") for line in said]
    found = [[part.strip() for part in line if part] for line in parts]
    assert found == [
        ["Start", "0.000 ms,", "0.00 s total"],
        ["loading", "2,000.000 ms,", "2.00 s total"],
        ["an epoch", "1,234,500.000 ms,", "1,236.50 s total"],
    ]


def test_the_timer_goes_on_from_what_it_is_given(monkeypatch):
    """A start in the past, seconds spent before, a state."""
    clock = Clock(monkeypatch)
    timer = TimestampedTimer("again", start_time=clock.wall - 3, running=7, tell=lambda line: None)
    clock.passes(1)
    assert (timer.report("import"), timer.running) == (4.0, 11.0)
    other = TimestampedTimer(tell=lambda line: None)
    other.load_state_dict(timer.state_dict())
    clock.passes(1)
    other.report("x")
    assert other.running == 12.0


def test_only_rank_0_speaks(monkeypatch, capsys):
    """The others measure in silence."""
    for rank, lines in (("0", 2), ("1", 0)):
        monkeypatch.setenv("RANK", rank)
        TimestampedTimer().report("x")
        assert len(capsys.readouterr().err.splitlines()) == lines
