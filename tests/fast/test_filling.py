"""A save begins while the loop still copies the state: with what is there, and never with what is not.

The copies are held or cut short where each of them begins; memory and portions are small, the rest is as shipped.
"""

import ctypes
import os
import threading
import time
from types import SimpleNamespace

import pytest

from cut_copies import LEAF, LEAVES, Cut, Wide, left_in_attempts, running, same, small_copies
from faults import FULL, door
from holdfast import Store, pages, threads
from holdfast.state import snapshot
from holdfast.state.codec import Block
from holdfast.state.copy_progress import CopyProgress
from stores import steps
from toy import events

WAIT_S = 60


class Stop(BaseException):
    """The end of a program, as some frameworks make it."""


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    with small_copies(monkeypatch):
        yield


# How far it is -------------------------------------------------------------------------------------------------


def reached(filling, place):
    """Whether a thread that waits for what is before `place` goes on."""
    found = []
    thread = threading.Thread(target=lambda: found.append(filling.wait_until(place)))
    thread.start()
    thread.join(0.05)
    return thread, found


def test_what_is_there_is_what_lies_before_the_first_portion_that_is_not():
    """A later portion may be copied before; the last byte waits for the word that all of it is there."""
    filling = CopyProgress(100, [0, 10, 40])
    thread, found = reached(filling, 11)
    filling.report_copied(1)
    assert thread.is_alive()
    filling.report_copied(0)
    thread.join(WAIT_S)
    assert [True] == found
    assert filling.wait_until(40)
    next_one, found = reached(filling, 41)
    assert next_one.is_alive()
    filling.report_copied(2)
    next_one.join(WAIT_S)
    assert [True] == found
    assert filling.wait_until(99)
    last, found = reached(filling, 100)
    assert last.is_alive()
    filling.end(whole=True)
    last.join(WAIT_S)
    assert [True] == found


def test_the_first_word_that_nothing_more_comes_counts():
    """A copy that was given up is never whole, whatever its threads, and others, still say; who waits hears at once."""
    filling = CopyProgress(100, [0])
    thread, found = reached(filling, 50)
    filling.end(whole=False)
    thread.join(WAIT_S)
    filling.report_copied(0)
    filling.end(whole=True)
    assert [False, False, False] == [*found, filling.wait_until(50), filling.wait_until(100)]
    filling = CopyProgress(100, [0])
    filling.end(whole=True)
    filling.end(whole=False)
    assert filling.wait_until(100)


# Beside the loop -----------------------------------------------------------------------------------------------


def test_the_writer_writes_what_is_there_while_the_rest_is_copied(tmp_path, monkeypatch):
    """A copy goes on only when bytes of its save are on the disk; the checkpoint is the state of the safe point."""
    wide, begun = Wide(), threading.Event()

    def disk(call, perform):
        if call.name == "write" and threading.current_thread().name.startswith("holdfast-pool"):
            begun.set()
        return perform()

    held = []
    cut = Cut(monkeypatch, 3 * LEAVES, lambda: held.append(begun.wait(WAIT_S)))
    with door(disk), running(tmp_path, wide) as run:
        begun.clear()
        run.safe_point()
        wide.learn()
        expected = Wide()
        run.wait()
        cut.armed = False
    assert [True] == held
    assert same(Store(tmp_path)[1].load("wide"), expected)
    (event, *_) = events(tmp_path, "saved")
    assert 0 < event["stall_s"] < event["save_s"]


def test_the_bytes_are_those_of_a_save_for_which_the_loop_waits(tmp_path):
    """File by file, and digest by digest."""
    for name, background in (("one", True), ("two", False)):
        with running(tmp_path / name, Wide(), background=background) as run:
            run.safe_point()
            run.wait()
    one, two = (Store(tmp_path / name)[1] for name in ("one", "two"))
    digests = [{key: leaf.digest for key, leaf in each.manifest.leaves.items() if "wide" in key} for each in (one, two)]
    assert LEAVES == len(digests[0])
    assert digests[0] == digests[1]
    assert (one.path / "wide.safetensors").read_bytes() == (two.path / "wide.safetensors").read_bytes()
    assert [] == [*one.problems(cold=True), *two.problems(cold=True)]


