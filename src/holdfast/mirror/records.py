"""Records: the files at a place besides those of checkpoints. Pure.

run.json                              which run it is
claims/000003.json                    attempt 3 has claimed the place
claims/000003-from.json               which checkpoint attempt 3 went on from
claims/000003-end.json                attempt 3 has ended
pins/step-000000120                   that copy stays, whatever the rules say
checkpoints/000003/step-000000120/    a copy of a checkpoint that attempt 3 wrote: plain files,
                                      manifest.json last
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
from msgspec.json import Decoder

from .. import legible
from ..errors import Damaged, StoreError, Superseded
from ..retention import CheckpointFacts
from ..store import format
from ..store.format import MANIFEST
from .sending import manifest_digest

RUN, CLAIMS, PINS, CHECKPOINTS = "run.json", "claims", "pins", "checkpoints"
NO_MANIFEST = "no manifest"

_CLAIM = re.compile(r"(\d{6,18})(-from|-end)?\.json")


class Later(Superseded):
    """A later attempt has claimed the place."""


class Taken(StoreError):
    """Another process has claimed the place with the same number."""


class Foreign(StoreError):
    """The place holds another run, or this attempt's files are gone."""


class ResumeOrigin(msgspec.Struct, frozen=True):
    """The checkpoint that an attempt went on from:
    who wrote it, and its name. None: the attempt began afresh.
    """

    attempt: int | None
    name: str | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a place."""

    attempt: int
    run: str = ""
    owner: dict[str, Any] = {}
    entered: Any = None
    claimed: float = 0.0
    origin: ResumeOrigin | None = None  # None: it has not resumed or begun yet
    ended: bool = False


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One whole checkpoint at a place."""

    attempt: int
    name: str
    digest: str  # of its manifest
    step: int
    phase: str
    epoch: int | None
    created: float
    metrics: dict[str, float | str | None]
    size_bytes: int
    finite: bool = True

    def facts(self, *, pinned: bool = False) -> CheckpointFacts:
        """The facts that retention rules use."""
        metrics = format.unpack_metrics(self.metrics)
        return CheckpointFacts(
            self.name,
            self.step,
            self.phase,
            self.epoch,
            self.created,
            metrics,
            self.size_bytes,
            pinned,
            self.finite,
        )


class IncompleteCopy(msgspec.Struct, frozen=True):
    """A folder without a whole checkpoint: its upload did not end, or its manifest is damaged."""

    attempt: int
    name: str
    why: str  # NO_MANIFEST, or what is wrong with it


class PlaceState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one place."""

    run: str | None
    run_json: str = ""  # the bytes of run.json, as text
    claims: list[Claim] = []
    copies: list[Copy] = []
    rests: list[IncompleteCopy] = []
    pins: list[str] = []  # names of checkpoints


ORIGINS, OWN_CLAIMS = Decoder(ResumeOrigin), Decoder(Claim)
Decoder(PlaceState)  # all made here for the reason that `format` has


class ClaimFile(NamedTuple):
    attempt: int
    what: str  # "", "-from" or "-end"


def claim_path(attempt: int, what: str = "") -> str:
    return f"{CLAIMS}/{attempt:06d}{what}.json"


def parse_claim(name: str) -> ClaimFile | None:
    match = _CLAIM.fullmatch(name)
    return ClaimFile(int(match[1]), match[2] or "") if match else None


def copy_folder(attempt: int, name: str = "") -> str:
    return f"{CHECKPOINTS}/{attempt:06d}" + (f"/{name}" if name else "")


def parse_attempt_folder(name: str) -> int | None:
    return int(name) if re.fullmatch(r"\d{6,18}", name) else None


def parse_run_id(data: bytes, where: object) -> str:
    """Return the run's id in run.json.

    Raises:
        Damaged: Holdfast did not write it.
        StoreError: a later Holdfast did.
    """
    return format.decode_run(data, where, "this is no place for a run's copies")


def parse_copy(raw: bytes, attempt: int, name: str, where: object) -> Copy:
    """Return the copy that a manifest describes.

    Raises:
        Damaged: it is not whole, or not that checkpoint's.
    """
    head = format.decode_head(raw, where)
    if str(head.name) != name:
        raise Damaged(f"{where}: is that of {head.name}")
    return Copy(
        attempt=attempt,
        name=name,
        digest=manifest_digest(raw),
        step=head.step,
        phase=head.phase,
        epoch=head.epoch,
        created=format.created_s(head.created),
        metrics=head.metrics,
        size_bytes=head.size_bytes,
        finite=not head.not_finite,
    )


def manifest_path(attempt: int, name: str) -> str:
    return f"{copy_folder(attempt, name)}/{MANIFEST}"


def encode(record: msgspec.Struct | dict[str, Any]) -> bytes:
    return legible.json_bytes(record) + b"\n"
