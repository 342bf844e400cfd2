"""What the next save will link is read back between two saves: whoever links it need not read it, and nobody waits
for that."""

import errno
import os
import threading
from contextlib import contextmanager

import numpy as np
import pytest

from collective import failed
from faults import links
from holdfast import Every, Stopped, Store, disk
from holdfast.collective import division
from holdfast.collective.store import CollectiveStore
from holdfast.errors import NotFound, Superseded
from holdfast.rules import Last, Whole
from holdfast.run import writer
from holdfast.store import reading
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.shards import SaveAbandoned
from rank_threads import everywhere
from stores import flip, steps
from toy import events, new_run
from unchanged import Frozen, rest, same, saved, shared

WAIT_S = 60
STEADY = "toy-steady.safetensors"


class Reads:
    """Who reads which files of which checkpoint back; the reader beside the loop can be held before it does."""

    def __init__(self, monkeypatch):
        self.reached, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.seen, self.ended = [], []  # reads that were begun, and those that came to their end
        self.error = None  # of the reader
        real = Checkpoint.problems

        def problems(checkpoint, *, cold=False, only=None, **more):
            thread = threading.current_thread().name
            if cold and only:
                self.seen.append((thread, int(checkpoint.path.name.split("-")[1]), *sorted(only)))
            if thread == writer.NAME:
                self.reached.set()
                assert self.go.wait(WAIT_S)
                if self.error is not None:
                    raise self.error
            wrong = list(real(checkpoint, cold=cold, only=only, **more))
            self.ended.append((thread, int(checkpoint.path.name.split("-")[1])))
            return wrong

        monkeypatch.setattr(Checkpoint, "problems", problems)

    def steps(self, *threads):
        """The checkpoints of which these have read a file that is shared."""
        return [step for thread, step, *names in self.seen if thread in threads and any("steady" in n for n in names)]


@pytest.fixture(autouse=True)
def _small():
    """A file of 4 KB is worth a link; and at the end nobody reads any more."""
    with links():
        yield
    rest()


@pytest.fixture
def reads(monkeypatch):
    found = Reads(monkeypatch)
    yield found
    found.go.set()


@contextmanager
def frozen_run(path, **options):
    frozen = Frozen()
    with new_run(path, frozen, **options) as run:
        yield run, frozen


def train(path, count, between=lambda run: (run.wait(), rest()), **options):
    """So many steps with a save after each; `between` comes before each step's work."""
    with frozen_run(path, **options) as (run, frozen):
        for _ in run.steps(count):
            between(run)
            frozen.small += 1


def expected(step):
    return {"big": np.arange(10_000.0), "small": np.full(3, float(step))}


def test_what_the_next_save_links_is_read_back_between_the_two(tmp_path, reads):
    """Beside the loop, each file after the commit of the checkpoint that it is taken from;
    of the saves only the last reads."""
    train(tmp_path, 7)
    assert [2, 3, 4, 5, 6] == reads.steps(writer.NAME)
    assert [6] == reads.steps("holdfast", "MainThread")
    store = Store(tmp_path)
    assert all(STEADY in shared(store[step].path) for step in range(3, 8))
    assert all(same(store.load(step)["toy"], expected(step)) for step in range(1, 8))


@pytest.mark.parametrize(
    ("options", "most"),
    [({"background": False}, [2, 3, 4, 5]), ({"whole": Whole(checkpoints=1)}, [])],
    ids=["no background", "no links"],
)
def test_where_nothing_runs_beside_the_loop_or_nothing_is_linked_there_is_no_reader(tmp_path, reads, options, most):
    """Without the background files are read as they are linked."""
    train(tmp_path, 6, **options)
    assert [] == reads.steps(writer.NAME)
    assert most == reads.steps("MainThread")