# Cut short -----------------------------------------------------------------------------------------------------


def raised(error):
    raise error


@pytest.mark.parametrize(
    ("error", "nth"),
    [(ValueError, 1), (MemoryError, LEAVES), (RuntimeError, 3 * LEAVES), (Stop, 4 * LEAVES), (KeyboardInterrupt, 1)],
)
def test_an_error_in_the_midst_of_the_copy_leaves_the_old_checkpoint_only(tmp_path, monkeypatch, error, nth):
    """It surfaces in the loop as it is; nothing of the save is left, and the next safe point makes up for it."""
    wide, expected = Wide(), Wide()
    with running(tmp_path, wide) as run:
        run.safe_point()
        run.wait()
        wide.learn()
        cut = Cut(monkeypatch, nth, lambda: raised(error))
        cut.repeat = True  # the system may have given no thread, for all that is known: it is tried once more
        with pytest.raises(error):
            run.safe_point()
        cut.armed = False
        assert [1] == steps(Store(tmp_path))
        wide.learn()
        run.safe_point()
        assert same(Store(tmp_path)[1].load("wide"), expected)
        run.wait()
        assert [1, 3] == steps(Store(tmp_path))
        assert [] == left_in_attempts(tmp_path)
        assert same(Store(tmp_path)[3].load("wide"), wide)
    assert [] == [problem for each in Store(tmp_path).checkpoints() for problem in each.problems(cold=True)]


def test_a_thread_whose_start_ctrl_c_has_cut_short_is_waited_for(tmp_path, monkeypatch):
    """It copies all the same: when the loop hears of Ctrl-C, nobody does any more."""
    wide, real, begun, at_work = Wide(), threading.Thread.start, threading.Event(), []

    def start(thread):
        real(thread)
        if thread.name == "holdfast-worker":
            assert begun.wait(WAIT_S)
            raise KeyboardInterrupt

    def hold():
        at_work.append(begun.set())
        time.sleep(0.2)
        at_work.clear()

    Cut(monkeypatch, 1, hold)
    with running(tmp_path, wide) as run:
        with monkeypatch.context() as patch:
            patch.setattr(threads, "SEEN_S", 0)
            patch.setattr(threading.Thread, "start", start)
            with pytest.raises(KeyboardInterrupt):
                run.safe_point()
        assert begun.is_set()
        assert [] == at_work
    assert same(Store(tmp_path)[1].load("wide"), wide)


def test_ctrl_c_that_python_calls_a_runtime_error_is_no_lack_of_threads(tmp_path, monkeypatch):
    """Ctrl-C as a thread is started: the copy is not made once more, the loop hears of it."""
    wide, real, armed = Wide(), threading.Thread.start, []

    def start(thread):
        real(thread)
        if armed and thread.name == "holdfast-worker" and threading.current_thread() is threading.main_thread():
            armed.clear()
            try:
                raise KeyboardInterrupt
            finally:
                raise RuntimeError("release unlocked lock")

    monkeypatch.setattr(threading.Thread, "start", start)
    with running(tmp_path, wide) as run:
        armed.append(True)
        with pytest.raises(KeyboardInterrupt):
            run.safe_point()
        run._session.saves.writer.wait_until_released()
        assert [] == steps(Store(tmp_path))


