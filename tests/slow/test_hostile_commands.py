"""Commands on every odd checkpoint whose digests are right: a line and an exit code, soon, in bounded memory.

Here each checkpoint meets a third of the commands, and each command a third of them; tests/prove asks all of all.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hostile_stores import valid
from odd_checkpoints import ODD
from small_rooms import in_a_small_room
from stores import invoke

ROOM_BYTES = 1 << 30  # beyond what Python and its libraries take: a constant, and room for the largest manifest here
MOST_S = 20.0  # of the processor, for one command
CODES = {0, 1, 2, 3, 4, 5, 7, 12}
READS_ALL = ("verify", "diff", "pin")  # so long that a tebibyte of them takes minutes


def commands_on(run: Path, out: Path) -> Iterator[str]:
    step = run / "checkpoints/step-000000002"
    yield from (f"ls {run}", f"ls {run} --json", f"status {run}", f"hold {run}", f"release {run}")
    for more in ("", "--all", "--json", "--metrics", "--rank 1", "--step best"):
        yield f"show {run} {more}"
    yield from (f"show {step}", f"verify {run}", f"verify {run} --step 2 --cold --json")
    yield from (f"diff {run} {run}@1", f"diff {run}@1 {run} --quick --json", f"diff {run} {run}")
    for ending in ("npz", "safetensors", "pt"):
        yield f"export {run} --all -o {out}/x.{ending} --force"
        yield f"export {run} --part odd -o {out}/x.{ending} --force --json"
    yield from (f"export {run} -o {out}/x.npz --force", f"copy {run} {out}/copy", f"copy {run} {out}/all --all")
    yield from (f"pin {run} --step 2", f"unpin {run} --step 2")
    yield from (f"prune {run} --keep Last(1) --dry-run", f"prune {run} --keep Best('acc',max)")


def faults_of(words: str) -> Iterator[str]:
    """What is wrong with how a command ended, and with what it said."""
    began = time.process_time()
    try:
        told = invoke(*words.split())
    except Exception as error:
        yield f"{type(error).__name__}: {str(error)[:200]}"
        return
    took_s = time.process_time() - began
    shown = told.stdout + told.stderr
    if took_s > MOST_S:
        yield f"took {took_s:.0f} s"
    if told.exit_code not in CODES:
        yield f"exit code {told.exit_code}"
    if not all(letter.isprintable() or letter == "\n" for letter in shown):
        yield "a character that may move the terminal"
    if told.stderr.count("\n") > 1:
        yield f"several lines of error: {told.stderr[:200]!r}"
    if "--json" in words and told.exit_code == 0:
        json.loads(told.stdout)
    if "--json" not in words and "--all" not in words:
        lines = shown.split("\n")
        if len(lines) > 100 and not words.startswith("verify"):
            yield f"{len(lines)} lines"
        if max(map(len, lines)) > 11_000:
            yield f"a line of {max(map(len, lines))} characters"


@pytest.mark.parametrize("name", ODD)
def test_every_command_ends_soon_with_a_line_whatever_a_manifest_says(name: str, tmp_path: Path) -> None:
    """No traceback, no endless output, no hang, no growth without bound; nothing that a terminal obeys."""
    commands_end_soon(name, tmp_path, slice([*ODD].index(name) % 3, None, 3))


def commands_end_soon(name: str, place: Path, asked: slice) -> None:
    folder = valid(place / "run")
    ODD[name](folder)
    (place / "out").mkdir()
    asking = [*commands_on(place / "run", place / "out")]
    if "tebibyte" in name:
        asking = [words for words in asking if not words.startswith(READS_ALL)]
    assert len(asking) > 15
    asking = asking[asked]

    def law() -> list[str]:
        found = [f"{words}: {what}" for words in asking for what in faults_of(words)]
        return [*found, f"{len(asking)} commands"]

    *found, count = in_a_small_room(law, ROOM_BYTES)
    assert ([], f"{len(asking)} commands") == (found, count)
