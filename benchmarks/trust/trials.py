"""Trials: one library, one fault, one seed; what came back is a verdict.

Faults of processes are injected into the system calls of a worker by strace, which takes hold of it when it has
imported all it needs. Faults of files are done to a copy of what three saves left.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests")]

from worker import ENDED, GO, PID, SAVED, STATUS, Status  # noqa: E402

import power  # noqa: E402  of the tests: recorded calls, and what a loss of power leaves of them

RIGHT, OLDER, REFUSED, CRASHED, WRONG, LOST = "right", "older", "refused", "crashed", "silently wrong", "lost"
UNSTRUCK = "not struck"  # the fault could not be brought about
WRITES = "?write,?pwrite64,?writev,?pwritev,?pwritev2"
CHANGES = f"{WRITES},?openat,?open,?rename,?renameat,?renameat2,?fsync,?fdatasync,?ftruncate,?link,?linkat,?symlink"
CHANGES += ",?symlinkat,?mkdir,?mkdirat,?unlink,?unlinkat,?rmdir"
READS = "?read,?pread64,?readv,?preadv"
PAGE = 4096
LIMIT_S = 120.0
RUN = "run"  # the folder of a recorded program, below that of its temporary files
BIG_ROWS = 1 << 16  # 16 MiB, for a save that needs memory


class Outcome(NamedTuple):
    """What one trial came to."""

    verdict: str
    behind: int = 0  # steps older than the newest that was reported as saved
    text: str = ""  # what the library said


class Worker:
    """A process of the library, ready to train or to resume."""

    def __init__(self, bench: "Bench", what: str, folder: Path, **options: Any) -> None:
        given = {"first": 1, "last": 3, "rows": 256, "writer": "a", "loud": False, "pause_s": 0.0, "spare_bytes": None}
        self.status_path = bench.fresh("status")
        self.status_path.write_bytes(bytes(STATUS.size))
        self.status = Status(self.status_path)
        words = [what, str(folder), str(self.status_path), json.dumps(given | options)]
        self.output = bench.fresh("output").open("w+b")
        self._client = subprocess.Popen(
            [*bench.python, str(HERE / "worker.py"), bench.name, *words],
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(folder.parent)},
        )
        self._tracer: subprocess.Popen[bytes] | None = None
        until = time.monotonic() + LIMIT_S
        while not self.status[PID]:
            if self._client.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{bench.name}: a worker did not begin: {words}")
            time.sleep(0.001)
        self.pid = self.status[PID]

    def trace(self, *words: str) -> "Worker":
        """Let strace take hold of it."""
        command = ["strace", "-f", "-p", str(self.pid), *words]
        self._tracer = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        line = self._tracer.stderr.readline() if self._tracer.stderr else b""  # `Process N attached`
        if b"attached" not in line:
            raise RuntimeError(f"strace: {line.decode()}")
        return self

    def go(self) -> "Worker":
        self.status[GO] = 1
        return self

    def wait(self) -> dict[str, Any]:
        """Return its answer; of a process that died, an error without one."""
        with suppress(subprocess.TimeoutExpired):
            self._client.wait(LIMIT_S)
        hung = self._client.poll() is None
        self.end()
        with suppress(OSError, ValueError):
            if self.status[ENDED]:
                answer: dict[str, Any] = json.loads(Path(f"{self.status_path}.json").read_text())
                return answer
        return {"error": "hung" if hung else "died", "text": "no end" if hung else f"exit {self._client.returncode}"}

    def end(self) -> None:
        with suppress(ProcessLookupError):
            if self._client.poll() is None:
                os.kill(self.pid, signal.SIGKILL)
        self._client.wait()
        if self._tracer is not None:
            with suppress(subprocess.TimeoutExpired):
                self._tracer.communicate(timeout=5)
            if self._tracer.poll() is None:
                self._tracer.kill()
                self._tracer.communicate()
            self._tracer = None

    def release(self) -> None:
        """Let strace let go of it; asked politely, it may wait for a thread that stands still."""
        if self._tracer is not None:
            self._tracer.kill()
            self._tracer.communicate()
            self._tracer = None


class Bench:
    """A library in its environment, and what was learnt of it once."""

    def __init__(self, name: str, python: list[str], place: Path) -> None:
        self.name, self.python, self.place = name, python, place
        self._count = 0

    def fresh(self, what: str) -> Path:
        self._count += 1
        return self.place / f"{what}-{self._count}"

    def train(self, folder: Path, **options: Any) -> dict[str, Any]:
        return Worker(self, "train", folder, **options).go().wait()

    def judged(self, folder: Path, durable: int, last: int, **options: Any) -> Outcome:
        """Resume from what is there, and judge what came back."""
        return judge(Worker(self, "resume", folder, last=last, **options).go().wait(), folder, durable)

    @cached_property
    def saved(self) -> Path:
        """What three saves left."""
        folder = self.fresh("saved")
        folder.mkdir()
        answer = self.train(folder, last=3)
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {answer}")
        return folder

    @cached_property
    def once(self) -> Path:
        """What one save left."""
        folder = self.fresh("once")
        folder.mkdir()
        self.train(folder, last=1)
        return folder

    def copied(self, folder: Path) -> Path:
        copy = self.fresh("copy")
        shutil.copytree(folder, copy, symlinks=True)
        return copy

    @cached_property
    def _counts(self) -> dict[tuple[str, str], int]:
        return {}

    def calls(self, what: str, among: str, folder: Path, **options: Any) -> int:
        """How many of these calls one thread makes at most."""
        if (what, among) not in self._counts:
            copy, log = self.copied(folder), self.fresh("calls")
            paths = _paths(copy) if what == "resume" else []
            Worker(self, what, copy, **options).trace("-o", str(log), *paths, "-e", f"trace={among}").go().wait()
            made = Counter(line.split()[0] for line in log.read_text().splitlines() if " = " in line)
            self._counts[what, among] = max(made.values(), default=0)
            shutil.rmtree(copy)
        return self._counts[what, among]

    @cached_property
    def recorded(self) -> tuple[Path, list[power.Made]]:
        """A folder with a folder of three saves, and the calls that made all below it."""
        place, log = self.fresh("recorded"), self.fresh("strace")
        place.mkdir()
        worker = Worker(self, "train", place / RUN, last=3, loud=True)
        names = ",".join(f"?{name}" for name in power.CHANGES)
        worker.trace("-y", "-xx", "-s", str(1 << 24), "-o", str(log), "-e", f"trace={names}").go().wait()
        return place, list(power.parsed(log, place))


def judge(answer: dict[str, Any], folder: Path, durable: int) -> Outcome:
    """The verdict on an answer. `durable`: the newest step of which the library had said that it is saved."""
    if "error" in answer:
        names = {path.name for path in folder.rglob("*")} | {folder.name}
        text = f"{answer['error']}: {answer['text']}"
        named = answer["error"] not in ("died", "hung") and any(name in answer["text"] for name in names)
        return Outcome(REFUSED if named else CRASHED, text=text[:500])
    step = answer["step"]
    if step is None:
        return Outcome(LOST if durable else RIGHT, behind=durable)
    if answer["is"] is None or answer["is"][0] != step:
        what = "no step's" if answer["is"] is None else f"that of step {answer['is'][0]}"
        return Outcome(WRONG, text=f"said to be step {step}, and the state is {what}")
    return Outcome(RIGHT if step >= durable else OLDER, max(0, durable - step))


def _paths(folder: Path) -> list[str]:
    return [word for path in folder.rglob("*") if path.is_file() for word in ("-P", str(path))]


# Files at rest ---------------------------------------------------------------------------------------------------


def _at_rest(change: Callable[[bytearray, random.Random], None]) -> Callable[[Bench, random.Random], Outcome]:
    """A fault of one file of those that three saves left; each byte is as likely to be in it."""

    def trial(bench: Bench, chosen: random.Random) -> Outcome:
        copy = bench.copied(bench.saved)
        files = sorted(path for path in copy.rglob("*") if path.is_file() and not path.is_symlink())
        (path,) = chosen.choices(files, [path.stat().st_size for path in files])
        data = bytearray(path.read_bytes())
        change(data, chosen)
        path.write_bytes(data)
        found = bench.judged(copy, durable=3, last=3)
        shutil.rmtree(copy)
        return found._replace(text=f"{path.name}: {found.text}")

    return trial


def _flip(data: bytearray, chosen: random.Random) -> None:
    data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)


def _cut(data: bytearray, chosen: random.Random) -> None:
    del data[chosen.randrange(len(data)) :]


def _zero(data: bytearray, chosen: random.Random) -> None:
    at = chosen.randrange(len(data)) // PAGE * PAGE
    data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))


# Faults of processes ---------------------------------------------------------------------------------------------


def _injected(among: str, what: str, *, on: bool = False) -> Callable[[Bench, random.Random], Outcome]:
    """A call of one of two further saves is killed, or fails; `on`: so do all later ones."""

    def trial(bench: Bench, chosen: random.Random) -> Outcome:
        options = {"first": 2, "last": 3}
        most = bench.calls("train", among, bench.once, **options)
        if not most:
            return Outcome(UNSTRUCK)
        copy, number = bench.copied(bench.once), chosen.randint(1, most)
        worker = Worker(bench, "train", copy, **options)
        worker.trace("-o", "/dev/null", "-e", f"trace={among}", "-e", f"inject={among}:{what}:when={number}{'+' * on}")
        answer = worker.go().wait()
        if "signal" in what and "error" not in answer:
            return Outcome(UNSTRUCK)
        found = bench.judged(copy, durable=max(1, worker.status[SAVED]), last=3)
        shutil.rmtree(copy)
        return found

    return trial


def _between_saves(bench: Bench, chosen: random.Random) -> Outcome:
    copy = bench.copied(bench.once)
    worker = Worker(bench, "train", copy, first=2, last=4, pause_s=0.1).go()
    until = time.monotonic() + LIMIT_S
    while worker.status[SAVED] < 3 and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(chosen.random() * 0.08)
    worker.end()
    return bench.judged(copy, durable=max(1, worker.status[SAVED]), last=4)


def _power_loss(bench: Bench, chosen: random.Random) -> Outcome:
    folder, made = bench.recorded
    base, copy = bench.fresh("base"), bench.fresh("copy")
    lost = list(power.losses(made, folder, base, chosen))
    loss = chosen.choice(lost)
    list(loss.picture.build(copy))
    shutil.rmtree(base)
    (copy / RUN).mkdir(exist_ok=True)  # as a batch script does
    return bench.judged(copy / RUN, durable=loss.said, last=3)


def _stale_rename(bench: Bench, chosen: random.Random) -> Outcome:
    """A rename of the last save is not seen, and everything else is."""
    folder, made = bench.recorded
    begins = max((at for at, each in enumerate(made) if each.said == 2), default=0)
    renames = [at for at, each in enumerate(made) if at > begins and each.name.startswith("rename")]
    if not renames:
        return Outcome(UNSTRUCK)
    undone, base, before = chosen.choice(renames), bench.fresh("base"), bench.fresh("before")
    base.mkdir()
    again = power.Again(folder, base)
    source, target = (Path(again.path(text)) for text in made[undone].texts)
    for at, each in enumerate(made):
        if at == undone and os.path.lexists(target):
            (shutil.copytree if target.is_dir() else shutil.copy2)(target, before)
        if not each.said:
            again.do(each)
    again.close()
    if not os.path.lexists(target):
        return Outcome(UNSTRUCK)  # a later call has removed it
    target.rename(source)
    if before.exists():
        before.rename(target)
    return bench.judged(base / RUN, durable=3, last=3)


def _failing_read(bench: Bench, chosen: random.Random) -> Outcome:
    most = bench.calls("resume", READS, bench.saved, last=3)
    if not most:
        return Outcome(UNSTRUCK)
    copy, number = bench.copied(bench.saved), chosen.randint(1, most)
    worker = Worker(bench, "resume", copy, last=3)
    inject = f"inject={READS}:error=EIO:when={number}"
    worker.trace("-o", "/dev/null", *_paths(copy), "-e", f"trace={READS}", "-e", inject)
    return judge(worker.go().wait(), copy, durable=3)


def _two_writers(bench: Bench, chosen: random.Random) -> Outcome:
    copy = bench.copied(bench.once)
    workers = [
        Worker(bench, "train", copy, first=2, last=5, writer=writer, pause_s=0.002 * chosen.random()) for writer in "ab"
    ]
    for worker in workers:
        worker.go()
        time.sleep(0.02 * chosen.random())
    for worker in workers:
        worker.wait()
    return bench.judged(copy, durable=max(1, *(worker.status[SAVED] for worker in workers)), last=5)


def _stopped_in_a_save(bench: Bench, chosen: random.Random) -> tuple[Worker, Path] | None:
    options = {"first": 2, "last": 2}
    most = bench.calls("train", CHANGES, bench.once, **options)
    copy, number = bench.copied(bench.once), chosen.randint(1, most)
    worker = Worker(bench, "train", copy, **options)
    log = bench.fresh("stopped")
    worker.trace("-o", str(log), "-e", f"trace={CHANGES}", "-e", f"inject={CHANGES}:signal=SIGSTOP:when={number}")
    worker.go()
    until = time.monotonic() + LIMIT_S
    # not its state: a process that is traced is stopped at each of its calls
    while b"stopped by SIGSTOP" not in log.read_bytes() and not worker.status[ENDED] and time.monotonic() < until:
        time.sleep(0.001)
    worker.release()
    with suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGSTOP)
    return (worker, copy) if not worker.status[ENDED] else None


def _late_writer(bench: Bench, chosen: random.Random) -> Outcome:
    """A writer is stopped in its save; another one goes on from what is there and saves; then the first wakes."""
    stopped = _stopped_in_a_save(bench, chosen)
    if stopped is None:
        return Outcome(UNSTRUCK)
    worker, copy = stopped
    later = Worker(bench, "train", copy, first=2, last=4, writer="b").go()
    later.wait()
    os.kill(worker.pid, signal.SIGCONT)
    worker.wait()
    return bench.judged(copy, durable=max(1, later.status[SAVED], worker.status[SAVED]), last=4)


def _purge(bench: Bench, chosen: random.Random) -> Outcome:
    """While a save is under way, a site's purge removes all files that are older than it."""
    began_ns = time.time_ns()
    stopped = _stopped_in_a_save(bench, chosen)
    if stopped is None:
        return Outcome(UNSTRUCK)
    worker, copy = stopped
    for path in [path for path in copy.rglob("*") if path.is_file() or path.is_symlink()]:
        if path.lstat().st_mtime_ns < began_ns - 10**9 or path.name not in _names_new(copy, began_ns):
            path.unlink()
    os.kill(worker.pid, signal.SIGCONT)
    worker.wait()
    return bench.judged(copy, durable=worker.status[SAVED], last=2)


