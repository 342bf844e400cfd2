"""Resume: choose the checkpoint to resume from, and restore it into the live objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from .. import journal, scan
from ..errors import Damaged, HoldfastError, NotFound, StoreError, Unreadable, Untrusted, UsageError
from ..journal import Event, Log
from ..store.attempt import appear, is_checkpoint
from ..store.checkpoint import Checkpoint
from ..store.store import Store
from ..terminal import say
from . import unsound
from .damaged import reading, require_sound, set_aside
from .memory import checked
from .origin import Reentry
from .ranks import agreed, led_at_length
from .read_retries import ReadRetries, unread_elsewhere
from .session import Session
from .tracked import RESERVED, Plan, Tracked, require_fit

BEGINNING = "the beginning"  # of the run, as what a start goes on from
FIRST_EPOCH = "first-epoch"  # in the quarantined name of a checkpoint before which there is only the run's beginning
MOST_FAILURES = 2  # failures of the same kind from one checkpoint before it is set aside

# These errors are the program's or the machine's fault, never the checkpoint's.
_BLAMELESS = (HoldfastError, ImportError, NameError, SyntaxError, MemoryError, OSError)


def restore_newest(
    session: Session, read_retries: ReadRetries, types: Iterable[type], again: Reentry | None = None
) -> None:
    """Restore the newest undamaged checkpoint into the live objects. Note it in the origin, and set newer ones aside.

    `again`: see `opening.begin`. Rank 0 proposes a checkpoint. If one rank finds it damaged, all ranks reject it.

    Raises:
        Unreadable: a file cannot be read, here and at the places; nothing was changed.
        Untrusted: the newest checkpoint is not signed by this run's key, or is another run's; nothing was changed.
        StoreError: checkpoints exist, or existed, and none is valid; with `allow_fresh` the run starts from scratch
        instead.
        Mismatch: the checkpoint does not fit the live objects; nothing was overwritten.
    """
    search = _Search(session, read_retries)
    checkpoint = read_retries.wait_for(search.next)
    while checkpoint is not None:
        try:
            read_retries.wait_for(partial(restore, session, checkpoint, types, again))
        except Untrusted:  # somebody has to look: neither is it set aside, nor an older one taken
            raise
        except (Damaged, NotFound, Unreadable) as error:
            # The next checkpoint is looked for outside of this block: its errors are not this one's. Without frames:
            # they hold what was read into, and this frame, one of them, holds the error.
            fault = error.with_traceback(None)
        else:
            session.ranks.lead("damage that is shared", search.set_sharers_aside)
            return
        checkpoint = read_retries.wait_for(partial(search.next, fault))


def _require_unsigned(checkpoint: Checkpoint) -> None:
    """Require a checkpoint without a signature.

    Raises:
        UsageError: a key has signed it, as its first line says.
    """
    signer = checkpoint.signer
    if signer is not None:
        raise UsageError(
            f"{checkpoint.path}: is signed by key {signer}, and this start would go on unsigned. Say signed= with the "
            "file of that key; to go on unsigned, begin a new directory with branch_from= or start_from="
        )


class _Search:
    """Tries checkpoints from the newest to the oldest and sets unusable ones aside. Rank 0 decides."""

    def __init__(self, session: Session, read_retries: ReadRetries) -> None:
        self._session, self._store, self._ranks = session, session.store, session.ranks
        self._patience = read_retries
        self._tried: Checkpoint | None = None
        self._sharing: dict[str, str] = {}  # names of checkpoints that share a file with a rejected one, and the reason
        if self._ranks.rank == 0:
            self._logs = session.earlier_logs
            self._places = None if session.mirrors is None else session.mirrors.fetcher
            self._left: Iterator[Checkpoint] | None = None  # None: not listed yet
            self._following: Checkpoint | None = None
            self._anew = ""  # the checkpoint behind the run's first epoch from which the script fails

    def next(self, fault: StoreError | None = None) -> Checkpoint | None:
        """Return the next checkpoint to try; None: the run begins fresh. `fault`: why the last one failed.

        Raises:
            StoreError: no checkpoint is left, and a fresh start is not allowed.
            Unreadable: nothing may take the place of the one that cannot be read.
        """
        from_places = self._session.mirrors is not None  # on rank 0; a fetch may take long
        choose = reading(self._store.root)(lambda: self._choose(fault))
        choice = led_at_length(self._ranks, "the choice of a checkpoint", choose, beside=from_places)
        name = choice.decode()
        if self._ranks.rank:
            self._tried = _seen(self._store, name)
        self._session.origin.choose(self._tried)
        return self._tried

    def _choose(self, fault: StoreError | None) -> bytes:
        """Return the name of the next checkpoint to try; empty when there is none."""
        if self._left is None:
            self._left = self._store.index.newest_first()
            self._following = next(self._left, None)
        if self._tried is not None and isinstance(fault, Unreadable):
            if self._places is not None and self._places.substitute(self._tried):
                return self._tried.path.name.encode()
            self._set_aside(self._tried, self._require_passable(self._tried, fault), "unreadable")
        if self._tried is not None and isinstance(fault, Damaged):  # otherwise another process removed it
            if self._places is not None and self._places.heal(self._tried):
                return self._tried.path.name.encode()
            self._sharing |= self._store.sharing_damage(self._tried)
            self._set_aside(self._tried, str(fault))
        while (tried := self._next_newest()) is not None:
            self._tried = tried
            name, oldest = tried.path.name, self._following is None
            oldest = oldest and not self._session.options.allow_fresh
            why = self._sharing.get(name)
            if why is None and (failed := failed_behind(name, self._logs)):
                self._anew = name if oldest and failed.get("next") == BEGINNING else ""
                if self._anew or not oldest:
                    why = f"failed behind its epoch's last batch, without the loop's body: {failed.get('error')}"
            why = why or (None if self._following is None else poison(name, self._logs))
            if why is None:
                return name.encode()
            word = FIRST_EPOCH if self._anew else "poison" if why.startswith("failed") else "damaged"
            self._set_aside(tried, why, word)
            if self._places is not None:
                self._places.reject(name)
        self._tried = None
        self._require_fresh()
        return b""

    def _require_passable(self, checkpoint: Checkpoint, fault: Unreadable) -> str:
        """Note which file cannot be read here. Return why an older checkpoint may take this one's place.

        Raises:
            Unreadable: no other node failed at that file before, or the older checkpoint is not readable either.
        """
        name, older = checkpoint.path.name, self._following
        why = unread_elsewhere(fault, name, self._logs)
        self._session.attempt.record("unreadable", checkpoint=name, files=fault.files)
        with suppress(StoreError):  # the disk may fail altogether
            self._session.attempt.flush(sync=True)
        if not why or older is None or not _is_readable(older):
            raise self._patience.given_up(fault, older)
        return why

    def _next_newest(self) -> Checkpoint | None:
        """The newest checkpoint that is left: a place's, which is fetched, or one of the directory."""
        fetched = None if self._places is None else self._places.newer_than(self._following)
        if fetched is not None:
            return fetched
        mine, self._following = self._following, next(self._left or iter(()), None)
        return mine

    def _require_fresh(self) -> None:
        """Require that the run may start from scratch.

        Raises:
            StoreError: the run had checkpoints; it does not begin from scratch without being told to.
        """
        if self._session.options.allow_fresh:
            return
        rejected, quarantine = self._session.origin.rejected, self._store.root / "quarantine"
        earlier = sorted(each.name for each in scan.glob(quarantine, "step-*") if FIRST_EPOCH not in each.name)
        if lacks := self._places.lacks if self._places is not None else "":
            raise StoreError(f"{self._store.root}: {lacks}. To start from scratch all the same, say allow_fresh=True")
        if earlier:
            shown = "; ".join(f"{name}: {why}" for name, why in rejected if name != self._anew) or ", ".join(earlier)
            raise StoreError(
                f"{self._store.root}: checkpoints existed and none is valid: {shown}. They are in "
                f"{quarantine}. To start from scratch all the same, say allow_fresh=True"
            )
        if gone := [each for each in journal.unaccounted(self._logs) if each != self._anew]:
            raise StoreError(
                f"{self._store.root}: checkpoints were saved, the last was {gone[-1]}, and none is there any more: put "
                "them back. To start from scratch all the same, say allow_fresh=True"
            )

    def set_sharers_aside(self) -> bytes:
        """Set aside older checkpoints that share a damaged file with a rejected one."""
        for checkpoint in self._store.checkpoints() if self._sharing else ():
            if why := self._sharing.get(checkpoint.path.name):
                self._set_aside(checkpoint, why)
        return b""

    def _set_aside(self, checkpoint: Checkpoint, why: str, word: str = "damaged") -> None:
        set_aside(self._store, checkpoint, word, why)
        self._session.origin.reject(checkpoint.path.name, why)


