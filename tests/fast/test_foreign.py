"""Checkpoints of other programs: what is in them, whether they are complete, and in what they differ."""

import errno
import json
import os
import pickle
import shutil
import struct
import sys
import warnings
import zipfile
from contextlib import closing

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

import foreign_corpus as corpus
from holdfast import disk
from holdfast.errors import Damaged, StoreError
from holdfast.foreign import table, trees
from holdfast.foreign.checkpoint import find_checkpoints
from holdfast.store.store import Store
from stores import asked, done, invoke
from unread import unreadable


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    return {name: corpus.written(folder, name) for name in corpus.WRITERS}


def verified(path):
    """The exit code of `verify`, and its problems."""
    result = invoke("verify", path, "--json")
    assert result.exit_code in {0, 1, 4}, (path, result.output)
    return result.exit_code, [each["what"] for each in json.loads(result.stdout)["checkpoints"][0]["problems"]]


def items(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def flat(value, path=""):
    """The tensors in a state by their paths."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {
        key: each for name, one in pairs for key, each in flat(one, f"{path}/{name}" if path else str(name)).items()
    }


EXPECTED = {  # what of the state each writer writes, by the names that its format gives
    "torch_zip": flat,
    "torch_zip_without_crc": flat,
    "distributed": flat,
    "one_safetensors": lambda state: flat(state["model"]),
    "hugging_face_bin": lambda state: flat({"model": state["model"]}),
    "hugging_face": lambda state: flat({name: state[name] for name in ("model", "optimizer")}),
}


# What is in them --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_every_tensor_is_found_with_its_bytes(originals, name):
    """Name, dtype, shape and bytes are those that the library wrote."""
    expected, found = EXPECTED[name](corpus.state()), table.read(originals[name]).leaves
    assert {*expected} == {*found}
    for key, tensor in expected.items():
        assert (tuple(tensor.shape), str(tensor.dtype)) == (found[key].shape, f"torch.{found[key].dtype}")
        assert items(tensor) == bytes(found[key].read())


@pytest.mark.parametrize("name", corpus.WRITERS)
def test_every_format_is_listed_shown_and_verified(originals, name):
    """A good one is complete. It is called proven only where a CRC-32 covers every tensor, and never valid."""
    path = originals[name]
    (listed,) = asked("ls", path)["checkpoints"]
    shown = asked("show", path)
    (result,) = asked("verify", path)["checkpoints"]
    expected = "complete, CRC-32 holds" if name in corpus.PROVEN else "complete, not verifiable"
    assert (None, [], expected) == (listed["damaged"], result["problems"], result["assurance"])
    assert listed["tensors"] == len(shown["leaves"]) > 0
    assert expected in done("verify", path)
    assert path.name in done("ls", path)
    assert "float32 [4, 3]" in done("show", path)


@pytest.mark.parametrize("name", ["torch_zip", "distributed", "hugging_face"])
def test_step_and_epoch_are_told(originals, name):
    """They stand in the state, or in what the trainer keeps beside it."""
    shown = asked("show", originals[name])
    assert (17, 3) == (shown["step"], shown["epoch"])


def test_names_say_the_step_where_nothing_else_does(tmp_path):
    """As trainers name their files and folders."""
    for name, expected in [
        ("epoch=2-step=40.ckpt", (40, 2)),
        ("model_step_7.pt", (7, None)),
        ("final.pt", (None, None)),
    ]:
        torch.save({"weight": torch.ones(2)}, tmp_path / name)
        content = table.read(tmp_path / name)
        assert expected == (content.step, content.epoch)


VIEWS = {
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "channels last": torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "slice": torch.arange(20)[3:9],
    "every second": torch.arange(20, dtype=torch.int16)[1::2],
    "expanded": torch.arange(3.0).expand(4, 3),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "empty": torch.empty(0, 3),
    "bfloat16": torch.arange(5).to(torch.bfloat16),
    "float8": torch.arange(5.0).to(torch.float8_e4m3fn),
    "uint16": torch.arange(5).to(torch.uint16),
    "complex": torch.randn(3, 2, dtype=torch.complex128).T,
    "bool": torch.tensor([True, False]),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


def test_views_of_any_layout_have_the_bytes_that_torch_reads(tmp_path):
    """In C order, whatever the strides."""
    torch.save(VIEWS, tmp_path / "views.pt")
    found = table.read(tmp_path / "views.pt").leaves
    by_name = {each.key.replace("%20", " "): each for each in found.values()}
    for name, tensor in VIEWS.items():
        raw = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        assert items(raw) == bytes(by_name[name].read()) == b"".join(by_name[name].chunks()), name
        assert tuple(tensor.shape) == by_name[name].shape


def test_tied_tensors_are_one_leaf(tmp_path):
    """Two names of the same bytes; a slice of them is another."""
    weight = torch.arange(6.0)
    torch.save({"a": weight, "b": weight, "c": weight[2:4]}, tmp_path / "tied.pt")
    content = table.read(tmp_path / "tied.pt")
    assert {"a", "c"} == {*content.leaves}
    assert {"leaf": "a"} == content.tree["dict"]["b"]


def test_what_is_not_known_is_shown_by_its_name(tmp_path):
    """A whole model, a namespace, a sparse tensor: with the tensors inside, and what torch.load would import."""
    model, _ = corpus.trained()
    sparse = torch.eye(3).to_sparse()
    torch.save({"model": model, "sparse": sparse}, tmp_path / "whole.pt")
    shown = asked("show", tmp_path / "whole.pt")
    assert "torch.nn.modules.container.Sequential" in shown["document"]["would import"]
    assert any(key.endswith("_parameters/weight") for key in shown["leaves"])
    assert "_rebuild_sparse_tensor" in done("show", tmp_path / "whole.pt", "--all")


def test_shards_of_two_models_without_an_index_are_told_and_never_one_model(originals, tmp_path):
    """Nothing says which of them is the folder's model: both are named, and the weights of neither are read."""
    made = corpus.copied(originals["hugging_face"], tmp_path / "checkpoint-17")
    (made / "model.safetensors.index.json").unlink()
    shutil.copyfile(made / "model-00001-of-00002.safetensors", made / "other-00001-of-00001.safetensors")
    code, problems = verified(made)
    told = "shards without an index, of more than one model: model-*-of-00002.safetensors, other-*-of-00001.safetensors"
    assert (4, [True]) == (code, [told in each for each in problems])
    assert told in done("show", made)
    assert told in done("ls", tmp_path)
    assert not [each for each in find_checkpoints(made).select().leaves() if each.startswith("model/")]
    assert 4 == invoke("export", made, "-o", tmp_path / "w.npz").exit_code
    assert 0 == invoke("show", made / "other-00001-of-00001.safetensors").exit_code
    (made / "other-00001-of-00001.safetensors").unlink()
    assert any("the index model.safetensors.index.json is missing" in each for each in verified(made)[1])


def test_a_folder_of_many_is_listed_by_step(tmp_path, originals):
    """Files, folders, and a damaged one with its reason; other files are passed over."""
    for step in (30, 4, 100):
        torch.save({"global_step": step, "w": torch.ones(2)}, tmp_path / f"{step}.pt")
    corpus.copied(originals["hugging_face"], tmp_path / "checkpoint-17")
    (tmp_path / "cut.ckpt").write_bytes((tmp_path / "4.pt").read_bytes()[:500])
    (tmp_path / "notes.txt").write_text("no checkpoint")
    rows = asked("ls", tmp_path)["checkpoints"]
    assert ["cut.ckpt", "4.pt", "checkpoint-17", "30.pt", "100.pt"] == [row["name"] for row in rows]
    assert "cut" in rows[0]["damaged"]
    assert 4 == invoke("verify", tmp_path).exit_code
    assert 0 == invoke("verify", tmp_path, "--step", 30).exit_code
    assert "30.pt" in done("show", tmp_path, "--step", "30")


def test_a_path_that_is_nothing_is_not_found(tmp_path):
    """Neither ours nor one of a known format: one line, exit 3."""
    (tmp_path / "x.bin").write_bytes(b"abc")
    for path in (tmp_path / "x.bin", tmp_path / "absent.pt", tmp_path):
        result = invoke("show", path)
        assert (3, 1) == (result.exit_code, result.stderr.count("\n"))


# What is wrong with them ------------------------------------------------------------------------------------------


def lengths(size, count):
    """Lengths to which a file is cut: the first, the last, and some between."""
    return sorted({0, 1, size - 1, *(size * part // count for part in range(1, count))})


@pytest.mark.parametrize("name", corpus.WRITERS)
def test_a_file_that_is_cut_anywhere_is_reported(originals, tmp_path, name):
    """Whichever file it is, wherever it ends: exit 4, and why."""
    for number, file in enumerate(corpus.files(originals[name])):
        if file.name == "config.json":  # nothing of a checkpoint
            continue
        for length in lengths(file.stat().st_size, 12):
            made = corpus.copied(originals[name], tmp_path / f"{number}-{length}{originals[name].suffix}")
            with open(made / file.name if made.is_dir() else made, "r+b") as opened:
                opened.truncate(length)
            code, problems = verified(made)
            assert (4, True) == (code, bool(problems)), (file, length)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("hugging_face", "model-00002-of-00002.safetensors"),
        ("hugging_face", "model.safetensors.index.json"),
        ("distributed", "__0_0.distcp"),
    ],
)
def test_a_file_that_is_missing_is_reported(originals, tmp_path, name, missing):
    """What an index or a shard's own name promises."""
    made = corpus.copied(originals[name], tmp_path / "made")
    (made / missing).unlink()
    code, problems = verified(made)
    assert (4, True) == (code, any("missing" in each for each in problems))
    assert "damaged" in done("ls", tmp_path)


@pytest.mark.parametrize("name", sorted(corpus.PROVEN))
def test_a_flipped_bit_of_a_tensor_is_reported(originals, tmp_path, name):
    """Where the format has a CRC-32 of the bytes."""
    made = corpus.copied(originals[name], tmp_path / f"made{originals[name].suffix}")
    weight = items(corpus.trained()[0].state_dict()["first.weight"])
    (file,) = [each for each in corpus.files(made) if weight in each.read_bytes()]
    data = bytearray(file.read_bytes())
    data[data.index(weight) + 7] ^= 4
    file.write_bytes(data)
    code, problems = verified(made)
    assert (4, True) == (code, any("CRC-32" in each for each in problems))


def header(entries, data=b"", length=None):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start, stop, shape=(2,), dtype="F32"):
    return {"dtype": dtype, "shape": [*shape], "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (header({"w": entry(0, 8)}, b"1234"), "needs 8 bytes"),
        (header({"w": entry(0, 8)}, b"12345678" * 2), "behind the last"),
        (header({"w": entry(8, 16)}, b"12345678" * 2), "begins at 8"),
        (header({"w": entry(0, 8), "v": entry(4, 12)}, b"x" * 12), "begins at 4"),
        (header({"w": entry(0, 8, (3,))}, b"12345678"), "not those of its shape"),
        (header({"w": entry(0, 8, (2**40, 2**40))}, b"12345678"), "not those of its shape"),
        (header({"w": entry(0, 8, (-2,))}, b"12345678"), "not those of its shape"),
        (header({"w": entry(8, 0)}, b"12345678"), "begins at 8"),
        (header({}, length=2**63), "header of"),
        (header({"w": 3}), "no safetensors header"),
        (b"[" * 99999, "header of"),
    ],
)
def test_a_header_of_safetensors_that_lies_is_reported(tmp_path, data, why):
    """Offsets beyond the end, holes, overlaps, shapes of other sizes."""
    (tmp_path / "w.safetensors").write_bytes(data)
    code, problems = verified(tmp_path / "w.safetensors")
    assert 4 == code
    assert why in " ".join(problems)