def _names_new(folder: Path, began_ns: int) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.lstat().st_mtime_ns >= began_ns}


def _short_memory(bench: Bench, chosen: random.Random) -> Outcome:
    folder = bench.fresh("large")
    folder.mkdir()
    bench.train(folder, last=1, rows=BIG_ROWS)
    spare = chosen.randrange(3 * BIG_ROWS * 64 * 4)
    worker = Worker(bench, "train", folder, first=2, last=2, rows=BIG_ROWS, spare_bytes=spare).go()
    worker.wait()
    found = bench.judged(folder, durable=max(1, worker.status[SAVED]), last=2, rows=BIG_ROWS)
    shutil.rmtree(folder)
    return found


class Fault(NamedTuple):
    """A fault: its name, how a trial of it is done, and the report from which it was taken."""

    name: str
    trial: Callable[[Bench, random.Random], Outcome]
    source: str = ""
    at_rest: bool = False


def known(repository: str, number: int, kind: str = "issues") -> str:
    """A link to the report of such a fault."""
    return f"[{repository.partition('/')[2]} {number}](https://github.com/{repository}/{kind}/{number})"


FAULTS = [
    Fault("killed in a save", _injected(CHANGES, "signal=SIGKILL"), known("huggingface/transformers", 35782)),
    Fault("killed between saves", _between_saves),
    Fault("power loss", _power_loss, known("tdrussell/diffusion-pipe", 159)),
    Fault("flipped bit", _at_rest(_flip), known("pytorch/pytorch", 126952), at_rest=True),
    Fault("cut file", _at_rest(_cut), known("keras-team/keras", 20463), at_rest=True),
    Fault("zeroed page", _at_rest(_zero), known("vllm-project/vllm", 53537, "pull"), at_rest=True),
    Fault("disk full", _injected(WRITES, "error=ENOSPC", on=True), known("pytorch/pytorch", 10577)),
    Fault("EIO at a write", _injected(WRITES, "error=EIO")),
    Fault("EIO at a read", _failing_read),
    Fault("two writers", _two_writers, known("delta-io/delta-rs", 4433)),
    Fault("a writer that wakes late", _late_writer),
    Fault("a stale rename", _stale_rename),
    Fault("a purge while saving", _purge),
    Fault("short of memory", _short_memory),
]