def _is_readable(checkpoint: Checkpoint) -> bool:
    with suppress(StoreError, OSError):
        return not any(checkpoint.problems(cold=True))
    return False


def _seen(store: Store, name: str) -> Checkpoint | None:
    """Return the checkpoint that rank 0 chose. Wait briefly until a network file system shows it here."""
    if not name:
        return None
    path = store.root / "checkpoints" / name
    with suppress(FileNotFoundError):  # the restore reports it
        appear(path, is_checkpoint)
    return store.index.at(path)


def restore(session: Session, checkpoint: Checkpoint, types: Iterable[type], again: Reentry | None = None) -> None:
    """Restore `checkpoint` into the live objects. The origin notes this rank's view of it, and the run's own state.

    The live objects stay as they are if the block before, `again`, ended with this checkpoint, on all ranks.

    All ranks compare keys, shapes and dtypes before the first byte is overwritten.
    """
    ranks, tracked, origin = session.ranks, session.tracked, session.origin
    again = again if _goes_on(session, checkpoint, again) else None

    @reading(checkpoint.path)
    def compared() -> tuple[Checkpoint, dict[str, Any], Plan | None]:
        require_wanted(session, checkpoint)
        if session.options.allow_fresh and session.leads:  # after half of this one was restored, there may be no other
            require_sound(checkpoint)
        view = checkpoint if ranks.alone else checkpoint.as_rank(ranks.rank)
        memory, plan = _fitting(view, tracked if again is None else None, types)
        if not origin.overridden_options and plan is not None:
            origin.override_options(tracked.overridden_options(view, plan, types))
        return view, memory, plan

    view, memory, plan = agreed(ranks, "the comparison", compared)
    if plan is None:
        origin.restored(view, memory, again)
        return
    if not ranks.alone:
        tracked.warm(memory.get("reducers", {}))

    @reading(checkpoint.path)
    def filled() -> None:
        session.attempt.record("restoring", checkpoint=view.path.name)
        session.attempt.flush(sync=True)
        tracked.restore(view, plan)

    agreed(ranks, "the restore", filled)
    origin.restored(view, memory)


