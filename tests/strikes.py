"""Ctrl-C wherever Python hears signals: `strike`, and as a program what is asked of waits that it strikes.

    strikes.py SUBJECT [EVERY]

Strikes a subject at each (EVERYth) such place, and makes it go on after that. A process that hangs, then or at its
end, says where on stderr, and fails.

Source: CPython's ceval.c: it looks for signals as a function begins, after calls of C, and where a loop goes back.
"""

import dis
import faulthandler
import gc
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from functools import cache
from pathlib import Path

from holdfast import threads

HANGS_S = 20


def strike(nth, function):
    """Call `function`; at the nth place where a signal may be heard comes Ctrl-C. Whether there was an nth one."""
    count, came, before = itertools.count(), [], {}

    def trace(frame, event, _):
        if frame.f_code.co_filename.endswith("_weakrefset.py"):
            return None  # called as some object dies: an exception there is heard by nobody
        frame.f_trace_opcodes = True
        if event == "opcode":
            now = _operations(frame.f_code)[frame.f_lasti]
            last, before[frame] = before.get(frame, ""), now
            if (now == "RESUME" or last.startswith(("CALL", "JUMP_BACK", "POP_JUMP_BACK"))) and next(count) == nth:
                came.append(nth)
                raise KeyboardInterrupt
        return trace

    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks at it when a trace is set
    gc.disable()  # an exception in gc.callbacks is heard by nobody
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
        gc.enable()
    return bool(came)


@cache
def _operations(code):
    return {each.offset: each.opname for each in dis.get_instructions(code)}


class AtWork:
    """Counts those who are."""

    def __init__(self):
        self.now = []

    def __call__(self, item):
        self.now.append(item)
        threading.Event().wait(0.0005)
        self.now.remove(item)
        return -item


def side_by_side():
    """Nobody is at work when it is out, or when its crew was asked once more."""
    at_work, crew = AtWork(), threads.WorkerGroup()

    def act():
        assert [-1, -2, -3] == threads.map_in_threads(at_work, [1, 2, 3], 2, crew)

    def after():
        crew.dismiss()
        assert [] == at_work.now

    return act, after


def a_pool():
    at_work, pools = AtWork(), []

    def act():
        pools.append(threads.WorkerPool(2))
        with closing(pools[0]) as pool:
            if pool.start_thread():
                for item in range(5):
                    pool.submit(lambda item=item: at_work(item))
                assert [-4, -3, -2, -1, 0] == sorted(pool.results(everything=True))

    def after():
        for pool in pools:
            pool.close()
        assert [] == at_work.now

    return act, after


def a_writer():
    """What was in flight is fetched, or was never begun; the next work is done."""
    from holdfast.run.writer import SaveWriter

    writer = SaveWriter()

    def act():
        writer.submit(lambda _: 7)
        writer.wait_until_released()
        assert writer.wait() == 7

    def after():
        assert writer.wait() in (None, 7)
        assert not writer.in_flight
        writer.submit(lambda _: 8)
        assert writer.wait() == 8

    return act, after


def a_snapshot():
    """Who writes beside it hears that it is whole, or that it never will be."""
    from holdfast.state import snapshot
    from holdfast.state.codec import Block

    snapshot._THREADS_PAY_BYTES = 1
    snapshot.PORTION_BYTES = 4096
    arena, size, found = snapshot.Arena(), 1 << 15, []
    blocks = {key: Block("array", "uint8", (size,), memoryview(bytearray(b"x" * size)), {}) for key in "ab"}
    taken = snapshot.Snapshot(arena, [snapshot.FileImage(b"lead", list(blocks))], blocks)
    writing = threads.Worker(lambda: found.append(taken.wait_for_all()), "writing")
    writing.start()

    def act():
        taken.copy()

    def after():
        taken.abandon()
        writing.wait()
        assert [b"x" * size] == [*{bytes(taken.blocks[key].data) for key in "ab"}] or found == [False]
        arena.reserve(3 * size)

    return act, after


def an_arena():
    """Nobody touches memory that is somebody's by then."""
    from holdfast.state import snapshot

    snapshot._TOUCH_BYTES, snapshot.available_bytes = 1 << 14, lambda: 1 << 40  # what it reads is not asked here
    arena = snapshot.Arena()

    def act():
        arena.warm_up(1 << 18)
        arena.reserve(1 << 10)

    def after():
        room = arena.reserve(1 << 18)
        room[:] = b"x" * len(room)
        threading.Event().wait(0.002)
        assert bytes(room) == b"x" * len(room)

    return act, after


def a_reading():
    """What is read after it is right."""
    from holdfast.store import format, reading

    reading.PIECE_BYTES = reading.ALONE_BYTES = 1 << 12
    place, contents = Path(tempfile.mkdtemp(dir=HERE)), [os.urandom(1 << 13), os.urandom(3 << 12)]
    wanted = []
    for number, data in enumerate(contents):
        path = place / str(number)
        path.write_bytes(data)
        wanted.append((Stored(path, len(data), format.digest(data)), memoryview(bytearray(len(data)))))

    def act():
        reading.read_leaves(wanted)

    def after():
        act()
        assert contents == [bytes(data) for _, data in wanted]

    return act, after


class Stored:
    key, offset = "leaf", 0

    def __init__(self, path, size_bytes, digest):
        self.path, self.size_bytes, self.digest = path, size_bytes, digest


def a_big_file():
    """No thread writes to its descriptor any more; the next file is written."""
    import xxhash

    from holdfast import bulk
    from holdfast.pages import allocate_pages

    bulk.CHUNK_BYTES = bulk.DIRECT_BYTES = 4096
    memory, place = allocate_pages(3 * 4096), Path(tempfile.mkdtemp(dir=HERE))

    def write(name):
        bulk.write(place / name, [bulk.MemoryRun(memory, [len(memory)])], len(memory), xxhash.xxh3_128)

    def after():
        write("after")
        assert (place / "after").stat().st_size == len(memory)

    return lambda: write("file"), after


class EndlessStore:
    """A store of which there is always something to read, piece by piece."""

    def __init__(self, at_work):
        self.at_work = at_work

    def unread(self):
        return ["file"]

    def read_back_early(self, links, before_each):
        while True:
            before_each()
            self.at_work(len(links))


def a_reader_ahead():
    """It gives way to the next save, and reads no more when the run has ended."""
    from holdfast.run.writer import ReadBack

    at_work = AtWork()
    ahead = ReadBack(EndlessStore(at_work))

    def act():
        ahead.start_reading(ahead.over)
        ahead.start_reading(ahead.pause_reading())
        ahead.close()

    def after():
        ahead.close()
        threading.Event().wait(0.002)
        assert [] == at_work.now

    return act, after


SUBJECTS = {
    each.__name__: each
    for each in (side_by_side, a_pool, a_writer, a_snapshot, an_arena, a_reading, a_big_file, a_reader_ahead)
}


def main(name, every=1):
    threads.LOOK_S = threads.SEEN_S = threads.GONE_S = 0.01
    for nth in itertools.count(0, int(every)):
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        act, after = SUBJECTS[name]()
        came = strike(nth, act)
        after()
        if not came:
            break
    print(nth, "places", flush=True)
    faulthandler.dump_traceback_later(HANGS_S, exit=True)  # the end of the process is a wait, too


def struck_all_over(subject, every):
    """How many places it has, of which each `every`th was struck, in a process of its own."""
    words = [sys.executable, __file__, subject, str(every)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=450)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as HERE:
        main(*sys.argv[1:])
