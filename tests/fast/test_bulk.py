"""Big files: whatever lies in memory, and whatever the file system refuses, the file is the bytes and the digests are
theirs."""

import ctypes
import errno
import fcntl
import itertools
import os
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults import BROKEN, FULL, counting, door, failing, half_of, requests
from holdfast import bulk
from holdfast.bulk import MemoryRun
from holdfast.pages import PAGE, address, allocate_pages
from holdfast.threads import WorkerPool
from stores import in_a_child

CHUNK = 2 * PAGE
WAIT_S = 60


@contextmanager
def nothing_left():
    """No descriptor and no thread: neither after success nor after an error."""
    bulk.release_chunks()
    descriptors, threads = len(os.listdir("/proc/self/fd")), {*threading.enumerate()}
    yield
    assert descriptors == len(os.listdir("/proc/self/fd"))
    assert {*threading.enumerate()} <= threads  # one of another test may end meanwhile


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
    memory = allocate_pages(len(data) + PAGE)
    start = {"at a page": 0, "inside a page": 16}[kind]
    memory[start : start + len(data)] = data
    return memory[start : start + len(data)]


def written(path, runs, **named):
    """Write the runs; whether the file and the digests are right."""
    parts = [
        run.data[end - size : end]
        for run in (each if isinstance(each, MemoryRun) else MemoryRun(each, [len(each)]) for each in runs)
        for size, end in zip(run.sizes, itertools.accumulate(run.sizes), strict=True)
    ]
    digests = bulk.write(path, runs, sum(map(len, parts)), xxhash.xxh3_128, **named)
    assert b"".join(parts) == path.read_bytes()
    assert [xxhash.xxh3_128(part).hexdigest() for part in parts] == digests


def one_image(size=10 * CHUNK + 100, kind="at a page"):
    return [MemoryRun(laid(kind, bytes_of(size)), [16, CHUNK, 0, 1, 3 * CHUNK, size - 4 * CHUNK - 17])]


near = st.sampled_from([0, PAGE, CHUNK, 2 * CHUNK, 5 * CHUNK])
sizes = st.tuples(near, st.integers(-17, 17)).map(lambda pair: max(0, sum(pair)))
one_run = st.tuples(st.sampled_from(["at a page", "inside a page", "read-only"]), st.lists(sizes, max_size=6))


# What is written -----------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(one_run, max_size=5), st.sampled_from([0, 1, 3]), st.booleans(), st.booleans())
def test_the_file_is_the_concatenation_and_the_digests_are_of_its_pieces(tmp_path, runs, threads, direct, apart):
    """Leaves of any size, wherever they lie:
    images of whole files at a page's start, scattered ones, read-only ones; as extents, or each by itself."""
    path = tmp_path / "file"
    laid_out = [MemoryRun(laid(kind, bytes_of(sum(parts), seed)), parts) for seed, (kind, parts) in enumerate(runs)]
    if apart:
        laid_out = [laid(kind, bytes_of(size)) for kind, parts in runs for size in parts]
    with requests(CHUNK, threads):
        bulk.DIRECT_BYTES = 0 if direct else 1 << 30
        written(path, laid_out)
    path.unlink()


def late(kind, size, busy_until):
    """An image whose bytes come only when they are waited for; all the rest of them with those at `busy_until`."""
    data, memory = bytes_of(size), laid(kind, bytes(size))
    there = 0

    def await_first(count):
        nonlocal there
        count = size if count >= busy_until else count
        memory[there:count] = data[there:count]
        there = max(there, count)
        return there < busy_until

    return [MemoryRun(memory, [16, CHUNK, 0, 1, 3 * CHUNK, size - 4 * CHUNK - 17], await_first)]


LATE = list(itertools.product(["at a page", "inside a page"], [0, 2 * CHUNK, 9 * CHUNK, 1 << 30], [0, 2]))


