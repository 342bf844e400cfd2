"""Format: the names in a run's directory and the manifest,
as `docs/format.md` defines them. Does no I/O.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from .. import legible
from ..errors import Damaged, StoreError, UsageError
from ..rules import Best
from .digests import HEX, SHA256, XXH3, digest, hasher, joined_digest, kind_of
from .signing import Key, Signer

# who asks for digests asks the format
__all__ = ["SHA256", "XXH3", "digest", "hasher", "joined_digest", "kind_of"]

NEWEST = 7  # of checkpoints; see "How the version covers it" in docs/format.md
# released with 0.1.0: a change raises it, and golden checkpoints of each older version stay
# readable
VERSION = 1
MANIFEST = "manifest.json"
MOST_BYTES = 1 << 30  # of a manifest, or of the part of a rank; readers hold all of it in memory
PHASES = ("step", "end")
BLOCK_BYTES = 16 << 20  # size of a block in a file that is not a shard
MOST_NAMES = 16  # of leaves that are not finite

_NAME = re.compile(r"step-(\d{9,18})(-end)?")
_HEAD = re.compile(
    rb'\{"holdfast": (\d+), "digest": "([0-9a-f]{32})",'
    rb'(?: "key": "([0-9a-f]{64})", "signature": "([0-9a-f]{128})",)?\n'
)
_VERSION = re.compile(rb'\{"holdfast": (\d+),')  # how every version's manifest begins
_ZEROS, _NO_SIGNATURE = b"0" * 32, b"0" * 128
# no name of a file or field can contain these bytes: JSON strings have no newlines
_LEAVES = b',\n"leaves": {\n'
# letters of a shard's name that come from its key; file systems take names of 255 bytes
_MOST_STEM = 100
_DIRECTIONS = {"max": max, "min": min}
_NOT_FINITE = ("nan", "inf", "-inf")


class CheckpointName(NamedTuple):
    """A checkpoint's position in its run. Names sort in time order: `step-000001200` <
    `step-000001200-end`.
    """

    step: int
    phase: str = "step"

    def __str__(self) -> str:
        return f"step-{self.step:09d}" + ("-end" if self.phase == "end" else "")

    @property
    def order(self) -> tuple[int, int]:
        return self.step, PHASES.index(self.phase)


def parse_name(text: str) -> CheckpointName | None:
    """Return the step and phase in the name `text`; None if it has another form."""
    match = _NAME.fullmatch(text)
    name = CheckpointName(int(match[1]), "end" if match[2] else "step") if match else None
    return name if name is not None and str(name) == text else None


Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


# gc=False: values read from JSON or written to it have no cycles, so Python's collector need not
# visit each leaf
class LeafEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """The place of one leaf. `offset` is in bytes from the start of the shard's file."""

    kind: str
    dtype: str
    shape: tuple[Size, ...]
    shard: str
    offset: Size
    size_bytes: Size
    digest: str
    attrs: dict[str, Any] = {}
    # False: it is a weight, and some of its numbers are not finite
    finite: bool | msgspec.UnsetType = msgspec.UNSET


# sort key in a file; a leaf without bytes is before another at its offset
in_file = attrgetter("offset", "size_bytes")


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One data file. If it is shared: the checkpoint it was written for, when, and how often it
    was linked since.
    """

    size_bytes: Size
    digest: str
    origin: str = ""
    written: str = ""
    links: Size = 0


class PartEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The manifest's entry for the part of one rank."""

    part: str  # the name of the part's file
    size_bytes: Size  # total size of its shards
    # in the sorted keys of the common leaves (equal on all ranks): where each stretch that it
    # wrote begins
    firsts: list[str] = []


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest without its leaves."""

    step: int
    phase: str
    epoch: int | None
    created: str
    run: str
    attempt: Size
    parent: str | None
    metrics: dict[str, float | str | None]
    best: dict[str, str] | None
    note: str | None
    document: dict[str, Any]
    files: dict[str, FileEntry]
    ranks: list[PartEntry] | None = None  # one entry for each rank if several ranks wrote it
    # weights with numbers that are not finite: at most `MOST_NAMES` of them
    not_finite: list[str] = []
    key: str = ""  # the public key, in hex, by which the first line says it is signed
    own_bytes: int = 0  # of manifest.json itself, where it was read

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.step, self.phase)

    @property
    def signer(self) -> str | None:
        """The fingerprint of the key that the manifest names as its signer; None if it is not
        signed.
        """
        return Key(bytes.fromhex(self.key)).fingerprint if self.key else None

    @property
    def kind(self) -> str:
        """The algorithm of all its digests."""
        return SHA256 if self.key else XXH3

    @property
    def world(self) -> int:
        """The number of ranks that wrote it."""
        return len(self.ranks) if self.ranks is not None else 1

    @property
    def size_bytes(self) -> int:
        if self.ranks is not None:
            # the view of one rank has only its own part
            known = (each for each in self.ranks if each.part in self.files)
            return self.own_bytes + sum(
                self.files[each.part].size_bytes + each.size_bytes for each in known
            )
        return self.own_bytes + sum(file.size_bytes for file in self.files.values())

    @property
    def best_rule(self) -> Best | None:
        """The `Best` rule under which it was saved;
        None if there was none or if this version cannot read it.
        """
        said = self.best or {}
        metric, direction = said.get("metric"), _DIRECTIONS.get(said.get("direction", ""))
        return Best(metric, direction) if metric and direction else None


class Manifest(Head, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole manifest of a checkpoint."""

    leaves: dict[str, LeafEntry]
    tree: Any
    # to write: the lowest that expresses its parts, as far as they are not in the tree
    version: int = 0


