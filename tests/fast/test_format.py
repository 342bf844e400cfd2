"""The format: the golden checkpoints are read, safetensors reads our shards, and no manifest harms a reader.

`PYTHONPATH=tests python tests/fast/test_format.py` writes the golden checkpoints anew. Do so only before a release.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from collective import Divided, put, whole
from faults import scratched
from holdfast.collective import division
from holdfast.collective.store import CollectiveStore
from holdfast.errors import Damaged, HoldfastError, StoreError, Untrusted
from holdfast.ranks import Ranks
from holdfast.run.capture import RunMemory
from holdfast.run.position import Position
from holdfast.state import codec, unflatten, values
from holdfast.store import format, lineage, shards
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.signing import Signer, public_key
from holdfast.store.store import ManifestFields, Store
from rank_threads import everywhere
from signatures import key_pair

GOLDENS = Path(__file__).parents[1] / "golden"
GOLDEN = GOLDENS / "one-process" / "step-000000007-end"
GOLDEN_OF_RANKS = GOLDENS / "two-ranks" / GOLDEN.name
GOLDEN_SIGNED = GOLDENS / "signed" / GOLDEN.name


def golden_state() -> dict[str, Any]:
    """One of each: shapes, widths, an array in Fortran order, nothing, long bytes, and values of the tree."""
    return {
        "model": {
            "weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
            "bias": np.array([-0.0, np.nan, np.inf], np.float64),
            "scalar": np.array(2**63, np.uint64),
            "empty": np.empty((0, 5), np.int16),
            "columns": np.asfortranarray(np.arange(6, dtype=np.int8).reshape(2, 3)),
            "waves": np.array([1 + 2j, -0j], np.complex128),
            "mask": np.array([True, False]),
        },
        "data": {"order": np.arange(5), "blob": bytes(range(256)) * 5},
        "n": [1, -(2**70), 0.1, -0.0, float("inf"), None, True, "é\ud800", b"short", (2, {3, 4}), {1: "a", "1": "b"}],
    }


def write_golden(path: Path) -> None:
    """The third save of one state: its big leaf lies in a file that was taken over from the second."""
    with scratched("golden") as base, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lineage, "LINK_BYTES", 1000)
        patch.setattr(shards, "LINK_BYTES", 1000)
        store = Store(base / "run")
        for step in (5, 6):
            store.save(golden_state(), step=step, facts=ManifestFields(document={"by": "hand"}))
        facts = ManifestFields(
            phase="end", epoch=1, metrics={"acc": 0.5, "bad": float("nan")}, note="golden", document={"by": "hand"}
        )
        store.save(golden_state(), step=7, facts=facts)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(store[7].path, path)


def golden_of_rank(rank: int) -> dict[str, Any]:
    """Alike but for a bias, a value and a piece of what two ranks hold together."""
    state = golden_state()
    state["model"]["bias"] = state["model"]["bias"] + rank
    state["n"][0] = rank
    return {**state, "divided": Divided(np.arange(20, dtype=np.int16).reshape(4, 5), (0, 2 * rank), (4, 2 + rank))}


def adapted(step: int) -> dict[str, Any]:
    """What changes with the step, and what does not; in the order of keys first the one and then the other."""
    adapters = {name: np.full(100, step) for name in "ab"}
    return {"adapters": adapters, "backbone": {name: np.arange(300) for name in "ab"}}


def write_golden_of_ranks(path: Path, signer: Signer | None = None) -> None:
    """As `write_golden`:
    each rank has taken files over, and what all have alike is divided by other measures than at first."""
    facts = ManifestFields(
        phase="end", epoch=1, metrics={"acc": 0.5, "bad": float("nan")}, note="golden", document={"by": "hand"}
    )

    def work(ranks: Ranks) -> Path:
        store = CollectiveStore(base / "run", ranks=ranks, signer=signer)
        for step in (5, 6):
            put(store, golden_of_rank(ranks.rank) | adapted(step), step, facts=ManifestFields(document={}))
        return put(store, golden_of_rank(ranks.rank) | adapted(7), 7, facts=facts).path

    with scratched("golden") as base, pytest.MonkeyPatch.context() as patch:
        patch.setattr(division, "SHARE_BYTES", 1)
        patch.setattr(lineage, "LINK_BYTES", 40)
        patch.setattr(shards, "LINK_BYTES", 40)
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(everywhere(2, work)[0], path)


def same(found: Any, wanted: Any) -> bool:
    """Equal to the bit, types and order included."""
    if type(found) is not type(wanted):
        return False
    if isinstance(wanted, np.ndarray):
        alike = (found.dtype, found.shape, found.flags.f_contiguous) == (
            wanted.dtype, wanted.shape, wanted.flags.f_contiguous)  # fmt: skip
        return alike and found.tobytes() == wanted.tobytes()
    if isinstance(wanted, dict):
        return list(found) == list(wanted) and all(same(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list | tuple):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return repr(found) == repr(wanted)


def test_the_golden_checkpoint_is_read_bit_for_bit():
    """Every type of leaf comes back as it was saved, and so does what the manifest says of it."""
    golden = Checkpoint(GOLDEN)
    assert same(golden.load(), golden_state())
    assert (golden.step, golden.phase, golden.manifest.epoch, golden.manifest.note) == (7, "end", 1, "golden")
    assert golden.metrics["acc"] == 0.5
    assert golden.metrics["bad"] != golden.metrics["bad"]
    assert not list(golden.problems())


def test_the_golden_signed_checkpoint_is_signed_by_its_key_and_no_other(tmp_path):
    """All of its digests are SHA-256, in the parts of both ranks, too."""
    key = key_pair(tmp_path).with_suffix(".pub")
    checkpoint = Checkpoint(GOLDEN_SIGNED, key=public_key(key))
    assert not list(checkpoint.problems())
    manifest = checkpoint.manifest
    digests = [*(file.digest for file in manifest.files.values()), *(leaf.digest for leaf in manifest.leaves.values())]
    assert {64} == {len(digest) for digest in digests}
    assert any(file.links for file in manifest.files.values())
    with pytest.raises(Untrusted):
        Checkpoint(GOLDEN_SIGNED, key=public_key(key_pair(tmp_path, seed=2).with_suffix(".pub"))).load()


@pytest.mark.parametrize("golden", [GOLDEN_OF_RANKS, GOLDEN_SIGNED], ids=["plain", "signed"])
def test_the_golden_checkpoint_of_two_ranks_is_read_bit_for_bit(golden):
    """Each rank gets the state that it saved; without a rank it is rank 0's. A sharded array comes back whole."""
    checkpoint = Checkpoint(golden)
    more = adapted(7)
    for rank in range(2):
        assert same(checkpoint.as_rank(rank).load(), whole(golden_of_rank(rank) | more))
    assert same(checkpoint.load(), whole(golden_of_rank(0) | more))
    assert not list(checkpoint.problems())


