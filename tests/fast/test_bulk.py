"""Big files: whatever lies in memory, and whatever the file system refuses, the file is the bytes and the digests are theirs."""

import ctypes
import errno
import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_store import mounted

from faults import BROKEN, FULL, counting, door, failing, half_of, requests
from holdfast import bulk, disk
from holdfast.bulk import Run
from holdfast.errors import NoSpace
from holdfast.pages import PAGE, pages
from holdfast.store.store import Store
from holdfast.threads import WorkerPool

CHUNK = 2 * PAGE
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


@contextmanager
def nothing_left():
    """No descriptor and no thread: neither after success nor after an error. No more buffers than are allowed."""
    bulk.release()
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    yield
    assert descriptors == len(os.listdir("/proc/self/fd"))
    assert threads == threading.active_count()
    assert len(bulk._idle) <= bulk.BUFFERS


@pytest.fixture(autouse=True)
def _nothing_left():
    with nothing_left():
        yield


def bytes_of(size, seed=1):
    return np.random.default_rng(seed).integers(0, 256, size, "uint8").tobytes()


def laid(kind, data):
    """`data` in memory of that kind."""
    if kind == "read-only":
        return memoryview(data)
    memory = pages(len(data) + PAGE)
    start = {"at a page": 0, "inside a page": 16}[kind]
    memory[start : start + len(data)] = data
    return memory[start : start + len(data)]


def written(path, runs, **named):
    """Write the runs; whether the file and the digests are right."""
    parts = [
        run.data[end - size : end]
        for run in runs
        for size, end in zip(run.sizes, itertools.accumulate(run.sizes), strict=True)
    ]
    digests = bulk.write(path, runs, sum(map(len, parts)), xxhash.xxh3_128, **named)
    assert b"".join(parts) == path.read_bytes()
    assert [xxhash.xxh3_128(part).hexdigest() for part in parts] == digests


def one_image(size=10 * CHUNK + 100, kind="at a page"):
    return [Run(laid(kind, bytes_of(size)), [16, CHUNK, 0, 1, 3 * CHUNK, size - 4 * CHUNK - 17])]


near = st.sampled_from([0, PAGE, CHUNK, 2 * CHUNK, 5 * CHUNK])
sizes = st.tuples(near, st.integers(-17, 17)).map(lambda pair: max(0, sum(pair)))
one_run = st.tuples(st.sampled_from(["at a page", "inside a page", "read-only"]), st.lists(sizes, max_size=6))


# What is written -----------------------------------------------------------------------------------------------


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(one_run, max_size=5), st.sampled_from([0, 1, 3]), st.booleans())
def test_the_file_is_the_concatenation_and_the_digests_are_of_its_pieces(tmp_path, runs, threads, direct):
    """Leaves of any size, wherever they lie: images of whole files at a page's start, scattered ones, read-only ones."""
    path = tmp_path / "file"
    laid_out = [Run(laid(kind, bytes_of(sum(parts), seed)), parts) for seed, (kind, parts) in enumerate(runs)]
    with requests(CHUNK, threads):
        bulk.DIRECT_BYTES = 0 if direct else 1 << 30
        written(path, laid_out)
    path.unlink()


def late(kind, size, busy_until):
    """An image whose bytes come only when they are waited for."""
    data, memory = bytes_of(size), laid(kind, bytes(size))
    there = 0

    def await_first(count):
        nonlocal there
        memory[there:count] = data[there:count]
        there = max(there, count)
        return there < busy_until

    return [Run(memory, [16, CHUNK, 0, 1, 3 * CHUNK, size - 4 * CHUNK - 17], await_first)]


LATE = list(itertools.product(["at a page", "inside a page"], [0, 2 * CHUNK, 9 * CHUNK, 1 << 30], [0, 2]))


@pytest.mark.parametrize(("kind", "busy_until", "threads"), LATE)
def test_memory_that_is_still_being_filled_is_waited_for(tmp_path, kind, busy_until, threads):
    """No byte is written or digested before it is there, whether its digest waits or not."""
    size = 10 * CHUNK + 100
    with requests(CHUNK, threads):
        image = late(kind, size, busy_until)
        written(tmp_path / "file", image)
    assert bytes_of(size) == bytes(image[0].data)


@pytest.mark.slow
def test_the_engine_as_shipped_writes_what_is_larger_than_its_buffers(tmp_path):
    """In requests and on threads as they are, not made small for a test."""
    size = 2 * bulk.BUFFERS * bulk.CHUNK_BYTES + 12345
    data = bytes_of(size)
    for number, kind in enumerate(["at a page", "inside a page"]):
        written(tmp_path / str(number), [Run(laid(kind, data), [5, size - 5])])


