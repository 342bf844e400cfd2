"""What reads files that somebody else may have written: one function for each kind of file.

Each takes the bytes of one file, puts them, with the digests above them right again, where a valid file was, and reads.
A `HoldfastError` is an answer; any other exception is a fault. `watched` finds what a reader does besides reading.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import hostile_stores
from holdfast import journal, lint
from holdfast.apps import criu, gromacs, lammps
from holdfast.apps import file as app_file
from holdfast.apps.program import ProgramExit
from holdfast.cli import defaults
from holdfast.cluster import job_leader
from holdfast.errors import HoldfastError
from holdfast.mirror import records, remote
from holdfast.run import alive
from holdfast.state import codec
from holdfast.store import format
from holdfast.store.attempt import read_run
from holdfast.store.checkpoint import Checkpoint
from holdfast.supervise import submission, witness
from hostile_stores import GOLDEN, mend, sealed

for _framework in codec.LEAVES:  # a file may ask for these, and for no other: they are here before anybody watches
    codec.import_adapter(_framework)

Reader = Callable[[bytes, Path], object]


def _read(folder: Path) -> None:
    """All that is asked of one checkpoint, and of a rank's view of it; only the last refusal counts."""
    for rank in (None, 0, 1):
        with suppress(HoldfastError):
            checkpoint = Checkpoint(folder) if rank is None else Checkpoint(folder).as_rank(rank)
            for ask in (
                lambda checkpoint: checkpoint.facts(),
                lambda checkpoint: checkpoint.check_layout(),
                lambda checkpoint: list(checkpoint.problems()),
                lambda checkpoint: checkpoint.leaves(),
                lambda checkpoint: checkpoint.handles(placeholders=True),
                lambda checkpoint: checkpoint.load(),
                lambda checkpoint: checkpoint.load(mmap=True),
            ):
                with suppress(HoldfastError):
                    ask(checkpoint)
    Checkpoint(folder).load(placeholders=True)


def manifest(data: bytes, place: Path) -> None:
    folder = place / "run/checkpoints/step-000000002"
    if not folder.exists():
        hostile_stores.valid(place / "run")
    (folder / format.MANIFEST).write_bytes(sealed(data))
    _read(folder)
    with suppress(HoldfastError):
        records.parse_copy((folder / format.MANIFEST).read_bytes(), 1, folder.name, "a place")


def part(data: bytes, place: Path) -> None:
    """The file in which rank 1 lists what it wrote."""
    folder = place / "checkpoints/step-000000007-end"
    if not folder.exists():
        hostile_stores.two_ranks(place)
    golden = GOLDEN / "two-ranks" / folder.name
    fields = hostile_stores.fields_of(golden)
    name = format.part_file_name(1)
    (folder / name).write_bytes(data)
    from holdfast.store import parts

    entry = parts.file_entry(data)
    fields["files"][name] = {"size_bytes": entry.size_bytes, "digest": entry.digest}
    (folder / format.MANIFEST).write_bytes(sealed(b"{\n" + format.field_lines(fields) + b"\n}\n"))
    _read(folder)


def shard(data: bytes, place: Path) -> None:
    """The header of a safetensors file."""
    folder = place / "run/checkpoints/step-000000002"
    if not folder.exists():
        hostile_stores.valid(place / "run")
        shutil.copytree(folder, place / "valid")
    whole = (place / "valid/model.safetensors").read_bytes()
    fields = hostile_stores.fields_of(place / "valid")
    leaves = [leaf for leaf in fields["leaves"].values() if leaf["shard"] == "model.safetensors"]
    begin = min(leaf["offset"] for leaf in leaves)
    for leaf in leaves:
        leaf["offset"] += len(data) - begin
    (folder / "model.safetensors").write_bytes(data + whole[begin:])
    (folder / format.MANIFEST).write_bytes(sealed(b"{\n" + format.field_lines(fields) + b"\n}\n"))
    mend(folder)
    _read(folder)