def test_the_golden_checkpoint_of_ranks_has_links_and_stretches():
    """Each rank has linked files from an older checkpoint,
    and one rank has written several stretches of equal leaves."""
    checkpoint = Checkpoint(GOLDEN_OF_RANKS)
    taken = {name.split("-")[1] for name, file in checkpoint.manifest.files.items() if file.links}
    assert {"00000", "00001"} == taken
    assert any(len(entry.firsts) > 1 for entry in checkpoint.head.ranks or ())


def test_the_same_states_of_two_ranks_give_the_same_files(tmp_path):
    """Today's writer makes the golden shards and parts byte for byte, but for the time when a file was written."""
    write_golden_of_ranks(tmp_path / "again")
    names = sorted(path.name for path in GOLDEN_OF_RANKS.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
    for name in names:
        if name != "manifest.json":
            assert timeless(tmp_path / "again" / name) == timeless(GOLDEN_OF_RANKS / name)
    assert Checkpoint(tmp_path / "again").tree == Checkpoint(GOLDEN_OF_RANKS).tree


def timeless(path: Path) -> bytes:
    return re.sub(rb'"written":"[^"]*"', b"", path.read_bytes())


def test_the_same_state_gives_the_same_shards(tmp_path):
    """Today's writer makes the golden shards byte for byte, and the same tree: an accidental change shows here."""
    write_golden(tmp_path / "again")
    again, golden = Checkpoint(tmp_path / "again"), Checkpoint(GOLDEN)
    for name in golden.manifest.files:
        assert timeless(tmp_path / "again" / name) == timeless(GOLDEN / name)
    assert (again.manifest.tree, again.manifest.leaves) == (golden.manifest.tree, golden.manifest.leaves)
    facts = [[(name, file.size_bytes, file.digest) for name, file in c.manifest.files.items()] for c in (again, golden)]
    assert sorted(facts[0]) == sorted(facts[1])


def test_a_reader_needs_only_json_and_xxhash():
    """The manifest's first line, its digest and each file's, as docs/format.md tells them."""
    import xxhash

    data = (GOLDEN / "manifest.json").read_bytes()
    manifest = json.loads(data)
    assert data.startswith(b'{"holdfast": 1, "digest": "' + manifest["digest"].encode() + b'",\n')
    blank = data.replace(manifest["digest"].encode(), b"0" * 32, 1)
    assert xxhash.xxh3_128_hexdigest(blank) == manifest["digest"]
    for name, file in manifest["files"].items():
        content = (GOLDEN / name).read_bytes()
        assert len(content) == file["size_bytes"]
        leaves = sorted(
            (leaf for leaf in manifest["leaves"].values() if leaf["shard"] == name), key=lambda x: x["offset"]
        )
        end = 8 + int.from_bytes(content[:8], "little")
        pieces = [content[:end], *(content[leaf["offset"] : leaf["offset"] + leaf["size_bytes"]] for leaf in leaves)]
        digests = [xxhash.xxh3_128_hexdigest(piece) for piece in pieces]
        assert digests[1:] == [leaf["digest"] for leaf in leaves]
        assert xxhash.xxh3_128_hexdigest("".join(digests).encode()) == file["digest"]


def test_safetensors_reads_the_shards():
    """By the tensors' own names; what safetensors has no dtype for is there as bytes."""
    tensors = load_file(GOLDEN / "model.safetensors")
    wanted = golden_state()["model"]
    for name in ("weight", "bias", "scalar", "empty", "mask"):
        assert same(tensors[name], wanted[name])
    assert tensors["waves"].tobytes() == wanted["waves"].tobytes()
    assert set(tensors) == set(wanted)
    assert load_file(GOLDEN / "data.safetensors")["blob"].tobytes() == golden_state()["data"]["blob"]


def test_leaves_start_at_multiples_of_their_item_size():
    """So that a memory map can be used as it is."""
    for leaf in Checkpoint(GOLDEN).manifest.leaves.values():
        width = {"float64": 8, "uint64": 8, "int64": 8, "float32": 4, "int16": 2, "complex128": 8}.get(leaf.dtype, 1)
        assert leaf.offset % width == 0


# -- hostile manifests ----------------------------------------------------------------------------------------------


def signed(text: bytes) -> bytes:
    """A manifest with a digest that holds, whatever stands in it."""
    head = b'{"holdfast": %d, "digest": "%s",\n'
    version = 1
    blank = head % (version, b"0" * 32) + text
    return head % (version, format.digest(blank).encode()) + text


def body() -> dict[str, Any]:
    manifest = json.loads((GOLDEN / "manifest.json").read_bytes())
    del manifest["holdfast"], manifest["digest"]
    return manifest


def text_of(manifest: Any) -> bytes:
    return json.dumps(manifest).encode()[1:]


def leaf(manifest: dict[str, Any], **changes: Any) -> None:
    manifest["leaves"]["model/weight"].update(changes)


def file(manifest: dict[str, Any], name: str, **changes: Any) -> None:
    manifest["files"][name] = {"size_bytes": 1, "digest": "0" * 32, **changes}


OUTSIDE = [
    "../x",
    "/etc/passwd",
    "a/../../x",
    "a/./b",
    "",
    ".",
    "..",
    "a//b",
    "a/",
    "a\\..\\b",
    "a\0b",
    "manifest.json",
]

ATTACKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"file named {name!r}": partial(file, name=name) for name in OUTSIDE},
    "leaf in an unlisted shard": lambda m: leaf(m, shard="other.safetensors"),
    "leaf outside by name": lambda m: leaf(m, shard="../../../etc/passwd"),
    "negative offset": lambda m: leaf(m, offset=-8),
    "offset past the end": lambda m: leaf(m, offset=10**6),
    "huge offset": lambda m: leaf(m, offset=2**63),
    "huge size": lambda m: leaf(m, size_bytes=2**62),
    "huge everything": lambda m: (leaf(m, size_bytes=2**62), file(m, "model.safetensors", size_bytes=2**63)),
    "size beyond all integers": lambda m: leaf(m, size_bytes=10**40),
    "negative size": lambda m: leaf(m, size_bytes=-1),
    "negative extent": lambda m: leaf(m, shape=[-3, -4]),
    "huge shape": lambda m: leaf(m, shape=[2**40, 2**40]),
    "shape that does not fit": lambda m: leaf(m, shape=[3, 5]),
    "deep shape": lambda m: leaf(m, shape=[1] * 10_000),
    "overlap": lambda m: leaf(m, offset=m["leaves"]["model/bias"]["offset"]),
    "another leaf's place": lambda m: leaf(m, offset=m["leaves"]["model/weight"]["offset"] + 1),
    "unknown dtype": lambda m: leaf(m, dtype="object"),
    "dtype with code": lambda m: leaf(m, dtype="O8,i4"),
    "attribute dtype": lambda m: leaf(m, attrs={"dtype": "|O"}),
    "unknown kind": lambda m: leaf(m, kind="os"),
    "kind with a path": lambda m: leaf(m, kind="../numpy"),
    "kind in capitals": lambda m: leaf(m, kind="NUMPY"),
    "digest of another sort": lambda m: leaf(m, digest="sha256:00"),
    "wrong digest": lambda m: leaf(m, digest="0" * 32),
    "leaf is a list": lambda m: m["leaves"].update(a=[1]),
    "leaves is a list": lambda m: m.update(leaves=[]),
    "file is a number": lambda m: m["files"].update(a=1),
    "extra field": lambda m: m.update(extra=1),
    "extra field in a leaf": lambda m: leaf(m, exec="x"),
    "missing field": lambda m: m.pop("tree"),
    "step is text": lambda m: m.update(step="7"),
    "step is negative": lambda m: m.update(step=-1),
    "step is huge": lambda m: m.update(step=10**30),
    "step is not the directory's": lambda m: m.update(step=8),
    "step is a float": lambda m: m.update(step=7.5),
    "phase is unknown": lambda m: m.update(phase="middle"),
    "tree names a type": lambda m: m.update(tree={"import": "os.system"}),
    "tree names an unknown leaf": lambda m: m.update(tree={"leaf": "nowhere"}),
    "tree has two tags": lambda m: m.update(tree={"dict": {}, "leaf": "a"}),
    "tree has a wrong payload": lambda m: m.update(tree={"tuple": 5}),
    "tree has no hashable set": lambda m: m.update(tree={"set": [{"dict": {}}]}),
    "nested deeply": lambda m: m.update(tree=nested(900)),
}


