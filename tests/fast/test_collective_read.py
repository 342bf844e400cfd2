"""Checkpoints of several ranks, as readers and commands find them: also damaged, and made to harm."""

import json
import shutil

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file

from collective import Divided, failed, read, same, saved, small, state, whole
from holdfast.errors import Damaged, HoldfastError, NotFound, StoreError
from holdfast.inspect.diff import compare
from holdfast.store import format, parts
from holdfast.store.checkpoint import Checkpoint
from holdfast.store.format import MANIFEST
from holdfast.store.store import Store
from stores import flip, invoke, steps

WORLD = 3


def divided(rank, step=0):
    """A state with whole leaves, some of them a rank's own, and pieces in two dimensions."""
    array = np.arange(24.0, dtype=np.float32).reshape(4, 6) + step
    places = [((0, 0), (4, 2)), ((0, 2), (3, 4)), ((3, 2), (1, 4))]
    mine = state(rank, 200, step)
    mine["model"]["w"] = Divided(array, *places[rank])
    return mine


@pytest.fixture(autouse=True)
def _small():
    with small(1 << 20):
        yield


@pytest.fixture
def run(tmp_path):
    root = tmp_path / "run"
    assert not failed(saved(root, [divided(rank) for rank in range(WORLD)], step=4))
    return root


@pytest.fixture
def path(run):
    return run / "checkpoints/step-000000004"