def test_what_has_the_name_already_is_not_touched(tmp_path):
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        bulk.write(tmp_path / "file", one_image(), 100, xxhash.xxh3_128)
    assert b"mine" == (tmp_path / "file").read_bytes()


def requests_in(calls):
    return [call for call in calls if call.name == "write"]


def test_a_request_is_asked_for_before_it_is_made(tmp_path):
    """Each of them; what the asking raises ends the writing."""
    asked, made = [], []
    with requests(CHUNK, 3):
        with door(counting(made)):
            written(tmp_path / "whole", one_image(), before_each=lambda: asked.append(1))
        assert len(asked) == len(requests_in(made)) == 11
        for nth in range(len(asked)):
            left, made = iter(range(nth)), []

            def before_each(left=left):
                if next(left, None) is None:
                    raise KeyError("enough")

            with door(counting(made)), pytest.raises(KeyError):
                bulk.write(tmp_path / str(nth), one_image(), 10 * CHUNK + 100, xxhash.xxh3_128, before_each)
            assert len(requests_in(made)) <= nth
            assert "fsync" not in {call.name for call in made}


def test_whole_pages_go_past_the_cache_side_by_side_into_a_file_of_full_length(tmp_path):
    """Only the end, which fills no page, goes through the cache; the first two requests are under way at once."""
    size, meet, requested, alone = 10 * CHUNK + 100, threading.Barrier(2), itertools.count(), threading.Lock()
    how = []

    def act(call, perform):
        if call.name == "write":
            direct = fcntl.fcntl(call.descriptor, fcntl.F_GETFL) & os.O_DIRECT
            with alone:
                how.append((bool(direct), len(call.data), os.fstat(call.descriptor).st_size))
            if next(requested) < 2:
                meet.wait(10)
        return perform()

    with requests(CHUNK, 3), door(act):
        written(tmp_path / "file", one_image(size))
    assert [(True, CHUNK, size)] * 10 + [(False, 100, size)] == how


def test_the_descriptor_is_closed_when_no_thread_uses_it_any_more(tmp_path, monkeypatch):
    """Also after an error: its number may be another file's by then."""
    go, under_way, closed = threading.Event(), threading.Event(), []

    def act(call, perform):
        if call.name == "write":
            under_way.set()
            assert go.wait(10)
            done = perform()
            under_way.clear()
            return done
        return perform()

    turns = iter(range(1))

    def before_each():
        if next(turns, None) is None:
            assert under_way.wait(10)
            raise KeyError("enough")

    end, close = WorkerPool.close, os.close
    monkeypatch.setattr(WorkerPool, "close", lambda pool: (go.set(), end(pool)))
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(under_way.is_set()), close(descriptor)))
    with requests(CHUNK, 3), door(act), pytest.raises(KeyError):
        bulk.write(tmp_path / "file", one_image(), 10 * CHUNK + 100, xxhash.xxh3_128, before_each)
    go.set()
    assert [False] == closed


# What a file system refuses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP])
def test_without_o_direct_the_cache_is_used(tmp_path, monkeypatch, code):
    """The flag is refused, as many network file systems do."""
    real = fcntl.fcntl

    def refused(descriptor, what, flags=0):
        if what == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(code, os.strerror(code))
        return real(descriptor, what, flags)

    monkeypatch.setattr(fcntl, "fcntl", refused)
    with requests(CHUNK, 3):
        written(tmp_path / "file", one_image())


@pytest.mark.parametrize("threads", [0, 3])
def test_a_file_system_that_refuses_the_first_direct_request_gets_plain_ones(tmp_path, threads):
    """It took the flag and fails the write."""

    def refusing(call, perform):
        if call.name == "write" and fcntl.fcntl(call.descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return perform()

    with requests(CHUNK, threads), door(refusing):
        written(tmp_path / "file", one_image())


@pytest.mark.parametrize("threads", [0, 3])
def test_an_einval_that_is_not_about_o_direct_is_an_error(tmp_path, threads):
    """It is not tried for ever."""

    def refusing(call, perform):
        if call.name == "write":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return perform()

    with requests(CHUNK, threads), door(refusing), pytest.raises(OSError, match="Invalid argument"):
        written(tmp_path / "file", one_image())


@pytest.mark.parametrize("threads", [0, 3])
def test_a_request_that_was_done_in_part_goes_on_from_there(tmp_path, threads):
    """Also when the rest begins in the middle of a page, which O_DIRECT does not take."""
    turns = itertools.count()

    def short(call, perform):
        return half_of(call) if call.name == "write" and len(call.data) > 1 and next(turns) % 3 else perform()

    with requests(CHUNK, threads), door(short):
        written(tmp_path / "file", one_image())
    assert next(turns) > 12


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOSYS, errno.EINVAL, "absent"])
def test_without_preallocation_the_file_grows(tmp_path, monkeypatch, code):
    """NFS before 4.2, some FUSE file systems, another system's libc."""

    def refused(*_):
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(bulk, "_fallocate", None if code == "absent" else refused)
    with requests(CHUNK, 3):
        written(tmp_path / "file", one_image())