AnyHead = TypeVar("AnyHead", bound=Head)
# Made here, where only one thread is: msgspec 0.2 can crash the process when two threads use a type
# for the first time.
_HEADS, _MANIFESTS = msgspec.json.Decoder(Head), msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest, signer: Signer | None = None) -> bytes:
    """Return the bytes of manifest.json: a first line of fixed form, then one line for every field,
    file and leaf.

    With a signer, the first line has its public key, and the signature of the whole with zeros in
    their places.
    """
    fields = msgspec.structs.asdict(manifest)
    del fields["key"], fields["version"]  # the first line has them
    del fields["own_bytes"]
    for name in ("ranks", "not_finite"):  # most checkpoints have neither
        if not fields[name]:
            del fields[name]
    text, more = field_lines(fields) + b"\n}\n", b""
    require_small_tree(text)
    head, version = b'{"holdfast": %d, "digest": "%s",%s\n', max(manifest.version, version_of(text))
    if signer is not None:
        line = b' "key": "%s", "signature": "%s",'
        key = signer.key.raw.hex().encode()
        unsigned = head % (version, _ZEROS, line % (key, _NO_SIGNATURE)) + text
        more = line % (key, signer.sign(unsigned).hex().encode())
    return head % (version, digest(head % (version, _ZEROS, more) + text).encode(), more) + text


def version_of(text: bytes) -> int:
    """Return the lowest version that expresses a manifest or a part with this JSON."""
    if SINCE_7 in text:
        return NEWEST
    return 6 if any(mark in text for mark in SINCE_6) else VERSION


SINCE_6 = (
    *(b',"bound_anew":[', b'{"defaultdict_of":', b'{"set_table":', b'{"long_str":', b'{"packed":'),
    b'".besides":',
)
SINCE_7 = b'".parts":'  # a part may list whole leaves that another rank wrote
READ = (VERSION, 6, NEWEST)


def require_small_tree(text: bytes) -> None:
    """Require a JSON tree that fits into a manifest.

    Raises:
        UsageError: the state consists of too many small values.
    """
    if len(text) > MOST_BYTES - (1 << 20):
        raise UsageError(
            "cannot save the state: what is in no tensor or "
            f"array takes {len(text):,} bytes of JSON, and at most "
            f"{MOST_BYTES:,} fit into a manifest; put numbers into arrays, and text into bytes"
        )


def field_lines(fields: Mapping[str, Any]) -> bytes:
    """Return one line for each field; in `files` and `leaves`, one for each entry. Texts for users
    are made `legible` first.

    Raises:
        UsageError: a name in the tree is not Unicode text.
    """
    try:
        return ",\n".join(
            f"{_json(key)}: {_field(key, value)}" for key, value in fields.items()
        ).encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"cannot save the state: {error.object!r} in it, "
            "the name of a class or a member, is no text"
        ) from error


def _field(key: str, value: Any) -> str:
    if key in ("files", "leaves"):
        return _entry_lines(value)
    return _json(value) if key == "tree" else legible.json_bytes(value).decode()


def json_bytes(value: Any) -> bytes:
    """Return `value` as one line of JSON, as in the manifest."""
    return msgspec.json.encode(value)


def _json(value: Any) -> str:
    return json_bytes(value).decode()


