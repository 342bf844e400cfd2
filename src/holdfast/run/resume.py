"""Resume: choose the checkpoint to resume from, and restore it into the live objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from .. import journal, scan
from ..errors import Damaged, NotFound, StoreError, Unreadable, Untrusted, UsageError
from ..ranks import Ranks
from ..stateful.tracked import RESERVED, RestorePlan, Tracked, require_fit
from ..store import unsound
from ..store.attempt import Attempt, is_checkpoint, wait_until_visible
from ..store.checkpoint import Checkpoint
from ..store.store import Store
from ..terminal import say
from .capture import validate_run_memory
from .deferred_saves import BEGINNING
from .failures import (
    ReadRetries,
    failure_after_last_batch,
    quarantine_checkpoint,
    require_sound,
    same_failure_elsewhere,
    translate_read_errors,
    why_not_retry_checkpoint,
)
from .options import Options
from .origin import AttemptOrigin, Reentry
from .position import Position
from .ranks import lead_long_work, run_on_all_ranks

if TYPE_CHECKING:
    from ..mirror.checkpoint_fetcher import CheckpointFetcher

# in the quarantined name of a checkpoint before which there is only the run's beginning
FIRST_EPOCH = "first-epoch"


def _require_unsigned(checkpoint: Checkpoint) -> None:
    """Require a checkpoint without a signature.

    Raises:
        UsageError: a key has signed it, as its first line says.
    """
    signer = checkpoint.signer
    if signer is not None:
        raise UsageError(
            f"{checkpoint.path}: is signed by key {signer}, "
            "and this start would go on unsigned. Say signed= with the "
            "file of that key; to go on unsigned, "
            "begin a new directory with branch_from= or start_from="
        )


class Restorer(msgspec.Struct):
    """Chooses and restores the newest valid checkpoint. Rank 0 chooses, and quarantines
    unusable ones.
    """

    _options: Options
    _tracked: Tracked
    _ranks: Ranks
    _store: Store
    _origin: AttemptOrigin
    _attempt: Attempt
    _places: CheckpointFetcher | None
    _read_retries: ReadRetries
    _tried: Checkpoint | None = None
    # names of checkpoints that share a file with a rejected one, and the reason
    _sharing: dict[str, str] = {}
    _left: Iterator[Checkpoint] | None = None  # None: not listed yet
    _following: Checkpoint | None = None
    _anew: str = ""  # the checkpoint behind the run's first epoch from which the script fails

    def quarantine_newer(self) -> None:
        """Quarantine checkpoints outside the lineage, or newer than the step of `go_back`, before
        the restore.

        A restart does not repeat that.
        """
        ranks = self._ranks
        beside = self._places is not None  # on rank 0; a fetch may take long
        lead_long_work(ranks, "the places", self._fetch_newest_first, beside=beside)
        self._read_retries.retry_until_readable(
            partial(lead_long_work, ranks, "going back", self._quarantine_newer_here, beside=beside)
        )

    def _fetch_newest_first(self) -> bytes:
        """Before the run goes back, fetch the newest checkpoint:
        it shows whether the run went back before.
        """
        places, step = self._places, self._options.go_back
        if places is not None:
            with translate_read_errors(self._store.root):
                places.quarantine_orphans()
                if step is not None:
                    places.fetch_newer_than(next(places.store.index.newest_first(), None))
                    places.fetch(step, finite=self._options.stop_on_nan)
        return b""

    def _quarantine_newer_here(self) -> bytes:
        step, store = self._options.go_back, self._store
        if step is None:
            return b""
        with translate_read_errors(store.root):
            if self._already_went_back(step):
                say(
                    f"{store.root}: went back to step {step} before; "
                    f"go_back={step} is not done twice"
                )
                return b""
            target = store[self._find_go_back_target(step)]
            require_sound(target)
            self.require_resumable(target)
        to, index = target.head.name, store.index
        newer = [index.checkpoint(name) for name in index.names() if name.order > to.order]
        for checkpoint in newer:
            quarantine_checkpoint(
                store, checkpoint, "went-back", f"the run went back to step {step}"
            )
        names = [checkpoint.path.name for checkpoint in newer]
        if self._places is not None:
            self._places.ignore_newer_than(to)
        self._attempt.record("went_back", step=to.step, phase=to.phase, names=names)
        say(
            f"{store.root}: goes back to step {step}; "
            f"moved to quarantine: {', '.join(names) or 'nothing'}"
        )
        return b""

    def _find_go_back_target(self, step: int) -> str | int:
        """With `stop_on_nan`,
        the newest checkpoint of that step whose weights are finite, if there is one.
        """
        finite: list[str] = []
        index = self._store.index
        for name in index.names() if self._options.stop_on_nan else ():
            with suppress(Damaged, NotFound):
                finite += (
                    [str(name)]
                    if name.step == step and not index.checkpoint(name).head.not_finite
                    else []
                )
        return finite[-1] if finite else step

    def _already_went_back(self, step: int) -> bool:
        """Whether the newest checkpoint descends from that step.

        If it cannot be read, an older one and the journal decide. With `stop_on_nan` the newest one
        with finite weights decides: no start resumes from another one, so that going back must be
        repeated.
        """
        told: set[Any] = set()
        for checkpoint in reversed(self._store.checkpoints()):
            try:
                if self._options.stop_on_nan and checkpoint.head.not_finite:
                    continue
                # the user's types are placeholders
                memory = checkpoint.load(part=RESERVED, placeholders=True)
                return step in told or step in Position.from_stored(memory["position"]).went_back
            except (Damaged, NotFound, LookupError, TypeError):  # the restore reports it
                continue
            except OSError:
                told = {
                    event.get("step")
                    for log in self._attempt.earlier
                    for event in log.newest("went_back")
                }
        return step in told

    def restore_newest(self, types: Iterable[type], again: Reentry | None = None) -> None:
        """Restore the newest undamaged checkpoint. Note it in the origin, and set newer ones aside.

        `again`: see `opening.begin_attempt`. Rank 0 proposes a checkpoint.
        If one rank finds it damaged, all ranks reject it.

        Raises:
            Unreadable: a file cannot be read, here and at the places; nothing was changed.
            Untrusted: the newest checkpoint is not signed by this run's key, or is another run's;
                nothing was changed.
            StoreError: checkpoints exist, or existed, and none is valid; with `allow_fresh` the run
                starts from scratch
            instead.
            Mismatch: the checkpoint does not fit the live objects; nothing was overwritten.
        """
        wait_for = self._read_retries.retry_until_readable
        checkpoint = wait_for(self._next_candidate)
        while checkpoint is not None:
            try:
                wait_for(partial(self.restore, checkpoint, types, again))
            # somebody has to look: neither is it set aside, nor an older one taken
            except Untrusted:
                raise
            except (Damaged, NotFound, Unreadable) as error:
                # The next checkpoint is looked for outside of this block: its errors are not this
                # one's. Without frames: they hold what was read into, and this frame, one of them,
                # holds the error.
                fault = error.with_traceback(None)
            else:
                self._ranks.run_on_rank_0("damage that is shared", self._quarantine_sharers)
                return
            checkpoint = wait_for(partial(self._next_candidate, fault))

    def restore(
        self, checkpoint: Checkpoint, types: Iterable[type], again: Reentry | None = None
    ) -> None:
        """Restore `checkpoint`. The origin notes this rank's view of it, and the run's own state.

        The live objects stay as they are if the block before, `again`, ended with this checkpoint,
        on all ranks.

        All ranks compare keys, shapes and dtypes before the first byte is overwritten.
        """
        ranks, tracked, origin = self._ranks, self._tracked, self._origin
        again = again if self._can_keep_live_values(checkpoint, again) else None

        @translate_read_errors(checkpoint.path)
        def compare() -> tuple[Checkpoint, dict[str, Any], RestorePlan | None]:
            self.require_resumable(checkpoint)
            # after half of this one was restored, there may be no other
            if self._options.allow_fresh and ranks.leads:
                require_sound(checkpoint)
            view = checkpoint if ranks.alone else checkpoint.as_rank(ranks.rank)
            memory, plan = _plan_restore(view, tracked if again is None else None, types)
            if not origin.overridden_options and plan is not None:
                origin.override_options(tracked.overridden_options(view, plan, types))
            return view, memory, plan

        view, memory, plan = run_on_all_ranks(ranks, "the comparison", compare)
        if plan is None:
            origin.note_restored(view, memory, again)
            return
        if not ranks.alone:
            tracked.restore_reducers(memory.get("reducers", {}))

        @translate_read_errors(checkpoint.path)
        def fill() -> None:
            self._attempt.record("restoring", checkpoint=view.path.name)
            self._attempt.flush(sync=True)
            tracked.restore(view, plan)

        run_on_all_ranks(ranks, "the restore", fill)
        origin.note_restored(view, memory)

    def _can_keep_live_values(self, checkpoint: Checkpoint, again: Reentry | None) -> bool:
        """Whether the live values may stay: no attempt has saved since the last block ended."""
        mine = False
        if again is not None and again.ended.checkpoint == checkpoint.path.name:
            mine = (
                translate_read_errors(checkpoint.path)(lambda: checkpoint.head.attempt)()
                == again.ended.attempt
            )
        if again is not None and mine and again.unknown:
            mine = False
            say(
                f"{self._store.root}: the state is restored as the "
                f"last block has saved it: what {again.unknown!r} was "
                "then is not known here. To go on with what "
                "was changed since, enter the same Run again"
            )
        return all(
            word == b"1" for word in self._ranks.agree("the live values", b"1" if mine else b"")
        )

    def require_resumable(self, checkpoint: Checkpoint) -> None:
        """Require a checkpoint that this run may resume from.

        Raises:
            Untrusted: a signed checkpoint in this run's directory was saved by another run.
            UsageError: it is signed, and this run has no key.
            NotFinite: its weights are not finite, and the run stops on those.
        """
        run, signed = self._attempt.run, self._options.signer is not None
        # otherwise it was named by the caller
        ours = checkpoint.path.parent.parent == self._store.root
        if ours and signed and checkpoint.head.run != run:
            raise Untrusted(
                f"{checkpoint.path}: was saved by run {checkpoint.head.run}, and this is {run}"
            )
        if ours and not signed:
            _require_unsigned(checkpoint)
        if self._options.stop_on_nan:
            unsound.require_finite(self._store, checkpoint)

    def _next_candidate(self, fault: StoreError | None = None) -> Checkpoint | None:
        """Return the next checkpoint to try; None: the run begins fresh. `fault`: why the last one
        failed.

        Raises:
            StoreError: no checkpoint is left, and a fresh start is not allowed.
            Unreadable: nothing may take the place of the one that cannot be read.
        """
        choose = translate_read_errors(self._store.root)(lambda: self._choose_name(fault))
        choice = lead_long_work(
            self._ranks, "the choice of a checkpoint", choose, beside=self._places is not None
        )
        name = choice.decode()
        if self._ranks.rank:
            self._tried = _open_chosen(self._store, name)
        self._origin.note_candidate(self._tried)
        return self._tried

    def _choose_name(self, fault: StoreError | None) -> bytes:
        """Return the name of the next checkpoint to try; empty when there is none."""
        if self._left is None:
            self._left = self._store.index.newest_first()
            self._following = next(self._left, None)
        if self._tried is not None and isinstance(fault, Unreadable):
            if self._places is not None and self._places.replace_with_copy(self._tried):
                return self._tried.path.name.encode()
            self._quarantine(self._tried, self._require_may_skip(self._tried, fault), "unreadable")
        # otherwise another process removed it
        if self._tried is not None and isinstance(fault, Damaged):
            if self._places is not None and self._places.repair_files(self._tried):
                return self._tried.path.name.encode()
            self._sharing |= self._store.sharing_damage(self._tried)
            self._quarantine(self._tried, str(fault))
        while (tried := self._newest_candidate()) is not None:
            self._tried = tried
            name, oldest = tried.path.name, self._following is None
            oldest = oldest and not self._options.allow_fresh
            why = self._sharing.get(name)
            if why is None and (failed := failure_after_last_batch(name, self._attempt.earlier)):
                self._anew = name if oldest and failed.get("next") == BEGINNING else ""
                if self._anew or not oldest:
                    why = (
                        "failed behind its epoch's last batch, "
                        f"without the loop's body: {failed.get('error')}"
                    )
            why = why or (
                None
                if self._following is None
                else why_not_retry_checkpoint(name, self._attempt.earlier)
            )
            if why is None:
                return name.encode()
            word = (
                FIRST_EPOCH if self._anew else "poison" if why.startswith("failed") else "damaged"
            )
            self._quarantine(tried, why, word)
            if self._places is not None:
                self._places.reject(name)
        self._tried = None
        self._require_fresh_start_allowed()
        return b""

    def _require_may_skip(self, checkpoint: Checkpoint, fault: Unreadable) -> str:
        """Note which file cannot be read here. Return why an older checkpoint may take this one's
        place.

        Raises:
            Unreadable: no other node failed at that file before, or the older checkpoint is not
                readable either.
        """
        name, older = checkpoint.path.name, self._following
        why = same_failure_elsewhere(fault, name, self._attempt.earlier)
        self._attempt.record("unreadable", checkpoint=name, files=fault.files)
        with suppress(StoreError):  # the disk may fail altogether
            self._attempt.flush(sync=True)
        if not why or older is None or not _is_readable(older):
            raise self._read_retries.give_up_error(fault, older)
        return why

    def _newest_candidate(self) -> Checkpoint | None:
        """Return the newest checkpoint that was not rejected: a mirror's, which is fetched,
        or a local one.
        """
        fetched = None if self._places is None else self._places.fetch_newer_than(self._following)
        if fetched is not None:
            return fetched
        mine, self._following = self._following, next(self._left or iter(()), None)
        return mine

    def _require_fresh_start_allowed(self) -> None:
        """Require that the run may start from scratch.

        Raises:
            StoreError: the run had checkpoints; it does not begin from scratch without being told
                to.
        """
        if self._options.allow_fresh:
            return
        rejected, quarantine = self._origin.rejected, self._store.root / "quarantine"
        earlier = sorted(
            each.name for each in scan.glob(quarantine, "step-*") if FIRST_EPOCH not in each.name
        )
        if lacks := self._places.why_not_start_fresh if self._places is not None else "":
            raise StoreError(
                f"{self._store.root}: {lacks}. "
                "To start from scratch all the same, say allow_fresh=True"
            )
        if earlier:
            shown = "; ".join(
                f"{name}: {why}" for name, why in rejected if name != self._anew
            ) or ", ".join(earlier)
            raise StoreError(
                f"{self._store.root}: checkpoints existed and none is valid: {shown}. They are in "
                f"{quarantine}. To start from scratch all the same, say allow_fresh=True"
            )
        if gone := [
            each
            for each in journal.unaccounted_checkpoints(self._attempt.earlier)
            if each != self._anew
        ]:
            raise StoreError(
                f"{self._store.root}: checkpoints were saved, "
                f"the last was {gone[-1]}, and none is there any more: put "
                "them back. To start from scratch all the same, say allow_fresh=True"
            )

    def _quarantine_sharers(self) -> bytes:
        """Set aside older checkpoints that share a damaged file with a rejected one."""
        for checkpoint in self._store.checkpoints() if self._sharing else ():
            if why := self._sharing.get(checkpoint.path.name):
                self._quarantine(checkpoint, why)
        return b""

    def _quarantine(self, checkpoint: Checkpoint, why: str, word: str = "damaged") -> None:
        quarantine_checkpoint(self._store, checkpoint, word, why)
        self._origin.reject(checkpoint.path.name, why)


def _is_readable(checkpoint: Checkpoint) -> bool:
    with suppress(StoreError, OSError):
        return not any(checkpoint.problems(cold=True))
    return False


def _open_chosen(store: Store, name: str) -> Checkpoint | None:
    """Return the checkpoint that rank 0 chose. Wait briefly until a network file system
    shows it here.
    """
    if not name:
        return None
    path = store.root / "checkpoints" / name
    with suppress(FileNotFoundError):  # the restore reports it
        wait_until_visible(path, is_checkpoint)
    return store.index.checkpoint_at(path)


def _plan_restore(
    checkpoint: Checkpoint, tracked: Tracked | None, types: Iterable[type]
) -> tuple[dict[str, Any], RestorePlan | None]:
    """Return what the run itself saved in a checkpoint, and how it would be restored.

    Before that, check that the checkpoint fits the live objects. None: they are not filled.
    """
    checkpoint.check_layout()
    checkpoint.check_unread()
    if RESERVED not in checkpoint.parts():
        raise StoreError(
            f"{checkpoint.path} was not saved by a Run: "
            "Store(...).load() reads it, start_from= takes weights from it"
        )
    memory = validate_run_memory(checkpoint.load(part=RESERVED, types=types), checkpoint)
    if tracked is None:
        return memory, None
    if tracked.places is not None:
        tracked.places.expect_rebound(memory.get("bound_anew", ()))
    variables = tracked.variables.differences(memory["vars"], tracked.places)
    plan = tracked.plan_restore(checkpoint, types, compare=True)
    differences = tracked.differences(checkpoint, plan, memory.get("nested", []))
    require_fit([*differences, *variables], checkpoint)
    return memory, plan