def test_a_signal_during_preallocation_is_no_error(tmp_path, monkeypatch):
    """tmpfs stops in the middle when one comes; it is asked again."""
    real, answers = bulk._fallocate, iter([errno.EINTR, errno.EINTR])

    def interrupted(*given):
        ctypes.set_errno(next(answers, 0))
        return -1 if ctypes.get_errno() else real(*given)

    monkeypatch.setattr(bulk, "_fallocate", interrupted)
    with requests(CHUNK):
        written(tmp_path / "file", one_image())
    assert next(answers, None) is None


@pytest.mark.parametrize("code", [FULL, BROKEN], ids=["ENOSPC", "EIO"])
@pytest.mark.parametrize("threads", [0, 3])
def test_an_error_at_any_request_is_raised(tmp_path, code, threads):
    """From whichever thread; the next file is written as if nothing had been."""
    calls = []
    with requests(CHUNK, threads):
        with door(counting(calls)):
            written(tmp_path / "whole", one_image())
        assert {"create", "allocate", "write", "fsync"} == {call.name for call in calls}
        for nth in range(len(calls)):
            with door(failing(nth, code)), pytest.raises(OSError, match=os.strerror(code)):
                bulk.write(tmp_path / f"broken-{nth}", one_image(), 10 * CHUNK + 100, xxhash.xxh3_128)
            written(tmp_path / f"next-{nth}", one_image())


@contextmanager
def small_disk(place: Path, kind: str):
    if kind == "tmpfs":
        with mounted(place, "-t", "tmpfs", "-o", "size=16m", "holdfast"):
            yield place
        return
    image = place.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
    with mounted(place, "-o", "loop", str(image)):
        yield place


@AS_ROOT
@pytest.mark.system
@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
@pytest.mark.parametrize("told", ["by preallocation", "by a request"])
def test_a_real_full_disk_is_told_and_the_store_is_as_it_was(tmp_path, monkeypatch, kind, told):
    """A real file system of a few MiB, full before the first request or in the middle of one."""
    if kind == "ext4" and shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4 here; .ci/run brings it")
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1 << 50)
    if told == "by a request":
        monkeypatch.setattr(bulk, "_fallocate", None)
    with small_disk(tmp_path / "small", kind) as place, requests(1 << 16, 3):
        store, saved = Store(place / "run"), 0
        weights = np.frombuffer(bytes_of(5 << 20), "uint8")
        with pytest.raises(NoSpace):
            for step in range(1, 9):
                store.save({"w": weights + np.uint8(step)}, step=step)
                saved = step
        assert saved >= 1
        assert list(range(1, saved + 1)) == [checkpoint.step for checkpoint in store.checkpoints()]
        assert [store.attempt.journal.name] == [path.name for path in store.attempt.room.iterdir()]
        assert all(not list(checkpoint.problems(cold=True)) for checkpoint in store.checkpoints())
        store.close()


# Memory --------------------------------------------------------------------------------------------------------


def test_buffers_are_made_once_and_can_be_given_back(tmp_path, monkeypatch):
    """For the next file they are warm."""
    made = []
    monkeypatch.setattr(bulk, "pages", lambda size: made.append(size) or pages(size))
    with requests(CHUNK, 3):
        written(tmp_path / "one", one_image(kind="inside a page"))
        first = len(made)
        assert 1 <= first <= bulk.BUFFERS
        for number in range(5):
            written(tmp_path / f"more-{number}", one_image(kind="inside a page"))
        assert first == len(made)
        bulk.release()
        written(tmp_path / "two", one_image(kind="inside a page"))
        assert first < len(made)


