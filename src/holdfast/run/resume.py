"""Resume: choose the checkpoint to go on from, and restore it into the live objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from .. import journal
from ..errors import Damaged, HoldfastError, NotFound, StoreError
from ..journal import Log
from ..ranks import ALONE, Ranks
from ..store.attempt import appear, is_checkpoint
from ..store.checkpoint import Checkpoint
from ..store.store import Store
from .position import Position
from .ranks import agreed
from .tracked import RESERVED, Digests, Tracked, require_fit

MOST_FAILURES = 2  # of the same kind from one checkpoint, before it is set aside

# The program's or the machine's fault, never the checkpoint's.
_BLAMELESS = (HoldfastError, ImportError, NameError, SyntaxError, MemoryError, OSError)


class Origin:
    """The checkpoint that this attempt goes on from, or is restoring (None: a fresh start), and those that it rejected."""

    def __init__(self) -> None:
        self.checkpoint: Checkpoint | None = None
        self.memory: dict[str, Any] = {}  # what the run itself remembered
        self.rejected: list[tuple[str, str]] = []  # name of a newer checkpoint, and why not
        self.outvoted: dict[str, list[str]] = {}  # options of the script's that the checkpoint replaced
        self.baseline: Digests | None = None  # the state as restored, until the first loop begins

    def choose(self, checkpoint: Checkpoint | None) -> None:
        """Restore this one next."""
        self.checkpoint = checkpoint

    def restored(self, checkpoint: Checkpoint, memory: dict[str, Any]) -> None:
        self.checkpoint, self.memory = checkpoint, memory

    def reject(self, name: str, why: str) -> None:
        self.rejected.append((name, why))

    def outvote(self, found: dict[str, list[str]]) -> None:
        """Found before the first restore: one that failed half-way has overwritten what the script said."""
        self.outvoted = found

    def hold(self, baseline: Digests | None) -> None:
        """Until the first loop begins, the state must stay as restored; None: the loop has begun."""
        self.baseline = baseline


def restore_newest(
    origin: Origin, store: Store, tracked: Tracked, types: Iterable[type], ranks: Ranks = ALONE, *, allow_fresh: bool
) -> None:
    """Restore the newest undamaged checkpoint into the live objects and note it in `origin`; newer ones are set aside.

    Rank 0 proposes a checkpoint. When one rank finds it damaged, all ranks reject it.

    Raises:
        StoreError: checkpoints exist, or existed, and none is valid; `allow_fresh` starts from scratch instead.
        Mismatch: it does not fit the live objects; nothing was overwritten.
    """
    search = _Search(origin, store, allow_fresh=allow_fresh) if ranks.rank == 0 else None
    fault: StoreError | None = None
    while True:
        with ranks.together("the choice of a checkpoint"):
            chosen = search.choose(fault) if search is not None else None
        name = ranks.announce(
            "the choice of a checkpoint", (chosen.path.name if chosen is not None else "").encode()
        ).decode()
        checkpoint = chosen if ranks.rank == 0 else _seen(store, name)
        origin.choose(checkpoint)
        if checkpoint is None:
            return
        try:
            if allow_fresh:  # there may be no older checkpoint to restore after half of this one
                agreed(ranks, "a look at all bytes", lambda: require_sound(checkpoint) if ranks.rank == 0 else None)  # noqa: B023
            restore(store, checkpoint, tracked, types, origin, ranks)
        except (Damaged, NotFound) as error:
            fault = error
            continue
        with ranks.together("damage that is shared"):
            if search is not None:
                search.settle()
        return


class _Search:
    """Tries checkpoints from the newest to the oldest; those that cannot be used are set aside."""

    def __init__(self, origin: Origin, store: Store, *, allow_fresh: bool) -> None:
        self._origin, self._store, self._allow_fresh = origin, store, allow_fresh
        self._logs = [log for log in journal.logs(store.root) if log.attempt < store.claim().number]
        self._found = store.checkpoints()
        self._left = [*self._found]
        self._tried: Checkpoint | None = None
        self._sharing: dict[str, str] = {}

    def choose(self, fault: StoreError | None) -> Checkpoint | None:
        """The next one to try; `fault`: why the last one failed. None: the run begins afresh.

        Raises:
            StoreError: none is left, and a fresh start is not allowed.
        """
        self._origin.choose(None)
        if self._tried is not None and isinstance(fault, Damaged):  # else somebody has removed it meanwhile
            self._sharing |= self._store.sharing_damage(self._tried)
            self._set_aside(self._tried, str(fault))
        while self._left:
            checkpoint = self._left.pop()
            name, oldest = checkpoint.path.name, checkpoint is self._found[0]
            why = self._sharing.get(name) or (None if oldest else poison(name, self._logs))
            if why is None:
                self._tried = checkpoint
                return checkpoint
            self._set_aside(checkpoint, why)
        rejected, store = self._origin.rejected, self._store
        if not self._allow_fresh and (rejected or _quarantined(store)):
            raise StoreError(
                f"{store.root}: checkpoints existed and none is valid: {_list(rejected, store)}. They are in "
                f"{store.root / 'quarantine'}. To start from scratch all the same, say allow_fresh=True"
            )
        return None

    def settle(self) -> None:
        """Set aside older checkpoints that share a damaged file with a rejected one."""
        rejected = {name for name, _ in self._origin.rejected}
        for checkpoint in self._store.checkpoints():
            name = checkpoint.path.name
            if name in self._sharing and name not in rejected:
                self._set_aside(checkpoint, self._sharing[name])

    def _set_aside(self, checkpoint: Checkpoint, why: str) -> None:
        set_aside(self._store, checkpoint, "poison" if why.startswith("failed") else "damaged", why)
        self._origin.reject(checkpoint.path.name, why)


def _seen(store: Store, name: str) -> Checkpoint | None:
    """The checkpoint that rank 0 has chosen; wait a little for a network file system to show it here."""
    if not name:
        return None
    path = store.root / "checkpoints" / name
    with suppress(FileNotFoundError):  # the restore reports it
        appear(path, is_checkpoint)
    return Checkpoint(path)


def restore(
    store: Store,
    checkpoint: Checkpoint,
    tracked: Tracked,
    types: Iterable[type],
    origin: Origin,
    ranks: Ranks = ALONE,
) -> None:
    """Restore `checkpoint` into the live objects. `origin` notes this rank's view of it, and what the run itself saved.

    All ranks compare keys, shapes and dtypes before the first byte is overwritten.
    """

    def compared() -> tuple[Checkpoint, dict[str, Any]]:
        view = checkpoint if ranks.alone else checkpoint.as_rank(ranks.rank)
        memory = _fitting(view, tracked, types)
        if not origin.outvoted:
            origin.outvote(tracked.outvoted(view, types))
        return view, memory

    view, memory = agreed(ranks, "the comparison", compared)
    if not ranks.alone:
        tracked.warm(memory.get("reducers", {}))

    def filled() -> None:
        attempt = store.claim()
        attempt.record("restoring", checkpoint=view.path.name)
        attempt.flush(sync=True)
        tracked.restore(view, types)

    agreed(ranks, "the restore", filled)
    origin.restored(view, memory)


def _fitting(checkpoint: Checkpoint, tracked: Tracked, types: Iterable[type]) -> dict[str, Any]:
    """What the run itself saved in a checkpoint; the checkpoint fits the live objects."""
    checkpoint.check_layout()
    checkpoint.check_unread()
    if RESERVED not in checkpoint.parts():
        raise StoreError(
            f"{checkpoint.path} was not saved by a Run: Store(...).load() reads it, and start_from= takes weights from it"
        )
    memory = checkpoint.load(part=RESERVED, types=types)
    if not isinstance(memory, dict) or not isinstance(memory.get("vars", {}), dict):
        raise Damaged(f"{checkpoint.path}: what the run remembered is not a mapping")
    Position.of(memory.get("position"))
    variables = tracked.variables.differences(memory.get("vars", {}))
    nested = tracked.nested_differences(memory.get("nested", []))
    require_fit([*tracked.differences(checkpoint, types), *nested, *variables], checkpoint)
    return memory


def go_back(store: Store, step: int) -> list[str]:
    """Move all checkpoints newer than `step` to quarantine, so that the run goes on from there; their names."""
    target = store[step]
    require_sound(target)
    newer = [c for c in store.checkpoints() if c.head.name.order > target.head.name.order]
    for checkpoint in newer:
        set_aside(store, checkpoint, "went-back", f"the run went back to step {step}")
    store.claim().record("went_back", step=target.step, phase=target.phase, names=[c.path.name for c in newer])
    return [c.path.name for c in newer]


def require_sound(checkpoint: Checkpoint) -> None:
    """
    Raises:
        Damaged: its bytes differ from what was committed.
    """
    for problem in checkpoint.problems():
        raise Damaged(str(problem))


def remembered(store: Store) -> dict[str, Any]:
    """What the run itself saved in its newest readable checkpoint; the user's types are placeholders."""
    for checkpoint in reversed(store.checkpoints()):
        try:
            memory = checkpoint.load(part=RESERVED, placeholders=True)
        except (Damaged, NotFound):  # the restore reports it
            continue
        if isinstance(memory, dict):
            return memory
    return {}


def set_aside(store: Store, checkpoint: Checkpoint, word: str, why: str) -> None:
    store.quarantine(checkpoint, word)
    store.claim().record("quarantined", name=checkpoint.path.name, why=why)
    store.claim().flush(sync=True)


def counts(error: BaseException) -> bool:
    """Whether a failure before the first step may be the checkpoint's fault."""
    memory = "OutOfMemory" in type(error).__name__
    return isinstance(error, Exception) and not isinstance(error, _BLAMELESS) and not memory


def describe(error: BaseException) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"[:500]


def script() -> str:
    """The program's version: the time at which its file was written."""
    try:
        return str(os.stat(sys.argv[0]).st_mtime_ns)
    except (OSError, IndexError):  # interactive, or started by `python -c`
        return ""


def poison(name: str, logs: Sequence[Log]) -> str | None:
    """Why the checkpoint `name` is not tried again, or None. `logs`: of the attempts before this one.

    That is so when the last attempts, of the program as it is now, began from it and failed with the same error before
    their first step. If another checkpoint led to the same error, the program is at fault.
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
