"""A process whose saves are recorded: `python power_script.py ROOT STORY [SITE]`. It prints `saved N` when that save
had returned, and nothing else.

The state of a step is known to whoever looks at what is left. Each place in the code that syncs is a site. It is told
on stderr; the one that is named is a mutant: it does not sync.
"""

import linecache
import os
import signal
import sys
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Any

import numpy as np

from holdfast import Last, Run, Stopped, bulk
from holdfast.store import divided, lineage, shards
from holdfast.store.store import Store

KIB = 1 << 10
ROWS = 72  # of a KiB each


def small_sizes() -> None:
    """Files of a few pages are written by the engine's threads, and leaves of a few KiB are linked or divided."""
    bulk.CHUNK_BYTES = bulk.DIRECT_BYTES = 8 * KIB
    bulk.THREADS = 2
    for module in (lineage, shards):
        vars(module)["LINK_BYTES"] = 4000
    divided.LEAST_BYTES, divided.PIECE_BYTES = 64 * KIB, 4 * KIB


def state_at(step: int) -> dict[str, Any]:
    """Of one array all changes, of one nothing, and of a ring of rows the last one."""
    rows = np.zeros((ROWS, KIB), dtype="uint8")
    for number in range(1, step + 1):
        rows[7 * number % ROWS] = number
    return {"w": np.full(2000, step, "float32"), "still": np.arange(1100, dtype="float32"), "rows": rows}


class Model:
    def __init__(self) -> None:
        self.arrays = state_at(0)

    def learn(self, step: int) -> None:
        for key, value in state_at(step).items():
            self.arrays[key][:] = value

    def state_dict(self) -> dict[str, Any]:
        return self.arrays

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.arrays = state


def watch_syncs(without: str) -> None:
    """Tell each site once, on stderr, and let `without` sync nothing."""
    told, sync = set[str](), os.fsync

    def watched(descriptor: Any) -> None:
        site = _site()
        if site not in told:
            told.add(site)
            os.write(2, f"site {site}\n".encode())
        if site != without:
            sync(descriptor)

    vars(os)["fsync"] = watched


def _site() -> str:
    """The statement outside `disk` because of which it syncs."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename.endswith(("/disk.py", "/contextlib.py")) and frame.f_back is not None:
        frame = frame.f_back
    code = frame.f_code
    return f"{code.co_name}: {linecache.getline(code.co_filename, frame.f_lineno).strip()}"


def say(step: int) -> None:
    os.write(1, b"saved %d\n" % step)


def a_run(root: Path) -> None:
    """Saves in the background, prunes, and is asked to stop."""
    with suppress(Stopped), _run(root) as run:
        for step in run.steps(100):
            model_of(run).learn(step + 1)
            if step == 5:
                os.kill(os.getpid(), signal.SIGTERM)
                continue
            run.save()
            if step % 2:
                run.wait()  # the save of this step begins at its end: this waits for the one before
                say(step)
    say(6)


def a_resumed_one(root: Path) -> None:
    """Goes on from there, saves twice, and is killed."""
    with _run(root) as run:
        for step in run.steps(100):
            model_of(run).learn(step + 1)
            run.save()
            if step > 6:
                run.wait()
                say(step)
            if step == 9:
                os._exit(9)


def its_successor(root: Path) -> None:
    """Fences the dead one, saves twice, and ends."""
    with _run(root) as run:
        for step in run.steps(12):
            model_of(run).learn(step + 1)
            run.save()
    say(12)


_models: dict[int, Model] = {}


def _run(root: Path) -> Run:
    model = Model()
    run = Run(root, {"model": model}, every=None, keep=Last(2), take_over=True)
    _models[id(run)] = model
    return run


def model_of(run: Run) -> Model:
    return _models[id(run)]


def a_store(root: Path) -> None:
    """Saves, prunes, sets one aside, commits a directory, and says good-bye."""
    store = Store(root, keep=Last(2))
    for step in (1, 2, 3):
        store.save({"model": state_at(step)}, step=step)
        say(step)
    with store.directory(step=4) as path:
        (path / "deep").mkdir()
        (path / "deep" / "rows.bin").write_bytes(state_at(4)["rows"].tobytes())
        (path / "w.bin").write_bytes(state_at(4)["w"].tobytes())
    say(4)
    store.save({"model": state_at(5)}, step=5)
    say(5)
    store.prune(Last(1))
    store.close()


def two_ranks(root: Path) -> None:
    """Save together; each has a share of the files. Their threads are one process."""
    from collective import among, frozen, put, small

    def work(store: Any) -> None:
        for step in range(1, 5):
            put(store, frozen(store.ranks.rank, 600, step), step)
            with store.ranks.together("said"):
                if store.ranks.rank == 0:
                    say(step)
        store.close()

    with small():
        assert [None, None] == list(among(2, root, work, keep=Last(2)))


PARTS = {
    "a run": [a_run, a_resumed_one, its_successor],
    "a store": [a_store],
    "two ranks": [two_ranks],
}


if __name__ == "__main__":
    small_sizes()
    watch_syncs("".join(sys.argv[3:]))
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):
        {each.__name__: each for story in PARTS.values() for each in story}[sys.argv[2]](Path(sys.argv[1]))