def test_a_system_that_gives_no_thread_gets_the_file_all_the_same(tmp_path, monkeypatch):
    """One request after the other, when not even the first thread can be started."""

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with requests(CHUNK, 3):
        written(tmp_path / "file", one_image())


def test_a_small_file_needs_no_thread(tmp_path):
    """Below 4 MiB one thread and the page cache are faster."""
    seen = []
    written(tmp_path / "file", one_image(1 << 20), before_each=lambda: seen.append(threading.active_count()))
    assert {threading.active_count()} == set(seen)


MEASURED = """
import re, sys
import numpy as np
from pathlib import Path
from holdfast import Every, Last, Run, Store

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def reset():
    Path("/proc/self/clear_refs").write_text("5")

class Model:
    def __init__(self):
        self.parts = {f"layer{n}": np.full(SIZE // 32, n, "uint8") for n in range(32)}

    def state_dict(self):
        for part in self.parts.values():
            part += 1
        return self.parts

    def load_state_dict(self, state):
        self.parts = state

how, path = sys.argv[1:]
SIZE = 1 << 30 if how == "run" else 512 << 20
model = Model()
keep = Last(1) if "prunes" in how else Last(9)
reset()
before = peak()
if "store" in how:
    store = Store(path, keep=keep)
    for step in (1, 2):
        store.save({"model": model.state_dict()}, step=step)
else:
    with Run(path, {"model": model}, every=Every(steps=1), keep=keep) as run:
        warm = 0
        for step in run.steps(100):
            warm += step > 0 and not run._now().saves.arena.warming
            if warm == 3:
                run.wait()
                print(peak() - before)
                break
print(peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "most"),
    [("store", 64 << 20), ("store that prunes", 64 << 20), ("run", 1.05 * (1 << 30))],
)
def test_a_save_takes_little_memory_besides_the_state(tmp_path, how, most):
    """64 MiB, however large the state, also when one is read back before older ones go; in the background, one copy."""
    command = [sys.executable, "-c", MEASURED, how, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shutil.rmtree(tmp_path / "run")
    extra = int(done.stdout.split()[0])
    print(how, extra >> 20, "MiB")
    assert extra <= most


def test_a_forked_child_gets_zeros_where_its_parents_pages_were():
    """And keeps what it puts into memory of its own: the end of the parent's pages takes nothing of it away."""
    size = 4 << 20
    views = [pages(size) for _ in range(4)]
    for view in views:
        view[:4] = b"mine"
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            assert all(view[:4] == bytes(4) for view in views)
            own = [np.full(size, 7, "uint8") for _ in range(8)] + [
                np.frombuffer(pages(size), "uint8") for _ in range(8)
            ]
            for array in own[8:]:
                np.asarray(array)[:] = 7
            views.clear()
            code = 0 if all(int(array.sum()) == 7 * size for array in own) else 2
        finally:
            os._exit(code)
    assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert all(view[:4] == b"mine" for view in views)


# For the tests of the tests --------------------------------------------------------------------------------------


def every_way(place):
    """Images and scattered pieces, small and large, direct and not, inline and on threads."""
    for number, (kind, threads, direct) in enumerate(
        itertools.product(("at a page", "inside a page", "read-only"), (0, 3), (0, 1 << 30))
    ):
        with requests(CHUNK, threads):
            bulk.DIRECT_BYTES = direct
            pieces = [Run(laid(kind, bytes_of(size)), [size]) for size in (100, 3 * CHUNK, CHUNK - 100, 5, PAGE)]
            written(place / str(number), [*one_image(kind=kind), *pieces])


def patched(law):
    def run(place):
        with pytest.MonkeyPatch.context() as patch:
            law(place, patch)

    return run


QUICK = (
    every_way,
    *(lambda place, case=case: test_memory_that_is_still_being_filled_is_waited_for(place, *case) for case in LATE),
    test_a_request_is_asked_for_before_it_is_made,
    test_whole_pages_go_past_the_cache_side_by_side_into_a_file_of_full_length,
    patched(test_the_descriptor_is_closed_when_no_thread_uses_it_any_more),
    lambda place: test_a_file_system_that_refuses_the_first_direct_request_gets_plain_ones(place, 3),
    lambda place: test_a_request_that_was_done_in_part_goes_on_from_there(place, 3),
    lambda place: test_an_error_at_any_request_is_raised(place, FULL, 0),
    lambda place: test_an_error_at_any_request_is_raised(place, BROKEN, 3),
    patched(test_a_system_that_gives_no_thread_gets_the_file_all_the_same),
    patched(test_buffers_are_made_once_and_can_be_given_back),
)
