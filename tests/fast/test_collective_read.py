"""Checkpoints of several ranks, as readers and commands find them: also damaged, and made to harm."""

import json
import shutil

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from collective import Divided, failed, read, same, saved, state, whole
from holdfast.cli import commands
from holdfast.errors import Damaged, HoldfastError, NotFound, StoreError
from holdfast.inspect.diff import compare
from holdfast.store import division, format, parts
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.format import MANIFEST
from holdfast.store.store import Store

WORLD = 3


def divided(rank, step=0):
    """A state with whole leaves, some of them a rank's own, and pieces in two dimensions."""
    array = np.arange(24.0, dtype=np.float32).reshape(4, 6) + step
    places = [((0, 0), (4, 2)), ((0, 2), (3, 4)), ((3, 2), (1, 4))]
    mine = state(rank, 200, step)
    mine["model"]["w"] = Divided(array, *places[rank])
    return mine


@pytest.fixture(autouse=True)
def small_shares(monkeypatch):
    """Also a few bytes are divided among all."""
    monkeypatch.setattr(division, "SHARE_BYTES", 1)


@pytest.fixture
def run(tmp_path):
    root = tmp_path / "run"
    assert not failed(saved(root, [divided(rank) for rank in range(WORLD)], step=4))
    return root


@pytest.fixture
def path(run):
    return run / "checkpoints/step-000000004"


