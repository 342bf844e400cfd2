"""Coming back: wherever a run was cut, its end is the one of an uninterrupted run; and what happens when it cannot
be.
"""

import itertools
import random
import re
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast import Every, Last, Run, Stopped, Store, interval, journal
from holdfast.cli.ls import quarantined_checkpoints
from holdfast.errors import Damaged, Mismatch, NotFound, StoreError, UsageError
from holdfast.run import stop
from run_loops import LOOPS, WANT_A_BLOCK, by_steps, cut_everywhere, train
from stores import invoke
from subjects import asked_of
from toy import Cut, Passes, Toy, events, lines, names, new_run


def damage(path, name):
    """Turn one bit in the middle of a leaf's bytes, or of the manifest where there is no shard."""
    shards = sorted((path / "checkpoints" / name).glob("*.safetensors"))
    place = shards[0] if shards else path / "checkpoints" / name / "manifest.json"
    data = bytearray(place.read_bytes())
    data[-20] ^= 1
    place.write_bytes(data)


@pytest.mark.filterwarnings("error")
def test_wherever_a_run_is_cut_its_end_is_the_uninterrupted_one(tmp_path):
    """Every loop, at every seventeenth of its passes and at one interval; with a block, or without where it can be.

    tests/slow/test_cuts.py asks more, and tests/prove/test_every_cut.py all.
    """
    intervals = (Every(steps=1), Every(steps=3), Every(epochs=1))
    for number, name in enumerate(LOOPS):
        every, started = intervals[number % 3], number % 2 == 1 and name not in WANT_A_BLOCK
        with asked_of(name, every, "without a block" if started else "in a block"):
            cut_everywhere(tmp_path / str(number), name, 1 + number % 3, 17, every=every, started=started)


def test_a_finished_run_yields_nothing_and_has_its_final_state(tmp_path):
    """Code after the loop sees the trained model, as often as it is run; nothing is saved again."""
    for name, loops in [*LOOPS.items()][::3]:
        with asked_of(name):
            expected, _ = train(tmp_path / name, loops)
            before = names(tmp_path / name)
            for _ in range(2):
                assert (expected, 0) == train(tmp_path / name, loops)
            assert before == names(tmp_path / name)


def test_what_code_before_the_loop_does_to_a_restored_state_is_undone_and_told(tmp_path, capsys):
    """It has run once already. Objects, variables changed in place, generators and what it logged."""

    def go(cut=None):
        toy, passes = Toy(), Passes(cut)
        with new_run(tmp_path, toy, vars={"seen": []}) as run:
            toy.value += 5
            run.vars.seen.append("before")
            run.log(before=1)
            for _ in run.epochs(2):
                toy.value += 100
                random.random()
                run.log(head=1)
                for batch in run.batches([1, 2]):
                    passes.one()
                    toy.value += batch
                    run.log(value=toy.value)
        return toy.value, run.vars.seen

    with pytest.raises(Cut):
        go(2)
    capsys.readouterr()
    assert (1 + 5 + 2 * 103, ["before"]) == go()
    told = capsys.readouterr().err
    assert "changed restored values; they are put back as saved: run.vars.seen, toy" in told
    assert [["head", "before", "value"], ["value"], ["head", "value"], ["value"]] == [
        sorted(line["values"], key=["head", "before", "value"].index) for line in Run(tmp_path, {}).metrics()
    ]


def test_a_loop_that_a_resume_needs_and_does_not_find_is_missed(tmp_path):
    """The checkpoint lies inside a loader's epoch that the script no longer walks."""
    with pytest.raises(Cut), new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            for batch in run.batches([1, 2]):
                if batch == 2:
                    raise Cut
    with pytest.raises(Mismatch, match=r"inside the loop 'train', and run\.batches"), new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            pass


# break, return and exceptions ----------------------------------------------------------------------------------


def leave_by_break(run, toy):
    for epoch in run.epochs(10):
        for batch in run.batches([1, 2]):
            toy.learn(batch)
        if epoch == 2:
            break