# -- damage ----------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_any_file_is_found(path):
    """By `problems`, which says which bytes, by whoever reads them, and by the rank whose file it is at least."""
    names = sorted(each.name for each in path.iterdir())
    assert {f"rank-0000{rank}.json" for rank in range(WORLD)} < {*names}
    for name in names:
        size = (path / name).stat().st_size
        for place in {0, 7, 8, size // 2, size - 1}:
            flip(path / name, place, 1 << (place % 8))
            checkpoint = Checkpoint(path)
            found = list(checkpoint.problems())
            assert any(each.path == path / name and each.start <= place < each.end for each in found), (name, place)
            with pytest.raises(HoldfastError):
                Checkpoint(path).check_layout()
                for rank in range(WORLD):
                    read(Checkpoint(path), rank)
            flip(path / name, place, 1 << (place % 8))
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


# -- malice: whoever makes a checkpoint can make all its digests right -----------------------------------------------


def lied(path, lies):
    """A copy of the checkpoint for each lie that rank 1's part may tell."""
    for name, lie in lies.items():
        copied = path.with_name(name.replace(" ", "-")) / path.name
        shutil.copytree(path, copied)
        forged(copied, 1, lie)
        yield copied


def forged(path, rank, change, root=lambda manifest: manifest):
    """Rewrite a part, and the manifest so that every digest holds."""
    manifest = format.decode((path / MANIFEST).read_bytes(), path)
    name = format.part_file_name(rank)
    part = json.loads((path / name).read_text())
    change(part)
    data = json.dumps(part).encode()
    (path / name).write_bytes(data)
    size = sum(file["size_bytes"] for file in part["files"].values())
    ranks = [
        msgspec.structs.replace(each, size_bytes=size) if number == rank else each
        for number, each in enumerate(manifest.ranks)
    ]
    files = {**manifest.files, name: parts.file_entry(data)}
    (path / MANIFEST).write_bytes(format.encode(root(msgspec.structs.replace(manifest, files=files, ranks=ranks))))


def only(mapping):
    return mapping["@1/model/w"]


def piece(**lies):
    return lambda part: only(part["leaves"]).update(lies)


def attrs(**lies):
    return lambda part: only(part["leaves"])["attrs"].update(lies)


def fields(**lies):
    return lambda part: part.update(lies)


def renamed(name):
    """Let the rank's first shard have another name."""

    def lie(part):
        old = next(iter(part["files"]))
        part["files"] = {name if each == old else each: file for each, file in part["files"].items()}
        for leaf in part["leaves"].values():
            leaf["shard"] = name if leaf["shard"] == old else leaf["shard"]

    return lie


LIES_OF_ITS_OWN = {  # told by the part alone
    "a name that leaves the directory": renamed("../../run.json"),
    "an absolute name": renamed("/etc/passwd"),
    "a name that begins as it should and leaves": renamed("rank-00001-/../../x"),
    "another rank's file": renamed("rank-00002-model.safetensors"),
    "the manifest as a shard": renamed(MANIFEST),
    "another rank's key": lambda part: part["leaves"].update({"@2/model/x": only(part["leaves"])}),
    "a rank that it is not": fields(rank=2),
    "two trees": fields(tree=[1, 2]),
    "a field of tomorrow": fields(code="print(1)"),
    "an offset beyond the file": piece(offset=10**9),
    "a negative offset": piece(offset=-1),
    "a negative shape": piece(shape=[-3, -4]),
    "a place beyond the whole": attrs(at=[2, 2]),
    "a negative place": attrs(at=[-1, 2]),
    "a place that is none": attrs(at="model"),
    "a place in other dimensions": attrs(at=[0, 2, 0]),
    "a whole too large to be": attrs(of=[2**40, 2**40]),
    "a piece under the key of a whole": lambda part: part["leaves"].update({"model/w": only(part["leaves"])}),
    "a file besides": lambda part: part["files"].update({"notes.txt": {"size_bytes": 0, "digest": "0" * 32}}),
}
HARMLESS = {  # where to look first, and nothing is there; or no lie: a plain copy
    "none": lambda part: None,
    "no such rank": fields(spare={"model/w": 99}),
    "a rank before the first": fields(spare={"model/w": -1}),
    "a rank that has none": fields(spare={"model/mean": 2, "rng": 0}),
}
LIES = {  # told when it is read
    "pieces that overlap": attrs(at=[0, 1]),
    "pieces that leave a hole": attrs(at=[1, 2]),
    "a whole with holes": attrs(of=[40, 6]),
    "a whole with huge holes": attrs(of=[2**20, 2**20]),
    "a piece of another dtype": piece(dtype="int32"),
    "a piece of an unknown dtype": piece(dtype="os.system"),
    "a piece that is shorter than its shape": piece(shape=[3, 3]),
    "a leaf that rank 0 wrote": lambda part: part["leaves"].update(
        {"model/mean": {**only(part["leaves"]), "attrs": {}}}
    ),
    "a tree that refers to nothing": fields(tree=[{"dict": {"nothing": {"rank": 0}}}]),
    "a tree that names a leaf that is not there": fields(tree=[{"dict": {"x": {"leaf": "model/x"}}}]),
    "a tree with an unknown tag": fields(tree=[{"exec": "print(1)"}]),
    "rank 0's tree deep inside": fields(tree=[{"dict": {"x": [{"rank": 0}]}}]),
}


def test_a_part_that_lies_of_itself_is_damage(path):
    """As soon as it is opened, whatever is asked for."""
    for copied in lied(path, LIES_OF_ITS_OWN):
        with pytest.raises(Damaged, match="rank-00001"):
            pytest.fail(f"{copied} is read as {Checkpoint(copied).as_rank(1).tree}")


def test_a_hint_that_leads_nowhere_is_not_followed(path):
    """Each rank still finds what it gave."""
    for copied in lied(path, HARMLESS):
        assert path.name in told("ls", copied)
        for rank in range(WORLD):
            assert same(whole(divided(rank)), read(Checkpoint(copied), rank))


def test_a_part_that_is_not_the_manifests_is_not_read(path):
    """Also where it is a part as well as any: of another checkpoint, or with a value changed."""
    name = path / "rank-00001.json"
    data = name.read_bytes()
    assert b'"rank":1' in data
    name.write_bytes(data.replace(b'"rank":1', b'"rank":7'))
    with pytest.raises(Damaged, match="changed since commit"):
        _ = Checkpoint(path).as_rank(1).tree


def test_a_part_that_lies_is_damage(path):
    """Whatever a file says: Damaged, before anything is allocated, opened or built by it."""
    for (name, _), copied in zip(LIES.items(), lied(path, LIES), strict=True):
        with pytest.raises(Damaged, match="two ranks" if name == "a leaf that rank 0 wrote" else None):
            _ = Checkpoint(copied).manifest  # as `verify` does
            for rank in range(WORLD):
                read(Checkpoint(copied), rank)
            pytest.fail(f"{copied} is read")


def replaced(of, **facts):
    """The manifest with other facts; `of`: those of each rank, from its number and its entry."""

    def root(manifest):
        ranks = [msgspec.structs.replace(each, **of(n)) for n, each in enumerate(manifest.ranks)]
        return msgspec.structs.replace(manifest, **({"ranks": ranks} | facts))

    return root


def listed(change):
    return lambda manifest: msgspec.structs.replace(manifest, ranks=change(manifest.ranks))


LEAF = format.LeafEntry("numpy", "uint8", (1,), "rank-00000.json", 0, 1, "0" * 32)
OF_THE_RANKS = {  # lies of the manifest
    "none of them": listed(lambda ranks: []),
    "nothing of them": listed(lambda ranks: None),
    "in another order": listed(lambda ranks: ranks[::-1]),
    "one too few": listed(lambda ranks: ranks[:2]),
    "one too many": listed(lambda ranks: [*ranks, ranks[2]]),
    "another name": replaced(lambda n: {"part": "../x.json"}),
    "a negative length": replaced(lambda n: {"size_bytes": -5}),
    "another length": replaced(lambda n: {"size_bytes": 5}),
    "one beginning of all": replaced(lambda n: {"firsts": ["a"]}),
    "beginnings out of order": replaced(lambda n: {"firsts": [f"{n}b", f"{n}a"]}),
    "a leaf of its own": replaced(lambda n: {}, leaves={"x": LEAF}),
    "a file of its own": lambda manifest: msgspec.structs.replace(
        manifest, files={**manifest.files, "x.bin": manifest.files["rank-00000.json"]}
    ),
}


def test_a_manifest_that_lies_of_its_ranks_is_damage(path):
    """No, too many or too few ranks, other names, lengths and orders; leaves of its own."""
    for name, root in OF_THE_RANKS.items():
        copied = path.with_name(name.replace(" ", "-")) / path.name
        shutil.copytree(path, copied)
        forged(copied, 1, lambda part: None, root)
        with pytest.raises(Damaged):
            _ = Checkpoint(copied).manifest
            Checkpoint(copied).check_layout()
            Checkpoint(copied).load()
            pytest.fail(f"{name} is read")


# -- the command line ------------------------------------------------------------------------------------------------


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
    """Sizes count every rank's files and the manifest; verify names the damaged one."""
    row = json.loads(told("ls", run, "--json"))["checkpoints"][0]
    size = sum(each.stat().st_size for each in path.iterdir())
    assert (3, size, size) == (row["ranks"], row["size_bytes"], row["disk_bytes"])
    assert "of 3 ranks" in told("ls", run)
    told("verify", run, "--cold")
    shard = path / "rank-00002-model.safetensors"
    flip(shard)
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


def test_prune_reads_back_all_ranks_files(run):
    """From the command line one process looks at all of them, and removes nothing when one is damaged."""
    saved(run, [divided(rank) for rank in range(WORLD)], step=5)
    shard = run / "checkpoints/step-000000005/rank-00001-model.safetensors"
    flip(shard)
    result = invoke("prune", run, "--keep", "Last(1)")
    assert result.exit_code == Damaged.exit_code, result.output
    flip(shard)
    told("prune", run, "--keep", "Last(1)")
    assert [5] == steps(Store(run))
    assert not issubclass(StoreError, Damaged)