def _entry_lines(entries: Mapping[str, Any]) -> str:
    return (
        "{\n"
        + ",\n".join(f"{_json(key)}: {_json(value)}" for key, value in entries.items())
        + "\n}"
    )


def decode(data: bytes, where: object, key: Key | None = None) -> Manifest:
    """Decode a manifest, which may be damaged, foreign or hostile. With `key`, check its signature.

    Raises:
        Damaged: its own digest is wrong, or it contradicts itself.
        Untrusted: it is not signed by that key.
        StoreError: it is whole, but this version cannot read its format.
    """
    try:
        text, signer = _verified_fields(data, where, key)
        manifest = _with_signer(_MANIFESTS.decode(text), signer, len(data))
        if manifest.version:
            raise msgspec.DecodeError("its fields name a version")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"{where}: {error}") from error
    _check_head(manifest, where)
    check_leaves(manifest.leaves, manifest.files, where, manifest.kind)
    if manifest.ranks is not None and manifest.leaves:
        raise Damaged(f"{where}: holds leaves, which are its parts' to hold")
    return manifest


def decode_head(data: bytes, where: object, key: Key | None = None) -> Head:
    """Decode the head of a manifest, quickly:
    after the files, only digest and signature are checked.
    """
    text, signer = _verified_fields(data, where, key)
    cut = data.find(_LEAVES, len(data) - len(text))
    if cut < 0:
        return decode(data, where, key)
    try:
        head = _with_signer(_HEADS.decode(bytes(text[: cut - len(data)]) + b"}"), signer, len(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # it is valid but laid out differently, or this raises the exact error
        return decode(data, where, key)
    _check_head(head, where)
    return head


def _verified_fields(data: bytes, where: object, key: Key | None) -> tuple[memoryview, str]:
    """Check the digest, and with `key` the signature. Return the fields as JSON, and the key that
    the manifest names.
    """
    head = _HEAD.match(data)
    if head is None:
        if (said := _VERSION.match(data)) is not None:
            require_version(said[1].decode(), where)
        raise Damaged(f"{where}: the first line is not a Holdfast manifest's")
    text = bytearray(data)
    text[slice(*head.span(2))] = _ZEROS
    if digest(text).encode() != head[2]:
        raise Damaged(f"{where}: bytes 0..{len(data)} changed since commit")
    signer = (head[3] or b"").decode()
    require_version(head[1].decode(), where)
    if key is not None:
        if head[4] is not None:
            text[slice(*head.span(4))] = _NO_SIGNATURE
        key.require(signer, (head[4] or b"").decode(), bytes(text), where)
    text[head.end() - 1] = ord("{")
    return memoryview(text)[head.end() - 1 :], signer


def require_version(version: str, where: object) -> None:
    """Require a format version that this library reads.

    Raises:
        StoreError: this library does not read that version, and so cannot say that it is damaged.
    """
    if version not in map(str, READ):
        *older, newest = READ
        raise StoreError(
            f"{where}: format version {version[:20]}; this Holdfast reads "
            f"{', '.join(map(str, older))} and {newest}: use a newer one"
        )


def encode_run(run: str, by: Mapping[str, Any], note: str | None) -> bytes:
    """Return the content of run.json for the run with this id,
    begun now. Its version covers the whole directory.
    """
    facts = {"holdfast": VERSION, "run": run, "began": time.time(), "by": by, "note": note}
    return msgspec.json.format(legible.json_bytes(facts), indent=1) + b"\n"


def decode_run(data: bytes, where: object, advice: str) -> str:
    """Return the run's id in the content of run.json.

    Raises:
        Damaged: Holdfast did not write it; the message ends with the advice.
        StoreError: it is of a version that this library does not read.
    """
    try:
        found = msgspec.json.decode(data)
    except legible.UNREADABLE:
        found = None
    facts = found if isinstance(found, Mapping) else {}
    run, version = facts.get("run"), facts.get("holdfast", VERSION)
    sound = type(version) is int and version > 0
    if sound:
        require_version(str(version), where)
    if not sound or not isinstance(run, str) or not run:
        raise Damaged(f"{where}: not what Holdfast wrote; {advice}")
    return run


def _with_signer(head: AnyHead, signer: str, size: int) -> AnyHead:
    """Return the manifest with its size and the key that its first line names. Its own fields must
    contain neither.
    """
    if head.key or head.own_bytes:
        raise msgspec.DecodeError("its fields name a key or a size")
    return msgspec.structs.replace(head, key=signer, own_bytes=size)


def _check_head(head: Head, where: object) -> None:
    if head.phase not in PHASES or not 0 <= head.step < 10**18:
        raise Damaged(f"{where}: step {head.step}, phase {head.phase!r} is no name")
    for name, value in head.metrics.items():
        if isinstance(value, str) and value not in _NOT_FINITE:
            raise Damaged(f"{where}: metric {name!r} is {value!r}, which is no number")
    created_s(head.created)
    check_files(head.files, where, head.kind)
    if head.ranks is not None:
        _check_ranks(head.ranks, head.files, where)


def _check_ranks(ranks: list[PartEntry], files: Mapping[str, FileEntry], where: object) -> None:
    names = [each.part for each in ranks]
    if (
        not names
        or names != [part_file_name(rank) for rank in range(len(names))]
        or {*names} != files.keys()
    ):
        raise Damaged(f"{where}: does not name one part for each rank, and nothing else")
    firsts = [key for each in ranks for key in each.firsts]
    ordered = all(each.firsts == sorted(each.firsts) for each in ranks) and len(set(firsts)) == len(
        firsts
    )
    if not ordered:
        raise Damaged(f"{where}: its parts are not in order")


def check_files(files: Mapping[str, FileEntry], where: object, kind: str) -> None:
    """Raise Damaged unless a checkpoint can contain these files, with digests of this kind."""
    for name, file in files.items():
        if not is_inside(name) or not HEX[kind].fullmatch(file.digest):
            raise Damaged(f"{where}: file {name!r} is not one that a checkpoint can hold")
        if file.origin and parse_name(file.origin) is None:
            raise Damaged(
                f"{where}: file {name!r} was taken over from "
                f"{file.origin!r}, which is no checkpoint"
            )


def check_leaves(
    leaves: Mapping[str, LeafEntry], files: Mapping[str, FileEntry], where: object, kind: str
) -> None:
    """Raise Damaged unless each leaf lies inside one of the files."""
    sizes = {name: file.size_bytes for name, file in files.items() if "/" not in name}
    for key, leaf in leaves.items():
        if leaf.offset + leaf.size_bytes > sizes.get(leaf.shard, -1) or not HEX[kind].fullmatch(
            leaf.digest
        ):
            raise Damaged(f"{where}: leaf {key!r} does not lie inside {leaf.shard!r}")


def is_inside(name: str) -> bool:
    """Whether `name`, a relative path with forward slashes,
    stays inside the checkpoint's directory.
    """
    parts = name.split("/")
    plain = all(part not in ("", ".", "..") for part in parts) and not any(
        c in name for c in "\0\\"
    )
    return plain and name != MANIFEST


def part_file_name(rank: int) -> str:
    """The name of the file in which a rank lists what it wrote;
    its shards' names have the same prefix.
    """
    return f"rank-{rank:05d}.json"


def shard_stem(key: str) -> str:
    """Return a file name, without extension, for the leaves under the top-level `key`."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", key).lstrip("-")[:_MOST_STEM] or "_"


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def created_s(created: str) -> float:
    """Return a manifest's `created` in Unix seconds."""
    try:
        return datetime.fromisoformat(created).timestamp()
    except (ValueError, OverflowError) as error:
        raise Damaged(f"created: {created!r} is not a time") from error


def pack_metrics(metrics: Mapping[str, Any]) -> dict[str, float | str | None]:
    """Return metrics as JSON can hold them:
    values that are not finite become "nan", "inf" or "-inf".
    """
    return {legible.legible(name): metric_value(name, value) for name, value in metrics.items()}


def metric_value(name: str, value: Any) -> float | str:
    """Return `value` as a metric: a Python number, or the name of a value that is not finite.

    Raises:
        UsageError: it is not a number, nor an array or tensor of one element.
    """
    if type(value) not in (bool, int, float):
        with suppress(AttributeError, ValueError, RuntimeError, TypeError):
            value = value.item()  # a NumPy scalar or a tensor of one element
    if not isinstance(value, int | float):
        raise UsageError(
            f"metric {name!r} is a {type(value).__qualname__}, "
            "not one number: log its mean(), for example"
        )
    whole = isinstance(value, int) and abs(value) <= 2**53
    try:
        plain = int(value) if whole else float(value)
    except OverflowError as error:
        raise UsageError(f"metric {name!r} is too large for a float") from error
    return plain if math.isfinite(plain) else str(plain)


def unpack_metrics(metrics: Mapping[str, float | str | None]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items() if value is not None}