def leave_by_return(run, toy):
    for epoch in run.epochs(10):
        for batch in run.batches([1, 2]):
            toy.learn(batch)
            if epoch == 3:
                return


def test_leaving_the_epochs_finishes_the_run(tmp_path):
    """It is saved as it is, a restart yields nothing; a larger total goes on with the next epoch."""
    for leave, after in ((leave_by_break, 3), (leave_by_return, 4)):
        path, toy = tmp_path / str(after), Toy()
        with new_run(path, toy, every=None) as run:
            leave(run, toy)
            run.log(test=1)
        for _ in range(2):
            again = Toy()
            with new_run(path, again) as run:
                assert [] == list(run.epochs(10))
                run.log(test=1)
            assert toy.value == again.value
        assert ["exit"] == [line["phase"] for line in run.metrics()]
        with new_run(path, Toy()) as run:
            assert list(range(after, 12)) == list(run.epochs(12))
        assert 10 == events(path, "extended")[0]["was"]


# Fallback ------------------------------------------------------------------------------------------------------


def test_a_damaged_newest_is_set_aside_and_the_next_one_taken(tmp_path, capsys):
    """One line says where it resumes and why not later; nothing is deleted, and the end is the same."""
    expected, _ = train(tmp_path / "whole", by_steps)
    path = tmp_path / "cut"
    with pytest.raises(Cut):
        train(path, by_steps, 6)
    damage(path, "step-000000005")
    capsys.readouterr()
    assert expected == train(path, by_steps)[0]
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "resumes" in line]
    assert "resumes at step 4 (attempt 2), from step-000000004" in line
    assert "step-000000005 (" in line
    assert "changed since commit" in line
    assert ["step-000000005-damaged"] == [p.name for p in (path / "quarantine").iterdir()]
    assert ["step-000000005"] == [event["name"] for event in events(path, "quarantined")]


def test_no_valid_checkpoint_stops_unless_a_fresh_start_is_allowed(tmp_path, capsys):
    """Never from scratch silently; not at the next start either."""
    with pytest.raises(Cut):
        train(tmp_path, by_steps, 2)
    damage(tmp_path, "step-000000001")
    for _ in range(2):
        with pytest.raises(StoreError, match=r"none is valid.*say allow_fresh=True") as raised:
            train(tmp_path, by_steps)
        assert 1 == raised.value.exit_code
    assert (12, 12) == (train(tmp_path, by_steps, allow_fresh=True)[0][2], train(tmp_path, by_steps)[0][2])
    assert "starts fresh" in capsys.readouterr().err


def test_checkpoints_that_are_gone_stop_unless_a_fresh_start_is_allowed(tmp_path, capsys):
    """A site's purge, or rm: the journals tell that there were some. Doctor does not say that none was committed."""
    with pytest.raises(Cut):
        train(tmp_path, by_steps, 2)
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink() if path.is_symlink() else shutil.rmtree(path)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"the last was step-\d+.* none is there.*say allow_fresh=True") as raised:
            train(tmp_path, by_steps)
        assert 1 == raised.value.exit_code
    told = invoke("doctor", tmp_path)
    assert 1 == told.exit_code
    assert re.search(r"problem +checkpoints: none is left; the last that was saved is step-", told.output), told.output
    assert (12, 12) == (train(tmp_path, by_steps, allow_fresh=True)[0][2], train(tmp_path, by_steps)[0][2])
    assert "starts fresh" in capsys.readouterr().err


class Stubborn(Toy):
    """Counts how often a state was put into it."""

    restored = 0

    def load_state_dict(self, state):
        super().load_state_dict(state)
        Stubborn.restored += 1