def test_ctrl_c_as_the_last_word_is_said_keeps_nobody_waiting(monkeypatch):
    """What is not said is not true: the copy is given up with the save."""
    block = Block("array", "uint8", (LEAF,), memoryview(bytearray(b"x" * LEAF)), {})
    copy = snapshot.Snapshot(snapshot.Arena(), [snapshot.FileImage(b"lead", ["w"])], {"w": block})
    real = CopyProgress.end

    def interrupted(*_, **__):
        monkeypatch.setattr(CopyProgress, "end", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(CopyProgress, "end", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copy.copy()
    copy.abandon()
    found = []
    waiting = threading.Thread(target=lambda: found.append(copy.wait_for_all()), daemon=True)
    waiting.start()
    waiting.join(WAIT_S)
    assert [False] == found


def test_a_portion_is_a_part_of_a_big_leaf_or_several_small_ones(monkeypatch):
    """Every byte is in one of them, in the order of the memory, and none but the last is smaller than it should be."""
    monkeypatch.setattr(snapshot, "PORTION_BYTES", 1 << 12)
    sizes, start, copies = [0, 1, 5 << 12, 100, (3 << 12) + 7, *[300] * 50, 1 << 12, 2], 7, []
    for size in sizes:
        memory = memoryview(bytearray(size))
        copies.append(snapshot._Copy(memory, memory, start))
        start += size
    portions = list(snapshot._portions(copies))
    lengths = [sum(each.source.nbytes for each in portion) for portion in portions]
    assert all(1 << 12 <= length < 2 << 12 for length in lengths[:-1])
    places = [(each.start, each.start + each.source.nbytes) for portion in portions for each in portion]
    assert [7, *(end for _, end in places)] == [*(begin for begin, _ in places), start]


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_a_copy_of_several_moves_is_of_every_byte(beyond):
    """And of no byte behind it."""
    size = 3 * pages._MOVE_BYTES + beyond
    source, target = memoryview(bytearray(os.urandom(size))), memoryview(bytearray(size + 1))
    pages.copy(target[:size], source)
    assert (bytes(source), 0) == (bytes(target[:size]), target[size])


def test_while_threads_compute_in_python_a_copy_is_one_move(monkeypatch):
    """Each move lets one of them go first, for milliseconds. A second later, small moves are tried again."""
    clock, takes, moved, move = [100.0], [0.0001], [], ctypes.memmove

    def memmove(to, whence, size):
        clock[0] += takes[0]
        moved.append(size)
        return move(to, whence, size)

    monkeypatch.setattr(pages, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(pages, "_crowded", {"until": 0.0})
    monkeypatch.setattr(ctypes, "memmove", memmove)
    size, small = 4 << 20, pages._MOVE_BYTES
    source, target = memoryview(bytearray(os.urandom(size))), memoryview(bytearray(size))

    def sizes():
        moved.clear()
        target[:] = bytes(size)
        pages.copy(target, source)
        assert source == target
        return {*moved[:-1]}, len(moved)

    assert ({small}, 11) == sizes()
    takes[0] = 0.005
    assert ({small}, 2) == sizes()
    assert (set(), 1) == sizes()
    clock[0], takes[0] = clock[0] + 1, 0.0001
    assert ({small}, 11) == sizes()


def test_a_disk_that_fails_under_the_copy_is_told_at_the_next_safe_point(tmp_path, capsys):
    """The copy is made to its end, and the loop goes on."""
    wide, fails = Wide(), [True]

    def disk(call, perform):
        if call.name == "write" and call.offset == 4096 and fails:
            fails.clear()
            raise OSError(FULL, os.strerror(FULL))
        return perform()

    with door(disk), running(tmp_path, wide) as run:
        run.safe_point()
        wide.learn()
        run.safe_point()
        run.wait()
        assert "step 1 is not saved, and training goes on" in capsys.readouterr().err
    assert [2] == steps(Store(tmp_path))
    assert same(Store(tmp_path)[2].load("wide"), wide)


def test_a_system_that_gives_no_thread_gets_the_save_all_the_same(tmp_path, monkeypatch):
    """Then the loop copies, and waits."""
    wide = Wide()
    with running(tmp_path, wide) as run:
        monkeypatch.setattr(
            run._session.saves.writer, "submit", lambda work: raised(RuntimeError("can't start new thread"))
        )
        run.safe_point()
        assert [1] == steps(Store(tmp_path))
    assert same(Store(tmp_path)[1].load("wide"), wide)