@pytest.mark.parametrize(("kind", "busy_until", "threads"), LATE)
def test_memory_that_is_still_being_filled_is_waited_for(tmp_path, kind, busy_until, threads):
    """No byte is written or digested before it is there, whether its digest waits or not."""
    size = 10 * CHUNK + 100
    with requests(CHUNK, threads):
        image = late(kind, size, busy_until)
        written(tmp_path / "file", image)
    assert bytes_of(size) == bytes(image[0].data)


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
                meet.wait(WAIT_S)
        return perform()

    with requests(CHUNK, 3), door(act):
        written(tmp_path / "file", one_image(size))
    assert [(True, CHUNK, size)] * 10 + [(False, 100, size)] == how


def test_the_cache_is_used_again_only_when_no_request_is_under_way(tmp_path, monkeypatch):
    """The last request past the cache ends only after the writing has begun to wait for it, or has turned the flag."""
    size, requested, go_on, how = 10 * CHUNK + 100, itertools.count(1), threading.Event(), []
    take, set_direct = WorkerPool.results, bulk._set_direct

    def noted_take(pool, *, everything=False):
        if everything:
            go_on.set()
        return take(pool, everything=everything)

    def noted_set(descriptor, *, wanted):
        done = set_direct(descriptor, wanted=wanted)
        if not wanted:
            go_on.set()
        return done

    def act(call, perform):
        if call.name == "write" and next(requested) == 10:
            assert go_on.wait(WAIT_S)
            how.append(fcntl.fcntl(call.descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        return perform()

    monkeypatch.setattr(WorkerPool, "results", noted_take)
    monkeypatch.setattr(bulk, "_set_direct", noted_set)
    with requests(CHUNK, 3), door(act):
        written(tmp_path / "file", one_image(size))
    assert how == [os.O_DIRECT]


def test_the_descriptor_is_closed_when_no_thread_uses_it_any_more(tmp_path, monkeypatch):
    """Also after an error: its number may be another file's by then."""
    go, under_way, closed = threading.Event(), threading.Event(), []

    def act(call, perform):
        if call.name == "write":
            under_way.set()
            assert go.wait(WAIT_S)
            done = perform()
            under_way.clear()
            return done
        return perform()

    turns = iter(range(1))

    def before_each():
        if next(turns, None) is None:
            assert under_way.wait(WAIT_S)
            raise KeyError("enough")

    end, close = WorkerPool.close, os.close
    monkeypatch.setattr(WorkerPool, "close", lambda pool: (go.set(), end(pool)))
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(under_way.is_set()), close(descriptor)))
    with requests(CHUNK, 3), door(act), pytest.raises(KeyError):
        bulk.write(tmp_path / "file", one_image(), 10 * CHUNK + 100, xxhash.xxh3_128, before_each)
    go.set()
    assert [False] == closed


# What a file system refuses ------------------------------------------------------------------------------------


def test_without_o_direct_the_cache_is_used(tmp_path, monkeypatch):
    """The flag is refused, as many network file systems do."""
    real, asked = fcntl.fcntl, []

    def refused(descriptor, what, flags=0):
        if what == fcntl.F_SETFL and flags & os.O_DIRECT:
            asked.append((errno.EINVAL, errno.ENOTSUP)[len(asked) % 2])
            raise OSError(asked[-1], os.strerror(asked[-1]))
        return real(descriptor, what, flags)

    monkeypatch.setattr(fcntl, "fcntl", refused)
    with requests(CHUNK, 3):
        for number in range(2):
            written(tmp_path / str(number), one_image())
    assert {errno.EINVAL, errno.ENOTSUP} == {*asked}


