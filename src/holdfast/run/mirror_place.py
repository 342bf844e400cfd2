"""Mirror place: one place during a run: its content, the next request, and whether it answers.

Only the thread of `Mirrors` changes it. Other threads read single fields, which are replaced and never changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..mirror import waiting
from ..mirror.records import ResumeOrigin
from ..retention import CheckpointFacts
from ..rules import Rule

READ_BACK_EVERY = 20  # of so many copies one is read back, however the place verifies
RETRY_S = (1.0, 2.0, 5.0, 10.0, 30.0)  # after a request without an answer; the last one from then on
QUIET_S = 60.0  # a request without progress for so long is reported
NEVER = float("inf")
SAY_S = 60.0  # between two lines of one kind: that copying is interrupted, or that the place answers again
REMOVALS = 2  # after each copy at most so many, so that neither copies nor removals ever wait for all of the others


class PlaceCopy(NamedTuple):
    """A copy at the place, of this run's lineage."""

    attempt: int  # in whose folder it lies
    facts: CheckpointFacts


class PlaceRequest(NamedTuple):
    """One request to the place."""

    op: str
    args: Mapping[str, Any]
    name: str = ""  # the checkpoint that it is about
    is_half: bool = False  # it is an incomplete copy of an earlier attempt


class MirrorPlace:
    """One place of a run. `there`: its copies; None: it has not answered yet, which is allowed."""

    def __init__(self, index: int, shown: str, rule: Rule, there: Mapping[str, PlaceCopy] | None) -> None:
        self.index, self.shown, self.rule = index, shown, rule
        self.there: Mapping[str, PlaceCopy] = there or {}
        self.claimed = self.looked = there is not None
        self.pins: frozenset[str] = frozenset()  # noted there
        self.begun = self.ended = False
        self.left_alone = False  # this attempt does nothing more there
        self.under_way: PlaceRequest | None = None
        self.number = 0  # the client's, of the request that is under way
        self.down = ""  # why copying does not go on
        self._said_down = False  # what was printed about it
        self._said_s = {True: -SAY_S, False: -SAY_S}  # when each was printed, by the monotonic clock
        self.took_s = 0.0  # the longer of the last two copies: one may have waited for an outage to end
        self._last_took_s = 0.0
        self._verified: frozenset[str] = frozenset()  # copies that this attempt has made
        self._damaged: frozenset[str] = frozenset()  # here: they are not copied
        self._unsure: frozenset[str] = frozenset()  # files of theirs may be there: their copying failed
        self._halves: frozenset[tuple[int, str]] = frozenset()  # incomplete copies: attempt, name
        self._hurried = self._end_failed = False
        self._keeps_all = False  # it refuses removals; they are tried again after the next save
        self._removes = True
        self._removals = 0  # that may still come before the next copy
        self._copies = self._failures = 0
        self._retry_s = self._heard_s = 0.0  # by the monotonic clock

    # The next request
    # ---------------------------------------------------------------------------------------------------

    def missing(self, local: Sequence[CheckpointFacts]) -> list[str]:
        """Names of the checkpoints that are to be copied; the first is the next, or is under way."""
        if self.left_alone or not self.looked or self._hurried:
            return []
        sound = [facts for facts in local if facts.name not in self._damaged]
        return waiting.waiting(sound, [copied.facts for copied in self.there.values()], self.rule)

    def next(
        self, local: Sequence[CheckpointFacts], origin: ResumeOrigin | None, *, leaving: bool
    ) -> PlaceRequest | None:
        """Return what to ask now; None: nothing. `leaving`: the attempt ends when all is copied."""
        if self.under_way is not None or self.left_alone or self.ended:
            return None
        if leaving and self.claimed and self._retry_s == NEVER and not self._end_failed:
            return PlaceRequest("end", {})  # even if refused otherwise: a later start learns of the end
        if time.monotonic() < self._retry_s:
            return None
        if not self.claimed:
            return None if leaving else PlaceRequest("claim", {})
        if not self.looked:
            return PlaceRequest("end" if leaving else "look", {})
        if origin is None:
            return PlaceRequest("end", {}) if leaving else None
        missing = self.missing(local)
        if not self.begun and (missing or not leaving):
            return PlaceRequest("begun", {"from": {"attempt": origin.attempt, "name": origin.name}})
        unnoted = [facts.name for facts in local if facts.pinned and facts.name not in self.pins]
        if unnoted and self.begun and not self._hurried:  # first: a new machine learns of pins only from here
            return PlaceRequest("pin", {"name": unnoted[0]}, unnoted[0])
        removal = None if self._hurried else self._removal(local)
        if removal is not None and (self._removals > 0 or not missing):
            self._removals -= 1
            return removal
        if missing:
            read_back = self._copies % READ_BACK_EVERY == READ_BACK_EVERY - 1
            return PlaceRequest("copy", {"read_back": read_back}, missing[0])
        return PlaceRequest("end", {}) if leaving else None

    def _removal(self, local: Sequence[CheckpointFacts]) -> PlaceRequest | None:
        if not self._removes:
            return None
        pinned = {facts.name for facts in local if facts.pinned} | self.pins
        there = [each.facts._replace(pinned=each.facts.name in pinned) for each in self.there.values()]
        for name in waiting.outdated(there, self.rule, self._verified):
            return PlaceRequest("remove", {"of": self.there[name].attempt, "name": name}, name)
        if self._verified:  # otherwise files that are not copied again would stay there for ever
            for name in sorted(self._unsure.difference(self.missing(local))):
                return PlaceRequest("remove", {"name": name}, name)
            for of, name in sorted(self._halves):
                return PlaceRequest("remove", {"of": of, "name": name}, name, is_half=True)
        return None

    @property
    def pause_s(self) -> float:
        """Return the seconds until the next request is due if nothing else happens."""
        if self.under_way is not None:
            return 1.0
        left_s = self._retry_s - time.monotonic()
        return left_s if left_s > 0 else NEVER

    @property
    def holds_up(self) -> bool:
        """Whether the end of the attempt waits for this place."""
        waits = self.under_way is not None or self._retry_s < NEVER
        return self.claimed and waits and not self.left_alone and not self.ended

    @property
    def is_quiet(self) -> bool:
        """Whether a request has made no progress for long."""
        return self.under_way is not None and time.monotonic() - self._heard_s > QUIET_S

    # Events -----------------------------------------------------------------------------------------------

    def asked(self, request: PlaceRequest, number: int) -> None:
        self.under_way, self.number = request, number
        self.heard()

    def heard(self) -> None:
        """Note a sign of life of the request that is under way."""
        self._heard_s = time.monotonic()

    def done(self, request: PlaceRequest) -> None:
        """Note that a request was fulfilled."""
        self.under_way, self._failures, self._retry_s = None, 0, 0.0
        self.claimed |= request.op == "claim"
        self.begun |= request.op == "begun"
        self.ended |= request.op == "end"
        if request.op == "pin":
            self.pins |= {request.name}
        if request.op == "remove":
            self._keeps_all = False
        if request.is_half:
            self._halves -= {(request.args["of"], request.name)}
        elif request.op == "remove":
            self.there = {name: each for name, each in self.there.items() if name != request.name}
            self._unsure -= {request.name}

    def saw(self, there: Mapping[str, PlaceCopy], pins: Iterable[str], halves: Iterable[tuple[int, str]] = ()) -> None:
        """Note the place's content, when it has answered. `halves`: incomplete copies, which are removed."""
        self.there, self.pins, self.looked = there, frozenset(pins), True
        self._halves = frozenset(halves)

    def copied(self, copy: PlaceCopy, took_s: float) -> None:
        """Note a verified copy."""
        name = copy.facts.name
        self.there, self._verified = {**self.there, name: copy}, self._verified | {name}
        self._unsure -= {name}
        self._copies, self._removals = self._copies + 1, REMOVALS
        self.took_s, self._last_took_s = max(self._last_took_s, took_s), took_s

    def failed(self, *, again: bool) -> None:
        """Note a request without success. It is made `again` after a while; otherwise after the next save."""
        self._end_failed = self.under_way is not None and self.under_way.op == "end"
        self._came_to_nothing()
        self._retry_s = time.monotonic() + RETRY_S[min(self._failures, len(RETRY_S) - 1)] if again else NEVER
        self._failures += 1

    def saved(self) -> None:
        """Note that there is a new checkpoint: refused requests are tried again."""
        self._removes = True
        if self._retry_s == NEVER:
            self._retry_s = 0.0

    def leaves(self) -> None:
        """Note that the attempt is about to end: waiting requests are tried again now."""
        self._retry_s = 0.0

    def hurry(self) -> None:
        """Copy nothing more: the attempt ends now."""
        self._hurried, self._retry_s = True, 0.0

    def give_up(self, name: str) -> None:
        """Never copy this checkpoint."""
        self._came_to_nothing()
        self._damaged |= {name}

    def dropped(self) -> None:
        """Note a request that was dropped, and need not be repeated."""
        self._came_to_nothing()

    def _came_to_nothing(self) -> None:
        """Note a failed copy: it may have left files, and even be whole if only its answer was lost."""
        if self.under_way is not None and self.under_way.op == "copy":
            self._unsure |= {self.under_way.name}
            self._removals = REMOVALS
        self.under_way = None

    def goes_down(self, why: str) -> bool:
        """Note why copying is interrupted; return whether that is new."""
        was, self.down = self.down, why
        return not was

    def comes_back(self) -> None:
        self.down = ""

    @property
    def say_in_s(self) -> float:
        """Return the seconds until the next line that copying is interrupted, or that the place answers again."""
        if self.left_alone or bool(self.down) == self._said_down:
            return NEVER
        return max(0.0, self._said_s[bool(self.down)] + SAY_S - time.monotonic())

    def said(self) -> None:
        """Note that the line was printed."""
        self._said_down = bool(self.down)
        self._said_s[self._said_down] = time.monotonic()

    def keeps_all(self) -> bool:
        """Note that it refuses removals; return whether that is new."""
        self.under_way, self._removes = None, False
        was, self._keeps_all = self._keeps_all, True
        return not was

    def leave_alone(self) -> None:
        self.under_way, self.left_alone = None, True