def nested(depth: int) -> Any:
    tree: Any = 1
    for _ in range(depth):
        tree = [tree]
    return tree


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(GOLDEN, tmp_path / GOLDEN.name)
    return tmp_path / GOLDEN.name


def read_all(path: Path) -> None:
    """Everything that a reader may ask of a checkpoint that came from a stranger."""
    checkpoint = Checkpoint(path)
    checkpoint.load()
    checkpoint.facts()


# Of these the bytes are as committed; whoever makes values of them refuses.
SEEN_BY_LOADING = ("tree", "nested", "huge shape", "shape", "deep shape", "unknown", "dtype", "attribute", "kind")


def test_a_hostile_manifest_is_refused(copied):
    """With a digest that holds: an error of ours that says so, and nothing read or allocated outside."""
    for name, attack in ATTACKS.items():
        manifest = body()
        attack(manifest)
        (copied / "manifest.json").write_bytes(signed(text_of(manifest)))
        with pytest.raises(HoldfastError):
            pytest.fail(f"{name}: {read_all(copied)}")
        if not name.startswith(SEEN_BY_LOADING):
            assert told_of(copied), name


def told_of(path: Path) -> list[Any]:
    try:
        return list(Checkpoint(path).problems())
    except StoreError as error:
        return [error]


RAW: dict[str, bytes] = {
    "nothing": b"",
    "not JSON": signed(b"nonsense}"),
    "not UTF-8": signed(b'"note": "\xff\xfe"}'),
    "endless nesting": signed(b'"tree": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "endless objects": signed(b'"tree": ' + b'{"dict":' * 100_000),
    "two documents": signed(b"}{}"),
    "a list": b"[]",
    "a number of a million digits": signed(b'"step": ' + b"9" * 10**6 + b"}"),
    "another first line": b'{"digest": "' + b"0" * 32 + b'", "holdfast": 1,\n}',
}


def test_what_is_no_manifest_is_damage(copied):
    """Not a crash of the reader."""
    for name, data in RAW.items():
        (copied / "manifest.json").write_bytes(data)
        with pytest.raises(Damaged):
            pytest.fail(f"{name}: {read_all(copied)}")
        assert list(Checkpoint(copied).problems()), name


def test_duplicate_keys_mean_what_the_digest_covers(copied):
    """JSON's last one counts, for every check alike: what was checked is what is read."""
    text = text_of(body())
    (copied / "manifest.json").write_bytes(signed(b'"step": 99, "leaves": {}, ' + text))
    assert same(Checkpoint(copied).load(), golden_state())
    (copied / "manifest.json").write_bytes(
        signed(text[:-1] + b', "files": {"../x": {"size_bytes": 0, "digest": "0"}}}')
    )
    with pytest.raises(Damaged):
        read_all(copied)


def test_an_unknown_version_is_refused_with_a_message(copied):
    """Never guessed at, and not called damage."""
    data = (copied / "manifest.json").read_bytes().replace(b'"holdfast": 1', b'"holdfast": 2', 1)
    blank = re.sub(rb'"digest": "[0-9a-f]{32}"', b'"digest": "' + b"0" * 32 + b'"', data, count=1)
    digest = format.digest(blank).encode()
    (copied / "manifest.json").write_bytes(blank.replace(b"0" * 32, digest, 1))
    with pytest.raises(StoreError, match="version 2; this Holdfast reads 1, 6 and 7") as raised:
        read_all(copied)
    assert not isinstance(raised.value, Damaged)


def test_a_later_version_may_have_another_first_line(copied):
    """Its beginning is all that every version has alike; a flip in it is damage all the same."""
    data = (copied / "manifest.json").read_bytes()
    for first in (b'{"holdfast": 8, "sha512": "00",', b'{"holdfast": 60,'):
        (copied / "manifest.json").write_bytes(first + data[data.index(b"\n") :])
        with pytest.raises(StoreError, match=r"version (8|60); this Holdfast reads 1") as raised:
            read_all(copied)
        assert not isinstance(raised.value, Damaged)
    for first in (b'{"holdfast": 1, "sha512": "00",', b'{"holdfast": x,', b'{"holdfest": 6,'):
        (copied / "manifest.json").write_bytes(first + data[data.index(b"\n") :])
        with pytest.raises(Damaged):
            read_all(copied)
    (copied / "manifest.json").write_bytes(data.replace(b'"holdfast": 1', b'"holdfast": 3', 1))
    with pytest.raises(Damaged):
        read_all(copied)


def test_names_that_a_disk_may_not_tell_apart_are_not_given(tmp_path):
    """A checkpoint can be copied to a disk that ignores the case of letters; long keys have long names no more."""
    state = {"Model": np.arange(3), "model": {"a": np.arange(4)}, "x" * 300: np.arange(5), "x" * 299: {"b": np.ones(6)}}
    store = Store(tmp_path)
    store.save(state, step=1)
    names = [*store[1].manifest.files]
    assert same(store[1].load(), state)
    assert len(names) == len({name.casefold() for name in names}) > 2
    assert max(map(len, names)) < 150


def test_the_page_names_all_that_a_checkpoint_can_hold():
    """Each tag of the tree, field of a manifest, and member of what a run stores of itself; and nothing else."""
    page = (GOLDENS.parents[1] / "docs/format.md").read_text(encoding="utf-8")

    def first_cells(title: str) -> set[str]:
        lines = page.partition(f"## {title}\n")[2].partition("\n## ")[0].splitlines()
        rows = [line for line in lines if line.startswith("| `")]
        return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}

    tags = {*unflatten._READERS, *values.MAKERS, *codec.TAGS}
    assert first_cells("The tree") == tags
    assert first_cells("What a run stores of itself") == {*RunMemory.__struct_fields__}
    fields = {*format.Manifest.__struct_fields__} - {
        "key",
        "ranks",
        "version",
        "own_bytes",
    }  # of signed ones, and of several ranks
    assert first_cells("manifest.json") - {"torch", "numpy", "jax", "bytes"} == fields
    own = page.partition("`position` is a dict of ")[2].partition("\n## ")[0]
    assert {*Position.__struct_fields__} <= {*re.findall(r"`(\w+)`", own)}


@pytest.mark.parametrize("spoil", ["link", "link of equal length", "directory", "pipe", "linked manifest"])
def test_only_plain_files_are_read(copied, spoil):
    """A link, a directory or a pipe in a file's place is damage: not followed, not waited for."""
    name = "manifest.json" if spoil == "linked manifest" else "data.safetensors"
    path, aside = copied / name, copied.parent / name
    path.rename(aside)
    if spoil == "directory":
        path.mkdir()
    elif spoil == "pipe":
        os.mkfifo(path)
    elif spoil == "link of equal length":
        size = aside.stat().st_size
        path.symlink_to("./" * ((size - len(f"../{name}")) // 2) + f"../{name}".rjust(size % 2, "/"))
    else:
        path.symlink_to(aside)
    with pytest.raises(Damaged):
        read_all(copied)
    assert list(Checkpoint(copied).problems())


def test_a_linked_folder_is_not_followed(tmp_path):
    """Nor a folder of plain files that became a link to somewhere else."""
    store = Store(tmp_path / "run")
    with store.directory(step=1) as path:
        (path / "sub").mkdir()
        (path / "sub" / "a").write_bytes(b"a")
    path = store[1].path
    shutil.move(path / "sub", tmp_path / "sub")
    (path / "sub").symlink_to(tmp_path / "sub")
    with pytest.raises(Damaged):
        read_all(path)
    assert list(Checkpoint(path).problems())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(field=st.sampled_from(sorted(format.Manifest.__struct_fields__)), value=json_values)
def test_any_value_in_any_field_is_read_or_refused(field, value):
    """No value makes a reader fail with anything but an error of ours."""
    manifest = {**body(), field: value}
    try:
        found = format.decode(signed(text_of(manifest)), "here")
    except StoreError:
        return
    assert msgspec.to_builtins(getattr(found, field)) == value or field in ("leaves", "shape")


@settings(deadline=None)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_damage(data):
    """As a manifest, random bytes are refused; behind a true digest, too."""
    for text in (data, signed(data)):
        with pytest.raises(Damaged):
            format.decode(text, "here")


@given(step=st.integers(0, 10**18 - 1), phase=st.sampled_from(format.PHASES))
def test_names_sort_as_the_run_went(step, phase):
    """A name is read back as it was written, and no other text is a name."""
    name = format.CheckpointName(step, phase)
    assert format.parse_name(str(name)) == name
    assert format.parse_name(f"{name}x") is None
    assert format.parse_name(str(name).replace("step-", "step-0")) is None or step >= 10**9
    assert (
        str(format.CheckpointName(step, "step"))
        < str(format.CheckpointName(step, "end"))
        < str(format.CheckpointName(10**18 - 1, "end")) + "~"
    )


if __name__ == "__main__":
    write_golden(GOLDEN)
    write_golden_of_ranks(GOLDEN_OF_RANKS)
    with scratched("key") as folder:
        write_golden_of_ranks(GOLDEN_SIGNED, Signer(key_pair(folder)))
