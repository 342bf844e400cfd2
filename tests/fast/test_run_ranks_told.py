"""What ranks that do not do the same are told: which one it was, where, and what differs."""

import re
import threading

import pytest

from holdfast import Best, Every, Last, Run, Store, journal
from holdfast.errors import RanksError, UsageError
from holdfast.run.ranks import root_cause
from rank_threads import ranks
from run_ranks import among_threads, noted_saves, train
from toy import Toy, events


@pytest.fixture
def among(monkeypatch):
    return among_threads(monkeypatch)


@pytest.fixture
def saves(monkeypatch):
    return noted_saves(monkeypatch)


def test_a_value_that_rank_0_alone_logs_inside_of_an_epoch_is_ranked_where_a_save_falls(
    tmp_path, among, saves, monkeypatch, capsys
):
    """The others are passed over, however good; the warning says so, and what to do."""
    monkeypatch.setattr("holdfast.run.metrics.PATIENCE_S", 0.05)
    keep, values = Last(2) | Best("val_acc", max), [0.9, 0.8, 0.1, 0.2, 0.3]

    def work(rank):
        with Run(tmp_path, {"toy": Toy()}, keep=keep, every=Every(steps=5), background=False) as run:
            for epoch in run.epochs(5):
                for step in run.steps(8):
                    if rank == 0 and step == 3:
                        run.log(val_acc=values[epoch])

    assert [None, None] == among(2, work)
    assert saves[0] == saves[1]
    assert "new best" not in {why for _, why in saves[0]}
    found = {each.name: dict(each.metrics) for each in Store(tmp_path).facts()}
    assert {"step-000000020": {"val_acc": 0.1}} == {name: values for name, values in found.items() if values}
    said = capsys.readouterr().err
    assert "ranked only where another save falls on that very step" in said
    assert 1 == said.count("logged inside of an epoch, and not on every rank")
    assert "Log it on every rank, or at the end of the epoch" in said


def test_a_rank_that_fails_after_the_loop_fails_the_run(tmp_path, among):
    """Inside of the block still: nobody writes that the run has ended, and the journal names the rank."""

    done = threading.Event()

    def work(rank):
        with Run(tmp_path, {"toy": Toy()}) as run:
            for _ in run.steps(3):
                pass
            if rank == 0:
                done.set()
            else:
                assert done.wait(60)
                raise ValueError("my own bug")

    found = among(2, work)
    assert "rank 1 has left with ValueError: my own bug" in str(found[0])
    (log,) = journal.logs(tmp_path)
    assert "rank 1: ValueError: my own bug" == log.last["error"]
    assert "end" not in {event["event"] for event in log.events}


@pytest.mark.parametrize(
    ("mine", "others", "shown"),
    [
        (ValueError("a"), [KeyError("b")], "mine"),
        (RuntimeError("a"), [KeyError("b")], "rank 1: KeyError: 'b'"),
        (RuntimeError("a"), [RuntimeError("b"), KeyError("c")], "rank 2: KeyError: 'c'"),
        (RuntimeError("a"), [RuntimeError("b")], "mine; rank 1: RuntimeError: b"),
        (RuntimeError("a"), [None], "mine"),
        (RanksError("a"), [None], "mine"),
        (RanksError("a"), [SystemExit(3)], "rank 1: SystemExit: 3"),
        (RuntimeError("a"), [ValueError("in two\nlines")], "rank 1: ValueError: in two"),
    ],
)
def test_the_first_cause_is_blamed(monkeypatch, mine, others, shown):
    """What ranks say that were lost by another one's error comes after it; rank 0's own bug is its own."""
    monkeypatch.setattr("holdfast.run.ranks.CONFESSION_S", 0.05)
    first, *rest = ranks(1 + len(others))
    for rank, error in zip(rest, others, strict=True):
        if error is not None:
            rank.report_error(error)
    assert shown == root_cause(first, mine, "mine")


@pytest.mark.parametrize(
    ("options", "differ"),
    [
        ([{}, {"seed": 7}], "rank 1: seed is 7, on rank 0 None"),
        ([{"seed": 7}, {"seed": 8}], "rank 1: seed is 8, on rank 0 7"),
        ([{"vars": {"b": 1}}, {"vars": {"a": 1, "b": 1}}], r"rank 1: vars is \['a', 'b'\], on rank 0 \['b'\]"),
    ],
)
def test_seed_and_names_of_vars_are_those_of_all(tmp_path, among, options, differ):
    """Nothing is written when one rank has others."""
    found = among(2, lambda rank: train(tmp_path / "run", rank, **options[rank]))
    assert [UsageError, UsageError] == [type(each) for each in found]
    for each in found:
        assert re.search(differ, str(each))
    assert not (tmp_path / "run").exists()


def test_values_of_vars_are_each_ranks_own(tmp_path, among):
    """Their names are compared, and nothing else."""
    assert [tuple, tuple] == [type(each) for each in among(2, lambda rank: train(tmp_path, rank, vars={"mine": rank}))]


def test_a_loop_that_is_longer_on_one_rank_is_refused_on_all(tmp_path, among):
    """Before its first pass: what the others want is in the message."""
    passes = []

    def work(rank):
        with Run(tmp_path, {"toy": Toy()}) as run:
            passes.extend(run.epochs(4 + rank))

    found = among(2, work)
    assert [UsageError, UsageError] == [type(each) for each in found]
    assert all("rank 0 wants 4 epochs; rank 1 wants 5 epochs:" in str(each) for each in found)
    assert [] == passes


def test_a_rank_that_breaks_out_alone_is_told_where_it_was(tmp_path, among):
    """By step and epoch, and so are the others."""

    def work(rank):
        with Run(tmp_path, {"toy": Toy()}, every=Every(steps=7)) as run:
            for epoch in run.epochs(4):
                for step in run.steps(5):
                    if rank == 1 and (epoch, step) == (1, 0):
                        break
                if rank == 1 and epoch == 1:
                    break

    found = among(2, work)
    assert [RanksError, RanksError] == [type(each) for each in found]
    assert "rank 0 saves at step-000000007, epoch 1; rank 1 saves at step-000000006-end" in str(found[0])


def test_a_rank_at_another_point_of_the_program_says_its_step(tmp_path, among):
    """Who waits says its own, too."""

    def work(rank):
        with Run(tmp_path, {"toy": Toy()}, every=None) as run:
            for _ in run.steps(6):
                pass
            if rank == 0:
                run._session.ranks.announce("a word that nobody expects")

    _, second = among(2, work, timeout_s=2.0)
    assert "rank 0 is at 'a word that nobody expects' (step 6) and rank 1 at 'the end' (step 6)" in str(second)


@pytest.mark.parametrize("leave", ["to the end", "break"])
def test_ranks_without_a_block_finish_together(tmp_path, among, leave):
    """Each at the end of its loop; one checkpoint, one good-bye, and means of each rank's own."""

    def work(rank):
        run = Run(tmp_path, {"toy": Toy()}, every=Every(steps=2)).start()
        for step in run.steps(5):
            run.log(loss=rank + step)
            if step == 2 and leave == "break":
                break
        return run.step, run.mean("loss")

    steps = 5 if leave == "to the end" else 3
    mean = (steps - 1) / 2
    assert [(steps, mean), (steps, mean + 1)] == among(2, work)
    assert 1 == len(events(tmp_path, "end"))
    assert Store(tmp_path).latest().step == steps