def test_a_state_that_changes_throughout_is_not_read(tmp_path, reads):
    """Nothing of it will be linked."""
    with frozen_run(tmp_path) as (run, thawed):
        for _ in run.steps(5):
            run.wait()
            thawed.big += 1
            thawed.small += 1
    assert not any("toy" in name for _, _, *names in reads.seen for name in names)  # torch's random numbers may be


def test_what_is_pinned_or_cannot_be_linked_is_not_read(tmp_path, monkeypatch):
    """It will be written anew."""
    store = Store(tmp_path / "pinned")
    saved(store, 3)
    assert store.unread()
    store.pin(3)
    assert [] == store.unread()

    def refuse(source, target):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), str(target))

    monkeypatch.setattr(disk, "link", refuse)
    store = Store(tmp_path / "without")
    saved(store, 3)
    assert [] == store.unread()


def test_a_save_does_not_wait_for_the_reader(tmp_path, reads):
    """It reads what it links itself; the other one ends when it sees that."""

    def between(run):
        run.wait()
        if run.step == 2:
            assert reads.reached.wait(WAIT_S)
        if run.step == 3:
            assert [2] == reads.steps("holdfast")
            reads.go.set()
            rest()
            assert (writer.NAME, 2) not in reads.ended

    reads.go.clear()
    train(tmp_path, 5, between)
    assert [2, 2, 3] == sorted(reads.steps(writer.NAME, "holdfast"))[:3]
    assert [] == list(Store(tmp_path)[5].problems(cold=True))


def test_nobody_begins_to_read_when_the_next_save_has_begun(tmp_path, reads):
    """It waits for the one before, whose end is no time between two saves."""
    reads.error = OSError(errno.EIO, "broken")  # so that there is something left to read

    def between(run):
        run.wait()
        rest()
        if run.step == 3:
            over, reads.error = run._session.saves.readback.over, None
            reads.seen.clear()
            now = run._session.saves.readback.pause_reading()
            run._session.saves.readback.start_reading(over)
            rest()
            assert [] == reads.seen
            run._session.saves.readback.start_reading(now)
            rest()
            assert [3] == reads.steps(writer.NAME)

    train(tmp_path, 5, between)


def test_a_read_that_gives_way_does_so_at_the_next_piece_and_counts_for_nothing(tmp_path, reads, monkeypatch):
    """The save reads the file from its beginning, and passes it on."""
    monkeypatch.setattr(reading, "PIECE_BYTES", 4096)
    monkeypatch.setattr(reading, "THREADS", 1)
    store = Store(tmp_path)
    states = saved(store, 3)
    pieces = []

    def fifth():
        pieces.append(None)
        if len(pieces) == 5:
            raise SaveAbandoned

    with pytest.raises(SaveAbandoned):
        store.read_back_early(store.unread(), fifth)
    assert 5 == len(pieces)
    assert store.unread()
    reads.seen.clear()
    store.save({"model": states[3]}, step=4)
    assert [3] == reads.steps("MainThread")
    assert ["model-steady.safetensors"] == shared(store[4].path)


