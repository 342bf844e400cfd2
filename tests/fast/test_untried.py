"""A framework that nobody tried: its runs are told, and saved at their epochs' ends until a drill has proven it."""

import random

import pytest
import torch
from test_unproven_loaders import Prefetch
from torch.utils.data import DataLoader

from holdfast import Every, Last, Run
from holdfast.data.feed import feed_for
from holdfast.data.promise import UnprovenCode, code_digest
from holdfast.errors import Stopped
from holdfast.run.deferred_saves import record_proven
from holdfast.trainers.known import NAMES
from holdfast.trainers.training import RunOptions, Training
from run_ranks import Part, among_threads
from subjects import asked_of
from toy import Cut, Toy, events, names

NEW = UnprovenCode("a" * 32, "made_up 2.7.0", "Engine.advance has changed")
EVERY: RunOptions = {"every": Every(steps=1), "keep": Last(99), "background": False}
AT_ENDS = ["step-000000004-end", "step-000000008-end", "step-000000012-end"]


def trained(path, untried=NEW, *, cut=None, stop=None, epochs=3, loader=lambda: range(4)):
    """What the passes of a trainer of somebody else's saw; the process is gone in pass `cut` of it."""
    random.seed(3)
    toy, seen = Toy(), []
    training = Training(path, {"toy": toy}, EVERY, epochs=epochs, untried=untried)
    loop = training.loop
    try:
        while loop.goes_on:
            loop.begin_epoch()
            for batch in loop.batches(loader()):
                if len(seen) + 1 == cut:
                    raise Cut
                toy.learn(batch)
                seen.append(batch)
                if loop.step == stop:
                    training.run._session.stop.receive_from_rank("SIGTERM")
                loop.step_done()
            loop.end_epoch()
    except BaseException as error:
        training.end_run(error)
        raise
    training.end_run()
    return toy.value


def told(path):
    return [event["what"] for event in events(path, "told")]


def test_a_run_of_it_is_told_in_each_start_and_saved_at_its_epochs_ends(tmp_path, capsys):
    """It goes on from there to the same bits; a version that was tried is silent and saved everywhere."""
    expected = trained(tmp_path / "known", None)
    assert told(tmp_path / "known") == []
    assert len(names(tmp_path / "known")) > 10
    with pytest.raises(Cut):
        trained(tmp_path / "run", cut=7)
    assert names(tmp_path / "run") == AT_ENDS[:1]
    assert trained(tmp_path / "run") == expected
    assert names(tmp_path / "run") == AT_ENDS
    line = "made_up 2.7.0 was not tried with this Holdfast (Engine.advance has changed): this run is saved at the ends "
    lines = told(tmp_path / "run")
    assert len(lines) == 2
    assert all(each.startswith(f"{line}of its epochs. Prove it once: holdfast drill -- python ") for each in lines)
    assert capsys.readouterr().err.count(line) == 2


def test_what_a_drill_has_proven_is_silent_and_saved_everywhere(tmp_path):
    """That version with those changes; another one is told again."""
    record_proven(tmp_path / "run", {NEW.code: NEW.kind})
    with pytest.raises(Cut):
        trained(tmp_path / "run", cut=7)
    assert told(tmp_path / "run") == []
    assert names(tmp_path / "run")[-1] == "step-000000006"
    with pytest.raises(Cut):
        trained(tmp_path / "run", NEW._replace(code="b" * 32, kind="made_up 2.8.0"), cut=2)
    assert ["made_up 2.8.0" in each for each in told(tmp_path / "run")] == [True]


def test_a_stop_inside_an_epoch_saves_nothing_until_the_second_in_a_row(tmp_path, capsys):
    """So that a run gets on whose attempts are shorter than an epoch; that checkpoint is told."""
    for expected in ([], ["step-000000003"]):
        with pytest.raises(Stopped):
            trained(tmp_path, stop=2)
        assert expected == names(tmp_path)
    said = capsys.readouterr().err
    assert "not saved: the next start goes on from the beginning" in said
    assert "saved in the middle of an epoch of made_up 2.7.0, which was not tried: a resume from there may end " in said
    assert trained(tmp_path) == trained(tmp_path.with_name("whole"), None)


