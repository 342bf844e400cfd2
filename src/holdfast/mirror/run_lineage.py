"""Mirror lineage: which checkpoints, here and at the places,
belong to the run's lineage. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from .. import owner
from ..errors import Damaged, NotFound, UsageError
from ..journal import Log
from ..store import source
from ..store.checkpoint import Checkpoint
from ..store.format import MANIFEST, CheckpointName, parse_name
from . import lineage
from .lineage import HERE, CheckpointCopy, HeldCheckpoint, LineageCheckpoint
from .records import NO_MANIFEST, Claim, PlaceState, ResumeOrigin
from .sending import manifest_digest

# facts that tell one process from every other
_SAME = ("host", "boot", "pid", "pid_started", "pid_space")


class RemoteCheckpoint(NamedTuple):
    """A checkpoint of the lineage at the places: for each place its number and the attempt's
    folder, the nearest first.
    """

    name: CheckpointName
    digest: str
    at: list[tuple[int, int]]
    finite: bool = True  # whether its weights are finite


class RunLineage:
    """The run's lineage: the checkpoints here and at the mirrors that lead to its current state.

    Raises:
        UsageError: two processes were the same attempt, so that the run has two branches.
    """

    def __init__(
        self, local: Sequence[Checkpoint], logs: Sequence[Log], seen: Mapping[int, PlaceState]
    ) -> None:
        self._logs = [log for log in logs if log.restored is not None]
        self._seen = dict(seen)
        self._here = [*_local_checkpoints(local)]
        self.head: int | None = None  # the newest attempt that has begun
        self._chosen: list[LineageCheckpoint] = []
        self._compute_lineage()

    def _compute_lineage(self) -> None:
        _require_one_owner(
            [*self._claims(), *(Claim(attempt=log.attempt, owner=log.owner) for log in self._logs)]
        )
        try:
            known = [(claim.attempt, claim.origin) for claim in self._claims()]
            came_from = lineage.merge_origins([*known, *_resume_origins(self._logs)])
        except ValueError as error:
            raise _forked_error(str(error)) from None
        there = ((place, each) for place, seen in [*self._seen.items()] for each in seen.copies)
        held = [
            *self._here,
            *(HeldCheckpoint(place, each.attempt, each.name, each.digest) for place, each in there),
        ]
        self._chosen, self._came_from = lineage.compute_lineage(came_from, held), came_from
        self.head = max([*came_from, *(each.attempt for each in held)], default=None)
        self._afresh = (
            self.head is None or came_from.get(self.head, ResumeOrigin(None)).attempt is None
        )

    def _claims(self) -> Iterator[Claim]:
        # of a list: another thread may add a place meanwhile
        return (claim for each in [*self._seen.values()] for claim in each.claims)

    def add_place(self, place: int, seen: PlaceState) -> Mapping[str, CheckpointCopy]:
        """Add the content of a mirror that answered late; return its copies of the lineage.

        Raises:
            UsageError: the run continued differently there. The mirror's content is not added.
        """
        self._seen[place] = seen
        try:
            self._compute_lineage()
        except UsageError:
            del self._seen[place]
            raise
        return self.copies_at(place)

    def note_resume(self, attempt: int, origin: ResumeOrigin) -> None:
        """Note that this attempt resumed from `origin`."""
        mine = Claim(attempt=attempt, owner=owner.describe_this_process(), origin=origin)
        self._seen[HERE] = PlaceState(run=None, claims=[mine])
        self._compute_lineage()

    def copies_at(self, place: int) -> dict[str, CheckpointCopy]:
        """The copies of the lineage at one place, by name."""
        inside = {
            (each.attempt, each.name, each.digest) for each in self._chosen if place in each.places
        }
        return {
            copy.name: CheckpointCopy(copy.attempt, copy.facts())
            for copy in self._seen[place].copies
            if (copy.attempt, copy.name, copy.digest) in inside
        }

    def incomplete_copies(self, place: int) -> list[tuple[int, str]]:
        """Return attempt and name of each incomplete copy at one place that nobody will complete.

        Only attempts of the lineage count.
        """
        line, attempt = set[int](), self.head
        while attempt is not None and attempt not in line:
            line.add(attempt)
            attempt = self._came_from.get(attempt, ResumeOrigin(None)).attempt
        gone = {
            claim.attempt for claim in self._seen[place].claims if not may_be_running(claim)
        } & line
        rests = (rest for rest in self._seen[place].rests if rest.why == NO_MANIFEST)
        return [(rest.attempt, rest.name) for rest in rests if rest.attempt in gone]

    def checkpoints_at_places(self) -> list[RemoteCheckpoint]:
        """The checkpoints of the lineage that lie at places, the newest first."""
        merged: dict[str, RemoteCheckpoint] = {}
        finite = {
            copy.digest: copy.finite for each in [*self._seen.values()] for copy in each.copies
        }
        for each in self._chosen:
            name = parse_name(each.name)
            if name is not None:
                fresh = RemoteCheckpoint(name, each.digest, [], finite.get(each.digest, True))
                one = merged.setdefault(each.digest, fresh)
                one.at.extend((place, each.attempt) for place in each.places if place != HERE)
        return sorted(
            (each for each in merged.values() if each.at),
            key=lambda each: each.name.order,
            reverse=True,
        )

    def orphaned_checkpoints(self) -> list[str]:
        """Return the names of local checkpoints that are not in the lineage, because the run
        continued elsewhere.
        """
        if self.head is None or self.head in {log.attempt for log in self._logs}:
            return []
        inside = {each.digest for each in self._chosen}
        return [each.name for each in self._here if each.digest not in inside]

    @property
    def began_from_scratch(self) -> bool:
        """Whether the newest attempt began from scratch, or there is none."""
        return self._afresh


def may_be_running(claim: Claim) -> bool:
    """Whether the process that made a claim may still be running."""
    if claim.ended or owner.is_earlier_start(claim.owner):
        return False
    return (
        not claim.owner
        or owner.is_me(claim.owner)
        or not owner.proven_gone(claim.owner, lambda: claim.claimed)
    )


def resume_origin_of(log: Log, before: Log | None) -> ResumeOrigin:
    """Return the checkpoint that an attempt resumed from, according to the directory's journals."""
    noted = next(log.newest("mirrors"), None)
    if noted is not None:
        return ResumeOrigin(noted.get("attempt"), noted.get("name"))
    name = next(log.newest("restored"), {}).get("checkpoint")
    branched = next(log.newest("branched"), None) is not None
    return (
        ResumeOrigin(None)
        if before is None or name is None or branched
        else ResumeOrigin(before.attempt, str(name))
    )