def rot(path):
    """Bytes change, and nothing tells."""
    times = path.stat()
    flip(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_what_was_linked_before_a_restart_is_read_back_after_it(tmp_path, reads):
    """So that the first save of an attempt need not, which may be its last. In the background only."""
    train(tmp_path, 4)
    reads.seen.clear()
    for count, background, early, late in ((7, True, [4, 6], [6]), (9, False, [], [7])):
        with frozen_run(tmp_path, every=None, background=background) as (run, frozen):
            for step in run.steps(count):
                frozen.small += 1
                run.wait()
                rest()
                if step == 5:
                    run.save()
        assert early == reads.steps(writer.NAME)
        assert late == reads.steps("holdfast", "MainThread")
        assert STEADY in shared(Store(tmp_path)[count].path)
        reads.seen.clear()


def test_of_several_ranks_each_reads_back_what_it_will_link(tmp_path, reads, monkeypatch):
    """Each file once after each commit, by the rank that wrote it."""
    monkeypatch.setattr(division, "SHARE_BYTES", 1)
    frozen = {f"layer{number}": np.arange(2_000.0) + number for number in range(8)}

    def work(ranks):
        store = CollectiveStore(tmp_path, ranks=ranks)
        for step in range(1, 7):
            store.save({"frozen": frozen, "own": np.full(3, ranks.rank + step)}, step=step)
            assert store.read_back_early(store.unread()) is None
        store.close()

    assert not failed(everywhere(2, work))
    found = sorted((step, *names) for _, step, *names in reads.seen)
    assert len(found) == len(set(found))
    for rank in ("rank-00000", "rank-00001"):
        assert {2, 3, 4, 5, 6} <= {step for step, *names in found if names[0].startswith(rank)}
        assert any(name.startswith(rank) for name in shared(Store(tmp_path)[6].path))


# Damage ---------------------------------------------------------------------------------------------------------


def test_damage_that_is_found_between_two_saves_is_told_and_the_next_safe_point_saves(tmp_path, reads, capsys):
    """What it writes is its own; before, the newest checkpoint was worth nothing."""

    def between(run):
        run.wait()
        if run.step == 4:
            assert reads.reached.wait(WAIT_S)
            flip(run._last_session().store[4].path / STEADY)
            reads.go.set()
        rest()

    reads.go.clear()
    train(tmp_path, 9, between, every=Every(steps=2))
    saves = [(event["step"], event["reason"]) for event in events(tmp_path, "saved")]
    assert [(2, "due"), (4, "due"), (5, "due"), (6, "due"), (8, "due"), (9, "the end")] == saves
    assert [] == events(tmp_path, "save_failed")
    assert "leaf 'toy/big' changed since commit; the next save writes it anew" in capsys.readouterr().err
    assert ["leaf 'toy/big'"] == [event["what"].split(": ")[2][:14] for event in events(tmp_path, "told")]
    store = Store(tmp_path)
    assert STEADY not in shared(store[5].path)
    assert all(same(store.load(step)["toy"], expected(step)) for step in (2, 5, 6, 8, 9))


def test_without_periodic_saves_damage_forces_none(tmp_path, reads):
    """The save that comes writes anew."""

    def between(run):
        if run.step < 3:
            run.save()
        if run.step == 3:
            run.wait()
            assert reads.reached.wait(WAIT_S)
            flip(run._last_session().store[3].path / STEADY)
            reads.go.set()
        rest()

    reads.go.clear()
    train(tmp_path, 6, between, every=None)
    assert [1, 2, 3, 6] == [event["step"] for event in events(tmp_path, "saved")]
    assert [] == list(Store(tmp_path)[6].problems(cold=True))


def test_the_last_save_of_a_run_reads_what_it_links(tmp_path):
    """What rots after it was read ahead would be in what the run was for, and nobody would come to find it."""

    def between(run):
        run.wait()
        rest()
        if run.step == 4:
            rot(run._last_session().store[4].path / STEADY)

    train(tmp_path, 5, between)
    assert same(Store(tmp_path).load(5)["toy"], expected(5))


def test_nothing_goes_that_damage_has_made_the_last_of_its_kind(tmp_path, capsys):
    """A file rots after it was read and before it is linked.

    That is told, checkpoints that do not share it stay, and the next save writes it anew.
    """
    store = Store(tmp_path, keep=Last(2))
    states = saved(store, 2)
    assert store.read_back_early(store.unread()) is None
    rot(store[2].path / "model-steady.safetensors")
    store.save({"model": states[2]}, step=3)
    assert ["model-steady.safetensors"] == shared(store[3].path)
    assert (
        "changed since commit; no older checkpoint was removed; the next save writes it anew" in capsys.readouterr().err
    )
    assert [1, 2, 3] == steps(store)
    assert same(store.load()["model"], states[1])
    store.save({"model": states[2]}, step=4)
    assert [] == shared(store[4].path)
    assert same(store.load()["model"], states[2])


def test_what_those_that_go_share_too_need_not_be_read_again_before_they_go(tmp_path, reads):
    """And what is read before they go need not be read ahead."""
    store = Store(tmp_path, keep=Last(2))
    states = saved(store, 2)
    state, found = {"model": states[2]}, {}
    for step in range(3, 7):
        store.read_back_early(store.unread())
        reads.seen.clear()
        store.save(state, step=step)
        found[step] = reads.steps("MainThread"), bool(store.unread())
    assert {3: ([3], False), 4: ([], True), 5: ([], True), 6: ([], True)} == found
    assert [5, 6] == steps(store)


# Leaving, failing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["end", "exception", "stop"])
def test_nobody_who_leaves_waits_for_the_reader(tmp_path, reads, monkeypatch, how):
    """Not longer than a piece takes, or than it is worth; what it finds then is nobody's."""
    monkeypatch.setattr(writer, "LEAVE_S", 0.05)
    reads.go.clear()

    def between(run):
        run.wait()
        if run.step == 2:
            assert reads.reached.wait(WAIT_S)
            if how == "exception":
                raise ValueError("boom")
            run._session.stop.reason = "SIGTERM" if how == "stop" else None

    expect = {"exception": pytest.raises(ValueError, match="boom"), "stop": pytest.raises(Stopped)}
    if how == "end":
        train(tmp_path, 3, between)
    else:
        with expect[how]:
            train(tmp_path, 9, between)
    assert writer.NAME in {thread.name for thread in threading.enumerate()}
    reads.go.set()
    rest()
    last = 2 if how == "exception" else 3
    assert last == Store(tmp_path).latest().step
    assert same(Store(tmp_path).load()["toy"], expected(last))


def test_what_the_reader_fails_with_is_no_failure_of_the_run(tmp_path, reads):
    """The save reads what it links."""
    for error in (OSError(errno.EIO, "broken"), NotFound("gone"), MemoryError(), RuntimeError("thread")):
        reads.error = error
        reads.seen.clear()
        train(tmp_path / type(error).__name__, 5)
        assert [2, 3, 4] == reads.steps(writer.NAME)
        assert [2, 3, 4] == reads.steps("holdfast", "MainThread")


def test_without_a_thread_for_the_reader_nothing_is_read_ahead(tmp_path, reads, monkeypatch):
    """The system gives no more of them."""
    real = threading.Thread.start

    def start(thread):
        if thread.name == writer.NAME:
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    train(tmp_path, 5)
    assert [2, 3, 4] == reads.steps("holdfast", "MainThread")


@pytest.mark.parametrize("gone", [True, False])
def test_a_ghost_reads_on_and_says_nothing(tmp_path, reads, capsys, gone):
    """Its successor may remove what it reads; the next save is what tells it."""
    reads.go.clear()

    def between(run):
        run.wait()
        if run.step == 3:
            assert reads.reached.wait(WAIT_S)
            successor = Store(tmp_path, take_over=True)
            successor.save({"by": "the successor"}, step=9)
            if gone:
                successor.prune(Last(1))
            reads.go.set()
            rest()

    with pytest.raises(Superseded):
        train(tmp_path, 9, between)
    assert "damage" not in capsys.readouterr().err.replace("the successor", "")
    assert "the successor" == Store(tmp_path).load()["by"]


def test_a_child_that_is_forked_while_it_reads_has_no_reader(tmp_path, reads):
    """It leaves the block, and is gone; its parent goes on."""
    reads.go.clear()
    codes = []

    def between(run):
        run.wait()
        if run.step == 2 and not codes:
            assert reads.reached.wait(WAIT_S)
            child = os.fork()
            if not child:
                run.__exit__(None, None, None)
                os._exit(7 if threading.active_count() == 1 else 8)
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            reads.go.set()
        rest()

    train(tmp_path, 5, between)
    assert [7] == codes
    assert [2, 3, 4] == reads.steps(writer.NAME)
    assert same(Store(tmp_path).load()["toy"], expected(5))
