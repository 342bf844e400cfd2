"""A run without a block: `run = Run(...).start()`, and how it ends within one process."""

import signal
import threading
from itertools import islice
from typing import Any

import pytest

from holdfast import Every, disk
from holdfast.errors import NoSpace, UsageError
from holdfast.run import blockless
from holdfast.run.stop import SIGNALS
from toy import Toy, events, lines, names, new_run


@pytest.fixture(autouse=True)
def _alone(monkeypatch, tmp_path):
    """What a power loss does is asked elsewhere; what a test leaves open ends with it."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    yield
    blockless.end_run_at(tmp_path)


def started(path, toy, **options):
    return new_run(path, toy, **options).start()


# How it ends, within one process ---------------------------------------------------------------------------------


def test_it_finishes_when_its_outermost_loop_ends(tmp_path):
    """Saved and journalled there, not at the process's end; what is logged afterwards is of the end, once."""
    for _ in range(2):
        toy = Toy()
        run = started(tmp_path, toy, every=None)
        for epoch in run.epochs(2):
            for batch in run.batches([1, 2]):
                toy.value += batch
            run.log(epoch=epoch)
        assert ["step-000000004-end"] == names(tmp_path)
        assert "end" == events(tmp_path, "end")[-1]["event"]
        run.log(test=7)
        assert (4, 2, 7) == (run.step, run.epoch, toy.value)
    ends = [(2, "end", {"epoch": 0}), (4, "end", {"epoch": 1}), (4, "exit", {"test": 7})]
    assert ends == lines(tmp_path) == [(e["step"], e["phase"], e["values"]) for e in run.metrics()]


def test_a_loop_in_another_thread_than_start_finishes_by_break(tmp_path):
    """As in a server or a window system: the run is begun by the main thread, and trained by a worker."""
    toy = Toy()
    run = started(tmp_path, toy, every=None)
    worker = threading.Thread(target=leave_by_break, args=(run, toy))
    worker.start()
    worker.join()
    assert ["step-000000004-end"] == names(tmp_path)
    assert [1, 0, 0] == [len(events(tmp_path, kind)) for kind in ("end", "stop", "failed")]


def test_the_attempt_that_finds_nothing_to_do_says_once_that_the_run_has_finished(tmp_path, capsys):
    """The one before it was cut after its last step: nobody has said it."""
    toy = Toy()
    with pytest.raises(ValueError, match="after"), new_run(tmp_path, toy) as run:
        for step in run.steps(3):
            toy.learn(step)
        raise ValueError("after")
    said = []
    for _ in range(2):
        capsys.readouterr()
        with new_run(tmp_path, Toy()) as run:
            assert [] == list(run.steps(3))
        said.append([line.partition(f"{tmp_path}: ")[2] for line in capsys.readouterr().err.splitlines()])
    assert "finished: 3 steps in 2 attempts" == said[0][-1]
    assert 1 == len(said[1])
    assert said[1][0].startswith("already finished at step 3")


def leave_by_break(run, toy):
    for step in run.steps():
        toy.learn(step)
        run.log(step=step)
        if step == 3:
            break


def leave_by_return(run, toy):
    for epoch in run.epochs(5):
        for batch in run.batches([1, 2, 3]):
            toy.learn(batch)
            if (epoch, batch) == (1, 1):
                return [batch]
    return None


def leave_within_with_and_try(run, toy):
    for step in run.steps(9):
        try:
            with open("/dev/null"):
                toy.learn(step)
                if step == 3:
                    break
        finally:
            toy.value += 0


class Bar:
    def __init__(self, iterable):
        self.iterable = iterable

    def __iter__(self):
        try:
            for item in self.iterable:  # noqa: UP028  as tqdm does it
                yield item
        finally:
            self.closed = True


def leave_a_bar_that_is_held(run, toy):
    bar = Bar(run.steps(9))
    for step in bar:
        toy.learn(step)
        if step == 3:
            break
    assert bar.closed


@pytest.mark.parametrize(
    "leave", [leave_by_break, leave_by_return, leave_within_with_and_try, leave_a_bar_that_is_held]
)
def test_break_and_return_finish_it(tmp_path, leave):
    """At once: saved with the step that was left, and a restart has nothing to do."""
    toy = Toy()
    run = started(tmp_path, toy, every=None)
    leave(run, toy)
    assert ["step-000000004-end"] == names(tmp_path)
    assert 1 == len(events(tmp_path, "end"))
    again = Toy()
    run = started(tmp_path, again, every=None)
    leave(run, again)  # which learns in each pass
    assert (toy.value, 4) == (again.value, run.step)


def raise_in_the_body(run):
    for step in run.steps(9):
        if step == 3:
            raise ValueError("boom")


def raise_in_an_expression(run):
    for epoch in run.epochs(2):
        for batch in run.batches([2, 1, 1, 0]):
            1 / (batch + epoch)


def raise_on_unpacking(run):
    pairs: list[Any] = [(1, 2)] * 3 + [(1, 2, 3)]
    for _step, pair in zip(run.steps(9), pairs, strict=False):
        _a, _b = pair


def raise_in_an_iterator_around(run):
    def poor():
        yield from (0, 1, 2)
        raise ValueError("boom")

    for _ in zip(run.steps(9), poor(), strict=False):
        pass