def test_a_fresh_start_never_begins_with_half_a_restored_state(tmp_path):
    """With allow_fresh each checkpoint is read whole before the first object is touched: perhaps none will do."""

    def objects():
        return {"a": Stubborn(), "numbers": np.random.default_rng(1), "block": Block()}

    class Block:
        def __init__(self):
            self.data = np.zeros(100)

        def state_dict(self):
            return {"data": self.data}

        def load_state_dict(self, state):
            self.data = state["data"]

    with Run(tmp_path, objects(), every=Every(steps=1)) as run:
        list(run.steps(2))
    damage(tmp_path, "step-000000001")
    damage(tmp_path, "step-000000002")
    with Run(tmp_path, objects(), allow_fresh=True) as run:
        assert 0 == run.step
    assert 0 == Stubborn.restored


# The poison rule -----------------------------------------------------------------------------------------------


def failing(path, error, *, at=None):
    """An attempt that fails before its first step, when it resumed from `at` (or from anywhere)."""
    toy = Toy()
    with pytest.raises(type(error)), new_run(path, toy, keep=Last(2)) as run:
        for step in run.steps(100):
            if at in (None, step):
                raise error
            if step == at + 2:
                raise Cut
    return toy


def cut_at_three(path):
    with pytest.raises(Cut), new_run(path, Toy(), keep=Last(2)) as run:
        for step in run.steps(100):
            if step == 3:
                raise Cut


def resumed_at(path):
    with new_run(path, Toy()) as run:
        return run.step


def test_two_equal_failures_before_the_first_step_step_back_once(tmp_path, capsys):
    """The checkpoint is set aside with the failure as the reason."""
    cut_at_three(tmp_path)
    failing(tmp_path, RuntimeError("loss is NaN"), at=3)
    failing(tmp_path, RuntimeError("loss is NaN"), at=3)
    capsys.readouterr()
    assert 2 == resumed_at(tmp_path)
    assert "step-000000003 (failed 2 times before the first step with: RuntimeError: loss is NaN)" in (
        capsys.readouterr().err
    )
    assert ["step-000000003-poison"] == [p.name for p in (tmp_path / "quarantine").iterdir()]
    listed = quarantined_checkpoints(tmp_path, journal.logs(tmp_path))
    assert ["poison: failed 2 times before the first step with: RuntimeError: loss is NaN"] == [
        q["why"] for q in listed
    ]


class Picky(Toy):
    def load_state_dict(self, state):
        raise RuntimeError("cannot be loaded")


def test_a_failure_inside_the_restore_counts_too(tmp_path):
    """It is the checkpoint that was being restored."""
    cut_at_three(tmp_path)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            new_run(tmp_path, Picky()).__enter__()
    assert 2 == resumed_at(tmp_path)


def test_an_error_that_comes_from_every_checkpoint_is_the_programs(tmp_path):
    """One step back, no more: the error came along. None where it happened without any checkpoint."""
    cut_at_three(tmp_path / "a")
    with new_run(tmp_path / "a", Toy(), go_back=3) as run:
        assert 3 == run.step
    failing(tmp_path / "b", RuntimeError("bug"))
    cut_at_three(tmp_path / "b")
    for path, expected in ((tmp_path / "a", 2), (tmp_path / "b", 3)):
        for _ in range(6):
            failing(path, RuntimeError("bug"))
        assert (path, expected) == (path, resumed_at(path))


