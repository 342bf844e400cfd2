"""Adding: brings checkpoints to a place by hand, as `holdfast copy` does, without owning their run.

A checkpoint goes into the folder of the attempt that saved it. It has the same bytes as a copy by
that attempt itself, so that neither a living run nor the lineage is disturbed. No claim is made.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .. import owner
from ..errors import UsageError
from . import records
from .copying import CheckpointCopier, Copied
from .place import Place
from .records import ResumeOrigin, claim_path
from .remote import RemoteRun


class AttemptFacts(NamedTuple):
    """The known facts about the attempt that saved a checkpoint."""

    number: int
    origin: ResumeOrigin | None  # the checkpoint that it resumed from; None: unknown
    ended: bool


class ManualCopier:
    """Copies checkpoints to a mirror by hand; `run_json` identifies the run.

    Raises:
        UsageError: the mirror holds another run.
    """

    def __init__(self, place: Place, run_json: str) -> None:
        self.place, self.seen = place, RemoteRun(place).read_state()
        self._run_json = run_json
        self._copying = CheckpointCopier(place)
        mine = records.parse_run_id(run_json.encode(), "run.json")
        if self.seen.run not in (None, mine):
            raise UsageError(
                f"{place.shown}: another run's copies lie there; "
                "nothing was copied. Name another place"
            )

    def add(self, path: Path, attempt: AttemptFacts) -> Copied:
        """Copy the checkpoint at `path`, which that attempt saved; it is verified there, and its
        manifest comes last.

        Raises:
            UsageError: an attempt with a smaller number may still be running there, and would be
                superseded.
            Foreign: another checkpoint of that name lies in the attempt's folder.
            NotFound, Damaged: as `Remote.copy`.
        """
        self._require_no_live_attempt(attempt.number)
        with suppress(FileExistsError):
            self.place.create(records.RUN, self._run_json.encode())
        self._note_attempt(attempt)
        return self._copying.copy(attempt.number, path, False, lambda: None)

    def _require_no_live_attempt(self, number: int) -> None:
        last = self.seen.claims[-1] if self.seen.claims else None
        if (
            last is None
            or last.attempt >= number
            or last.ended
            or owner.proven_gone(last.owner, lambda: last.claimed)
        ):
            return
        raise UsageError(
            f"{self.place.shown}: attempt {last.attempt} may "
            f"still be running: {owner.describe(last.owner)}. "
            f"A checkpoint of attempt {number} would end it. Stop it first"
        )

    def _note_attempt(self, attempt: AttemptFacts) -> None:
        """Create the claim of the attempt if the mirror lacks it: a later start then takes a
        greater number.
        """
        if any(claim.attempt == attempt.number for claim in self.seen.claims):
            return
        if attempt.origin is not None:
            with suppress(FileExistsError):
                self.place.create(
                    claim_path(attempt.number, "-from"), records.encode(attempt.origin)
                )
        if attempt.ended:
            with suppress(FileExistsError):
                self.place.create(
                    claim_path(attempt.number, "-end"), records.encode({"ended": None})
                )
