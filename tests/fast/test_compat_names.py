"""cycling_utils' names: signatures, samplers, metrics and timer as scripts know them, and the faults that are gone."""

import inspect
import pickle
import time

import pytest
import torch
from torch.utils.data import TensorDataset

from holdfast.compat import cycling_utils
from holdfast.compat.cycling_utils import (
    AdvancedTooFarError,
    HasNotResetProgressError,
    InterruptableDistributedGroupedBatchSampler,
    InterruptableDistributedSampler,
    InterruptableSampler,
    MetricsTracker,
    TimestampedTimer,
    atomic_torch_save,
)
from holdfast.errors import Mismatch
from holdfast.torch.sharded import IMG_EXTENSIONS, pil_loader

SAMPLER = {"num_replicas": None, "rank": None, "shuffle": True, "seed": 0, "drop_last": False}
NEEDED = inspect.Parameter.empty
GROUPED = "InterruptableDistributedGroupedBatchSampler"
PLAIN = {"dataset": NEEDED, **SAMPLER}
SIGNATURES = {  # source: cycling_utils, November 2025; each may go on with options of our own
    **dict.fromkeys(("InterruptableDistributedSampler", "InterruptableSampler", "InterruptibleSampler"), PLAIN),
    GROUPED: {
        "dataset": NEEDED,
        "group_ids": NEEDED,
        "batch_size": NEEDED,
        **SAMPLER,
    },
    "DistributedShardedDataset": {
        "root": NEEDED,
        "rank": None,  # needed, in the original; so are the next two
        "world_size": None,
        "samples_pct_per_replica": None,
        "device_id": None,
        "seed": 0,
        "shuffle": True,
        "loader": pil_loader,
        "extensions": IMG_EXTENSIONS,
        "sample_load_transform": None,
        "target_load_transform": None,
        "sample_getitem_transform": None,
        "target_getitem_transform": None,
        "is_valid_file": None,
    },
    "AtomicDirectory": {
        "output_directory": NEEDED,
        "is_master": False,
        "name": "AtomicDirectory",
        "keep_last": -1,
        "strategy": "sync_any",
        "device": "cuda",
    },
    "AtomicDirectory.is_checkpoint_directory": {"self": NEEDED, "path_str": NEEDED},
    "AtomicDirectory.prepare_checkpoint_directory": {"self": NEEDED, "force_save": False},
    "AtomicDirectory.symlink_latest": {"self": NEEDED, "checkpoint_directory": NEEDED},
    "AtomicDirectory.atomic_symlink": {"self": NEEDED, "checkpoint_directory": NEEDED},
    "atomic_torch_save": {"obj": NEEDED, "f": NEEDED, "kwargs": NEEDED},
    "MetricsTracker": {},
    "MetricsTracker.update": {"self": NEEDED, "metrics": NEEDED},
    "MetricsTracker.reduce": {"self": NEEDED},
    "MetricsTracker.reset_local": {"self": NEEDED},
    "MetricsTracker.end_epoch": {"self": NEEDED},
    "TimestampedTimer": {"report": None, "start_time": None, "running": 0},
    "TimestampedTimer.report": {"self": NEEDED, "annot": NEEDED, "ret": False},
    "DistributedShardedDataset.find_classes": {"directory": NEEDED},  # and `self`, in the original
    "DistributedShardedDataset.make_dataset": {
        "directory": NEEDED,
        "class_to_idx": NEEDED,
        "extensions": None,
        "is_valid_file": None,
    },
    "MetricsTracker.state_dict": {"self": NEEDED},
    "MetricsTracker.load_state_dict": {"self": NEEDED, "state_dict": NEEDED},
    **{
        f"{sampler}.{method}": {"self": NEEDED, **parameters}
        for sampler in ("InterruptableDistributedSampler", "InterruptableSampler", GROUPED)
        for method, parameters in {
            "state_dict": {},
            "load_state_dict": {"state_dict": NEEDED},
            "advance": {} if sampler == GROUPED else {"n": NEEDED},
            "in_epoch": {"epoch": NEEDED},
            "set_epoch": {"epoch": NEEDED},
        }.items()
    },
    "InterruptableDistributedSampler.reset_progress": {"self": NEEDED},
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_the_originals(name):
    """The same parameters in the same places with the same defaults; what we add comes after and has a default."""
    found = cycling_utils
    for part in name.split("."):
        found = getattr(found, part)
    parameters = inspect.signature(found).parameters
    wanted = SIGNATURES[name]
    assert wanted == {each: parameters[each].default for each in [*parameters][: len(wanted)]}
    assert NEEDED not in [parameters[each].default for each in [*parameters][len(wanted) :]]


def test_all_names_are_there():
    """Those of the package, those of its documentation, and its errors."""
    classes = {name for name in SIGNATURES if "." not in name}
    assert sorted({*classes, "HasNotResetProgressError", "AdvancedTooFarError"}) == cycling_utils.__all__
    assert all(hasattr(cycling_utils, name) for name in cycling_utils.__all__)


# Samplers --------------------------------------------------------------------------------------------------------


def numbers(length):
    return TensorDataset(torch.arange(length))


def sampler_for(length, rank=0, world=1, **options):
    return InterruptableDistributedSampler(numbers(length), world, rank, **options)


def grouped(length, rank=0, world=1, size=2, **options):
    groups = [number % 3 for number in range(length)]
    return InterruptableDistributedGroupedBatchSampler(numbers(length), groups, size, world, rank, **options)


def test_the_one_for_a_part_of_the_data_goes_through_all_of_it_and_reshuffles():
    """Fault: the same. `num_replicas`, `rank` and `drop_last` are taken, and say nothing."""
    sampler = InterruptableSampler(numbers(20), 4, 3, seed=3, drop_last=True)
    epochs = []
    for epoch in range(2):
        with sampler.in_epoch(epoch):
            epochs.append([*sampler])
            sampler.advance(20)
            assert sampler.progress == 20
    assert sorted(epochs[0]) == sorted(epochs[1]) == [*range(20)]
    assert epochs[0] != epochs[1]
    assert len(sampler) == 20


def test_a_fresh_grouped_sampler_loads_its_state():
    """Fault: it knew its batches only after the first `in_epoch`, and a resume begins with a fresh one."""
    sampler = grouped(20)
    with sampler.in_epoch(1):
        batches = [*sampler]
        sampler.advance()
        sampler.advance()
        state = sampler.state_dict()
    assert sampler.progress == 0
    resumed = grouped(20)
    resumed.load_state_dict(state)
    assert (resumed.epoch, resumed.progress, len(resumed)) == (1, 2, len(batches))
    with resumed.in_epoch(resumed.epoch):
        assert batches[2:] == [*resumed]


@pytest.mark.parametrize("kind", [sampler_for, grouped])
def test_more_than_an_epoch_has_cannot_be_advanced(kind):
    """As ever; nor can a state say so."""
    sampler = kind(10)
    with pytest.raises(AdvancedTooFarError):
        sampler.advance(11)
    with pytest.raises(AdvancedTooFarError):
        sampler.load_state_dict({"progress": 11, "epoch": 0})


@pytest.mark.parametrize("kind", [sampler_for, grouped])
def test_an_epoch_with_progress_is_ended_before_another(kind):
    """By `in_epoch` or `reset_progress`; else what was advanced would count in the next one."""
    sampler = kind(10)
    sampler.advance(1)
    with pytest.raises(HasNotResetProgressError, match="in_epoch"):
        sampler.set_epoch(1)
    sampler.reset_progress()
    sampler.advance(2)
    sampler._reset_progress()  # what scripts had to call before it had a name of its own
    sampler.set_epoch(1)
    assert (1, 0) == (sampler.epoch, sampler.progress)
    with sampler.in_epoch(5):
        sampler.advance(2)
        assert sampler.progress == 2
    assert (5, 0) == (sampler.epoch, sampler.progress)


def test_an_exception_leaves_the_progress_to_be_saved():
    """As ever."""
    sampler = sampler_for(10)
    with pytest.raises(InterruptedError), sampler.in_epoch(3):
        sampler.advance(4)
        raise InterruptedError
    assert {"epoch": 3, "progress": 4}.items() <= sampler.state_dict().items()


def test_progress_belongs_to_its_epoch():
    """Fault: saved at the end of an epoch and resumed in the next one, all of that was skipped."""
    sampler = sampler_for(10)
    with sampler.in_epoch(0):
        sampler.advance(10)
        state = sampler.state_dict()
    resumed = sampler_for(10)
    resumed.load_state_dict(state)
    with resumed.in_epoch(0):
        assert [] == [*resumed]
    resumed.load_state_dict(state)
    with resumed.in_epoch(1):
        assert len([*resumed]) == 10


@pytest.mark.parametrize("kind", [sampler_for, grouped])
def test_a_state_of_the_original_is_understood(kind, capsys):
    """Progress per rank, and an order that never changed: it is told that this epoch's is another."""
    sampler = kind(10)
    sampler.load_state_dict({"progress": 3, "epoch": 4})
    assert (4, 3) == (sampler.epoch, sampler.progress)
    assert "had another order in epoch 4" in capsys.readouterr().err
    with sampler.in_epoch(4):
        assert len([*sampler]) == len(sampler) - 3
    sampler.load_state_dict({"progress": 0, "epoch": 5})
    assert capsys.readouterr().err == ""


def test_a_state_of_something_else_is_refused():
    """No state at all, or one of another order."""
    for state in ({"weights": 1}, sampler_for(11).state_dict()):
        with pytest.raises(Mismatch):
            sampler_for(10).load_state_dict(state)


# Metrics and timer -----------------------------------------------------------------------------------------------


def test_metrics_resume(tmp_path):
    """From a checkpoint that torch reads without executing anything; from the original's state; from a pickled
    tracker.
    """
    metrics = MetricsTracker().update({"loss": 2.0}).reduce().end_epoch().update({"loss": 3.0}).reduce()
    atomic_torch_save({"metrics": metrics.state_dict()}, tmp_path / "x.pt")
    originals = {"epoch_reports": [{"loss": 2.0}], "agg": {"loss": 3.0}}
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)["metrics"]
    for resumed in (
        MetricsTracker().load_state_dict(loaded),
        MetricsTracker().load_state_dict(originals),
        pickle.loads(pickle.dumps(metrics)),
    ):
        assert [{"loss": 2.0}] == resumed.epoch_reports
        resumed.reset_local().update({"loss": 1.0}).reduce()
        assert {"loss": 4.0} == dict(resumed.agg)


