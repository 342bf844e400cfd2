"""Asks the laws of mutants, each in a process of its own that is forked from this one, and says what came of it.

This process has the libraries imported and nothing of Holdfast. A child imports Holdfast with one module's text
exchanged, so each of its modules is new. The parent reads what the child reports, and ends it when a law takes too
long.
"""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "holdfast"
LOOK_S = 0.2
NOTHING: Mapping[str, float] = MappingProxyType({})
PR_SET_PDEATHSIG = 1
# Only libraries: a child must get every module of Holdfast anew.
LIBRARIES = ("click", "hypothesis.strategies", "msgspec", "numpy.random", "pytest", "xxhash", "faulthandler")


class Limits(NamedTuple):
    """How long one law may take: so many CPU seconds, and so many seconds with all of its threads asleep."""

    cpu_s: float
    asleep_s: float = 10.0


class Trial(NamedTuple):
    """A text for one module; none: the code as it is."""

    name: str
    file: str = ""
    text: Callable[[], str] = str
    longest_s: float = math.inf  # laws that are known to take longer are not asked
    first: str = ""  # the law to ask first

    @property
    def place(self) -> tuple[str, str]:
        """Its file and function."""
        return self.file, self.name.partition(":")[0]


class Verdict(NamedTuple):
    """What came of a trial."""

    trial: Trial
    kind: str  # caught, survives, hangs or "no verdict"
    law: str = ""  # that failed, or did not end
    how: str = ""
    laws: tuple[str, ...] = ()  # that were asked for
    held: Mapping[str, float] = NOTHING  # CPU seconds of each law that held
    cpu_s: float = 0.0


def verdicts(
    trials: Iterable[Trial], limits: Callable[[str], Limits], jobs: int = 2, seconds: Mapping[str, float] = NOTHING
) -> Iterator[Verdict]:
    """Those of all trials, as they end.

    The laws are asked in the order of the `seconds` that they are known to take; first of all the one that has caught
    another trial of the same function.
    """
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    _import_libraries()
    assert len(os.listdir("/proc/self/task")) == 1, "only a process with one thread is safely forked"
    waiting, running = list(reversed(list(trials))), selectors.DefaultSelector()
    caught: dict[tuple[str, str], str] = {}
    try:
        while waiting or running.get_map():
            while waiting and len(running.get_map()) < jobs:
                trial = waiting.pop()
                child = _Child(trial._replace(first=caught.get(trial.place, "")), limits, seconds)
                running.register(child.pipe, selectors.EVENT_READ, child)
            ready = {key.data for key, _ in running.select(LOOK_S)}
            for child in [key.data for key in running.get_map().values()]:
                if (child in ready and child.hears_end()) or child.is_late():
                    running.unregister(child.pipe)
                    verdict = child.verdict()
                    if verdict.kind == "caught":
                        caught[verdict.trial.place] = verdict.law
                    yield verdict
    finally:
        for key in running.get_map().values():
            key.data.end(kill=True)


def _import_libraries() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] == "holdfast"]
    assert not ours, f"a child would not import these anew: {ours}"


