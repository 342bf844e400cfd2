"""The metrics log: what was logged, once each, however often the run was killed on the way."""

import json
import math

import pytest

from holdfast import Every, Store, journal
from holdfast.errors import UsageError
from toy import Cut, Toy, lines, new_run


def test_a_step_is_one_line_and_an_epochs_end_another(tmp_path):
    """With the epoch; what is logged twice before the safe point counts as said last, and nothing logged is no line.

    Batches of a group log into the step that they make up.
    """
    with new_run(tmp_path, Toy()) as run:
        for epoch in run.epochs(2):
            for batch in run.batches(range(5), accumulate=2):
                if batch != 4:
                    run.log(loss=9, lr=0.5)
                    run.log(loss=batch)
            run.log(acc=epoch)
    expected = []
    for epoch in (0, 1):
        expected += [(3 * epoch + n, "step", epoch, {"loss": 2 * n - 1, "lr": 0.5}) for n in (1, 2)]
        expected += [(3 * epoch + 3, "end", epoch, {"acc": epoch})]
    assert expected == [(line["step"], line["phase"], line["epoch"], line["values"]) for line in run.metrics()]


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
    data = journal.encode_events(found)
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


def test_the_log_can_be_read_while_the_run_lives(tmp_path):
    """By the run itself at once; by others a little later."""
    with new_run(tmp_path, Toy(), every=Every(steps=100)) as run:
        for step in run.steps(3):
            run.log(step=step)
            if step == 2:
                assert [0, 1] == [line["values"]["step"] for line in run.metrics()]
                assert 2 == len(lines(tmp_path))