def a_journal(data: bytes, place: Path) -> None:
    """The journals of a run's last attempt, and of the one before; a supervisor and a submission have such files."""
    for path in (place / "history/attempt-1.jsonl", place / "attempts/2/attempt-2.jsonl", place / "journal.jsonl"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (place / "job.sh").write_bytes(b"#!/bin/bash\n")
    job_leader.report_run_path(place, place)
    for log in journal.logs(place):
        _ = log.owner, log.last, log.closed, log.restored, list(log.newest("saved"))
    journal.metrics(place)
    seen = witness.RunJournalReader(place)
    seen.note_state_before()
    seen.measure_saves()
    seen.read_outcome(0.0)
    submission.submitted_jobs(place)


def run_json(data: bytes, place: Path) -> None:
    """The file that says which run it is, here and at a place; and what names the claims of a place."""
    place.mkdir(exist_ok=True)
    (place / "run.json").write_bytes(data)
    for read in (lambda: read_run(place), lambda: records.parse_run_id(data, "a place")):
        with suppress(HoldfastError):
            read()


def claim(data: bytes, place: Path) -> None:
    """A claim of a place, and what the small files of a supervisor's directory say."""
    remote._decode_claim(data, 3)
    with suppress(ValueError):  # as its caller takes a line that it cannot read
        records.ORIGINS.decode(data)
    place.mkdir(exist_ok=True)
    for name in (job_leader.RUN_HERE, job_leader.REFUSED, alive.ANNOUNCED):
        (place / name).write_bytes(data)
    job_leader.reported_run_path(place)
    job_leader.take_refusal(place)
    alive.claim_slot(place, 0, 1)


def app(data: bytes, place: Path) -> None:
    """An app file, and what its program does by it."""
    place.mkdir(exist_ok=True)
    (place / "work").mkdir(exist_ok=True)
    (place / "app.toml").write_bytes(data)
    found = app_file.AppFile(app_file.read(place / "app.toml"), place / "work", place / "room/app")
    for ask in (
        lambda: found.begin([], None, None),
        lambda: found.begin(["python"], None, 3.0),
        found.checkpoint,
        lambda: found.left(0.0),
        lambda: found.stop(15, 1),
        lambda: found.verdict(ProgramExit(0, "its last line", told=False, resumed=False)),
    ):
        with suppress(HoldfastError):
            ask()


def restart(data: bytes, place: Path) -> None:
    """The files that GROMACS, LAMMPS and CRIU leave, and a LAMMPS script."""
    place.mkdir(exist_ok=True)
    path = place / "file"
    path.write_bytes(data)
    gromacs.step_of(path)
    lammps.step_of(path)
    lammps._is_whole(path)
    with suppress(HoldfastError):
        list(lammps._patterns(lammps._text(place, "file")))
    (place / criu.SIZES).write_bytes(data)
    with suppress(HoldfastError):
        criu._sizes(place)


def script(data: bytes, place: Path) -> None:
    """A batch script, as `holdfast lint` reads it."""
    del place
    lint.lint_script(data.decode("utf-8", "replace"))


def settings(data: bytes, place: Path) -> None:
    """The file with options for commands."""
    place.mkdir(exist_ok=True)
    (place / "holdfast.toml").write_bytes(data)
    with _inside(place):
        defaults.read_defaults("run", ["retries", "grace"])


@contextmanager
def _inside(place: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(place)
    try:
        yield
    finally:
        os.chdir(before)


TARGETS: dict[str, Reader] = {
    "manifest": manifest,
    "part": part,
    "shard": shard,
    "journal": a_journal,
    "run": run_json,
    "claim": claim,
    "app": app,
    "restart": restart,
    "script": script,
    "settings": settings,
}


def answered(target: str, data: bytes, place: Path) -> bool:
    """Read `data` as a file of that kind; whether it was read, or refused by an error of ours."""
    with watched(place):
        try:
            TARGETS[target](data, place)
        except HoldfastError:
            return False
    return True


# What a reader does besides reading --------------------------------------------------------------------------------

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_ONE = _CHANGES - {"os.rename", "os.link", "os.symlink"}  # they name one path
_RUNS = {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork", "socket.connect"}
_OURS = ("holdfast", "numpy", "torch", "zoneinfo", "encodings", "msgspec", "xxhash", "safetensors", "ml_dtypes")
_place: list[str] = []  # below it files may change; empty while nobody watches


class Misdeed(BaseException):
    """A reader did what a file must not make it do."""


@contextmanager
def watched(place: Path) -> Iterator[None]:
    """In this block nothing outside of `place` changes, and no program, no code and no foreign module is run."""
    _watch_for_good()
    _place.append(str(place))
    try:
        yield
    finally:
        _place.pop()


def _watch_for_good() -> None:
    """A hook of Python's stays until the process ends."""
    if not getattr(sys, "_holdfast_watched", False):
        sys._holdfast_watched = True  # type: ignore[attr-defined]
        sys.addaudithook(_hook)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _place and (why := _misdeed(event, arguments)):
        raise Misdeed(why)


def _misdeed(event: str, arguments: tuple[Any, ...]) -> str:
    if event in _RUNS:
        return f"{event}{arguments!r:.200}"
    if event == "import" and arguments[0] not in sys.modules:
        name = arguments[0].partition(".")[0]
        return "" if name in _OURS or name in sys.stdlib_module_names else f"import {name}"
    if event == "exec":
        name = getattr(arguments[0], "co_filename", "")
        return "" if os.path.exists(name) or name.startswith(("<frozen", "<string>", "<__")) else f"exec {name}"
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event in _CHANGES or writes:
        named = arguments[1 if event == "os.symlink" else 0 : 1 if event in {"open", *_ONE} else 2]
        paths = [each for each in named if isinstance(each, str | bytes | os.PathLike)]
        return "".join(f"{event} {each!r}" for each in paths if not _is_inside(os.fsdecode(each)))
    return ""


def _is_inside(path: str) -> bool:
    return (
        os.path.abspath(path).startswith(_place[-1])
        or path == os.devnull
        or path.endswith(".pyc")
        or "__pycache__" in path
    )
