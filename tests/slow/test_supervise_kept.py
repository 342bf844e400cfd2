"""Checkpoints of a program that is not ours, on real processes: committed when whole, handed back when valid."""

import os
import signal
import time

from driven import WRITER, Driven, driven, kept, uninterrupted, whole
from holdfast.store.store import Store
from supervised import until


def test_a_program_that_is_stopped_goes_on_where_it_stopped(tmp_path):
    """Its own exit code was 1; ours says 75, and the last state is in the store."""
    it = Driven(tmp_path, 100)
    until(lambda: kept(tmp_path) if (tmp_path / "run" / "checkpoints").is_dir() else [], "a checkpoint")
    it.process.send_signal(signal.SIGUSR1)
    assert 75 == it.end()
    (newest,) = kept(tmp_path)[-1:]
    again = driven(tmp_path, 100)
    assert 0 == again.code
    assert f"from {newest}\n" in again.printed
    assert again.printed.splitlines()[-1] == uninterrupted(100)


def test_a_crash_costs_what_came_after_the_last_checkpoint(tmp_path):
    """SIGKILL; a retry goes on from the store, and not from the file that may be half written."""
    it = Driven(tmp_path, 100, "--step", "0.05", retries=1)
    until(lambda: kept(tmp_path) if (tmp_path / "run" / "checkpoints").is_dir() else [], "a checkpoint")
    os.kill(it.child, signal.SIGKILL)
    (tmp_path / "state.ck").write_text("half of one")
    assert 0 == it.end()
    assert it.printed.splitlines()[-1] == uninterrupted(100)


def test_every_checkpoint_that_is_kept_is_whole(tmp_path):
    """The program writes in place, and longer than it computes; what was caught in between is not kept."""
    it = Driven(tmp_path, 40, "--pause", "0.5", "--step", "0.1")
    seen = set()
    over = False
    while not over:
        over = it.process.poll() is not None  # then once more: the last one comes at the very end
        for checkpoint in Store(tmp_path / "run").checkpoints() if (tmp_path / "run" / "checkpoints").is_dir() else []:
            seen.add(checkpoint.step)
            assert whole(checkpoint)
        time.sleep(0.05)
    assert 0 == it.end()
    assert len(seen) > 1
    assert kept(tmp_path) == sorted(seen)[-3:]


def test_a_checkpoint_that_the_program_refuses_makes_way_for_an_older_one(tmp_path):
    """The digests hold, and the program says that it is not whole: quarantined, told, and the next older one used."""
    driven(tmp_path, 60, "--step", "0.06")
    steps = kept(tmp_path)
    assert len(steps) > 1
    store = Store(tmp_path / "run")
    with store.directory(step=1000) as path:
        (path / "state.ck").write_text("59 1 half")
    store.close()
    it = driven(tmp_path, 80)
    assert 0 == it.code
    assert "state.ck is not whole" in it.printed
    assert f"from {steps[-1]}\n" in it.printed
    assert it.printed.splitlines()[-1] == uninterrupted(80)
    assert "step-000001000 could not be read by the program; it is now" in it.said
    assert ["step-000001000-refused"] == [path.name for path in (tmp_path / "run" / "quarantine").iterdir()]


def test_when_it_refuses_all_it_does_not_begin_from_scratch(tmp_path):
    """That would lose what is there without a word. Exit 1, and how to begin anew."""
    store = Store(tmp_path / "run")
    for step in (1, 2):
        with store.directory(step=step) as path:
            (path / "state.ck").write_text("1 1 half")
    store.close()
    it = driven(tmp_path, 20)
    assert 1 == it.code
    assert "from" not in it.printed
    assert "there were checkpoints, and none that would do is left" in it.said
    assert "step-000000001-refused, step-000000002-refused. To start from scratch, give another --run" in it.said


def test_a_crash_at_the_same_step_ends_with_the_last_lines(tmp_path):
    """Each attempt goes on from the same checkpoint and gets no further."""
    (tmp_path / "poison").write_text("52")
    it = driven(tmp_path, 100, "--step", "0.03", retries=1)
    assert 8 == it.code
    assert f"{WRITER}: exit 9: no retry left of 1; it ended with\nfrom " in it.said