def test_what_does_not_count_as_a_failure_of_the_checkpoint(tmp_path):
    """Memory, disks, imports, signals and what Holdfast itself refuses; different failures; a failure after a step; and
    none when there is nothing to step back to.
    """
    cut_at_three(tmp_path)
    for kind in (MemoryError, OSError, ImportError, NameError, UsageError, Cut, SystemExit, RuntimeError):
        for text in ("one", "two" if kind is RuntimeError else "one"):  # after a third attempt step 3 is saved again
            failing(tmp_path, kind(text), at=3)
        assert (kind, 3) == (kind, resumed_at(tmp_path))
    for _ in range(2):
        with pytest.raises(RuntimeError), new_run(tmp_path, Toy(), every=None) as run:
            for step in run.steps(100):
                if step == 4:
                    raise RuntimeError("three")
    assert 3 == resumed_at(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-000000002")
    for _ in range(2):
        failing(tmp_path, RuntimeError("one"), at=3)
    assert 3 == resumed_at(tmp_path)


# Going back, branching -----------------------------------------------------------------------------------------


def test_going_back_is_done_once_however_long_the_script_says_so(tmp_path, capsys):
    """Newer checkpoints move to quarantine; the end is the same; restarts go on from where they were."""
    expected, _ = train(tmp_path, by_steps)
    with pytest.raises(Cut):
        train(tmp_path, by_steps, 3, go_back=5)
    assert "goes back to step 5; moved to quarantine: step-000000006, " in capsys.readouterr().err
    assert 7 == len(list((tmp_path / "quarantine").iterdir()))
    assert [event["names"][0] for event in events(tmp_path, "went_back")] == ["step-000000006"]
    result, passes = train(tmp_path, by_steps, go_back=5)
    assert (expected, 12 - 7) == (result, passes)
    assert (expected, 0) == train(tmp_path, by_steps, go_back=5)
    assert "went back to step 5 before" in capsys.readouterr().err
    assert list(range(1, 13)) == [line[0] for line in lines(tmp_path)]


def test_going_back_to_what_is_not_there_or_damaged_moves_nothing(tmp_path):
    """The message lists what is there."""
    train(tmp_path, by_steps)
    before = names(tmp_path)
    with pytest.raises(NotFound, match="no checkpoint of step 77; the newest are: step-000000008"):
        train(tmp_path, by_steps, go_back=77)
    damage(tmp_path, "step-000000004")
    with pytest.raises(Damaged):
        train(tmp_path, by_steps, go_back=4)
    assert before == names(tmp_path)


def test_going_back_works_past_a_damaged_newest(tmp_path):
    """And is remembered past it."""
    expected, _ = train(tmp_path, by_steps)
    damage(tmp_path, "step-000000012")
    assert expected == train(tmp_path, by_steps, go_back=5)[0]
    damage(tmp_path, "step-000000012")
    assert 1 == train(tmp_path, by_steps, go_back=5)[1]


def test_a_branch_goes_on_exactly_and_leaves_its_source_alone(tmp_path):
    """Position, variables, generators; also when the source is finished. A restart does not branch again."""
    expected, _ = train(tmp_path / "whole", by_steps)
    with pytest.raises(Cut):
        train(tmp_path / "a", by_steps, 6)
    before = names(tmp_path / "a")
    with pytest.raises(Cut):
        train(tmp_path / "b", by_steps, 3, branch_from=tmp_path / "a")
    assert before == names(tmp_path / "a")
    assert ["step-000000006", "step-000000007"] == names(tmp_path / "b")
    result, passes = train(tmp_path / "b", by_steps, branch_from=tmp_path / "a")
    assert (expected, 5) == (result, passes)
    assert 1 == len(events(tmp_path / "b", "branched"))

    one = tmp_path / "b" / "checkpoints" / "step-000000012"
    assert (expected, 0) == train(tmp_path / "c", by_steps, branch_from=one)
    assert ["step-000000012"] == names(tmp_path / "c")


def _cut(path):
    """Every file of its checkpoints is empty."""
    for file in (path / "checkpoints").rglob("*.*"):
        file.write_bytes(b"")


CHECKPOINTS = "a/checkpoints"
SOURCES = {  # what has no checkpoint to begin from: its path, and what makes it so
    "nothing": ("gone", lambda _: None),
    "an empty directory": ("empty", Path.mkdir),
    "a file": ("file", Path.touch),
    "a step that is not there": (f"{CHECKPOINTS}/step-000000099", lambda _: None),
    "a step without its manifest": (f"{CHECKPOINTS}/step-000000004", lambda path: (path / "manifest.json").unlink()),
    "a run without a checkpoint": ("a", lambda path: shutil.rmtree(path / "checkpoints")),
    "a run whose checkpoints are all damaged": ("a", _cut),
}


@pytest.mark.parametrize("how", ["branch_from", "start_from"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_source_that_is_missing_is_never_answered_by_the_beginning(tmp_path, source, how):
    """By no start, whatever `allow_fresh` says: not a step is made, nothing is saved, and no object is moved."""

    def states():
        return {"toy": Toy(), "model": torch.nn.Linear(1, 1)}

    with Run(tmp_path / "a", states(), every=Every(steps=1), keep=Last(9)) as run:
        for _ in run.steps(4):
            pass
    name, spoil = SOURCES[source]
    path = tmp_path / name
    spoil(path)
    for options in ({}, {}, {"allow_fresh": True}):
        live, passes = states(), Passes()
        before = live["toy"].value, live["model"].weight.item()
        with pytest.raises((StoreError, UsageError)), Run(tmp_path / "b", live, **{how: path}, **options) as run:
            for _ in run.steps(4):
                passes.one()
        assert (0, before) == (passes.count, (live["toy"].value, live["model"].weight.item()))
        assert [] == names(tmp_path / "b")


def test_what_does_not_fit_is_refused_in_words(tmp_path):
    """Nothing is overwritten, and the way out is named: other objects, and a store that no run made."""
    train(tmp_path / "run", by_steps)
    store = Store(tmp_path / "store")
    store.save({"toy": {"value": 3}}, step=5)
    store.close()
    for place, kind, objects, words in [
        ("run", Mismatch, {"toy": Toy(), "ema": Toy()}, r"start_from=(?s:.*)ema: not in the checkpoint"),
        ("run", Mismatch, {}, r"start_from=(?s:.*)toy: in the checkpoint, but not tracked here"),
        ("store", StoreError, {"toy": Toy()}, r"was not saved by a Run: Store\(\.\.\.\)\.load\(\) reads it"),
    ]:
        with pytest.raises(kind, match=words):
            Run(tmp_path / place, objects).__enter__()


# Fingerprints --------------------------------------------------------------------------------------------------


class Sized(list):
    """A loader that tells its batch size."""

    batch_size = 8


def cut_in_the_middle(path):
    with pytest.raises(Cut), new_run(path, Toy()) as run:
        for _ in run.epochs(3):
            for batch in run.batches(Sized([0, 1, 2])):
                if batch == 1 and run.epoch == 1:
                    raise Cut


def test_a_change_that_moves_the_data_position_is_refused_unless_accepted(tmp_path, capsys):
    """The message says what it was, what it is, and how to accept it. Other groups move it, too."""
    cut_in_the_middle(tmp_path)
    longer = Sized([0, 1, 2, 3])
    for loader, accumulate, words in (
        (longer, 1, r"length was 3, is 4.*accept=\{\"data\"\}"),
        (Sized([0, 1, 2]), 2, "accumulate was 1, is 2.*say accept=\\{'accumulate'\\}"),
    ):
        with pytest.raises(Mismatch, match=words), new_run(tmp_path, Toy()) as run:
            for _ in run.epochs(3):
                list(run.batches(loader, accumulate=accumulate))
    with new_run(tmp_path, Toy(), accept="length") as run:
        assert [1, 2] == [epoch for epoch in run.epochs(3) for _ in run.batches(longer) if run.step % 3 == 0]
    assert "changed since the checkpoint: loader train: length: 3, now 4" in capsys.readouterr().err
    assert any("length: 3, now 4" in event["what"] for event in events(tmp_path, "told"))


def test_between_epochs_another_loader_is_told_and_taken(tmp_path, capsys):
    """No position in its data would move."""
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(2):
            list(run.batches([0, 1, 2]))
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(3):
            assert [5, 6] == list(run.batches([5, 6]))
    assert "loader train: length: 3, now 2" in capsys.readouterr().err


def changed_environment(monkeypatch):
    from holdfast.stateful import fingerprint

    real = fingerprint.describe_environment
    monkeypatch.setattr(
        fingerprint, "describe_environment", lambda: real() | {"python": "4.0", "libraries": {"torch": "9"}}
    )


def test_another_environment_is_told(tmp_path, monkeypatch, capsys):
    """Interpreter and libraries, one line each, also in the journal."""
    train(tmp_path, by_steps)
    changed_environment(monkeypatch)
    train(tmp_path, by_steps)
    told = capsys.readouterr().err
    assert "changed since the checkpoint: python: " in told
    assert re.search(r"changed since the checkpoint: libraries\.torch: .+, now 9\n", told)
    assert 2 <= len(events(tmp_path, "told"))


# The probe -----------------------------------------------------------------------------------------------------


def probed(path, result, steps):
    toy = Toy()

    def probe():
        random.random()
        np.random.random()
        return {"value": toy.value, "result": result}

    with new_run(path, toy, probe=probe) as run:
        for step in run.steps(steps):
            toy.learn(step)
    return toy.value


def test_a_probe_with_the_same_result_is_silent_and_draws_for_itself(tmp_path, capsys):
    """The run is as it would be without it."""
    random.seed(3)
    probed(tmp_path / "a", 1, 2)
    random.seed(4)
    with_probe = probed(tmp_path / "a", 1, 4)
    random.seed(3)
    toy = Toy()
    with new_run(tmp_path / "b", toy) as run:
        for step in run.steps(4):
            toy.learn(step)
    assert toy.value == with_probe
    assert "probe's" not in capsys.readouterr().err


def test_a_probe_with_another_result_is_a_mismatch_or_a_warning(tmp_path, monkeypatch, capsys):
    """A mismatch when nothing else has changed; a warning that names what has."""
    probed(tmp_path, 1, 2)
    with pytest.raises(Mismatch, match="the probe gives another result than before the save"):
        probed(tmp_path, 2, 4)
    changed_environment(monkeypatch)
    probed(tmp_path, 2, 4)
    assert "probe's result differs from the one before the save; changed meanwhile: python" in capsys.readouterr().err


# The deadline --------------------------------------------------------------------------------------------------


def test_a_deadline_is_a_time_a_span_or_unix_seconds():
    """All three mean the same moment."""
    now = datetime.now(UTC)
    seconds = now.timestamp() + 60
    naive = datetime.fromtimestamp(seconds)  # noqa: DTZ006  it is local
    for deadline in (now + timedelta(seconds=60), timedelta(seconds=60), seconds, naive):
        assert abs(stop.unix_seconds(deadline) - seconds) < 5


def test_before_its_deadline_a_run_saves_and_stops(tmp_path, monkeypatch):
    """In time for one more step and one more save, by what they cost."""
    clock = itertools.count(2_000_000_000)
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    run = new_run(tmp_path, Toy(), every=None, deadline=2_000_000_050.0)
    with pytest.raises(Stopped) as stopped, run:
        list(run.steps(10_000))
    assert 75 == stopped.value.code
    assert 0 < run.step < 50
    assert "deadline" == events(tmp_path, "stop")[0]["reason"]


def test_the_cost_of_saving_is_known_from_the_attempt_before(tmp_path):
    """The first save of an attempt comes too late to measure it."""
    train(tmp_path, by_steps)
    run = new_run(tmp_path, Toy())
    with run:
        assert run._last_session().saves.save_s == max(event["save_s"] for event in events(tmp_path, "saved")) > 0
        assert interval.must_stop(0, 10, save_s=6, step_s=0.1)
        assert not interval.must_stop(0, 12, save_s=6, step_s=0.1)


# The tracker ---------------------------------------------------------------------------------------------------


def test_a_tracker_gets_its_id_back_and_the_step_to_go_on_from(tmp_path):
    """Also when the attempt that made the id was killed before its first save."""
    calls = []

    def tracker(known, step):
        calls.append((known, step))
        return known or f"id-{len(calls)}"

    for cut in (1, 4):
        with pytest.raises(Cut):
            train(tmp_path, by_steps, cut, tracker=tracker)
    train(tmp_path, by_steps, tracker=tracker)
    assert [(None, 0), ("id-1", 0), ("id-1", 3)] == calls
    assert ["id-1"] == [event["id"] for event in events(tmp_path, "tracker")]