def test_a_framework_and_a_loader_are_told_and_proven_apart(tmp_path):
    """A run is saved in the middle of its epochs where both are proven."""
    both = {NEW.code: NEW.kind, code_digest(Prefetch): "Prefetch"}
    for number in range(4):
        path = tmp_path / str(number)
        record_proven(path, {code: kind for place, (code, kind) in enumerate(both.items()) if number >> place & 1})
        trained(path, loader=lambda: Prefetch(range(4)))
        with asked_of(number):
            assert (names(path) == AT_ENDS) == (number != 3)
            said = ["nobody promises that a Prefetch" in each for each in told(path)]
            assert sorted(said) == [[False, True], [True], [False], []][number]


def steps_of(path, epochs=None):
    """A trainer that counts up to 12 steps: in epochs of four of them, or without any."""
    training = Training(path, {"toy": Toy()}, EVERY, epochs=epochs, steps=12, untried=NEW)
    loop = training.loop
    while loop.goes_on:
        if epochs is None:
            loop.settle()
            loop.step_done()
            continue
        loop.begin_epoch()
        for _ in loop.batches(range(4)):
            if loop.step + 1 < 12:
                loop.step_done()
        loop.end_epoch(int(loop.step + 1 == 12))
    training.end_run()


def test_a_loop_of_steps_waits_for_the_ends_of_its_epochs_if_it_has_any(tmp_path):
    """Without epochs each safe point is as good as another: saves come as ever, and the line promises no place."""
    steps_of(tmp_path / "epochs", epochs=3)
    assert names(tmp_path / "epochs") == AT_ENDS
    assert ["saved at the ends of its epochs" in each for each in told(tmp_path / "epochs")] == [True]
    steps_of(tmp_path / "none")
    assert len(names(tmp_path / "none")) == 12
    [line] = told(tmp_path / "none")
    assert "(Engine.advance has changed): a resume may end otherwise. Prove it once: holdfast drill" in line


def test_a_single_epoch_is_saved_all_the_same_and_tells_of_it(tmp_path):
    """Where no epoch's end comes in time: a run never goes without a save."""
    with pytest.raises(Cut):
        trained(tmp_path, cut=4, epochs=1)
    assert names(tmp_path) == ["step-000000002"]
    assert ["which was not tried: a resume from there" in each for each in told(tmp_path)] == [False, True]


def test_a_feed_that_a_framework_walks_is_told_once_and_waits(tmp_path):
    """As accelerate's: the loop is the script's own, and the loader is what nobody tried."""

    def walked(path, loader=DataLoader):
        torch.manual_seed(1)
        with Run(path, {"toy": Toy()}, **EVERY) as run:
            for _ in run.epochs(3):
                for name in ("train", "more"):
                    feed = feed_for(loader(range(2)), 1)
                    feed.unknown = NEW
                    for _ in run.batches(feed, name=name):
                        pass

    walked(tmp_path / "run")
    assert names(tmp_path / "run") == AT_ENDS
    assert len(told(tmp_path / "run")) == 1
    record_proven(tmp_path / "proven", {NEW.code: NEW.kind})
    walked(tmp_path / "proven")
    assert len(names(tmp_path / "proven")) > 10
    assert told(tmp_path / "proven") == []


def test_all_ranks_wait_where_one_of_them_has_another_version(tmp_path, monkeypatch):
    """Rank 0 tells of it."""

    def walk(rank):
        part = Part(rank)
        training = Training(tmp_path, {"part": part}, EVERY, epochs=2, untried=NEW if rank else None)
        loop = training.loop
        while loop.goes_on:
            loop.begin_epoch()
            for _ in loop.batches(range(6)):
                part.learn()
                loop.step_done()
            loop.end_epoch()
        training.end_run()
        return part

    among_threads(monkeypatch)(2, walk)
    assert names(tmp_path) == ["step-000000006-end", "step-000000012-end"]
    assert ["made_up 2.7.0 was not tried" in each for each in told(tmp_path)] == [True]


def test_each_digest_stands_beside_parameters():
    """Other parameters are refused; another body alone is told. Some have other parameters in supported versions."""
    loose = [name.path for names in NAMES.values() for name in names if name.sources and name.parameters is None]
    assert sorted(path.rpartition(":")[2] for path in loose) == [
        *("CallbackHandler.on_epoch_begin", "CatBoost._prepare_train_params"),
        *("Trainer._run", "train", "train"),
    ]
