"""A small state and its saves, what lies in a store, and harm to a file: what the tests of the store share."""

import json
import os
import signal
import subprocess
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from click.testing import CliRunner

from holdfast.cli import commands
from holdfast.store.store import ManifestFields, Store


def state_of(step: int) -> dict[str, Any]:
    """With leaves of several requests, of parts of one, and one that never changes."""
    model = {"w": np.full((3, 900), step, "float32"), "still": np.arange(1100, dtype="float32")}
    return {"model": model, "text": bytes([step % 251]) * 1100, "step": step}


def put(store: Store, step: int) -> None:
    store.save(
        state_of(step), step=step, facts=ManifestFields(document={"by": "a test"}, metrics={"acc": -abs(step - 2)})
    )


def having(root: Path, *wanted: int, **options: Any) -> Store:
    """A store with checkpoints of these steps."""
    store = Store(root, **options)
    for step in wanted:
        put(store, step)
    return store


def whole(state: Any, step: int) -> bool:
    wanted = state_of(step)
    same = all(state["model"][key].tobytes() == value.tobytes() for key, value in wanted["model"].items())
    return same and ("holdfast" in state or (state["text"], state["step"]) == (wanted["text"], wanted["step"]))


def steps(store: Store) -> list[int]:
    return [checkpoint.step for checkpoint in store.checkpoints()]


def listing(root: Path) -> dict[str, bytes | str | bool]:
    """Every name below `root`, with what it holds; journals apart."""
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.suffix != ".jsonl"
    }


def flip(path: Path, place: int = -1, bit: int = 1) -> None:
    """Turn bits of one byte over, in place: the file keeps its identity and its other names."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        place %= os.fstat(descriptor).st_size
        os.pwrite(descriptor, bytes([os.pread(descriptor, 1, place)[0] ^ bit]), place)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


BEFORE_CLICK_8_2: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
RUNNER = CliRunner(**BEFORE_CLICK_8_2)


class Said(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        return self.stdout + self.stderr


def invoke(*words: object) -> Said:
    """What a command of `holdfast` prints, and its exit code; an error that it does not tell is raised."""
    told = RUNNER.invoke(commands, list(map(str, words)))
    if told.exception is not None and not isinstance(told.exception, SystemExit):
        raise told.exception
    return Said(told.exit_code, told.stdout, told.stderr)


def done(*words: object) -> str:
    """What a command that succeeds prints."""
    said = invoke(*words)
    assert 0 == said.exit_code, (words, said.output)
    return said.stdout


def asked(*words: object) -> Any:
    """The same as JSON."""
    return json.loads(done(*words, "--json"))


def in_a_child(law: Callable[[], object]) -> int:
    """The exit code of a forked child that asks the law; 0 when it holds there."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(300)
            law()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", *arguments, str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
