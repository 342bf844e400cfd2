"""Copies: half copies in a folder that is a mirror, left by attempts that are gone. Whole copies
stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from .. import owner, scan
from ..mirror.folder import FolderPlace
from ..mirror.records import NO_MANIFEST, Claim, copy_folder
from ..mirror.remote import RemoteRun
from .files import FORGOTTEN_S
from .stale_files import REMOVE, StaleFile


def find_incomplete_copies(place: Path) -> list[StaleFile]:
    """Return the incomplete copies in the mirror `place` that no process will complete."""
    seen = RemoteRun(FolderPlace(place)).read_state()
    gone = {claim.attempt for claim in seen.claims if _is_gone(claim)}
    halves = [
        StaleFile(
            place / copy_folder(rest.attempt, rest.name),
            f"a copy that attempt {rest.attempt} did not complete",
            REMOVE,
        )
        for rest in seen.rests
        if rest.why == NO_MANIFEST and rest.attempt in gone
    ]
    return [*halves, *_unfinished(place, [each.path for each in halves])]


def _unfinished(place: Path, within: list[Path]) -> Iterator[StaleFile]:
    for path in scan.glob(place, "**/.*.new"):
        old = time.time() - path.lstat().st_mtime > FORGOTTEN_S
        if old and not any(path.is_relative_to(half) for half in within):
            yield StaleFile(path, "a file that its writer did not complete", REMOVE)


def _is_gone(claim: Claim) -> bool:
    return claim.ended or (
        bool(claim.owner) and owner.proven_gone(claim.owner, lambda: claim.claimed)
    )
