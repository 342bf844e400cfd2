"""A process that trains or resumes with one library: `worker.py LIBRARY train|resume FOLDER STATUS OPTIONS`.

It imports, then waits until the harness has taken hold of it. Its answers lie in memory that both share, so that no
answer is one of the calls that a fault strikes.
"""

import json
import mmap
import os
import resource
import struct
import sys
import tempfile
import time
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

HERE = Path(__file__).parent
STATUS = struct.Struct("<iiii")  # its process, whether it may go, the newest step that is saved, whether it has ended


class Status:
    """What a worker and the harness tell each other."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), STATUS.size)

    def __getitem__(self, place: int) -> int:
        return int(STATUS.unpack(self._memory[: STATUS.size])[place])

    def __setitem__(self, place: int, value: int) -> None:
        struct.pack_into("<i", self._memory, 4 * place, value)


PID, GO, SAVED, ENDED = range(4)


def library(name: str) -> ModuleType:
    for folder in ("libraries", "planted"):
        if (HERE / folder / f"{name}.py").exists():
            sys.path.insert(0, str(HERE / folder))
            return import_module(name)
    raise SystemExit(f"no library {name}")


def main() -> None:
    name, what, folder, status_path = sys.argv[1:5]
    options = json.loads(sys.argv[5])
    sys.path.insert(0, str(HERE))
    from oracle import identified, state_of

    module, status = library(name), Status(Path(status_path))
    rows, last = options["rows"], options["last"]

    def wanted(step: int) -> dict[str, np.ndarray]:
        if options["loud"] and step > options["first"]:
            time.sleep(options["pause_s"])
        return state_of(step, options["writer"], rows)

    def saved(step: int) -> None:
        status[SAVED] = step
        if options["loud"]:
            os.write(1, f"saved {step}\n".encode())
        time.sleep(options["pause_s"])

    wanted(0)
    tempfile.tempdir = os.environ["TMPDIR"]  # whatever was imported has asked for another
    if what == "train":  # so that what it imports late is there when a fault may strike
        with tempfile.TemporaryDirectory(dir=Path(folder).parent) as other:
            module.train(Path(other), 1, 1, lambda step: state_of(step, "a", 1), lambda _: None)
    status[PID] = os.getpid()
    while not status[GO]:
        time.sleep(0.001)
    if options["spare_bytes"] is not None:
        held = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (held + options["spare_bytes"],) * 2)
    if not Path(folder).exists():  # as a batch script made it long ago
        Path(folder).mkdir()
        parent = os.open(Path(folder).parent, os.O_RDONLY)
        os.fsync(parent)
        os.close(parent)
    answer: dict[str, object] = {}
    began = time.perf_counter()
    try:
        if what == "train":
            module.train(Path(folder), options["first"], last, wanted, saved)
            answer["took_s"] = time.perf_counter() - began
        else:
            like = {name: value * 0 for name, value in state_of(0, "a", rows).items()}
            began = time.perf_counter()
            found = module.resume(Path(folder), like)
            answer = {"step": None, "took_s": time.perf_counter() - began}
            if found is not None:
                step, state = found
                answer |= {"step": int(step), "is": identified(state, last + 5, rows)}
    except BaseException as error:  # an answer, too
        text = "".join(traceback.format_exception_only(error)).strip()
        chain = error.__cause__ or error.__context__
        text += f" ({type(chain).__name__}: {chain})" if chain is not None else ""
        answer = {"error": type(error).__name__, "text": text[:2000]}
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
    Path(f"{status_path}.json").write_text(json.dumps(answer))
    status[ENDED] = 1
    os._exit(0 if "error" not in answer else 1)


if __name__ == "__main__":
    main()