def test_what_was_not_reduced_is_in_no_report():
    """As ever."""
    metrics = MetricsTracker().update({"n": 1}).reduce().reset_local().update({"n": 5})
    assert metrics.end_epoch().epoch_reports == [{"n": 1.0}]
    assert dict(metrics.local) == {}


def test_the_timer_prints_on_rank_0(capsys, monkeypatch):
    """Milliseconds since the last report and seconds in all, to stdout; the duration to who wants it."""
    timer = TimestampedTimer("Imports")
    assert timer.report("loading") is None
    took_s = timer.report("training", ret=True)
    assert took_s is not None
    assert took_s >= 0
    monkeypatch.setenv("RANK", "1")
    timer.report("silent")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in lines] == ["]"] * 3
    assert [line.split()[4] for line in lines] == ["Imports", "loading", "training"]
    assert all(line.endswith("s total") and " ms, " in line for line in lines)


def test_the_timer_goes_on_from_a_checkpoint(capsys):
    """Scripts keep the whole timer, and set its start anew; others keep `running`."""
    timer = TimestampedTimer(running=100, start_time=time.time() - 10)
    timer.report("ten seconds")
    assert 110 <= timer.running < 170
    again = pickle.loads(pickle.dumps(timer))
    again.start_time = time.time() - 5
    assert 5 <= again.report("five", ret=True) < 65
    assert 115 <= again.running < 235
    assert abs(again.start_time - time.time()) < 60
    assert len(capsys.readouterr().out.splitlines()) == 3
