"""Odd checkpoints: what a whole digest can cover. Each is a change of a valid checkpoint's directory."""

import itertools
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.state import unflatten, values
from holdfast.state.codec import TAGS
from holdfast.store import format
from hostile_stores import Fields, fields_of, rewrite, rewrite_tree, sealed

EVIL = "a\n\x1b[2J\u202eb\x07\x9b31m"  # a line break, an order to the terminal, text from right to left
LONG = "9" * 5000
BIG = "0x1" + "0" * 5000
MILLION = 10**6


def nested(depth: int, before: str = "[", after: str = "]") -> bytes:
    return (before * depth + "1" + after * depth).encode()


def view(**changes: Any) -> Any:
    return {"view": {"leaf": "model/w", "dtype": "float32", "shape": [3, 4], "stride": [4, 1], "offset": 0} | changes}


# Nodes that stand in the tree beside sound ones.
NODES: dict[str, Any] = {
    "int of 20,001 bits": {"int": hex(2**20000)},
    "key of 20,001 bits": {"items": [[{"int": hex(2**20000)}, 1]]},
    "int of a megabyte": {"int": "0x" + "f" * MILLION},
    "deque with a huge end": {"deque": [{"int": BIG}, [1]]},
    "deque with a number of 5,000 digits": b'{"deque": [%s, [1]]}' % LONG.encode(),
    "number of 5,000 digits": LONG.encode(),
    "number without end": b"1e400",
    "leaf whose key is a number": {"leaf": 7},
    "leaf whose key is a list": {"leaf": ["model/w"]},
    "leaf whose key is an object": {"leaf": {"leaf": "model/w"}},
    "leaf without a key": {"leaf": None},
    "leaf that is absent": {"leaf": "absent"},
    "view of a number": view(leaf=7),
    "view of a list": view(leaf=["model/w"]),
    "view without end": view(shape=[MILLION, MILLION], stride=[0, 0]),
    "view of a strange type": view(dtype=["float32"]),
    "view of an unknown type": view(dtype="object"),
    "view whose shape is text": view(shape="34"),
    "view whose shape is negative": view(shape=[-1, 4]),
    "view whose strides lead out": view(stride=[400, 1]),
    "view of fractions": view(shape=[1.5, 2.0]),
    "view of a number of 5,000 digits": msgspec.json.encode(view()).replace(b"0}}", LONG.encode() + b"}}"),
    "view in 5,000 dimensions": view(shape=[1] * 5000, stride=[0] * 5000),
    "view in 5,000 empty dimensions": view(shape=[0] * 5000, stride=[0] * 5000),
    "view of huge emptiness": view(shape=[0, 2**70], stride=[1, 2**70]),
    "lists in lists": nested(900),
    "tuples in tuples": nested(300, '{"tuple":[', "]}"),
    "mappings in mappings": nested(450, '{"dict":{"a":', "}}"),
    "dataclasses in dataclasses": nested(300, '{"dataclass":["a.B",{"x":', "}]}"),
    "keys in keys": nested(300, '{"items":[[', ",1]]}"),
    "sets in sets": nested(300, '{"frozenset":[', "]}"),
    "a hundred thousand lists in lists": nested(100_000),
    "a million zeros": b"[" + b"0," * (MILLION - 1) + b"0]",
    "many zeros in a tuple": b'{"tuple":[' + b"0," * (MILLION // 5 - 1) + b"0]}",
    "fifty thousand empty lists": b"[" + b"[]," * (MILLION // 20 - 1) + b"[]]",
    "fifty thousand names": {"dict": {str(number): number for number in range(MILLION // 20)}},
    "fifty thousand keys": {"items": [[number, number] for number in range(MILLION // 20)]},
    "text of ten megabytes": "x" * 10 * MILLION,
    "evil text": EVIL,
    "evil name": {"dict": {EVIL: EVIL}},
    "evil key": {"items": [[EVIL, EVIL]]},
    "evil type": {"enum": [EVIL, EVIL]},
    "evil factory": {"defaultdict": [EVIL, []]},
    "evil tag": {EVIL: EVIL},
    "lone surrogate": {"str": "edb280"},
    "type of ten megabytes": {"enum": ["x" * 10 * MILLION, "y"]},
}  # fmt: skip
WRONG = [
    *(None, True, 7, "x", [], [1], [1, 2], [[1]], [[1, 2, 3]], {}, {"a": 1}, {"leaf": 7}),
    *(["x", [7]], ["x", {"a": 1}], [{"leaf": "model/w"}], [[[1], [2]], 3], [None, [[[], 1]]]),
]
TAGGED = {
    f"{tag} of {content}": {tag: content}
    for tag, content in itertools.product([*unflatten._READERS, *values.MAKERS, *TAGS], WRONG)
}


def leaf(fields: Fields, key: str = "model/w", **changes: Any) -> None:
    fields["leaves"][key].update(changes)


def text(fields: Fields, old: bytes, new: bytes) -> bytes:
    """The fields' text with another one in the place of a part."""
    whole = msgspec.json.encode(fields)
    assert old in whole
    return whole.replace(old, new, 1)


def in_document(**facts: Any) -> Callable[[Fields], None]:
    return lambda fields: fields["document"].update(facts)


def changed(**fields: Any) -> Callable[[Fields], None]:
    return lambda manifest: manifest.update(fields)


def member(name: str, node: Any) -> Callable[[Fields], None]:
    return lambda manifest: manifest["tree"]["dict"].update({name: node})


def with_files(*names: str) -> Callable[[Fields], None]:
    more = {name: {"size_bytes": 0, "digest": "0" * 32} for name in names}
    return lambda manifest: manifest["files"].update(more)


def with_leaf(key: str, **changes: Any) -> Callable[[Fields], None]:
    return lambda manifest: manifest["leaves"].update({key: {**manifest["leaves"]["model/w"], **changes}})


def said(old: bytes, new: bytes) -> Callable[[Fields], bytes]:
    return lambda manifest: text(manifest, old, new)


MANY = LONG.encode()[:4000]  # digits
OWN = "holdfast"

# What the manifest's fields say.
FIELDS: dict[str, Callable[[Fields], Any]] = {
    "step of 5,000 digits": said(b'"step":2', b'"step":' + LONG.encode()),
    "attempt of 5,000 digits": said(b'"attempt":1', b'"attempt":' + LONG.encode()),
    "attempt of 4,000 digits": said(b'"attempt":1', b'"attempt":' + MANY),
    "attempt of 30 digits": said(b'"attempt":1', b'"attempt":' + MANY[:30]),
    "largest attempt": changed(attempt=2**63 - 1),
    "epoch of 4,000 digits": said(b'"epoch":null', b'"epoch":' + MANY),
    "negative epoch": changed(epoch=-(2**63)),
    "evil texts": changed(note=EVIL, parent=EVIL, run=EVIL, created=EVIL),
    "evil document": in_document(host=EVIL, command=[EVIL], git={"commit": EVIL}, model={EVIL: {"class": EVIL}}),
    "evil fact": in_document(**{EVIL: EVIL}),
    "evil metric": changed(metrics={EVIL: 1.0}),
    "evil best": changed(best={"metric": EVIL, "direction": "max"}),
    "note of ten megabytes": changed(note="x" * 10 * MILLION),
    "no time": changed(created="9999999999"),
    "time before time": changed(created="0001-01-01T00:00:00+23:59"),
    "time after time": changed(created="9999-12-31T23:59:59-23:59"),
    "time without zone": changed(created="0001-01-01"),
    "odd document": in_document(git=3, command={"x": 1}, model={"m": {"parameters": "x"}, "n": 3}, host=[[]]),
    "document of 900 lists": said(b'"host":"a"', b'"host":' + nested(900)),
    "document of a huge number": said(b'"host":"a"', b'"host":' + MANY),
    "document of a number of 5,000 digits": said(b'"host":"a"', b'"host":' + LONG.encode()),
    "document of many numbers": in_document(host=[0] * (MILLION // 5)),
    "huge file": said(b'"size_bytes":', b'"size_bytes":1' + MANY),
    "file beyond all disks": lambda manifest: min(manifest["files"].values(), key=str).update(size_bytes=2**63 - 1),
    "ten thousand files": with_files(*map(str, range(10_000))),
    "evil file": with_files(EVIL),
    "file with a name of a megabyte": with_files("x" * MILLION),
    "file in the depth": with_files("x/" * 3000 + "x"),
    "evil leaf": with_leaf(EVIL),
    "leaf without a name": with_leaf(""),
    "leaf with an evil type": lambda manifest: leaf(manifest, dtype=EVIL, kind=EVIL, attrs={EVIL: EVIL}),
    "leaf in 10,000 dimensions": lambda manifest: leaf(manifest, shape=[1] * 10_000),
    "leaf of a huge shape": lambda manifest: leaf(manifest, shape=[2**62, 2**62]),
    "leaf with an extent of 4,000 digits": said(b'"shape":[', b'"shape":[' + MANY + b","),
    "leaf whose attributes nest": lambda manifest: leaf(manifest, attrs={"dtype": [[[["<f4"]]]], "of": 3}),
    "pieces that are none": with_leaf("@1.0/model/w"),
    "pieces of text": with_leaf("@1.0/model/w", attrs={"of": "34", "at": 0}),
    "pieces beyond all numbers": with_leaf(f"@{'9' * 18}.{'9' * 18}/model/w", attrs={"of": [2**61], "at": [2**60]}),
    "tree is a number": changed(tree=7),
    "tree is a list": changed(tree=[{"leaf": "model/w"}]),
    "tree is two": changed(tree={"dict": {}, "leaf": "model/w"}),
    "tree of a list of members": changed(tree={"dict": [1]}),
    "odd own part": member(OWN, 7),
    "odd variables": member(OWN, {"dict": {"vars": 3, "position": [1], "rng": "x"}}),
    "leaf as variables": member(OWN, {"dict": {"vars": {"leaf": "model/w"}, "position": {"leaf": 3}}}),
    "evil variables": member(OWN, {"dict": {"vars": {"dict": {EVIL: EVIL}}}}),
    "number in the place of a leaf": member("data", {"leaf": 7}),
    "view in the place of a leaf": member("data", view(leaf=["model/w"])),
}


def sealed_as(folder: Path, version: bytes) -> None:
    (folder / "manifest.json").write_bytes(sealed(msgspec.json.encode(fields_of(folder)), version))


def sparse_leaf(folder: Path, size_bytes: int) -> None:
    """Make the last leaf of a file that long. Its digest is not right, as only a reader of all its bytes can know."""

    def change(manifest: Fields) -> None:
        name = manifest["leaves"]["model/w"]["shard"]
        mine = [leaf for leaf in manifest["leaves"].values() if leaf["shard"] == name]
        mine.sort(key=lambda leaf: leaf["offset"])
        header, end = (folder / name).read_bytes()[: mine[0]["offset"]], mine[-1]["offset"] + size_bytes
        mine[-1].update(dtype="uint8", shape=[size_bytes], size_bytes=size_bytes)
        digest = format.joined_digest([format.digest(header), *(leaf["digest"] for leaf in mine)])
        manifest["files"][name].update(size_bytes=end, digest=digest)
        os.truncate(folder / name, end)

    rewrite(folder, change)


# What the files themselves are.
FILES: dict[str, Callable[[Path], Any]] = {
    "version of 5,000 digits": partial(sealed_as, version=LONG.encode()),
    "version 2": partial(sealed_as, version=b"2"),
    "version 01": partial(sealed_as, version=b"01"),
    "leaf of a tebibyte": partial(sparse_leaf, size_bytes=1 << 40),
    "manifest of 64 GiB": lambda folder: os.truncate(folder / "manifest.json", 64 << 30),
    "manifest of zeros": lambda folder: (folder / "manifest.json").write_bytes(b""),
    "shard of a tebibyte": lambda folder: os.truncate(min(folder.glob("*.safetensors")), 1 << 40),
}  # fmt: skip


ODD: dict[str, Callable[[Path], Any]] = {
    **{name: partial(rewrite_tree, part="odd", node=node) for name, node in NODES.items()},
    **{name: partial(rewrite, change=change) for name, change in FIELDS.items()},
    **FILES,
}