class _Child:
    """One process with one trial, as its parent sees it."""

    def __init__(self, trial: Trial, limits: Callable[[str], Limits], seconds: Mapping[str, float]) -> None:
        self.trial, self._limits = trial, limits
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._place = Path(tempfile.mkdtemp(prefix="holdfast-mutant-", dir=shm))
        self.pipe, theirs = os.pipe()
        self._read, self._said = b"", list[dict[str, Any]]()
        self._cpu_s, self._begun_at_s, self._awake, self._late = 0.0, 0.0, time.monotonic(), ""
        self._pid = os.fork()
        if self._pid == 0:
            _in_child(trial, self._place, theirs, seconds)
        os.close(theirs)

    def hears_end(self) -> bool:
        """Take in what the child has reported; whether it reports no more."""
        data = os.read(self.pipe, 1 << 16)
        *lines, self._read = (self._read + data).split(b"\n")
        for line in lines:
            self._said.append(json.loads(line))
            self._awake, self._begun_at_s = time.monotonic(), self._spent_s()
        return not data

    def is_late(self) -> bool:
        """Whether its law has used up its limit. A machine that is busy with other work does not shorten it."""
        limits, spent_s = self._limits(self._law()), self._spent_s() - self._begun_at_s
        if self._is_awake():
            self._awake = time.monotonic()
        asleep_s = time.monotonic() - self._awake
        if spent_s > limits.cpu_s:
            self._late = f"no end after {spent_s:.2f} CPU s"
        elif asleep_s > limits.asleep_s:
            self._late = f"every thread has slept for {asleep_s:.2f} s"
        return bool(self._late)

    def _is_awake(self) -> bool:
        """Whether a thread of it, or a process that it has started, runs or waits for a core or a disk."""
        tasks = list(Path(f"/proc/{self._pid}/task").iterdir())
        asleep = all(_fields(task)[0] in "SZ" for task in tasks)
        return not asleep or any(_read(task / "children") for task in tasks)

    def _law(self) -> str:
        last = self._said[-1] if self._said else {}
        return str(last["law"]) if last.get("event") == "begins" else ""

    def _spent_s(self) -> float:
        fields = _fields(Path(f"/proc/{self._pid}"))
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self, *, kill: bool) -> int:
        """Wait until it is gone, and remove its directory; its exit status."""
        if kill:
            os.kill(self._pid, signal.SIGKILL)
        _, status, used = os.wait4(self._pid, 0)
        self._cpu_s = used.ru_utime + used.ru_stime
        os.close(self.pipe)
        output = self._place / "output"
        self._output = output.read_text(errors="replace")[-2000:] if output.exists() else ""
        shutil.rmtree(self._place, ignore_errors=True)
        return os.waitstatus_to_exitcode(status)

    def verdict(self) -> Verdict:
        code = self.end(kill=bool(self._late))
        last = self._said[-1] if self._said else {}
        names = next((tuple(said["names"]) for said in self._said if said["event"] == "laws"), ())
        held = {said["law"]: said["cpu_s"] for said in self._said if said["event"] == "held"}
        kind, law, how = (
            "no verdict",
            self._law(),
            f"exit status {code}, last word: {last.get('event', 'none')}; {self._output}",
        )
        if self._late:
            kind, how = ("hangs" if law else "no verdict"), self._late
        elif code == 0 and last.get("event") == "failed":
            kind, law, how = "caught", last["law"], last["how"]
        elif code == 0 and last.get("event") == "every law held" and 0 < last["number"] == len(names) == len(held):
            kind, law, how = "survives", "", ""
        return Verdict(self.trial, kind, law, how, names, held, self._cpu_s)


def _fields(task: Path) -> list[str]:
    """Of a task's `stat`, what follows its name: state, ..., CPU time; a thread that has just ended was awake."""
    return _read(task / "stat").rpartition(")")[2].split() or ["R"]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


# -- in the child ---------------------------------------------------------------------------------------------------


def _in_child(trial: Trial, place: Path, pipe: int, seconds: Mapping[str, float]) -> None:
    """Ask the laws of the trial, report to `pipe`, and leave; nothing of the parent's goes on here."""
    status = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        output = os.open(place / "output", os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.stderr = open(1, "w", closefd=False, buffering=1, encoding="utf-8")  # noqa: SIM115
        _exchange(trial)
        import mutant_laws

        asked = mutant_laws.prepared(trial.file, place, seconds, trial.longest_s)
        asked.sort(key=lambda law: law.name != trial.first)
        mutant_laws.ask(asked, place, lambda event, **facts: os.write(pipe, _line(event, facts)))
        _assert_exchanged(trial)
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _line(event: str, facts: dict[str, Any]) -> bytes:
    return json.dumps({"event": event, **facts}).encode() + b"\n"


class _Exchanged(importlib.machinery.SourceFileLoader):
    """Loads another text than the file's."""

    text = ""
    used = False

    def get_code(self, fullname: str) -> Any:
        type(self).used = True
        return compile(self.text, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, trial: Trial) -> None:
        self.module = ".".join(["holdfast", *Path(trial.file).with_suffix("").parts])
        self.path = str(SOURCE / trial.file)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.module:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=_Exchanged(fullname, self.path))


def _exchange(trial: Trial) -> None:
    """From here on `import` finds our package, with the trial's text in place of its file's."""
    sys.path.insert(0, str(SOURCE.parent))
    sys.addaudithook(_no_other_python)
    if trial.file:
        _Exchanged.text = trial.text()
        sys.meta_path.insert(0, _Finder(trial))


def _no_other_python(event: str, given: tuple[Any, ...]) -> None:
    """A process that a law started would run the code as it is, and its answer would be about that."""
    if event == "subprocess.Popen" and os.path.realpath(str(given[0])) == os.path.realpath(sys.executable):
        raise ImportError(f"a law that starts a process says nothing of a mutant: {given[1]}")


def _assert_exchanged(trial: Trial) -> None:
    import holdfast

    assert Path(holdfast.__file__).parent == SOURCE, holdfast.__file__
    assert not trial.file or _Exchanged.used, f"{trial.file} was never imported"