@pytest.mark.parametrize("threads", [0, 3])
def test_a_file_system_that_refuses_the_first_direct_request_gets_plain_ones(tmp_path, threads):
    """It took the flag and fails the write."""
    refusals = []

    def refusing(call, perform):
        if call.name == "write" and fcntl.fcntl(call.descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            refusals.append(call)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return perform()

    with requests(CHUNK, threads), door(refusing):
        written(tmp_path / "file", one_image())
    assert refusals


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


def test_without_preallocation_the_file_grows(tmp_path, monkeypatch):
    """NFS before 4.2, some FUSE file systems, another system's libc."""
    codes, asked = [errno.ENOTSUP, errno.ENOSYS, errno.EINVAL], []

    def refused(*_):
        ctypes.set_errno(codes[len(asked)])
        asked.append(ctypes.get_errno())
        return -1

    with requests(CHUNK, 3):
        for number, found in enumerate([refused] * 3 + [None]):
            monkeypatch.setattr(bulk, "_fallocate", found)
            written(tmp_path / str(number), one_image())
    assert codes == asked


def test_a_signal_during_preallocation_is_no_error(tmp_path, monkeypatch):
    """tmpfs stops in the middle when one comes; it is asked again."""
    real, answers = bulk._fallocate, iter([errno.EINTR, errno.EINTR])
    assert real is not None

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


# Memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 3])
def test_a_file_of_any_length_takes_a_few_chunks_of_memory(tmp_path, monkeypatch, threads):
    """A chunk that reached the disk is filled again, also for the next file, unless it was given back."""
    made = []
    monkeypatch.setattr(bulk, "allocate_pages", lambda size: made.append(size) or allocate_pages(size))
    with requests(CHUNK, threads):
        written(tmp_path / "file", one_image(kind="inside a page"))
        first = len(made)
        assert 1 <= first <= bulk.BUFFERS < 10
        for number in range(3):
            written(tmp_path / f"next-{number}", one_image(kind="inside a page"))
        assert first == len(made)
        bulk.release_chunks()
        written(tmp_path / "last", one_image(kind="inside a page"))
        assert first < len(made)


def test_a_system_that_gives_no_thread_gets_the_file_all_the_same(tmp_path, monkeypatch):
    """One request after the other, when not even the first thread can be started."""

    asked = []

    def refused(thread):
        asked.append(thread)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with requests(CHUNK, 3):
        written(tmp_path / "file", one_image())
    assert asked


def test_a_small_file_needs_no_thread(tmp_path):
    """Below 4 MiB one thread and the page cache are faster."""
    before, seen = {*threading.enumerate()}, []
    written(tmp_path / "file", one_image(1 << 20), before_each=lambda: seen.append({*threading.enumerate()} - before))
    assert seen
    assert not any(seen)


def test_large_memory_begins_at_a_huge_page():
    """Whatever its size, where the kernel does that at all: into many small pages a disk reads slower."""
    huge = 2 << 20
    held = [allocate_pages(huge * count) for count in (1, 2, 3)]
    if any(address(memory) % huge for memory in held):
        pytest.skip("here no memory does")
    odd = [allocate_pages(huge * 2 - PAGE * count) for count in range(1, 9)]
    assert [0] * 8 == [address(memory) % huge for memory in odd]
    assert [huge * 2 - PAGE * count for count in range(1, 9)] == [memory.nbytes for memory in odd]


def test_a_forked_child_gets_zeros_where_its_parents_pages_were():
    """And keeps what it puts into memory of its own: the end of the parent's pages takes nothing of it away."""
    size = 4 << 20
    views = [allocate_pages(size) for _ in range(4)]
    for view in views:
        view[:4] = b"mine"

    def law():
        assert all(view[:4] == bytes(4) for view in views)
        own = [np.full(size, 7, "uint8") for _ in range(8)]
        own += [np.frombuffer(allocate_pages(size), "uint8") for _ in range(8)]
        for array in own[8:]:
            np.asarray(array)[:] = 7
        views.clear()
        assert all(int(array.sum()) == 7 * size for array in own)

    assert 0 == in_a_child(law)
    assert all(bytes(view[:4]) == b"mine" for view in views)
