"""The metrics log: what was logged, once each, however often the run was killed on the way."""

import json
import math
import random

import pytest

from holdfast import Every, Run, Store, journal
from holdfast.errors import UsageError
from toy import Cut, Toy, events, launch, new_run, script


@pytest.fixture(autouse=True)
def _no_syncs(monkeypatch):
    """Thousands of saves; what a power loss does is asked elsewhere."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def lines(path):
    return [(line["step"], line["phase"], line["values"]) for line in Run(path, {}).metrics()]


def test_a_step_is_one_line_and_an_epochs_end_another(tmp_path):
    """With the epoch; what is logged twice before the safe point counts as said last."""
    with new_run(tmp_path, Toy()) as run:
        for epoch in run.epochs(2):
            for batch in run.batches([1, 2]):
                run.log(loss=9, lr=0.5)
                run.log(loss=batch)
            run.log(acc=epoch)
    assert [
        (1, "step", 0, {"loss": 1, "lr": 0.5}),
        (2, "step", 0, {"loss": 2, "lr": 0.5}),
        (2, "end", 0, {"acc": 0}),
        (3, "step", 1, {"loss": 1, "lr": 0.5}),
        (4, "step", 1, {"loss": 2, "lr": 0.5}),
        (4, "end", 1, {"acc": 1}),
    ] == [(line["step"], line["phase"], line["epoch"], line["values"]) for line in run.metrics()]


def test_a_group_is_one_line(tmp_path):
    """Batches of a group log into the step that they make up."""
    with new_run(tmp_path, Toy()) as run:
        for _ in run.epochs(1):
            for batch in run.batches(range(5), accumulate=2):
                run.log(last=batch)
    assert [(1, {"last": 1}), (2, {"last": 3}), (3, {"last": 4})] == [
        (line["step"], line["values"]) for line in run.metrics()
    ]


def test_nothing_logged_is_no_line(tmp_path):
    """A step that says nothing is not in the log."""
    with new_run(tmp_path, Toy()) as run:
        for step in run.steps(4):
            if step % 2:
                run.log(step=step)
    assert [2, 4] == [line["step"] for line in run.metrics()]


def test_numbers_that_are_not_finite_are_kept(tmp_path):
    """By name, since JSON has no word for them; every line is JSON."""
    with new_run(tmp_path, Toy()) as run:
        for value in (math.nan, math.inf, -math.inf, 10**400 // 10**399, True, 0.1):
            run.log(value=value)
            run.safe_point()
    assert ["nan", "inf", "-inf", 10, True, 0.1] == [values["value"] for _, _, values in lines(tmp_path)]
    (path,) = tmp_path.glob("attempts/*/attempt-*.jsonl")
    assert all(json.loads(line) for line in path.read_text().splitlines() if line)


def test_a_number_of_any_library_is_a_number(tmp_path):
    """What has item() is asked for it."""
    np = pytest.importorskip("numpy")
    with new_run(tmp_path, Toy()) as run:
        run.log(a=np.float32(0.5), b=np.array(3), d=np.float64(0.25), e=np.bool_(True), f=True, g=10**30)
        run.safe_point()
        with pytest.raises(UsageError, match="metric 'c' is a str, not one number"):
            run.log(c="1")
        with pytest.raises(UsageError, match="metric 'c' is a ndarray, not one number"):
            run.log(c=np.zeros(3))
        run.save()
    assert [(1, "step", {"a": 0.5, "b": 3, "d": 0.25, "e": 1, "f": 1, "g": 1e30})] == lines(tmp_path)
    assert Store(tmp_path).latest().manifest.step == 1


def test_what_was_logged_after_the_loop_is_there_once(tmp_path):
    """However often the finished run is run again; after an extension it is said of the new end."""
    for total in (3, 3, 3, 5):
        with new_run(tmp_path, Toy(), every=None) as run:
            for step in run.steps(total):
                run.log(step=step)
            run.log(test=total)
    steps = [(n + 1, "step", {"step": n}) for n in range(5)]
    assert [*steps, (5, "exit", {"test": 5})] == lines(tmp_path)


def test_what_was_logged_in_a_body_that_break_left_belongs_to_the_end(tmp_path):
    """And what came after the loop does not, so that a second start does not say it twice."""
    for _ in range(3):
        with new_run(tmp_path, Toy(), every=None) as run:
            for _ in run.epochs(5):
                for batch in run.batches([1, 2]):
                    run.log(loss=batch)
                run.log(acc=1)
                break
            run.log(test=2)
        steps = [(1, "step", {"loss": 1}), (2, "step", {"loss": 2})]
        assert [*steps, (2, "end", {"acc": 1}), (2, "exit", {"test": 2})] == lines(tmp_path)


def test_a_line_written_twice_is_read_once(tmp_path):
    """A disk that fills up in the middle of an append: the lines are written again, whole."""
    path = tmp_path / "attempt-1.jsonl"
    path.write_bytes(b"")
    found = [{"event": "metrics", "time": 1.0, "step": n, "values": {}} for n in range(3)]
    data = journal.lines(found)
    path.write_bytes(data[: len(data) - 10] + data)
    assert found == journal.read(path)


def test_two_lines_of_one_safe_point_become_one(tmp_path):
    """What was logged after a safe point and before a save by hand belongs to the same step."""
    with new_run(tmp_path, Toy(), every=None) as run:
        run.log(a=1, b=1)
        run.safe_point()
        run.log(b=2)
        run.save()
    assert [(1, "step", {"a": 1, "b": 2})] == lines(tmp_path)


def test_an_aborted_step_logs_nothing(tmp_path):
    """What it had said is said again by the one that completes it."""
    for cut in (2, None):
        try:
            with new_run(tmp_path, Toy()) as run:
                for step in run.steps(4):
                    run.log(step=step, cut=cut or 0)
                    if step == cut:
                        raise Cut
        except Cut:
            pass
    assert [2, 2, 0, 0] == [values["cut"] for _, _, values in lines(tmp_path)]


KILLED = """
    when = [int(word) for word in sys.argv[1:]]
    with new_run(RUN, toy, every=Every(steps=int(os.environ["EVERY"]))) as run:
        for epoch in run.epochs(4):
            for batch in run.batches(range(5)):
                toy.learn(batch)
                if run.step in when:
                    send("KILL")
                run.log(value=toy.value % 9973)
            run.log(epoch=epoch)
        run.log(final=toy.value % 9973)