def _goes_on(session: Session, checkpoint: Checkpoint, again: Reentry | None) -> bool:
    """Whether the live values count: no attempt has saved since the block before has ended."""
    mine = False
    if again is not None and again.ended.checkpoint == checkpoint.path.name:
        mine = reading(checkpoint.path)(lambda: checkpoint.head.attempt)() == again.ended.attempt
    if again is not None and mine and again.unknown:
        mine = False
        say(
            f"{session.path}: the state is restored as the last block has saved it: what {again.unknown!r} was then is "
            "not known here. To go on with what was changed since, enter the same Run again"
        )
    return all(word == b"1" for word in session.ranks.agree("the live values", b"1" if mine else b""))


def require_wanted(session: Session, checkpoint: Checkpoint) -> None:
    """Require a checkpoint that this run may resume from.

    Raises:
        Untrusted: a signed checkpoint in this run's directory was saved by another run.
        UsageError: it is signed, and this run has no key.
        NotFinite: its weights are not finite, and the run stops on those.
    """
    ours = checkpoint.path.parent.parent == session.store.root  # otherwise it was named by the caller
    if ours and session.options.signer is not None and checkpoint.head.run != session.attempt.run:
        raise Untrusted(f"{checkpoint.path}: was saved by run {checkpoint.head.run}, and this is {session.attempt.run}")
    if ours and session.options.signer is None:
        _require_unsigned(checkpoint)
    if session.options.stop_on_nan:
        unsound.require_finite(session.store, checkpoint)