def invoke(*words):
    return CliRunner().invoke(commands, [str(word) for word in words])


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_any_file_is_found(path):
    """By `problems`, which says which bytes, by whoever reads them, and by the rank whose file it is at least."""
    names = sorted(each.name for each in path.iterdir())
    assert {f"rank-0000{rank}.json" for rank in range(WORLD)} < {*names}
    for name in names:
        whole_file = (path / name).read_bytes()
        for place in {0, 7, 8, len(whole_file) // 2, len(whole_file) - 1}:
            flipped = bytearray(whole_file)
            flipped[place] ^= 1 << (place % 8)
            (path / name).write_bytes(flipped)
            checkpoint = Checkpoint(path)
            found = list(checkpoint.problems())
            assert any(each.path == path / name and each.start <= place < each.end for each in found), (name, place)
            with pytest.raises(HoldfastError):
                Checkpoint(path).check_layout()
                for rank in range(WORLD):
                    read(Checkpoint(path), rank)
        (path / name).write_bytes(whole_file)
    assert not list(Checkpoint(path).problems(cold=True))


def test_a_file_that_is_missing_is_found(path):
    """A part, a shard: Damaged; the manifest: there is no checkpoint any more."""
    for name in sorted(each.name for each in path.iterdir()):
        (path / name).rename(path.parent / "away")
        kind = NotFound if name == MANIFEST else Damaged
        with pytest.raises(kind):
            Checkpoint(path).check_layout()
        if name != MANIFEST:
            assert [path / name] == [each.path for each in Checkpoint(path).problems()]
        (path.parent / "away").rename(path / name)


# -- malice: whoever makes a checkpoint can make all its digests right ---------------------------------------------------


def forged(path, rank, change, root=lambda manifest: manifest):
    """Rewrite a part, and the manifest so that every digest holds."""
    manifest = format.decode((path / MANIFEST).read_bytes(), path)
    name = format.part_name(rank)
    part = json.loads((path / name).read_text())
    change(part)
    data = json.dumps(part).encode()
    (path / name).write_bytes(data)
    size = sum(file["size_bytes"] for file in part["files"].values())
    ranks = [
        msgspec.structs.replace(each, size_bytes=size) if number == rank else each
        for number, each in enumerate(manifest.ranks)
    ]
    files = {**manifest.files, name: parts.entry(data)}
    (path / MANIFEST).write_bytes(format.encode(root(msgspec.structs.replace(manifest, files=files, ranks=ranks))))


def only(mapping):
    return mapping["@1/model/w"]


def moved(part, name):
    """Let the rank's first shard have another name."""
    old = next(iter(part["files"]))
    part["files"] = {name if each == old else each: file for each, file in part["files"].items()}
    for leaf in part["leaves"].values():
        leaf["shard"] = name if leaf["shard"] == old else leaf["shard"]


LIES_OF_ITS_OWN = {  # told by the part alone
    "a name that leaves the directory": lambda part: moved(part, "../../run.json"),
    "an absolute name": lambda part: moved(part, "/etc/passwd"),
    "a name that begins as it should and leaves": lambda part: moved(part, "rank-00001-/../../x"),
    "another rank's file": lambda part: moved(part, "rank-00002-model.safetensors"),
    "the manifest as a shard": lambda part: moved(part, MANIFEST),
    "another rank's key": lambda part: part["leaves"].update({"@2/model/x": only(part["leaves"])}),
    "a rank that it is not": lambda part: part.update(rank=2),
    "two trees": lambda part: part.update(tree=[1, 2]),
    "a field of tomorrow": lambda part: part.update(code="print(1)"),
    "an offset beyond the file": lambda part: only(part["leaves"]).update(offset=10**9),
    "a negative offset": lambda part: only(part["leaves"]).update(offset=-1),
    "a negative shape": lambda part: only(part["leaves"]).update(shape=[-3, -4]),
    "a place beyond the whole": lambda part: only(part["leaves"])["attrs"].update(at=[2, 2]),
    "a negative place": lambda part: only(part["leaves"])["attrs"].update(at=[-1, 2]),
    "a place that is none": lambda part: only(part["leaves"])["attrs"].update(at="model"),
    "a place in other dimensions": lambda part: only(part["leaves"])["attrs"].update(at=[0, 2, 0]),
    "a whole too large to be": lambda part: only(part["leaves"])["attrs"].update(of=[2**40, 2**40]),
    "a piece under the key of a whole": lambda part: part["leaves"].update({"model/w": only(part["leaves"])}),
    "a file besides": lambda part: part["files"].update({"notes.txt": {"size_bytes": 0, "digest": "0" * 32}}),
}
HARMLESS = {  # where to look first, and nothing is there
    "no such rank": lambda part: part.update(spare={"model/w": 99}),
    "a rank before the first": lambda part: part.update(spare={"model/w": -1}),
    "a rank that has none": lambda part: part.update(spare={"model/mean": 2, "rng": 0}),
}
LIES = {  # told when it is read
    "pieces that overlap": lambda part: only(part["leaves"])["attrs"].update(at=[0, 1]),
    "pieces that leave a hole": lambda part: only(part["leaves"])["attrs"].update(at=[1, 2]),
    "a whole with holes": lambda part: only(part["leaves"])["attrs"].update(of=[40, 6]),
    "a whole with huge holes": lambda part: only(part["leaves"])["attrs"].update(of=[2**20, 2**20]),
    "a piece of another dtype": lambda part: only(part["leaves"]).update(dtype="int32"),
    "a piece of an unknown dtype": lambda part: only(part["leaves"]).update(dtype="os.system"),
    "a piece that is shorter than its shape": lambda part: only(part["leaves"]).update(shape=[3, 3]),
    "a leaf that rank 0 wrote": lambda part: part["leaves"].update(
        {"model/mean": {**only(part["leaves"]), "attrs": {}}}
    ),
    "a tree that refers to nothing": lambda part: part.update(tree=[{"dict": {"nothing": {"rank": 0}}}]),
    "a tree that names a leaf that is not there": lambda part: part.update(tree=[{"dict": {"x": {"leaf": "model/x"}}}]),
    "a tree with an unknown tag": lambda part: part.update(tree=[{"exec": "print(1)"}]),
    "rank 0's tree deep inside": lambda part: part.update(tree=[{"dict": {"x": [{"rank": 0}]}}]),
}


@pytest.mark.parametrize("lie", LIES_OF_ITS_OWN, ids=lambda lie: lie.replace(" ", "-"))
def test_a_part_that_lies_of_itself_is_damage(path, lie):
    """As soon as it is opened, whatever is asked for."""
    forged(path, 1, LIES_OF_ITS_OWN[lie])
    with pytest.raises(Damaged, match="rank-00001"):
        _ = Checkpoint(path).as_rank(1).tree


@pytest.mark.parametrize("lie", HARMLESS, ids=lambda lie: lie.replace(" ", "-"))
def test_a_hint_that_leads_nowhere_is_not_followed(path, lie):
    """Each rank still finds what it gave."""
    forged(path, 1, HARMLESS[lie])
    for rank in range(WORLD):
        assert same(whole(divided(rank)), read(Checkpoint(path), rank))


def test_two_ranks_that_claim_one_leaf_are_told(path):
    """Nobody could say which is right."""
    forged(path, 1, lambda part: part["leaves"].update({"model/mean": {**only(part["leaves"]), "attrs": {}}}))
    with pytest.raises(Damaged, match="two ranks"):
        _ = Checkpoint(path).manifest


def test_a_part_that_is_not_the_manifests_is_not_read(path):
    """Also where it is a part as well as any: of another checkpoint, or with a value changed."""
    name = path / "rank-00001.json"
    data = name.read_bytes()
    assert b'"rank":1' in data
    name.write_bytes(data.replace(b'"rank":1', b'"rank":7'))
    with pytest.raises(Damaged, match="changed since commit"):
        _ = Checkpoint(path).as_rank(1).tree


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.replace(" ", "-"))
def test_a_part_that_lies_is_damage(path, lie):
    """Whatever a file says: Damaged, before anything is allocated, opened or built by it."""
    forged(path, 1, LIES[lie])
    with pytest.raises(Damaged):
        _ = Checkpoint(path).manifest  # as `verify` does
        for rank in range(WORLD):
            read(Checkpoint(path), rank)


