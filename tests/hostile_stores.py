"""Hostile stores: valid checkpoints of which one thing was changed, with every digest put right again."""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from holdfast.store import format, parts
from holdfast.store.format import BLOCK_BYTES, MANIFEST
from holdfast.store.store import ManifestFields, Store

Fields = dict[str, Any]
Change = Callable[[Fields], Fields | bytes | None]  # alters the fields in place, or returns others, or the whole text

GOLDEN = Path(__file__).parent / "golden"  # valid checkpoints of one process, of two ranks, and with a divided leaf


def valid(root: Path, steps: int = 2) -> Path:
    """A run with whole checkpoints of the steps 1, 2, ...; return the newest one's directory."""
    with_all = {
        "model": {"w": np.arange(12, dtype="float32").reshape(3, 4), "b": np.ones(5)},
        "data": bytes(2000),
        "odd": {"list": [1, 2], "tuple": (1.5, "text")},
    }
    store = Store(root)
    for step in range(1, steps + 1):
        store.save(
            {**with_all, "step": step}, step=step, facts=ManifestFields(document={"host": "a"}, metrics={"acc": 0.5})
        )
    store.close()
    return root / "checkpoints" / f"step-{steps:09d}"


def two_ranks(root: Path) -> Path:
    """A run with a checkpoint that two ranks wrote."""
    return _copied(GOLDEN / "two-ranks/step-000000007-end", root)


def divided(root: Path) -> Path:
    """A run with a checkpoint of which one leaf lies in pieces."""
    return _copied(GOLDEN / "divided/step-000000004", root)


def _copied(golden: Path, root: Path) -> Path:
    target = root / "checkpoints" / golden.name
    shutil.copytree(golden, target)
    (root / "attempts").mkdir()
    (root / "run.json").write_bytes(msgspec.json.encode({"run": fields_of(target)["run"], "began": 0.0, "by": {}}))
    return target


def fields_of(folder: Path, rank: int | None = None) -> Fields:
    """The fields of a checkpoint's manifest, or of the part of a rank."""
    if rank is not None:
        return msgspec.json.decode((folder / format.part_file_name(rank)).read_bytes())
    _, _, text = (folder / MANIFEST).read_bytes().partition(b"\n")
    return msgspec.json.decode(b"{" + text)


def rewrite(folder: Path, change: Change, rank: int | None = None) -> None:
    """Let `change` alter a checkpoint's manifest, or the part of a rank. Digests of that file and above are right."""
    fields = fields_of(folder, rank)
    said = change(fields)
    if rank is None:
        (folder / MANIFEST).write_bytes(sealed(_text(fields if said is None else said)))
        return
    text = _text(fields if said is None else said)
    (folder / format.part_file_name(rank)).write_bytes(text)
    rewrite(folder, lambda root: _renew_part(root, rank, fields, parts.file_entry(text)))


def _renew_part(root: Fields, rank: int, fields: Fields, entry: format.FileEntry) -> None:
    said = root["ranks"][rank]
    root["files"][said["part"]] = msgspec.to_builtins(entry)
    said["size_bytes"] = sum(file["size_bytes"] for file in fields["files"].values())


def rewrite_tree(folder: Path, part: str, node: Any) -> None:
    """Put `node`, text of JSON or what JSON can hold, into the tree at the top-level member `part`."""

    def change(fields: Fields) -> Fields:
        raw = msgspec.Raw(node if isinstance(node, bytes) else msgspec.json.encode(node))
        return {**fields, "tree": {"dict": {**fields["tree"]["dict"], part: raw}}}

    rewrite(folder, change)


def sealed(text: bytes, version: bytes = b"1") -> bytes:
    """The manifest with these fields, the text of one JSON object, whatever they say; its own digest is right."""
    head = b'{"holdfast": %s, "digest": "%s",\n'
    body = text.lstrip()[1:].lstrip()
    return head % (version, format.digest(head % (version, b"0" * 32) + body).encode()) + body


def _text(fields: Fields | bytes) -> bytes:
    """The fields as Holdfast lays them out, where they have the right form; else as JSON."""
    if isinstance(fields, bytes):
        return fields
    if all(isinstance(fields.get(name), Mapping) for name in ("files", "leaves")):
        return b"{\n" + format.field_lines(fields) + b"\n}\n"
    return msgspec.json.encode(fields)


def mend(folder: Path) -> None:
    """Put every digest and size right, from the leaves up, for the bytes that the checkpoint's files have now."""
    fields = fields_of(folder)
    for rank in range(len(fields.get("ranks") or ())):
        rewrite(folder, lambda part: _mend_entries(folder, part), rank)
    if not fields.get("ranks"):
        rewrite(folder, lambda fields: _mend_entries(folder, fields))


def _mend_entries(folder: Path, fields: Fields) -> None:
    for name, file in fields["files"].items():
        size = os.path.getsize(folder / name)
        mine = [leaf for leaf in fields["leaves"].values() if leaf["shard"] == name]
        mine.sort(key=lambda leaf: leaf["offset"])
        for leaf in mine:
            leaf["digest"] = _digest(folder / name, leaf["offset"], leaf["size_bytes"])
        starts = [0] if mine else range(0, size, BLOCK_BYTES)
        digests = [_digest(folder / name, at, mine[0]["offset"] if mine else BLOCK_BYTES) for at in starts]
        file.update(size_bytes=size, digest=format.joined_digest([*digests, *(leaf["digest"] for leaf in mine)]))


def _digest(path: Path, start: int, size: int) -> str:
    found = format.hasher()()
    with open(path, "rb") as file:
        file.seek(start)
        while size > 0 and (piece := file.read(min(size, 1 << 20))):
            found.update(piece)
            size -= len(piece)
    return str(found.hexdigest())
