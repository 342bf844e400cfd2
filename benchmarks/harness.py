"""Harness: contenders in processes of their own, one at work at a time; rounds, statistics, results.

A table is a list of turns: in every round each contender has one, the order moves on by one from round to round, and
the raw limit of the machine is a contender as well. Round 0 is the first turn of each process, with cold memory; it is
given separately.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Self

MIB = 1 << 20
HERE = Path(__file__).parent
SILENT_S = 600.0  # a contender that says nothing for so long has hung
PATIENCE_S = 20.0  # a contender whose turn took longer has no further round
PEERS = ("torch", "safetensors", "torchsnapshot", "orbax-checkpoint", "jax", "numpy", "holdfast")

Figures = Mapping[str, float | str]


class Failed(NamedTuple):
    """A contender does not run here, and what it said."""

    error: str


class Turn(NamedTuple):
    round: int
    contender: str
    figures: Figures | Failed


class Column(NamedTuple):
    """A column of a table: a figure, or its ratio to a figure of another contender in the same round."""

    title: str
    key: str
    over: tuple[str, str] | None = None  # contender, key
    digits: int = 3


class Worker:
    """One contender in a process of its own; it works only when asked, and dies with the table."""

    def __init__(self, name: str, make: Callable[..., Any], *arguments: Any) -> None:
        self.name, self.failed, self.last_s = name, False, 0.0
        self._stillborn: Failed | None = None
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), name=name, daemon=True)
        self._process.start()
        theirs.close()

    def begin(self) -> None:
        """Make the contender. When that fails, its first turn says so."""
        self._stillborn = self._answer("begin", ())

    def ask(self, verb: str, *arguments: Any) -> Any:
        """What the contender's method `verb` returned, or Failed; then it is not asked again."""
        began = time.monotonic()
        answer = self._stillborn or self._answer(verb, arguments)
        self.last_s = time.monotonic() - began
        self.failed = isinstance(answer, Failed)
        return answer

    def _answer(self, verb: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self._pipe.send((verb, arguments))
            if not self._pipe.poll(SILENT_S):
                return Failed(f"silent for {SILENT_S:.0f} s in {verb}")
            return self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(5)
            return Failed(f"its process ended in {verb}, exit code {self._process.exitcode}")

    def close(self) -> None:
        with suppress(OSError):
            self._pipe.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """In the contender's process: answer until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the table's; this end sees the pipe close
    warnings.simplefilter("ignore")
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900")  # a contender goes before anything else on this machine
    with ExitStack() as around:
        contender: Any = None
        while True:
            try:
                verb, given = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                if contender is None:
                    contender = make(*arguments)
                    around.callback(contender.close)
                pipe.send(None if verb == "begin" else getattr(contender, verb)(*given))
            except BaseException as error:  # whatever a peer throws is its result
                first = str(error).strip().splitlines() or [""]
                pipe.send(Failed(f"{type(error).__name__}: {first[0][:200]}"))


@contextmanager
def workers(contenders: Mapping[str, Callable[..., Any]], *arguments: Any) -> Iterator[list[Worker]]:
    """A process for each contender, ended on the way out."""
    with ExitStack() as around:
        ring = []
        for name, make in contenders.items():
            ring.append(Worker(name, make, *arguments))
            around.callback(ring[-1].close)
        with ThreadPoolExecutor(len(ring)) as pool:  # imports take long, and are no part of any turn
            list(pool.map(Worker.begin, ring))
        yield ring


def turns(ring: Sequence[Worker], rounds: int, verb: str, *arguments: Any) -> Iterator[Turn]:
    """Rounds 0..rounds, each contender in turn; whoever fails says so once, whoever is very slow has one round."""
    for number in range(rounds + 1):
        first = number % len(ring)
        for worker in [*ring[first:], *ring[:first]]:
            if worker.failed or (number > 1 and worker.last_s > PATIENCE_S):
                continue
            yield Turn(number, worker.name, worker.ask(verb, *arguments))


class Results:
    """The turns of one table: JSON lines while they come, a Markdown table at the end."""

    def __init__(self, table: str, options: argparse.Namespace) -> None:
        self.table, self._out = table, Path(options.out)
        self.lines: list[dict[str, Any]] = []
        self._out.mkdir(parents=True, exist_ok=True)
        self._file = (self._out / f"{table}.jsonl").open("w")
        self._write({"table": table, "rounds": options.rounds, **machine(options.scratch)})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, size_mib: int, turn: Turn) -> None:
        failed = isinstance(turn.figures, Failed)
        figures = {"error": turn.figures.error} if isinstance(turn.figures, Failed) else dict(turn.figures)
        line = {"size_mib": size_mib, "contender": turn.contender, "round": turn.round, **figures}
        self.lines.append(line)
        self._write(line)
        shown = " ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in figures.items())
        say(f"{self.table} {size_mib} MiB, round {turn.round}: {turn.contender}: {'does not run: ' * failed}{shown}")

    def publish(self, columns: Sequence[Column], notes: str = "") -> None:
        """Write the Markdown table, and print it."""
        text = markdown(self.lines, columns)
        (self._out / f"{self.table}.md").write_text(f"{text}\n{notes.strip()}\n" if notes else text)
        print(text)

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, default=float) + "\n")
        self._file.flush()


def markdown(lines: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> str:
    """One table for each size: the median of the rounds after the first, and (smallest to largest)."""
    parts = []
    for size in dict.fromkeys(line["size_mib"] for line in lines):
        here = [line for line in lines if line["size_mib"] == size]
        parts += [f"### {size:,} MiB\n", "| | " + " | ".join(column.title for column in columns) + " |"]
        parts += ["|---|" + "---|" * len(columns)]
        for name in dict.fromkeys(line["contender"] for line in here):
            error = next((line["error"] for line in here if line["contender"] == name and "error" in line), None)
            cells = [f"does not run: {error}"] if error else [cell(here, name, column) for column in columns]
            parts.append(f"| {name} | " + " | ".join(cells) + " |")
        parts.append("")
    return "\n".join(parts)


def cell(lines: Sequence[Mapping[str, Any]], name: str, column: Column) -> str:
    found = samples(lines, name, column)
    if not found:
        return ""
    if any(isinstance(value, str) for value in found):
        return str(found[-1])
    middle, low, high = (f"{value:.{column.digits}f}" for value in (statistics.median(found), min(found), max(found)))
    return middle if low == high else f"{middle} ({low} to {high})"


def samples(lines: Sequence[Mapping[str, Any]], name: str, column: Column) -> list[Any]:
    """The figure in each round after the first, or of the first alone when its key begins with `first `.

    A ratio is formed in each round; a round in which one of both is missing has none.
    """
    first, key = column.key.startswith("first "), column.key.removeprefix("first ")
    found = []
    for line in lines:
        if line["contender"] != name or key not in line or (line["round"] == 0) != first:
            continue
        value = line[key]
        if column.over is not None:
            other, limit = column.over
            below = [
                each[limit]
                for each in lines
                if (each["contender"], each["round"]) == (other, line["round"]) and limit in each
            ]
            if not below:
                continue
            value /= below[0]
        found.append(value)
    return found


def options(table: str, *, sizes: Sequence[int], rounds: int = 3, doc: str | None = None) -> argparse.Namespace:
    """The command line that all tables share; `scratch` is a fresh directory, removed when the process ends."""
    parser = argparse.ArgumentParser(prog=f"benchmarks/{table}.py", description=doc)
    parser.add_argument("--sizes", type=_sizes, default=list(sizes), help="MiB of state: 64,512,2048")
    parser.add_argument("--rounds", type=int, default=rounds, help="after the first")
    parser.add_argument("--out", default=str(HERE / "results"), help="directory for the results")
    parser.add_argument("--scratch", default=os.curdir, help="directory on the disk to be measured")
    parser.add_argument("--only", default="", help="contenders whose names contain one of these, by comma")
    found = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes what is below --scratch
    found.sizes = [size for size in found.sizes if fits(size, found.scratch)]
    return found


def fits(size_mib: int, where: str) -> bool:
    """Whether the copies of the state that all contenders together hold have room; says so if not."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    enough = 5.5 * size_mib * MIB < memory and 9 * size_mib * MIB < shutil.disk_usage(where).free
    if not enough:
        say(f"{size_mib} MiB are left out: this machine has too little memory or disk for all contenders")
    return enough


def chosen(contenders: Mapping[str, Callable[..., Any]], only: str) -> dict[str, Callable[..., Any]]:
    words = [word for word in only.lower().split(",") if word]
    return {
        name: make
        for name, make in contenders.items()
        if not words or name.startswith("raw") or any(word in name.lower() for word in words)
    }


@contextmanager
def scratch(below: str) -> Iterator[Path]:
    """A new directory below `below`, removed on the way out, also after Ctrl-C."""
    path = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=below)).absolute()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def machine(where: str) -> dict[str, Any]:
    """What somebody needs to judge the figures; nothing that tells one machine from its sister."""
    versions = {}
    for name in PEERS:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "cpu": _first("/proc/cpuinfo", "model name") or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30), 1),
        "file_system": _file_system(Path(where).resolve()),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _sizes(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def _first(path: str, key: str) -> str | None:
    with suppress(OSError):
        for line in Path(path).read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == key:
                return value.strip()
    return None


def _file_system(path: Path) -> str | None:
    """The type of the file system that holds `path`: of the mount with the longest name above it."""
    best: tuple[int, str | None] = (0, None)
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mount, kind = line.split()[:3]
            if path.is_relative_to(mount) and len(mount) >= best[0]:
                best = (len(mount), kind)
    return best[1]


def remove(paths: Collection[Path]) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