@pytest.mark.parametrize(
    "root",
    [
        lambda manifest: msgspec.structs.replace(manifest, ranks=[]),
        lambda manifest: msgspec.structs.replace(manifest, ranks=manifest.ranks[::-1]),
        lambda manifest: msgspec.structs.replace(manifest, ranks=manifest.ranks[:2]),
        lambda manifest: msgspec.structs.replace(manifest, ranks=[*manifest.ranks, manifest.ranks[2]]),
        lambda manifest: msgspec.structs.replace(
            manifest, ranks=[msgspec.structs.replace(each, part="../x.json") for each in manifest.ranks]
        ),
        lambda manifest: msgspec.structs.replace(
            manifest, ranks=[msgspec.structs.replace(each, size_bytes=-5) for each in manifest.ranks]
        ),
        lambda manifest: msgspec.structs.replace(
            manifest, ranks=[msgspec.structs.replace(each, size_bytes=5) for each in manifest.ranks]
        ),
        lambda manifest: msgspec.structs.replace(
            manifest, ranks=[msgspec.structs.replace(each, firsts=["a"]) for each in manifest.ranks]
        ),
        lambda manifest: msgspec.structs.replace(
            manifest,
            ranks=[msgspec.structs.replace(each, firsts=[f"{n}b", f"{n}a"]) for n, each in enumerate(manifest.ranks)],
        ),
        lambda manifest: msgspec.structs.replace(
            manifest, files={**manifest.files, "x.bin": manifest.files["rank-00000.json"]}
        ),
        lambda manifest: msgspec.structs.replace(
            manifest, leaves={"x": format.Leaf("numpy", "uint8", (1,), "rank-00000.json", 0, 1, "0" * 32)}
        ),
        lambda manifest: msgspec.structs.replace(manifest, ranks=None),
    ],
)
def test_a_manifest_that_lies_of_its_ranks_is_damage(path, root):
    """No, too many or too few ranks, other names, lengths and orders; leaves of its own."""
    forged(path, 1, lambda part: None, root)
    with pytest.raises(Damaged):
        _ = Checkpoint(path).manifest
        Checkpoint(path).check_layout()
        Checkpoint(path).load()


# -- the command line ------------------------------------------------------------------------------------------------------


def told(*words):
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    return result.output


def test_export_writes_divided_tensors_whole(run, tmp_path):
    """As rank 0 has them, or another; without any rank being there."""
    for rank in range(WORLD):
        target = tmp_path / f"{rank}.safetensors"
        told("export", run, "--rank", rank, "-o", target)
        expected = whole(divided(rank))["model"]
        found = load_file(target)
        assert {*expected} == {*found}
        assert all(expected[key].tobytes() == found[key].tobytes() for key in expected)
    told("export", run, "-o", tmp_path / "plain.safetensors")
    assert load_file(tmp_path / "plain.safetensors")["mean"].tolist() == [0.0] * 5


@pytest.mark.parametrize("words", [("show",), ("export", "-o", "x.safetensors")])
def test_a_rank_that_was_not_there_is_refused(run, words):
    """Nothing is made up for it."""
    result = invoke(words[0], run, "--rank", WORLD, *words[1:])
    assert result.exit_code == 2
    assert "no rank 3; it was saved by ranks 0 to 2" in result.output