@pytest.mark.parametrize("shard", ["../outside.safetensors", "/etc/passwd", "..", "a/b"])
def test_an_index_that_leads_out_of_its_folder_is_refused(originals, tmp_path, shard):
    """Nothing outside is opened."""
    made = corpus.copied(originals["hugging_face"], tmp_path / "made")
    (made / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
    code, problems = verified(made)
    assert (4, True) == (code, "outside" in problems[0])


def rezipped(source, target, change):
    """The members of a zip file as `change` (name, bytes) returns them; None leaves one out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            data = change(info.filename, old.read(info))
            if data is not None:
                new.writestr(info.filename, data)
    return target


@pytest.mark.parametrize("left", [None, b"", b"short"])
def test_a_storage_shorter_than_its_tensors_is_reported(originals, tmp_path, left):
    """Or gone: the zip file itself is whole."""
    made = rezipped(
        originals["torch_zip"], tmp_path / "a.pt", lambda name, data: left if name.endswith("data/0") else data
    )
    code, problems = verified(made)
    assert (4, True) == (code, "needs 48 bytes" in problems[0])
    leaf = table.read(made).leaves["model/first.weight"]
    with pytest.raises(Damaged):
        leaf.read()


def test_members_that_overlap_are_refused(originals, tmp_path):
    """As in the zip bombs that name one member very often."""
    data = bytearray(originals["torch_zip"].read_bytes())
    with zipfile.ZipFile(originals["torch_zip"]) as archive:
        offsets = [info.header_offset for info in archive.infolist()]
    second = data.rindex(b"PK\1\2", 0, data.rindex(b"PK\1\2"))
    struct.pack_into("<I", data, second + 42, offsets[0])
    (tmp_path / "a.pt").write_bytes(data)
    assert 4 == verified(tmp_path / "a.pt")[0]


# In what they differ, and export ----------------------------------------------------------------------------------


def ours(root, state):
    with closing(Store(root)) as store:
        store.save(state, step=1)
    return root


@pytest.mark.parametrize("name", EXPECTED)
def test_one_of_ours_and_one_of_theirs_are_compared_by_the_names_of_tensors(originals, tmp_path, name):
    """The same bits are identical, wherever the state dict lies in each; one other bit is told."""
    state = corpus.state()
    kept = ours(tmp_path / "run", {"net": state["model"], "optimizer": state["optimizer"]})
    result = invoke("diff", kept, originals[name])
    assert 0 == result.exit_code, result.output
    assert "compared: only tensors" in result.stdout
    state["model"]["first.bias"].view(torch.int32)[1] ^= 1
    other = ours(tmp_path / "other", {"net": state["model"]})
    result = invoke("diff", originals[name], other)
    assert 1 == result.exit_code
    assert "first.bias: 1 of 4 values differ" in result.stdout
    assert "1 ULP" in result.stdout


def test_two_of_one_format_are_compared_whole(originals, tmp_path):
    """Values beside the tensors, too."""
    torch.save(corpus.state() | {"epoch": 4}, tmp_path / "b.pt")
    result = invoke("diff", originals["torch_zip"], tmp_path / "b.pt")
    told = ["epoch: 3 in a, 4 in b", "0 of 12 leaves and 1 other place differ"]
    assert (1, told) == (result.exit_code, result.stdout.splitlines()[-2:])
    assert "identical" in done("diff", originals["torch_zip"], originals["torch_zip"])


def test_tensors_that_only_one_has_are_told(originals, tmp_path):
    """Under the beginnings that the names have in common."""
    weights = {f"wrapped.{name}": each for name, each in corpus.state()["model"].items() if name != "second.weight"}
    safetensors.torch.save_file(weights, tmp_path / "w.safetensors")
    result = invoke("diff", tmp_path / "w.safetensors", originals["torch_zip"])
    told = ["wrapped.second.weight: only in b", "1 of 3 tensors differs"]
    assert (1, told) == (result.exit_code, result.stdout.splitlines()[-2:])


def test_damage_is_no_difference(originals, tmp_path):
    """diff reads every byte that is proven, and exits with 4."""
    made = corpus.copied(originals["torch_zip"], tmp_path / "a.pt")
    os.truncate(made, 1000)
    assert 4 == invoke("diff", made, originals["torch_zip"]).exit_code


@pytest.mark.parametrize("name", EXPECTED)
def test_the_weights_are_exported(originals, tmp_path, name):
    """By default the model's, by the names of its state dict."""
    target = tmp_path / "w.safetensors"
    done("export", originals[name], "-o", target)
    expected, found = corpus.state()["model"], safetensors.torch.load_file(target)
    assert {*expected} == {*found}
    assert all(torch.equal(expected[key], found[key]) for key in expected)
    done("export", originals[name], "-o", tmp_path / "w.npz")
    assert {*expected} == {*np.load(tmp_path / "w.npz")}


@pytest.mark.parametrize("name", sorted(corpus.PROVEN))
def test_no_flipped_bit_is_exported(originals, tmp_path, name):
    """A recorded CRC-32 that does not hold is damage, exit 4, and nothing is written."""
    made = corpus.copied(originals[name], tmp_path / originals[name].name)
    file = max(corpus.files(made), key=lambda each: each.stat().st_size)
    changed, weight = bytearray(file.read_bytes()), items(corpus.state()["model"]["first.weight"])
    changed[changed.index(weight)] ^= 1
    file.write_bytes(changed)
    assert 4 == invoke("export", made, "-o", tmp_path / "w.npz").exit_code
    assert not (tmp_path / "w.npz").exists()


def test_no_half_model_is_exported_or_compared(originals, tmp_path):
    """A shard is missing: exit 4, also with --quick, which has no digest to trust."""
    made = corpus.copied(originals["hugging_face"], tmp_path / "checkpoint-17")
    next(made.glob("model-00002-*.safetensors")).unlink()
    assert 4 == invoke("export", made, "-o", tmp_path / "w.npz").exit_code
    assert not (tmp_path / "w.npz").exists()
    assert 4 == invoke("diff", "--quick", made, made).exit_code


def test_what_was_not_read_is_not_called_identical(tmp_path, monkeypatch):
    """Two HDF5 files without h5py, and two of different formats without a tensor."""
    monkeypatch.setitem(sys.modules, "h5py", None)
    for name in ("a", "b"):
        superblock = b"\x89HDF\r\n\x1a\n" + bytes(32) + struct.pack("<Q", 200)
        (tmp_path / f"{name}.h5").write_bytes(superblock.ljust(200, name.encode()))
    result = invoke("diff", tmp_path / "a.h5", tmp_path / "b.h5")
    assert (2, True) == (result.exit_code, "need h5py" in result.stderr)
    result = invoke("export", tmp_path / "a.h5", "-o", tmp_path / "w.npz")
    assert (1, True) == (result.exit_code, "need h5py" in result.stderr)
    torch.save({"lr": 1}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps({"lr": 2}, 2))
    result = invoke("diff", tmp_path / "a.pt", tmp_path / "b.pt")
    assert (2, True) == (result.exit_code, "neither holds" in result.stderr)


def test_numbers_that_are_not_those_in_the_file_are_no_tensors(tmp_path):
    """A conjugate and a negative of torch's have the bytes of the tensor that they are views of."""
    whole = torch.tensor([1 + 2j, 3 - 4j])
    for name, lazy in (("conjugate", whole.conj()), ("negative", whole.conj().imag)):
        assert lazy.is_conj() or lazy.is_neg()
        made, kept = tmp_path / f"{name}.pt", torch.ones(1)
        torch.save({"w": lazy, "kept": kept}, made)
        done("export", made, "-o", tmp_path / "x.safetensors", "--force")
        assert ["kept"] == [*safetensors.torch.load_file(tmp_path / "x.safetensors")]
        torch.save({"w": lazy.clone(), "kept": kept}, tmp_path / "other.pt")
        assert 1 == invoke("diff", made, tmp_path / "other.pt").exit_code


def test_quantized_tensors_of_other_numbers_are_not_identical(tmp_path):
    """They are no tensors to us, and their bytes are compared."""
    for name, value in (("a", 1.0), ("b", 5.0), ("c", 5.0)):
        with warnings.catch_warnings(action="ignore"):
            quantized = torch.quantize_per_tensor(torch.full((3,), value), 0.1, 0, torch.qint8)
        torch.save({"q": quantized, "w": torch.ones(1)}, tmp_path / f"{name}.pt")
    assert 1 == invoke("diff", tmp_path / "a.pt", tmp_path / "b.pt").exit_code
    assert 0 == invoke("diff", tmp_path / "b.pt", tmp_path / "c.pt").exit_code
    done("export", tmp_path / "a.pt", "-o", tmp_path / "x.safetensors")
    assert ["w"] == [*safetensors.torch.load_file(tmp_path / "x.safetensors")]


def test_damage_is_told_beside_what_is_unreadable(tmp_path):
    """Exit 4 if any is damaged, whatever else there is."""
    archive(tmp_path / "deep.pt", **{"data.pkl": corpus.deep()})
    torch.save([], tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    said = invoke("verify", tmp_path)
    assert (1, True) == (said.exit_code, "by torch before 1.6; not read" in said.stderr + said.stdout)
    (tmp_path / "empty.pt").touch()
    assert 4 == invoke("verify", tmp_path).exit_code


@pytest.mark.filterwarnings("ignore:torch.distributed is")  # it says that this is one process
def test_an_empty_file_of_tensors_is_damage_to_ls(tmp_path):
    """Without reading a tensor: its place lies beyond the end."""
    dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "distributed")
    os.truncate(tmp_path / "distributed" / "__0_0.distcp", 0)
    (row,) = asked("ls", tmp_path / "distributed")["checkpoints"]
    assert "cut: 'w' goes on to there" in row["damaged"]


def test_weights_beside_other_checkpoints_hide_none(originals, tmp_path):
    """`model.safetensors`, as docs/foreign.md exports it, makes a model's folder only where nothing else is one."""
    corpus.copied(originals["torch_zip"], tmp_path / "step17.pt")
    done("export", tmp_path / "step17.pt", "-o", tmp_path / "model.safetensors")
    listed = {each["name"]: each["format"] for each in asked("ls", tmp_path)["checkpoints"]}
    assert listed == {"model.safetensors": "safetensors", "step17.pt": "torch"}
    (tmp_path / "config.json").write_text("{}")
    assert ["Hugging Face"] == [each["format"] for each in asked("ls", tmp_path)["checkpoints"]]
    (tmp_path / "config.json").unlink()
    (tmp_path / "step17.pt").rename(tmp_path / "optimizer.pt")
    assert ["Hugging Face"] == [each["format"] for each in asked("ls", tmp_path)["checkpoints"]]


def test_what_lies_beside_checkpoints_hides_none(tmp_path, monkeypatch):
    """A folder with more files than are read, one that is closed to this user, and a checkpoint that is."""
    torch.save({"step": 4}, tmp_path / "open.pt")
    torch.save({"step": 5}, tmp_path / "closed.pt")
    for name in ("many", "closed"):
        (tmp_path / name).mkdir()
    for number in range(5):
        (tmp_path / "many" / str(number)).touch()
    listed, opened = os.scandir, disk.open_plain

    def refusing(do):
        def done_or_refused(path, *rest, **options):
            if "closed" in os.path.basename(path):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return do(path, *rest, **options)

        return done_or_refused

    monkeypatch.setattr(table, "_MOST_NAMES", 4)
    monkeypatch.setattr(os, "scandir", refusing(listed))
    monkeypatch.setattr(disk, "open_plain", refusing(opened))
    rows = {each["name"]: each["damaged"] for each in asked("ls", tmp_path)["checkpoints"]}
    assert rows.keys() == {"open.pt", "closed.pt"}
    assert rows["open.pt"] is None
    assert "closed.pt: cannot be read: Permission denied" in rows["closed.pt"]
    result = invoke("verify", tmp_path)
    assert result.exit_code == 12
    assert "open.pt  complete" in result.stdout
    assert 12 == invoke("show", tmp_path / "closed.pt").exit_code


@pytest.mark.parametrize("name", corpus.WRITERS)
def test_a_read_that_fails_is_not_damage(originals, tmp_path, name):
    """Each of its files in turn: the command says which, reads the others, and exits with 12."""
    corpus.copied(originals[name], tmp_path / f"bad-{originals[name].name}")
    torch.save({"step": 4}, tmp_path / "good.pt")
    files = [path for path in sorted(tmp_path.glob("bad-*/**/*")) or [*tmp_path.glob("bad-*")] if path.is_file()]
    struck = 0
    for file in files:
        with unreadable(file) as reads:
            result = invoke("verify", tmp_path)
            if reads:
                assert (12, "") == (result.exit_code, result.stderr), (file, result.output)
                assert f"unreadable: {file}: cannot be read: Bad file descriptor" in result.stdout
                assert f"unreadable: {file}: cannot be read" in done("ls", tmp_path)
                struck += 1
            assert "good.pt  complete" in result.stdout
    assert struck > 0


# Hostile ones -----------------------------------------------------------------------------------------------------


def archive(path, **members):
    with zipfile.ZipFile(path, "w") as made:
        for name, data in {"data.pkl": b"\x80\x02}.", "version": b"3\n", **members}.items():
            made.writestr(f"archive/{name}", data)
    return path


def test_a_pickle_in_an_archive_is_not_executed(tmp_path):
    """It is shown, and named as what torch.load would import."""
    torch.save({"x": corpus.Calls(os.mkdir, str(tmp_path / "harm"))}, tmp_path / "a.pt")
    for command in ("show", "verify", "ls"):
        assert "harm" not in {each.name for each in tmp_path.iterdir()}
        done(command, tmp_path / "a.pt")
    assert "would import    posix.mkdir" in done("show", tmp_path / "a.pt")


@pytest.mark.parametrize("data", [corpus.laughs(), corpus.deep()], ids=["laughs", "deep"])
def test_what_is_too_large_is_unreadable_and_not_damaged(tmp_path, data, monkeypatch):
    """One line, exit 1. test_foreign_pickles.py reaches the real limit."""
    monkeypatch.setattr(trees, "VALUES", 10_000)
    made = archive(tmp_path / "a.pt", **{"data.pkl": data})
    assert 1 == verified(made)[0]
    result = invoke("show", made)
    assert (1, 1) == (result.exit_code, result.stderr.count("\n"))


def test_a_member_that_says_it_is_compressed_and_is_not_is_damage(tmp_path):
    """One bit of the directory does that."""
    made = archive(tmp_path / "a.pt", byteorder=b"little")
    data = bytearray(made.read_bytes())
    data[data.index(b"archive/byteorder", data.index(b"PK\1\2")) - 46 + 10] = zipfile.ZIP_DEFLATED
    made.write_bytes(data)
    assert 4 == verified(made)[0]


def test_names_cannot_break_a_line_or_lead_out(tmp_path):
    """A newline, an escape and a path as the name of a tensor."""
    names = {"a\nb": torch.ones(1), "\x1b[31m": torch.ones(1), "../../x": torch.ones(1)}
    inside = tmp_path / "1" / "2" / "3"
    inside.mkdir(parents=True)
    safetensors.torch.save_file(names, inside / "w.safetensors")
    shown = done("show", inside / "w.safetensors")
    assert "\x1b" not in shown
    assert 3 == shown.count("float32 [1]")
    before = {*tmp_path.rglob("*")}
    done("export", inside / "w.safetensors", "-o", inside / "o.npz")
    assert {inside / "o.npz"} == {*tmp_path.rglob("*")} - before


def test_a_file_without_bytes_costs_nothing(tmp_path):
    """A terabyte that is all hole: its leaves are listed, and nothing is read into memory."""
    made, size = tmp_path / "w.safetensors", 1 << 40
    made.write_bytes(header({"w": entry(0, size, (size // 4,))}))
    os.truncate(made, made.stat().st_size + size)
    assert (0, []) == verified(made)
    assert "float32" in done("show", made)
    with pytest.raises(StoreError, match="memory"):
        table.read(made).leaves["w"].read()


@pytest.mark.parametrize("name", ["model.safetensors", "w.pt", "w.h5"])
def test_a_pointer_of_git_lfs_is_named_as_one(tmp_path, name):
    """A clone without LFS leaves these 130 bytes in the file's place."""
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d" * 32 + "\nsize 12345\n"
    (tmp_path / name).write_text(text)
    code, (problem,) = verified(tmp_path / name)
    assert (4, True) == (code, "a pointer of Git LFS, not the file itself: `git lfs pull` brings that" in problem)


def orbax(folder, separator="/"):
    """What Orbax 0.12.8 writes with `use_ocdbt=False, use_zarr3=True`; the arrays' bytes are left out."""
    nodes = {"w": {"value_type": "jax.Array"}, "s": {"value_type": "scalar"}, "name": {"value_type": "string"},
             "none": {"value_type": "None", "skip_deserialize": True}}  # fmt: skip
    tree = {f"('{name}',)": {"key_metadata": [{"key": name, "key_type": 2}], "value_metadata": value}
            for name, value in nodes.items()}  # fmt: skip
    files = {"_CHECKPOINT_METADATA": {"commit_timestamp_nsecs": 1}, "_strings.json": {"name": "a text"},
             "_METADATA": {"tree_metadata": tree, "use_ocdbt": False, "use_zarr3": True}}  # fmt: skip
    for name, shape in {"w": [3, 4], "s": []}.items():
        described = {"zarr_format": 3, "shape": shape, "data_type": "float32", "codecs": [],
                     "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4][: len(shape)]}},
                     "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}}}  # fmt: skip
        files[f"{name}/zarr.json"] = described
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    for name in ("w/c/0/0", "w/c/1/0", "s/c"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"packed")
    return folder


def test_arrays_of_zarrs_third_version_are_found_with_their_pieces(tmp_path):
    """And texts in their file; what no file has is not missed. A separator that would leave the folder is refused."""
    path = orbax(tmp_path / "good")
    assert (0, []) == verified(path)
    leaves = asked("show", path)["leaves"]
    assert [("float32", [3, 4]), ("float32", [])] == [(leaves[each]["dtype"], leaves[each]["shape"]) for each in "ws"]
    for number, (name, content) in enumerate(
        [("w/c/1/0", None), ("s/c", b""), ("w/zarr.json", None), ("w/zarr.json", b"{}"), ("_strings.json", None),
         ("_strings.json", b"{}"), ("_strings.json", b"{")]
    ):  # fmt: skip
        broken = orbax(tmp_path / str(number))
        (broken / name).unlink() if content is None else (broken / name).write_bytes(content)
        code, problems = verified(broken)
        assert (4, 1) == (code, len(problems)), (name, content)
    assert verified(orbax(tmp_path / "hostile", "/../../good/w/"))[0] == 4