def _fitting(
    checkpoint: Checkpoint, tracked: Tracked | None, types: Iterable[type]
) -> tuple[dict[str, Any], Plan | None]:
    """Return what the run itself saved in a checkpoint, and how it would be restored.

    Before that, check that the checkpoint fits the live objects. None: they are not filled.
    """
    checkpoint.check_layout()
    checkpoint.check_unread()
    if RESERVED not in checkpoint.parts():
        raise StoreError(
            f"{checkpoint.path} was not saved by a Run: Store(...).load() reads it, start_from= takes weights from it"
        )
    memory = checked(checkpoint.load(part=RESERVED, types=types), checkpoint)
    if tracked is None:
        return memory, None
    if tracked.places is not None:
        tracked.places.expect(memory.get("bound_anew", ()))
    variables = tracked.variables.differences(memory["vars"], tracked.places)
    plan = tracked.plan(checkpoint, types, compare=True)
    differences = tracked.differences(checkpoint, plan, memory.get("nested", []))
    require_fit([*differences, *variables], checkpoint)
    return memory, plan


def counts(error: BaseException) -> bool:
    """Whether a failure before the first step may be the checkpoint's fault."""
    memory = "OutOfMemory" in type(error).__name__
    return isinstance(error, Exception) and not isinstance(error, _BLAMELESS) and not memory


def describe(error: BaseException) -> str:
    first_line = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}"[:500]


def script() -> str:
    """Return the program's version: the modification time of its file."""
    try:
        return str(os.stat(sys.argv[0]).st_mtime_ns)
    except (OSError, IndexError):  # interactive, or started by `python -c`
        return ""


def poison(name: str, logs: Sequence[Log]) -> str | None:
    """Return why the checkpoint `name` is not tried again, or None. `logs`: of the attempts before this one.

    It is not tried again if the last attempts, of the same program version, resumed from it and failed with the same
    error before their first step. If another checkpoint led to the same error, the program is at fault.
    """
    found = _failure(logs[-1]) if len(logs) >= MOST_FAILURES else None
    if found is None or found[0] != name or any(_failure(log) != found for log in logs[-MOST_FAILURES:]):
        return None
    text = found[1]
    if any(failure and failure[0] != name and failure[1] == text for failure in map(_failure, logs)):
        return None
    return f"failed {MOST_FAILURES} times before the first step with: {text}"


def failed_behind(name: str, logs: Sequence[Log]) -> Event | None:
    """Return the last attempt's failure, if it began at the checkpoint `name`, behind an epoch's last batch.

    The code behind the loop failed there, in the same program version.
    """
    for event in logs[-1].newest("failed") if logs else ():
        if event.get("behind") and event.get("checkpoint") == name and event.get("script") == script():
            return event
    return None


def place_before(session: Session, error: BaseException) -> str:
    """Return from where the start after such a failure resumes: an older checkpoint, or BEGINNING; or empty.

    BEGINNING only if the run's first epoch has no older checkpoint, and a name that only the body sets has no value.
    Any other error may have another cause than the body that did not run.
    """
    checkpoint, names = session.origin.checkpoint, [each.path for each in session.store.checkpoints()]
    if checkpoint is None or checkpoint.path not in names:  # it is another run's
        return ""
    if older := names[: names.index(checkpoint.path)]:
        return older[-1].name
    if session.position.epoch_began or not isinstance(error, NameError):
        return ""
    return BEGINNING if any(f"'{name}'" in str(error) for name in session.progress.last_batch.body_sets) else ""


def after_a_failure_behind(store: Store, before: str, error: str) -> str:
    """Return the line for a `fails_behind`: what the next start does, and what to change."""
    then = f"the next start goes on from {before}" if before else "there is no older checkpoint to go on from"
    return (
        f"{store.root}: {error} in the code behind an epoch's last batch, which ran without the loop's body; {then}. "
        "Keep in run.vars what that code reads and the body sets"
        + ("" if before else "; or start with allow_fresh=True to begin anew")
    )


def _failure(log: Log) -> tuple[str, str] | None:
    for event in log.newest("failed"):
        if event.get("counts") and event.get("script") == script():
            return str(event.get("checkpoint")), str(event.get("error"))
    return None