def _resume_origins(logs: Sequence[Log]) -> Iterator[tuple[int, ResumeOrigin]]:
    for before, log in zip([None, *logs], logs, strict=False):
        yield log.attempt, resume_origin_of(log, before)


def _local_checkpoints(local: Sequence[Checkpoint]) -> Iterator[HeldCheckpoint]:
    for checkpoint in local:
        with suppress(Damaged, NotFound, OSError):  # the restore reports it
            yield HeldCheckpoint(
                HERE,
                checkpoint.head.attempt,
                checkpoint.path.name,
                checkpoint_identity(checkpoint.path),
            )


def checkpoint_identity(path: Path) -> str:
    """Return the identity of the checkpoint at `path`."""
    return manifest_digest(source.read_whole(path / MANIFEST))


def _require_one_owner(claims: Sequence[Claim]) -> None:
    """Require that each attempt number was used by one process only.

    Raises:
        UsageError: two processes have used the same number.
    """
    owners: dict[int, dict[str, Any]] = {}
    for claim in claims:
        if claim.owner:
            first = owners.setdefault(claim.attempt, claim.owner)
            if any(first.get(fact) != claim.owner.get(fact) for fact in _SAME):
                where = f"{owner.describe(first)}; {owner.describe(claim.owner)}"
                raise _forked_error(f"attempt {claim.attempt} was made twice: {where}")


def _forked_error(why: str) -> UsageError:
    return UsageError(
        "the run went on at two places, each without the other: "
        f"{why}. Choose one: without=PLACE leaves a place out, "
        "and a run whose directory is moved away begins from its places"
    )