def raise_through_a_bar(run):
    for step in Bar(run.steps(9)):
        if step == 3:
            raise KeyError(step)


def raise_what_was_unbound(run):
    for step in run.steps(9):
        if step == 3:
            del nothing  # type: ignore[has-type]  # noqa: F821
            nothing = 1  # noqa: F841


def raise_again(run):
    for step in run.steps(9):
        try:
            assert step < 3
        except AssertionError:  # noqa: TRY203  it is what is tried
            raise


def raise_through_a_block(run):
    for step in run.steps(9):
        with open("/dev/null"):
            if step == 3:
                raise ValueError("boom")


def exit_in_the_body(run):
    for step in run.steps(9):
        if step == 3:
            raise SystemExit(0)


@pytest.mark.parametrize(
    "fail",
    [
        raise_in_the_body,
        raise_in_an_expression,
        raise_on_unpacking,
        raise_in_an_iterator_around,
        raise_through_a_bar,
        raise_what_was_unbound,
        raise_again,
        raise_through_a_block,
        exit_in_the_body,
    ],
)
def test_an_exception_finishes_nothing(tmp_path, fail):
    """Told from a break by the instruction at which the loop's frame was left; the next start goes on from the save."""
    run = started(tmp_path, Toy(), every=Every(steps=2))
    with pytest.raises((Exception, SystemExit)):
        fail(run)
    assert ["step-000000002"] == names(tmp_path)
    assert ([], 1) == (events(tmp_path, "end"), len(events(tmp_path, "failed")))
    assert 3 == events(tmp_path, "failed")[0]["step"]
    with pytest.raises(UsageError, match="has ended"):
        run.save()
    run = started(tmp_path, Toy())
    assert 2 == run.step


def test_an_iterator_around_the_loop_that_had_enough_is_told(tmp_path, capsys):
    """islice() ends as an exception in it would: nothing is finished, and a line says where a limit belongs."""
    run = started(tmp_path, Toy(), every=Every(steps=2))
    for _ in islice(run.steps(9), 3):
        pass
    assert "not finished, saved up to step 2. A limit belongs into the loop itself" in capsys.readouterr().err
    assert [] == events(tmp_path, "end")


def test_an_exception_inside_that_is_caught_there_leaves_that_epochs_batches_only(tmp_path):
    """The epoch goes on, and the break that comes later is a break."""
    run = started(tmp_path, Toy(), every=None)
    for epoch in run.epochs(5):
        try:
            for batch in run.batches([1, 2, 3]):
                if batch == 2:
                    raise ValueError
        except ValueError:
            pass
        if epoch == 1:
            break
    assert (4, ["step-000000004-end"]) == (run.step, names(tmp_path))


def test_signals_are_its_own_only_while_its_loop_is_walked(tmp_path):
    """Ctrl-C before, between and after raises KeyboardInterrupt, as anywhere in Python."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def now():
        return {number: signal.getsignal(number) for number in SIGNALS}

    run = started(tmp_path, Toy())
    assert before == now()
    for _ in run.steps(1):
        assert not set(before.values()) & set(now().values())
    assert before == now()
    run = started(tmp_path, Toy())
    with pytest.raises(ValueError, match="boom"):
        raise_in_the_body(run)
    assert before == now()


def test_a_new_run_at_its_path_ends_it(tmp_path):
    """A cell that is run again. The loop that the old one was in is no longer the run's."""
    old = started(tmp_path, Toy(), every=Every(steps=2))
    held = iter(old.steps(9))
    assert [0, 1, 2] == [next(held) for _ in range(3)]
    new = started(tmp_path, Toy(), every=Every(steps=2))
    assert 2 == new.step
    with pytest.raises(UsageError, match="ended"):
        next(held)
    del held
    with pytest.raises(UsageError, match="has ended"):
        old.log(loss=1)
    with new_run(tmp_path, Toy()) as run:
        assert list(range(2, 9)) == list(run.steps(9))
    with pytest.raises(UsageError, match="entered already"), run:
        run.start()
    assert ([], True, 9) == (events(tmp_path, "stop"), bool(events(tmp_path, "end")), run.step)


def test_what_wants_a_block_says_so(tmp_path):
    """A second loop, a loop of another shape."""
    run = started(tmp_path, Toy())
    with pytest.raises(UsageError, match="ends with a block"):
        run.safe_point()
    list(run.steps(2))
    for again in (lambda: run.steps(3), run.save, run.safe_point, lambda: run.batches([1])):
        with pytest.raises(UsageError, match="wants a block around all of it"):
            again()


def test_a_save_that_fails_after_a_break_is_raised_at_the_next_use(tmp_path, monkeypatch, capsys):
    """Where the loop was left nothing can be raised: it is told, and not lost."""
    toy = Toy()
    run = started(tmp_path, toy, every=None)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 10)
    leave_by_break(run, toy)
    assert "the end is not saved" in capsys.readouterr().err
    with pytest.raises(NoSpace):
        run.log(test=1)
    monkeypatch.undo()
    with pytest.raises(UsageError, match="before its loop did"):  # else the journal would say that all is well
        run.log(test=1)
    assert ([], 1) == (events(tmp_path, "end"), len(events(tmp_path, "failed")))
    assert 0 == started(tmp_path, Toy()).step
