"""A run and what else lives beside it: forked children, other runs, a changed directory, generators that live on."""

import os
import signal
import subprocess
import sys

import pytest

from holdfast import Every, Run, Store, journal, settings
from holdfast.errors import StoreError, UsageError
from holdfast.run.stop import SIGNALS, StopRequest
from toy import Cut, Toy, new_run


def test_a_forked_child_that_leaves_the_block_says_nothing_for_its_parent(tmp_path):
    """Its exception or exit neither ends the attempt nor saves; the parent goes on, and a stranger is refused still."""
    with new_run(tmp_path, Toy(), every=None) as run:
        for step in run.steps(4):
            if step == 1:
                child = os.fork()
                if child == 0:
                    try:
                        run.__exit__(SystemExit, SystemExit(0), None)
                        run.__exit__(None, None, None)
                        os._exit(7)
                    finally:
                        os._exit(1)
                assert 7 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                assert not journal.logs(tmp_path)[-1].closed
                other = subprocess.run(
                    [sys.executable, "-c", f"from holdfast import Store; Store({str(tmp_path)!r}).save(1, step=99)"],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                assert "may still be running" in other.stderr
    assert Store(tmp_path).latest().step == 4


def test_a_forked_child_cannot_go_on_with_its_parents_loop(tmp_path):
    """Neither a step of it is saved, nor anything else written."""
    with new_run(tmp_path, Toy(), every=Every(steps=1)) as run:
        for step in run.steps(2):
            if step == 0:
                reading, writing = os.pipe()
                child = os.fork()
                if child == 0:
                    try:
                        run.save()
                        run._session.attempt.record("metrics", step=1)
                        run._session.attempt.flush()
                    except UsageError:
                        os.write(writing, b"refused")
                    finally:
                        os._exit(0)
                os.waitpid(child, 0)
                assert os.read(reading, 10) == b"refused"


def test_a_script_may_change_its_directory(tmp_path, monkeypatch):
    """A relative path means what it meant when the run was made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with Run("runs/a", {"toy": Toy()}, every=Every(steps=1)) as run:
        for step in run.steps(3):
            run.log(step=step)
            os.chdir(tmp_path / "elsewhere")
    assert Store(tmp_path / "runs/a").latest().step == 3
    store = Store("other")
    os.chdir(tmp_path)
    store.save(1, step=1)
    assert Store(tmp_path / "elsewhere" / "other").load() == 1


def test_a_runs_directory_that_is_gone_is_not_called_superseded(tmp_path):
    """The message says what happened."""
    import shutil

    with pytest.raises(StoreError, match="is gone"), new_run(tmp_path / "r", Toy(), every=Every(steps=1)) as run:
        for step in run.steps(3):
            if step == 1:
                run.wait()  # what a save in flight meets is not the same at every moment of the removal
                shutil.rmtree(tmp_path / "r")


def test_a_generator_that_outlives_its_block_saves_nothing(tmp_path):
    """The run has said good-bye."""
    with new_run(tmp_path, Toy(), every=Every(steps=1)) as run:
        steps = iter(run.steps(5))
        next(steps)
        next(steps)
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    with pytest.raises(UsageError, match="block has ended"):
        next(steps)
    assert before == sorted(path.name for path in (tmp_path / "checkpoints").iterdir())


def test_a_run_inside_another_is_refused(tmp_path):
    """A stop could save only one of them; one after the other is fine."""
    with new_run(tmp_path / "outer", Toy(), every=None) as outer:
        with pytest.raises(UsageError, match="inside the block of another"), new_run(tmp_path / "inner", Toy()):
            pass
        for _ in outer.steps(1):
            pass
    with new_run(tmp_path / "inner", Toy(), every=None) as inner:
        for _ in inner.steps(1):
            pass


def test_two_runs_of_one_script_do_not_share_the_moved_directory(tmp_path, monkeypatch):
    """The second one lies beside the first, and each may come again. What a drill asks for counts for the first."""
    monkeypatch.setenv("HOLDFAST_RUN_DIR", str(tmp_path / "moved"))
    for _ in range(2):
        with Run("runs/pretrain", {"toy": Toy()}, every=None) as run:
            for _ in run.steps(1):
                pass
        assert tmp_path / "moved" == run.path
    for _ in range(2):
        assert tmp_path / "moved.run-2" == Run("runs/finetune", {"toy": Toy()}).path
    monkeypatch.setenv("HOLDFAST_DRILL", '{"steps": 3}')
    assert [3, None] == [settings.read_drill_settings(tmp_path / name).steps for name in ("moved", "moved.run-2")]


def test_a_deadline_that_has_passed_is_refused(tmp_path):
    """Otherwise a restart loop would go on for ever, a step at a time."""
    from datetime import timedelta

    with pytest.raises(UsageError, match="has passed"), new_run(tmp_path, Toy(), deadline=timedelta(seconds=-1)):
        pass


def test_previous_handlers_come_back(tmp_path):
    """After the block, after an exception, and after a start that was refused."""
    mine = lambda number, frame: None
    before = {number: signal.signal(number, mine) for number in SIGNALS}
    try:
        with new_run(tmp_path, Toy()) as run:
            assert all(signal.getsignal(number) is not mine for number in SIGNALS)
            with pytest.raises(Exception, match="may still be running"):
                new_run(tmp_path, Toy()).__enter__()
            list(run.steps(1))
        assert all(signal.getsignal(number) is mine for number in SIGNALS)
        with pytest.raises(Cut), new_run(tmp_path, Toy()):
            raise Cut
        with pytest.raises(Exception, match="does not fit"):
            Run(tmp_path, {}).__enter__()
        assert all(signal.getsignal(number) is mine for number in SIGNALS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_first_reason_to_stop_is_the_one_that_is_told():
    """A batch system sends USR1 and then TERM; an interrupt by hand always counts."""
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert "SIGUSR1" == stop.reason
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # within a second: the same request
        assert "SIGINT" == stop.reason
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
