"""Resume: which checkpoint a run goes on from, and how it gets into the live objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .. import journal
from ..errors import Damaged, HoldfastError, NotFound, StoreError
from ..journal import Log
from ..store.checkpoint import Checkpoint
from ..store.store import Store
from .position import Position
from .tracked import RESERVED, Tracked, require_fit

MOST_FAILURES = 2  # of the same kind from one checkpoint, before it is set aside

# The program's or the machine's fault, never the checkpoint's.
_BLAMELESS = (HoldfastError, ImportError, NameError, SyntaxError, MemoryError, OSError)


class Resumed(msgspec.Struct):
    """Where a run goes on: nowhere (`checkpoint` None: a fresh start) or from a checkpoint, the one being restored too."""

    checkpoint: Checkpoint | None = None
    memory: dict[str, Any] = {}  # what the run itself remembered
    rejected: list[tuple[str, str]] = []  # name of a newer checkpoint, and why not
    outvoted: dict[str, list[str]] = {}  # options of the script's that the checkpoint replaced


def restore_newest(
    resumed: Resumed, store: Store, tracked: Tracked, types: Iterable[type], *, allow_fresh: bool
) -> None:
    """Restore the newest checkpoint that is whole, setting aside the newer ones that are not; `resumed` says which.

    Raises:
        StoreError: checkpoints exist, or existed, and none would do; `allow_fresh` starts from scratch instead.
        Mismatch: it does not fit the live objects; nothing was overwritten.
    """
    logs = [log for log in journal.logs(store.root) if log.attempt < store.claim().number]
    found = store.checkpoints()
    sharing: dict[str, str] = {}
    for checkpoint in reversed(found):
        name, oldest = checkpoint.path.name, checkpoint is found[0]
        why = sharing.get(name) or (None if oldest else poison(name, logs))
        try:
            if why is None:
                resumed.checkpoint = checkpoint  # a failure from here on may speak against it
                if allow_fresh:
                    require_sound(checkpoint)  # perhaps nothing comes after it to mend what a restore leaves half-way
                resumed.memory = restore(store, checkpoint, tracked, types, resumed)
                _set_aside_sharers(store, resumed, sharing)
                return
        except Damaged as error:
            why = str(error)
            sharing |= store.sharing_damage(checkpoint)
        except NotFound:  # removed by hand meanwhile
            continue
        resumed.checkpoint = None
        set_aside(store, checkpoint, "poison" if why.startswith("failed") else "damaged", why)
        resumed.rejected.append((name, why))
    resumed.checkpoint = None
    if not allow_fresh and (resumed.rejected or _quarantined(store)):
        raise StoreError(
            f"{store.root}: checkpoints existed and none is valid: {_list(resumed.rejected, store)}. They are in "
            f"{store.root / 'quarantine'}. To start from scratch all the same, say allow_fresh=True"
        )


def _set_aside_sharers(store: Store, resumed: Resumed, sharing: Mapping[str, str]) -> None:
    """Older checkpoints may hold a damaged file as well: nothing is to count on them."""
    rejected = {name for name, _ in resumed.rejected}
    for checkpoint in store.checkpoints():
        name = checkpoint.path.name
        if name in sharing and name not in rejected:
            set_aside(store, checkpoint, "damaged", sharing[name])
            resumed.rejected.append((name, sharing[name]))


def restore(
    store: Store, checkpoint: Checkpoint, tracked: Tracked, types: Iterable[type], resumed: Resumed
) -> dict[str, Any]:
    """Put `checkpoint` into the live objects; what the run itself remembered.

    Everything that can be compared is compared before the first byte is overwritten.
    """
    checkpoint.check_layout()
    if RESERVED not in checkpoint.parts():
        raise StoreError(
            f"{checkpoint.path} was not saved by a Run: Store(...).load() reads it, and start_from= takes weights from it"
        )
    memory = checkpoint.load(part=RESERVED, types=types)
    if not isinstance(memory, dict):
        raise Damaged(f"{checkpoint.path}: what the run remembered is not a mapping")
    Position.of(memory.get("position"))
    require_fit(tracked.differences(checkpoint, types), checkpoint)
    attempt = store.claim()
    attempt.record("restoring", checkpoint=checkpoint.path.name)
    attempt.flush(sync=True)
    if not resumed.outvoted:  # an attempt that failed half-way has overwritten what the script said
        resumed.outvoted = tracked.outvoted(checkpoint, types)
    tracked.restore(checkpoint, types)
    return memory


def go_back(store: Store, step: int) -> list[str]:
    """Move everything newer than `step` aside, so that the run goes on from there; their names."""
    target = store[step]
    require_sound(target)
    newer = [c for c in store.checkpoints() if c.manifest.name.order > target.manifest.name.order]
    for checkpoint in newer:
        set_aside(store, checkpoint, "went-back", f"the run went back to step {step}")
    store.claim().record("went_back", step=target.step, phase=target.phase, names=[c.path.name for c in newer])
    return [c.path.name for c in newer]


def require_sound(checkpoint: Checkpoint) -> None:
    """
    Raises:
        Damaged: a byte of it is not what was committed.
    """
    for problem in checkpoint.problems():
        raise Damaged(str(problem))


def remembered(store: Store) -> dict[str, Any]:
    """What the run itself remembered in its newest checkpoint that can be read; the user's types as placeholders."""
    for checkpoint in reversed(store.checkpoints()):
        try:
            memory = checkpoint.load(part=RESERVED, placeholders=True)
        except (Damaged, NotFound):  # the restore will say so
            continue
        if isinstance(memory, dict):
            return memory
    return {}


def set_aside(store: Store, checkpoint: Checkpoint, word: str, why: str) -> None:
    store.quarantine(checkpoint, word)
    store.claim().record("quarantined", name=checkpoint.path.name, why=why)
    store.claim().flush(sync=True)


def counts(error: BaseException) -> bool:
    """Whether a failure before the first step speaks against the checkpoint it began from."""
    memory = "OutOfMemory" in type(error).__name__
    return isinstance(error, Exception) and not isinstance(error, _BLAMELESS) and not memory


def describe(error: BaseException) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"[:500]


def script() -> str:
    """What changes when somebody has edited the program: the time at which its file was written."""
    try:
        return str(os.stat(sys.argv[0]).st_mtime_ns)
    except (OSError, IndexError):  # interactive, or started by `python -c`
        return ""


def poison(name: str, logs: Sequence[Log]) -> str | None:
    """Why the checkpoint `name` is not tried again, or None. `logs`: of the attempts before this one.

    The last attempts of the program as it is now all began from it and failed alike before their first step, and no
    other beginning has led to the same failure: then it would be the program's.
    """
    failures = [_failure(log) for log in logs]
    alike = [failure for failure in failures[-MOST_FAILURES:] if failure and failure[0] == name]
    texts = {text for _, text in alike}
    if len(alike) < MOST_FAILURES or len(texts) != 1:
        return None
    (text,) = texts
    if any(failure and failure[0] != name and failure[1] == text for failure in failures):
        return None
    return f"failed {MOST_FAILURES} times before the first step with: {text}"


def _failure(log: Log) -> tuple[str, str] | None:
    for event in reversed(log.events):
        if event.get("event") == "failed" and event.get("counts") and event.get("script") == script():
            return str(event.get("checkpoint")), str(event.get("error"))
    return None


def _quarantined(store: Store) -> list[str]:
    return sorted(path.name for path in store.root.glob("quarantine/step-*"))


def _list(rejected: list[tuple[str, str]], store: Store) -> str:
    return "; ".join(f"{name}: {why}" for name, why in rejected) or ", ".join(_quarantined(store))