"""


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3, 7])
def test_no_number_of_kills_adds_or_loses_a_line(tmp_path, every):
    """kill -9 at seeded steps, again and again: line for line the log of an uninterrupted run."""
    (tmp_path / "whole").mkdir()
    assert 0 == launch(script(tmp_path / "whole", KILLED), EVERY=str(every)).code
    (tmp_path / "cut").mkdir()
    train = script(tmp_path / "cut", KILLED)
    dice = random.Random(every)
    for _ in range(5):
        assert -9 == launch(train, *dice.sample(range(20), 8), 19, EVERY=str(every)).code
    assert 0 == launch(train, EVERY=str(every)).code
    expected = lines(tmp_path / "whole" / "run")
    assert 25 == len(expected)
    assert expected == lines(tmp_path / "cut" / "run")


INSIDE = """
    from holdfast import Store
    commit = Store.commit

    def commit_and_die(*words, step, **facts):
        checkpoint = commit(*words, step=step, **facts)
        if step == int(sys.argv[1]):
            send("KILL")
        return checkpoint

    Store.commit = commit_and_die
    with new_run(RUN, toy, background=sys.argv[2] == "in the background") as run:
        for step in run.steps(4):
            run.log(step=step)
"""


@pytest.mark.parametrize("how", ["in the background", "before the loop goes on"])
def test_a_checkpoint_never_comes_before_its_line(tmp_path, how):
    """Killed right after the commit: the next attempt goes on from there, and the line is on the disk."""
    train = script(tmp_path, INSIDE)
    assert [-9, 0] == [launch(train, step, how).code for step in (2, -1)]
    assert [1, 2, 3, 4] == [step for step, _, _ in lines(tmp_path / "run")]
    assert [0, 2] == [event["step"] for event in events(tmp_path / "run", "restored")]


TENSORBOARD = """
    from torch.utils.tensorboard import SummaryWriter
    writer = None

    def board(known, step):
        global writer
        directory = known or RUN + "-board"
        writer = SummaryWriter(directory, purge_step=step)
        return directory

    when = [int(word) for word in sys.argv[1:]]
    with new_run(RUN, toy, every=Every(steps=3), tracker=board) as run:
        for step in run.steps(10):
            toy.learn(step)
            writer.add_scalar("value", toy.value % 9973, step)
            writer.flush()
            if step in when:
                send("KILL")
    writer.close()
"""


@pytest.mark.slow
def test_a_real_tensorboard_shows_each_step_once(tmp_path):
    """The writer begins where the run resumed: what the killed attempts wrote beyond is purged."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for place, kills in (("whole", []), ("cut", [[1], [5], [7], []])):
        (tmp_path / place).mkdir()
        train = script(tmp_path / place, TENSORBOARD)
        assert [-9] * (len(kills[:-1])) + [0] == [launch(train, *words).code for words in kills or [[]]]

    def shown(place):
        board = EventAccumulator(str(tmp_path / place / "run-board"))
        board.Reload()
        return [(event.step, event.value) for event in board.Scalars("value")]

    assert list(range(10)) == [step for step, _ in shown("cut")]
    assert shown("whole") == shown("cut")
    assert 1 == len(events(tmp_path / "cut" / "run", "tracker"))


def test_the_log_can_be_read_while_the_run_lives(tmp_path):
    """By the run itself at once; by others a little later."""
    with new_run(tmp_path, Toy(), every=Every(steps=100)) as run:
        for step in run.steps(3):
            run.log(step=step)
            if step == 2:
                assert [0, 1] == [line["values"]["step"] for line in run.metrics()]
                assert 2 == len(lines(tmp_path))