def test_show_tells_who_wrote_what(run):
    """Whole leaves with their shapes, a rank's own values, and how many wrote it."""
    text = told("show", run)
    assert "3; " in text
    assert "model/w" in text
    assert "[4, 6]" in text
    assert "@" not in text
    assert "vars/rank = 2" in told("show", run, "--rank", 2)
    facts = json.loads(told("show", run, "--json"))
    assert facts["ranks"] == 3
    assert [[0, 0], [0, 2], [3, 2]] == [piece["at"] for piece in facts["leaves"]["model/w"]["pieces"]]


def test_ls_and_verify_know_all_files(run, path):
    """Sizes count every rank's files; verify names the damaged one."""
    row = json.loads(told("ls", run, "--json"))["checkpoints"][0]
    size = sum(each.stat().st_size for each in path.iterdir() if each.name != MANIFEST)
    assert (3, size, size) == (row["ranks"], row["size_bytes"], row["disk_bytes"])
    assert "of 3 ranks" in told("ls", run)
    told("verify", run, "--cold")
    shard = path / "rank-00002-model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    result = invoke("verify", run)
    assert result.exit_code == Damaged.exit_code
    assert shard.name in result.output
    (path / "rank-00001.json").write_bytes(b"")
    assert {"rank-00001.json", shard.name} == {
        each["file"].rpartition("/")[2]
        for each in json.loads(invoke("verify", run, "--json").output)["checkpoints"][0]["problems"]
    }


def test_diff_sees_every_rank(run, tmp_path):
    """What is one rank's own is compared as that; the same state in other pieces, or in one, is the same state."""
    other = tmp_path / "other"
    states = [divided(rank) for rank in range(WORLD)]
    saved(other, states, step=4)
    assert not compare(Store(run).latest(), Store(other).latest(), read=True)
    assert "identical" in told("diff", run, other)
    states[2]["model"]["mean"][1] = 9
    states[1]["vars"]["rank"] = 7
    states[2]["rng"] = np.arange(600)
    saved(other, states, step=5)
    found = compare(Store(run).latest(), Store(other)[5], read=True)
    assert ["@1/vars/rank", "@2/model/mean", "@2/rng", "position/step"] == [each.where for each in found]


def test_diff_compares_pieces_by_their_bytes(tmp_path):
    """Also of checkpoints that another number of ranks wrote."""
    array = np.arange(24.0).reshape(4, 6)
    one = {"w": array.copy(), "b": np.ones(3)}
    pieces = [{**one, "w": Divided(array, (0, at), (4, 2))} for at in (0, 2, 4)]
    Store(tmp_path / "one").save(one, step=1)
    saved(tmp_path / "three", pieces)
    saved(tmp_path / "two", [{**one, "w": Divided(array, (at, 0), (2, 6))} for at in (0, 2)])
    first, second, third = (Store(tmp_path / name).latest() for name in ("one", "two", "three"))
    for a, b in ((first, second), (second, third), (third, first)):
        assert not compare(a, b)
        assert not compare(a, b, read=True)
    array[2, 5] = -1
    saved(tmp_path / "other", [{**one, "w": Divided(array, (at, 0), (2, 6))} for at in (0, 2)])
    for each in (first, second, third):
        assert [("w", "bytes")] == [(d.where, d.kind) for d in compare(each, Store(tmp_path / "other").latest())]


def test_a_copy_reads_like_the_original(path, tmp_path):
    """`cp -r` of the directory, under any name, on a machine with one process."""
    shutil.copytree(path, tmp_path / "copy")
    for rank in range(WORLD):
        assert same(whole(divided(rank)), read(Checkpoint(tmp_path / "copy"), rank))
    assert "step-000000004" in told("ls", tmp_path / "copy")


def test_prune_reads_back_all_ranks_files(run):
    """From the command line one process looks at all of them, and removes nothing when one is damaged."""
    saved(run, [divided(rank) for rank in range(WORLD)], step=5)
    shard = run / "checkpoints/step-000000005/rank-00001-model.safetensors"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    result = invoke("prune", run, "--keep", "Last(1)")
    assert result.exit_code == Damaged.exit_code, result.output
    shard.write_bytes(data)
    told("prune", run, "--keep", "Last(1)")
    assert [5] == [checkpoint.step for checkpoint in Store(run).checkpoints()]
    assert not issubclass(StoreError, Damaged)
