"""Mirror start: asks the places of a run before it begins, claims them, and fetches the checkpoint
that is the newest.

If a place does not answer, a run never begins from an older state: the start fails, and says how to
override that.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from .. import journal, owner, settings
from ..cluster.submission_guard import SubmissionEntry, require_same_entry
from ..errors import StoreError, Superseded, UsageError
from ..journal import Log
from ..mirror.checkpoint_fetcher import CheckpointFetcher
from ..mirror.client import WorkerClient
from ..mirror.mirror_place import MirrorPlace
from ..mirror.mirrors import END_S, Mirrors
from ..mirror.options import WITHOUT, MirrorOption, MirrorOptions, prefix_with_place
from ..mirror.protocol import Event
from ..mirror.records import NO_MANIFEST, PlaceState
from ..mirror.run_lineage import RunLineage, may_be_running
from ..rules import Last, Rule
from ..store.attempt import Attempt, read_run
from ..store.claiming import RemoteFacts
from ..store.committing import translate_write_errors
from ..store.format import parse_name
from ..store.store import Store
from ..terminal import say, warn
from .options import Options

LOOK_S = 30.0  # how long a place may take to list its content
TOLD_S = 3.0  # after so long without an answer the place is asked again, and that is reported
STRANGE = ("later", "taken")  # another attempt began meanwhile


class MirrorStart:
    """The run's mirrors until its attempt has claimed the run, on rank 0."""

    def __init__(self, mirroring: MirrorOptions, options: Options, store: Store) -> None:
        self._mirroring, self._root, self._index = mirroring, store.root, store.index
        self._shown = [place.shown for place in mirroring.places]
        self._take_over, self._allow_fresh = store.take_over, options.allow_fresh
        places = [(place.url, _rule(place, store)) for place in mirroring.places]
        self._client = WorkerClient(store.index, places, private=options.private)
        self._late = {number for number, place in enumerate(mirroring.places) if place.without}
        self._seen: dict[int, PlaceState] = {}

    def query_places(self, logs: Sequence[Log]) -> RemoteFacts:
        """Read what all mirrors hold; return the facts that claiming the run's directory needs.

        Raises:
            StoreError: a mirror does not answer, and may hold a newer checkpoint than this
                directory.
            UsageError: the mirror holds another run; another attempt may be alive; or the
                address is invalid.
        """
        self._client.start()
        answers = self._ask_places("look", {})
        for number, answer in answers.items():
            if answer.kind == "unusable":  # nothing newer can lie there
                raise UsageError(
                    f"{self._root}: {prefix_with_place(self._shown[number], answer.text)}"
                )
        self._seen = _place_states(answers)
        for number, answer in answers.items():
            if answer.kind is not None:
                self._require_answer(number, answer.text, logs)
        run = self._run_id()
        self._require_no_live_attempt(logs)
        claims = [claim.attempt for seen in self._seen.values() for claim in seen.claims]
        copies = [copy.attempt for seen in self._seen.values() for copy in seen.copies]
        return RemoteFacts(run, max([*claims, *copies], default=0))

    def require_same_submission(
        self, entered: Mapping[str, Any], accepted: Collection[str]
    ) -> None:
        """Require that the newest attempt at the places belongs to this submission.

        Raises:
            UsageError: another submission began the newest attempt at the places.
        """
        claims = [
            (number, claim)
            for number, seen in self._seen.items()
            for claim in seen.claims
            if claim.entered
        ]
        if entered and claims:
            number, newest = max(claims, key=lambda each: each[1].attempt)
            place = self._shown[number]
            require_same_entry(place, newest.entered, SubmissionEntry(**entered), accepted)

    def claim(self, store: Store, entered: Mapping[str, Any]) -> Mirrors:
        """Claim the places for the attempt that has claimed the run's directory.

        Raises:
            Superseded: an even later attempt began meanwhile.
            StoreError: a place does not answer any more.
        """
        attempt = store.claim()
        try:
            return self._claim_places(store, attempt, entered)
        except BaseException:
            # the places that are claimed are told of the end
            self._client.send_order("drain", until=time.time())
            self._client.close(END_S)
            with suppress(StoreError):
                attempt.close("end", step=0, reason="refused")
            raise

    def _claim_places(self, store: Store, attempt: Attempt, entered: Mapping[str, Any]) -> Mirrors:
        run_json = (self._root / "run.json").read_text()
        claim = {
            "attempt": attempt.number,
            "run_json": run_json,
            "owner": owner.describe_this_process(),
            "entered": dict(entered) or None,
        }
        # its answer is what lies there now: who has claimed before is listed, who claims later
        # stops this attempt
        self._client.claim_in_later_workers(claim)
        answers = self._ask_places("claim", claim)
        self._require_answers(answers)
        for number in self._late:
            self._client.send_order("claim", number, **claim)
        self._seen = _place_states(answers)
        for place in (
            self._shown[number] for number, answer in answers.items() if not answer.facts["atomic"]
        ):
            warn(
                f"{self._root}: {place} knows no exclusive write: "
                "two starts in the same second may both claim it"
            )
        self._warn_of_unusable_copies(store)
        present = RunLineage(store.checkpoints(), attempt.earlier, self._seen)
        places = [
            MirrorPlace(number, wanted.shown, _rule(wanted, store), self._seen.get(number))
            for number, wanted in enumerate(self._mirroring.places)
        ]
        fetcher = CheckpointFetcher(store, self._client, self._shown, present)
        return Mirrors(fetcher, places, self._mirroring.drain_s)

    def _warn_of_unusable_copies(self, store: Store) -> None:
        """Warn of copies with a manifest that cannot be used,
        if they would be the newest checkpoint.
        """
        newest = max((name.order for name in store.index.names()), default=(-1, 0))
        for seen in self._seen.values():
            for rest in seen.rests:
                name = parse_name(rest.name)
                if rest.why != NO_MANIFEST and name is not None and name.order > newest:
                    warn(f"{self._root}: a copy counts for nothing: {rest.why}")

    def close(self) -> None:
        self._client.close()

    # The places' answers
    # -----------------------------------------------------------------------------------------

    def _ask_places(self, do: str, args: Mapping[str, Any]) -> dict[int, Event]:
        """Ask all mirrors that must answer, at the same time; return their answers."""
        asked = [
            number for number in range(len(self._mirroring.places)) if number not in self._late
        ]
        began_s, told = time.monotonic(), set[int]()

        def look() -> None:
            """Report once each place that is asked again."""
            failing = {
                number: why for number, why in self._client.failing.items() if number in asked
            }
            if time.monotonic() - began_s < TOLD_S:
                return
            for number in failing.keys() - told:
                told.add(number)
                place = self._shown[number]
                say(
                    f"{self._root}: asks {place} again: "
                    f"{failing[number].removeprefix(f'{place}: ')}"
                )

        self._client.failing.clear()
        return self._client.ask(do, args, asked, LOOK_S, look)

    def _require_answers(self, answers: Mapping[int, Event]) -> None:
        for number, answer in answers.items():
            if answer.kind in STRANGE:
                raise Superseded(
                    f"{self._root}: another attempt began while this one did: {answer.text}"
                )
            if answer.kind == "foreign":
                raise UsageError(answer.text)
            if answer.kind is not None:
                raise self._no_answer_error(number, answer.text)

    def _require_answer(self, number: int, why: str, logs: Sequence[Log]) -> None:
        """Continue without a mirror that did not answer, if it certainly holds nothing newer
        or the caller allows it.
        """
        here = self._index.names()
        if here and self._is_newest(logs):
            known = "another place shows that nothing newer is there"
        elif not here and self._allow_fresh:
            known = "allow_fresh=True: it is not asked for checkpoints"
        else:
            raise self._no_answer_error(number, why)
        self._late.add(number)
        said = prefix_with_place(self._shown[number], why)
        warn(f"{self._root}: {said}; the run begins without it ({known})")

    def _is_newest(self, logs: Sequence[Log]) -> bool:
        """Whether a place that has answered was claimed by the last attempt of this directory,
        and by none later.
        """
        last = next((log for log in reversed(logs) if log.restored is not None), None)
        if last is None:
            return False
        for seen in self._seen.values():
            newest = max(seen.claims, key=lambda claim: claim.attempt, default=None)
            if newest is not None and newest.attempt == last.attempt and newest.owner == last.owner:
                return True
        return False

    def _no_answer_error(self, number: int, why: str) -> StoreError:
        place = self._shown[number]
        fresh = "" if self._index.names() else ", and allow_fresh=True to begin from scratch"
        return StoreError(
            f"{self._root}: {prefix_with_place(place, why)}. "
            "It may hold newer checkpoints than this directory, so the run does "
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
                ids.setdefault(seen.run, self._shown[number])
        if len(ids) > 1:
            raise UsageError(
                f"{' and '.join(ids.values())} hold different runs; give each run places of its own"
            )
        return next(iter(ids), None)

    def _require_no_live_attempt(self, logs: Sequence[Log]) -> None:
        """Require that no attempt that claimed a mirror may still be running.

        Raises:
            UsageError: an attempt on another machine may be alive.
        """
        here = {log.attempt: log.owner for log in logs}
        for number, seen in self._seen.items():
            newest = max(seen.claims, key=lambda claim: claim.attempt, default=None)
            if newest is None or self._take_over or here.get(newest.attempt) == newest.owner != {}:
                continue  # the claim of the directory asks about its own
            if may_be_running(newest):
                raise UsageError(
                    f"{self._shown[number]}: attempt {newest.attempt} may still be running: "
                    f"{owner.describe(newest.owner)}. Stop it first; "
                    "if you know that it is gone, say take_over=True "
                    "or set HOLDFAST_TAKE_OVER=1"
                )


def _place_states(answers: Mapping[int, Event]) -> dict[int, PlaceState]:
    good = {number: answer.facts for number, answer in answers.items() if answer.kind is None}
    return {number: msgspec.convert(facts, PlaceState) for number, facts in good.items()}


def _rule(wanted: MirrorOption, store: Store) -> Rule:
    return wanted.rule or store.keep or Last(1)


def claim_run_and_places(
    options: Options, store: Store, entered: Mapping[str, Any]
) -> Mirrors | None:
    """Claim the run's directory and all its places; None: the run has no mirrors. `entered`: the
    submission's entry.

    Raises:
        StoreError: a place does not answer, and nobody knows whether it holds newer checkpoints.
    """
    mirroring = options.mirroring
    if mirroring is None:
        return None
    if settings.is_drilled():
        say(
            f"{store.root}: drilled, and so not mirrored to "
            f"{', '.join(place.shown for place in mirroring.places)}"
        )
        return None
    start = MirrorStart(mirroring, options, store)
    try:
        with translate_write_errors(store.root, "begin"):
            store.set_remote_facts(start.query_places(journal.logs(store.root)))
            start.require_same_submission(entered, options.accept)
            store.claim()
            return start.claim(store, entered)
    except BaseException:
        start.close()
        raise
