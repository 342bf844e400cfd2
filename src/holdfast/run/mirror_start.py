"""Mirror start: asks the places of a run before it begins, claims them, and fetches the checkpoint that is the newest.

If a place does not answer, a run never begins from an older state: the start fails, and says how to override that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from .. import journal, owner
from ..errors import StoreError, Superseded, UsageError
from ..journal import Log
from ..mirror.client import PlaceError, WorkerClient
from ..mirror.protocol import Reply
from ..mirror.records import NO_MANIFEST, Claim, PlaceState
from ..rules import Last
from ..store.attempt import Attempt, read_run
from ..store.claiming import Elsewhere
from ..store.committing import writing
from ..store.format import parse_name
from ..store.store import Store
from ..terminal import say, warn
from ..threads import Condition
from . import settings
from .checkpoint_fetcher import CheckpointFetcher
from .mirror_lineage import Present
from .mirror_options import WITHOUT, Mirroring, Wanted, named
from .mirror_place import MirrorPlace
from .mirrors import ClaimInfo, Mirrors
from .options import Options
from .submission_guard import Entry, require_same

LOOK_S = 30.0  # how long a place may take to list its content
TOLD_S = 3.0  # after so long without an answer the place is asked again, and that is reported
STRANGE = ("later", "taken")  # another attempt began meanwhile


class _Answers(NamedTuple):
    """The places' answers, by number: a reply's content, or the kind of an error and its text."""

    good: dict[int, dict[str, Any]]
    bad: dict[int, tuple[str, str]]


class MirrorStart:
    """The places of a run until its attempt is claimed, on rank 0."""

    def __init__(self, mirroring: Mirroring, options: Options, store: Store) -> None:
        self._mirroring, self._root, self._index = mirroring, store.root, store.index
        self._take_over, self._allow_fresh = store.take_over, options.allow_fresh
        self._client = WorkerClient([place.url for place in mirroring.places], private=options.private)
        self._late = {number for number, place in enumerate(mirroring.places) if place.without}
        self._seen: dict[int, PlaceState] = {}
        self._claimed_at: set[int] = set()  # elsewhere the number may be another process's

    def look(self, logs: Sequence[Log]) -> Elsewhere:
        """Ask all places for their content; return the facts that the claim of the run's directory needs.

        Raises:
            StoreError: a place does not answer, and without it nobody knows whether this directory is the newest.
            UsageError: another run lies there; another attempt may be alive; or an address is none that can be used.
        """
        answers = self._ask("look", {})
        if any(kind == "refused" for kind, _ in answers.bad.values()):
            self._require_usable(answers.bad)
        self._seen = {number: msgspec.convert(each, PlaceState) for number, each in answers.good.items()}
        for number, (_, why) in answers.bad.items():
            self._require_answer(number, why, logs)
        run = self._run_id()
        self._refuse_the_living(logs)
        claims = [claim.attempt for seen in self._seen.values() for claim in seen.claims]
        copies = [copy.attempt for seen in self._seen.values() for copy in seen.copies]
        return Elsewhere(run, max([*claims, *copies], default=0))

    def require_ours(self, entered: Mapping[str, Any], accepted: Collection[str]) -> None:
        """Require that the newest attempt at the places belongs to this submission.

        Raises:
            UsageError: another submission began the newest attempt at the places.
        """
        claims = [(number, claim) for number, seen in self._seen.items() for claim in seen.claims if claim.entered]
        if entered and claims:
            number, newest = max(claims, key=lambda each: each[1].attempt)
            place = self._mirroring.places[number].shown
            require_same(place, newest.entered, Entry(**entered), accepted)

    def claim(self, store: Store, entered: Mapping[str, Any]) -> Mirrors:
        """Claim the places for the attempt that has claimed the run's directory.

        Raises:
            Superseded: an even later attempt began meanwhile.
            StoreError: a place does not answer any more.
        """
        attempt = store.claim()
        try:
            return self._claimed(store, attempt, entered)
        except BaseException:
            self._ask("end", {"attempt": attempt.number}, self._claimed_at, limit_s=2.0)
            with suppress(StoreError):
                attempt.close("end", step=0, reason="refused")
            raise

    def _claimed(self, store: Store, attempt: Attempt, entered: Mapping[str, Any]) -> Mirrors:
        run_json = (self._root / "run.json").read_text()
        claim = ClaimInfo(attempt.number, run_json, owner.me(), dict(entered) or None)
        claims = self._ask("claim", claim._asdict())
        self._claimed_at = {*claims.good}
        self._require_all(claims)
        answers = self._ask("look", {})  # only now: who has claimed before is listed, who claims later stops this one
        self._require_all(answers)
        self._seen = {number: msgspec.convert(each, PlaceState) for number, each in answers.good.items()}
        self._tell_unusable(store)
        present = Present(store.checkpoints(), attempt.earlier, self._seen)
        places = [self._place(number, wanted, present, store) for number, wanted in enumerate(self._mirroring.places)]
        fetcher = CheckpointFetcher(store, self._client, [place.shown for place in places], present)
        return Mirrors(fetcher, places, claim, self._mirroring.drain_s)

    def _tell_unusable(self, store: Store) -> None:
        """Warn of copies with a manifest that cannot be used, if they would be the newest checkpoint."""
        newest = max((name.order for name in store.index.names()), default=(-1, 0))
        for seen in self._seen.values():
            for rest in seen.rests:
                name = parse_name(rest.name)
                if rest.why != NO_MANIFEST and name is not None and name.order > newest:
                    warn(f"{self._root}: a copy counts for nothing: {rest.why}")

    def _place(self, number: int, wanted: Wanted, present: Present, store: Store) -> MirrorPlace:
        there = None if number in self._late else present.copies(number)
        place = MirrorPlace(number, wanted.shown, wanted.rule or store.keep or Last(1), there)
        if there is not None:
            place.saw(there, self._seen[number].pins, present.halves(number, _may_live))
        return place

    def close(self) -> None:
        self._client.close()

    def _require_usable(self, numbers: Collection[int]) -> None:
        """Require that these places can be opened at all.

        Raises:
            UsageError: no place can have that address, or its package is missing: nothing newer can lie there.
        """
        opened = []
        with suppress(PlaceError):
            opened = self._client.start(LOOK_S)
        for number in numbers:
            if opened and (refused := opened[number].refused):
                raise UsageError(f"{self._root}: {named(self._mirroring.places[number].shown, refused)}")

    # The places' answers -----------------------------------------------------------------------------------------

    def _ask(
        self, op: str, args: Mapping[str, Any], only: Collection[int] | None = None, limit_s: float | None = None
    ) -> _Answers:
        """Ask all places that must answer, or `only` some, at the same time. Wait at most `limit_s` for all of them."""
        every = range(len(self._mirroring.places)) if only is None else only
        asked = [number for number in every if number not in self._late]
        replies: dict[int, Reply] = {}
        failing: dict[int, str] = {}  # why they are asked again, by number
        came = Condition()

        def replied(number: int, reply: Reply) -> None:
            replies[number] = reply
            came.ring()

        def noted(number: int, reply: Reply) -> None:
            if reply.note == "retrying":
                failing[number] = reply.text

        limit_s = LOOK_S if limit_s is None else limit_s
        until = time.monotonic() + limit_s
        with suppress(StoreError):  # it is closed
            for number in asked:
                one = partial(replied, number), partial(noted, number)
                self._client.post(number, op, args, one[0], noted=one[1], budget_s=limit_s * 0.8)
            self._wait(came, lambda: {*asked} - {*replies}, failing, until)
        found = _Answers({}, {})
        for number in asked:
            reply = replies.get(number)
            if reply is None:
                found.bad[number] = ("silent", f"no answer within {limit_s:.0f} s")
            elif reply.error is not None:
                found.bad[number] = (reply.error, reply.text)
            else:
                found.good[number] = reply.ok or {}
        return found

    def _wait(
        self, came: Condition, open_: Callable[[], Collection[int]], failing: Mapping[int, str], until: float
    ) -> None:
        """Wait until every place has answered. Report once each place that is asked again."""
        told: set[int] = set()
        pause_s = TOLD_S
        while not came.wait_for(lambda: not open_(), min(pause_s, until - time.monotonic())):
            if time.monotonic() >= until:
                return
            for number in {*open_()} & {*failing} - told:
                told.add(number)
                place = self._mirroring.places[number].shown
                say(f"{self._root}: asks {place} again: {failing[number].removeprefix(f'{place}: ')}")
            pause_s = 1.0

    def _require_all(self, answers: _Answers) -> None:
        for number, (kind, text) in answers.bad.items():
            if kind in STRANGE:
                raise Superseded(f"{self._root}: another attempt began while this one did: {text}")
            if kind == "foreign":
                raise UsageError(text)
            raise self._unanswered(number, text)

    def _require_answer(self, number: int, why: str, logs: Sequence[Log]) -> None:
        """Continue without a place that did not answer, if it certainly holds nothing newer or the caller allows it."""
        here = self._index.names()
        if here and self._is_newest(logs):
            known = "another place shows that nothing newer is there"
        elif not here and self._allow_fresh:
            known = "allow_fresh=True: it is not asked for checkpoints"
        else:
            raise self._unanswered(number, why)
        self._late.add(number)
        said = named(self._mirroring.places[number].shown, why)
        warn(f"{self._root}: {said}; the run begins without it ({known})")

    def _is_newest(self, logs: Sequence[Log]) -> bool:
        """Whether a place that has answered was claimed by the last attempt of this directory, and by none later."""
        last = next((log for log in reversed(logs) if log.restored is not None), None)
        if last is None:
            return False
        for seen in self._seen.values():
            newest = max(seen.claims, key=lambda claim: claim.attempt, default=None)
            if newest is not None and newest.attempt == last.attempt and newest.owner == last.owner:
                return True
        return False

    def _unanswered(self, number: int, why: str) -> StoreError:
        place = self._mirroring.places[number].shown
        fresh = "" if self._index.names() else ", and allow_fresh=True to begin from scratch"
        return StoreError(
            f"{self._root}: {named(place, why)}. It may hold newer checkpoints than this directory, so the run does "
            f'not begin. Say without="{place}" or set {WITHOUT} to begin without it{fresh}'
        )

    def _run_id(self) -> str | None:
        """Return the id of the run; None if it is new everywhere.

        Raises:
            UsageError: different runs lie in the directory and at the places.
        """
        here = read_run(self._root) or self._index.run()
        ids = {here: str(self._root)} if here else {}
        for number, seen in self._seen.items():
            if seen.run is not None:
                ids.setdefault(seen.run, self._mirroring.places[number].shown)
        if len(ids) > 1:
            raise UsageError(f"{' and '.join(ids.values())} hold different runs; give each run places of its own")
        return next(iter(ids), None)

    def _refuse_the_living(self, logs: Sequence[Log]) -> None:
        """Require that no attempt at a place may still be running.

        Raises:
            UsageError: an attempt elsewhere may be alive.
        """
        here = {log.attempt: log.owner for log in logs}
        for number, seen in self._seen.items():
            newest = max(seen.claims, key=lambda claim: claim.attempt, default=None)
            if newest is None or self._take_over or here.get(newest.attempt) == newest.owner != {}:
                continue  # the claim of the directory asks about its own
            if _may_live(newest):
                raise UsageError(
                    f"{self._mirroring.places[number].shown}: attempt {newest.attempt} may still be running: "
                    f"{owner.describe(newest.owner)}. Stop it first; if you know that it is gone, say take_over=True "
                    "or set HOLDFAST_TAKE_OVER=1"
                )


def _may_live(claim: Claim) -> bool:
    if claim.ended or owner.precedes(claim.owner):
        return False
    return not claim.owner or owner.is_me(claim.owner) or not owner.proven_gone(claim.owner, lambda: claim.claimed)


def claim(options: Options, store: Store, entered: Mapping[str, Any]) -> Mirrors | None:
    """Claim the run's directory and all its places; None: the run has no mirrors. `entered`: the submission's entry.

    Raises:
        StoreError: a place does not answer, and nobody knows whether it holds newer checkpoints.
    """
    mirroring = options.mirroring
    if mirroring is None:
        return None
    if settings.is_drilled():
        say(f"{store.root}: drilled, and so not mirrored to {', '.join(place.shown for place in mirroring.places)}")
        return None
    start = MirrorStart(mirroring, options, store)
    try:
        with writing(store.root, "begin"):
            store.know(start.look(journal.logs(store.root)))
            start.require_ours(entered, options.accept)
            store.claim()
            return start.claim(store, entered)
    except BaseException:
        start.close()
        raise
