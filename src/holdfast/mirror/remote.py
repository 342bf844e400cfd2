"""Remote: the content of one place, and everything that an attempt does there.

An attempt first claims the place, then looks at it. Before each manifest and each deletion it
checks that no attempt with a greater number has claimed the place. Each attempt writes in a folder
of its own, so that two writers never mix.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ..errors import Damaged, StoreError
from ..legible import UNREADABLE
from ..store.format import parse_name
from . import records
from .copying import CheckpointCopier, Copied
from .fetching import CopyFetcher
from .place import Place
from .records import (
    Claim,
    Copy,
    Foreign,
    IncompleteCopy,
    PlaceState,
    ResumeOrigin,
    claim_path,
    copy_folder,
    manifest_path,
)


class RemoteRun:
    """The run's files at one place. Each method may be called again after an error;
    completed work is not repeated.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._copying = CheckpointCopier(place)
        self._records: dict[str, bytes] = {}  # claims that were read; they never change

    def read_state(self) -> PlaceState:
        """Return the run, claims and copies there.

        Raises:
            Damaged: what lies there is not Holdfast's.
        """
        run_json = self._read(records.RUN)
        files = self._claim_files()
        claims = [self._read_claim(number, files[number]) for number in sorted(files)]
        copies: list[Copy] = []
        rests: list[IncompleteCopy] = []
        for attempt, name in self._attempt_folders():
            found = self._read_copy(attempt, name)
            if isinstance(found, Copy):
                copies.append(found)
            else:
                rests.append(found)
        run = (
            None
            if run_json is None
            else records.parse_run_id(run_json, f"{self.place.shown}/{records.RUN}")
        )
        text = (run_json or b"").decode()
        pins = [name for name in self.place.names(records.PINS) if parse_name(name) is not None]
        return PlaceState(
            run=run, run_json=text, claims=claims, copies=copies, rests=rests, pins=pins
        )

    def claim(self, attempt: int, run_json: str, owner: dict[str, Any], entered: Any) -> None:
        """Claim the place for an attempt.

        Raises:
            Later: an attempt with a greater number has claimed it.
            Taken: another process has claimed it with this number.
            Foreign: another run lies there.
        """
        self._require_none_later(attempt)
        where = f"{self.place.shown}/{records.RUN}"
        run = records.parse_run_id(run_json.encode(), "run.json")
        found = self._create_or_read(records.RUN, run_json.encode())
        if records.parse_run_id(found, where) != run:
            raise Foreign(
                f"{where}: another run's copies lie there; give each run a place of its own"
            )
        mine = Claim(attempt=attempt, run=run, owner=owner, entered=entered, claimed=time.time())
        found = self._create_or_read(claim_path(attempt), records.encode(mine))
        theirs = _decode_claim(found, attempt)
        if records.encode(replace(theirs, claimed=mine.claimed)) != records.encode(mine):
            raise records.Taken(
                f"{self.place.shown}: another process has claimed it as attempt {attempt}"
            )
        self._require_none_later(attempt)

    def note_origin(self, attempt: int, origin: ResumeOrigin) -> None:
        """Note the checkpoint from which an attempt resumed, once.

        Raises:
            Later: a later attempt has claimed the place.
            Foreign: another origin is noted there.
        """
        self.require_owned(attempt)
        data = records.encode(origin)
        if self._create_or_read(claim_path(attempt, "-from"), data) != data:
            raise Foreign(f"{self.place.shown}: attempt {attempt} has another origin there")

    def note_end(self, attempt: int) -> None:
        """Note that an attempt has ended."""
        with suppress(FileExistsError):
            self.place.create(claim_path(attempt, "-end"), records.encode({"ended": time.time()}))

    def copy(self, attempt: int, path: Path, *, read_back: bool = False) -> Copied:
        """Copy the committed checkpoint at `path` there; it is verified there, and its manifest
        comes last.

        Raises:
            Later: a later attempt has claimed the place.
            Foreign: another checkpoint of that name lies in this attempt's folder.
            NotFound: the checkpoint was removed.
            Damaged: it differs from its manifest. NotKept: the place holds other bytes than were
                sent.
        """
        return self._copying.copy(attempt, path, read_back, lambda: self.require_owned(attempt))

    def fetch(self, attempt: int, name: str, into: Path) -> int:
        """Write a copy into the local folder `into`, durably; return its size in bytes. Every
        digest is checked.

        Raises:
            NotFound: no such copy is there any more.
            Damaged: it differs from its manifest.
        """
        return CopyFetcher(self.place, attempt, name).fetch_all(into)

    def fetch_file(self, attempt: int, name: str, file: str, into: Path) -> None:
        """Write one file of a copy to the new local file `into`, durably. Every digest is checked.

        Raises:
            NotFound, Damaged: as `fetch`.
        """
        CopyFetcher(self.place, attempt, name).fetch_one(file, into)

    def pin(self, attempt: int, name: str) -> None:
        """Note that the copies of that name stay, for runs that begin with this place alone.

        Raises:
            Later: a later attempt has claimed the place.
        """
        _require_name(name)
        self.require_owned(attempt)
        with suppress(FileExistsError):
            self.place.create(f"{records.PINS}/{name}", b"{}\n")

    def remove(self, attempt: int, of: int, name: str) -> None:
        """Remove the copy `name` of attempt `of`, its manifest first.

        Raises:
            Later: a later attempt than `attempt` has claimed the place.
        """
        _require_name(name)
        self.require_owned(attempt)
        self._copying.forget_copy(copy_folder(of, name))
        self.place.remove(manifest_path(of, name))
        self.place.remove(copy_folder(of, name))

    def require_owned(self, attempt: int) -> None:
        """Require that this attempt still owns the place.

        Raises:
            Later: a later attempt has claimed the place.
            Foreign: this attempt's own claim is not there.
        """
        if attempt not in self._require_none_later(attempt):
            raise Foreign(
                f"{self.place.shown}: the claim of attempt {attempt} is gone; "
                "was the place emptied, or replaced?"
            )

    def _require_none_later(self, attempt: int) -> dict[int, set[str]]:
        files = self._claim_files()
        if any(number > attempt for number in files):
            raise records.Later(
                f"{self.place.shown}: attempt {max(files)} has claimed it; "
                f"attempt {attempt} writes no more there"
            )
        return files

    def _claim_files(self) -> dict[int, set[str]]:
        """Return the files of each attempt's claim;
        an attempt that left only an end counts as well.
        """
        found: dict[int, set[str]] = {}
        for file in filter(None, map(records.parse_claim, self.place.names(records.CLAIMS))):
            found.setdefault(file.attempt, set()).add(file.what)
        return found

    def _read_claim(self, attempt: int, files: set[str]) -> Claim:
        claim = _decode_claim(
            self._read_record(claim_path(attempt)) if "" in files else b"", attempt
        )
        path = claim_path(attempt, "-from")
        origin = None
        if "-from" in files:
            try:
                origin = records.ORIGINS.decode(self._read_record(path))
            except UNREADABLE as error:
                raise Damaged(
                    f"{self.place.shown}/{path}: not what Holdfast wrote; remove that file"
                ) from error
        return replace(claim, origin=origin, ended="-end" in files)

    def _read_record(self, path: str) -> bytes:
        if path not in self._records:
            self._records[path] = self.place.read(path)
        return self._records[path]

    def _attempt_folders(self) -> list[tuple[int, str]]:
        found = []
        for text in self.place.names(records.CHECKPOINTS):
            attempt = records.parse_attempt_folder(text)
            if attempt is not None:
                names = self.place.names(copy_folder(attempt))
                found += [(attempt, name) for name in names if parse_name(name) is not None]
        return sorted(found)

    def _read_copy(self, attempt: int, name: str) -> Copy | IncompleteCopy:
        path = manifest_path(attempt, name)
        raw = self._read(path)
        if raw is None:
            return IncompleteCopy(attempt, name, records.NO_MANIFEST)
        try:
            return records.parse_copy(raw, attempt, name, f"{self.place.shown}/{path}")
        except StoreError as error:
            return IncompleteCopy(attempt, name, str(error))

    def _read(self, path: str) -> bytes | None:
        try:
            return self.place.read(path)
        except FileNotFoundError:
            return None

    def _create_or_read(self, path: str, data: bytes) -> bytes:
        """Create a file with these bytes unless it exists; return its content."""
        try:
            self.place.create(path, data)
        except FileExistsError:
            return self.place.read(path)
        return data


def _require_name(name: str) -> None:
    if parse_name(name) is None:
        raise StoreError(f"{name!r} is no checkpoint's name")


def _decode_claim(data: bytes, attempt: int) -> Claim:
    """Return a claim. An unreadable one counts by its number, with an unknown owner."""
    with suppress(*UNREADABLE):
        found = records.OWN_CLAIMS.decode(data)
        if found.attempt == attempt:
            return found
    return Claim(attempt=attempt)
