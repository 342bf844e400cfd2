"""The commands at places: what they say of copies, and `holdfast copy` from anywhere to anywhere."""

import json
import os
import random
import shutil
from contextlib import closing, suppress
from pathlib import Path

import pytest

from command_runs import finished, flip, save, state
from holdfast import Run, owner
from holdfast.errors import UsageError
from holdfast.mirror.backends import open_place
from holdfast.mirror.records import ResumeOrigin
from holdfast.mirror.remote import RemoteRun
from holdfast.store.store import Store
from stores import asked, done, invoke

GOLDEN = Path(__file__).parents[1] / "golden/two-ranks/step-000000007-end"
NEWEST = "step-000000030"


@pytest.fixture
def run(tmp_path, tmp_path_factory):
    return finished(tmp_path, tmp_path_factory)


@pytest.fixture
def mirror(run, tmp_path):
    return mirrored(run, tmp_path / "mirror")


def mirrored(run, to, *, attempt=1, names=None, origin=None):
    """A mirror with copies of the run's checkpoints, as the worker makes them."""
    with closing(open_place(str(to))) as place:
        remote = RemoteRun(place)
        remote.claim(attempt, (run / "run.json").read_text(), owner.describe_this_process(), None)
        remote.note_origin(attempt, origin or ResumeOrigin(None))
        for path in sorted((run / "checkpoints").glob("step-*")):
            if names is None or path.name in names:
                remote.copy(attempt, path)
        remote.note_end(attempt)
    return to


def one_line(*words):
    """The exit code and the one line of a command that fails."""
    result = invoke(*words)
    lines = result.stderr.splitlines()
    assert (True, 1) == (result.exit_code > 0, len(lines)), result.output
    return result.exit_code, lines[0]


def copy_of(mirror, name=NEWEST, attempt=1):
    return mirror / f"checkpoints/{attempt:06d}/{name}"


def listing(root):
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in [root, *root.rglob("*")]}


# Looking ----------------------------------------------------------------------------------------------------------


def test_ls_lists_the_copies_at_a_place(run, mirror):
    """Each with all that `ls` of the run says, and nothing is changed there."""
    before = listing(mirror)
    there, here = asked("ls", mirror), asked("ls", run)
    facts = ("name", "step", "metrics", "size_bytes", "best", "latest", "parent")
    assert [[row[fact] for fact in facts] for row in here["checkpoints"]] == [
        [row[fact] for fact in facts] for row in there["checkpoints"]
    ]
    assert str(mirror) == there["run"]
    assert [(1, 3, "ended")] == [(each["attempt"], each["saved"], each["ended"]) for each in there["attempts"]]
    assert before == listing(mirror)


def test_a_file_address_is_the_folder(mirror):
    """`file://` and the path name the same place."""
    assert asked("show", mirror) == asked("show", f"file://{mirror}")


def test_what_a_superseded_attempt_saved_is_told_apart(run, mirror):
    """Attempt 2 went on from step 20: step 30 of attempt 1 is in no line, and no command takes it for the newest."""
    shutil.rmtree(run / "checkpoints" / NEWEST)
    mirrored(run, mirror, attempt=2, names=(), origin=ResumeOrigin(1, "step-000000020"))
    facts = asked("ls", mirror)
    assert ["step-000000010", "step-000000020"] == [row["name"] for row in facts["checkpoints"]]
    assert [str(copy_of(mirror))] == [each["path"] for each in facts["left_over"]]
    assert "step            20" in done("show", mirror)
    assert f"{copy_of(mirror)}: saved by an attempt that was superseded" in done("ls", mirror)


def test_show_tells_of_a_copy_what_it_tells_of_the_checkpoint(run, mirror):
    """But for its path: that is the place's."""
    there, here = asked("show", mirror, "--step", "best"), asked("show", run, "--step", "best")
    assert str(copy_of(mirror, "step-000000020")) == there.pop("path")
    here.pop("path")
    assert here == there


def test_verify_reads_every_byte_at_the_place(mirror):
    """One flipped bit is found, with file and byte range as they are there."""
    assert ["ok"] * 3 == [line.split()[1] for line in done("verify", mirror).splitlines()]
    shard = next(copy_of(mirror).glob("model*.safetensors"))
    flip(shard, shard.stat().st_size - 1)
    result = invoke("verify", mirror)
    assert 4 == result.exit_code
    assert f"  {shard}: bytes " in result.stdout
    assert 2 == result.stdout.count("  ok  ")
    shard.unlink()
    assert f"{shard}: bytes 0.." in (told := invoke("verify", mirror, "--step", "30").stdout)
    assert "missing" in told


def test_verify_finds_a_manifest_that_is_damaged_there(mirror):
    """It is in no line, and is still looked at."""
    flip(copy_of(mirror) / "manifest.json", 200)
    result = invoke("verify", mirror)
    assert 4 == result.exit_code
    assert f"{copy_of(mirror)}/manifest.json" in result.stdout
    assert [str(copy_of(mirror))] == [each["path"] for each in asked("ls", mirror)["left_over"]]


def test_copies_of_several_ranks_are_read(tmp_path):
    """Their parts, too: shown, verified, exported and compared."""
    root = tmp_path / "two"
    done("copy", GOLDEN, root)
    there = tmp_path / "there"
    done("copy", root, f"file://{there}")
    assert 2 == asked("show", there)["ranks"]
    assert asked("show", GOLDEN, "--rank", "1")["leaves"] == asked("show", there, "--rank", "1")["leaves"]
    assert "ok" in done("verify", there)
    assert "identical" in done("diff", GOLDEN, there)
    flip(next(there.rglob("rank-00001.json")), 20)
    assert 4 == invoke("verify", there).exit_code


def test_diff_and_export_read_from_the_place(run, mirror, tmp_path):
    """As from the run's directory, byte for byte; damage on the way is an error, and no file."""
    assert "identical" in done("diff", run, mirror)
    assert 1 == invoke("diff", f"{mirror}@20", f"{run}@30").exit_code
    files = [tmp_path / "here.safetensors", tmp_path / "there.safetensors"]
    for source, file in zip((run, mirror), files, strict=True):
        done("export", source, "-o", file)
    assert files[0].read_bytes() == files[1].read_bytes()
    shard = next(copy_of(mirror).glob("model*.safetensors"))
    flip(shard, shard.stat().st_size - 1)
    code, line = one_line("export", mirror, "-o", tmp_path / "damaged.safetensors")
    assert (4, True) == (code, str(shard) in line)
    assert not (tmp_path / "damaged.safetensors").exists()


def test_nothing_that_was_brought_stays(mirror, tmp_path, monkeypatch):
    """Whether a command succeeds or not."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    done("verify", mirror)
    one_line("show", mirror, "--step", "77")
    one_line("export", mirror, "--part", "none", "-o", tmp_path / "x.npz")
    assert [] == os.listdir(tmp_path / "tmp")


def test_verify_of_a_run_says_what_each_place_holds(run, mirror, tmp_path):
    """By looking there: which copies, what is not there yet, and what nobody knows."""
    shutil.rmtree(copy_of(mirror))
    with closing(Store(run)) as store:
        store.claim().record("mirrors", places={str(mirror): [], str(tmp_path / "no/where"): []})
    places = {each["place"]: each for each in asked("verify", run)["places"]}
    held = places[str(mirror)]
    assert (["step-000000010", "step-000000020"], [NEWEST], None) == (held["copies"], held["lacking"], held["error"])
    assert "no such folder" in places[str(tmp_path / "no/where")]["error"]
    text = done("verify", run)
    assert f"{mirror}  2 copies, the newest step-000000020" in text
    assert f"  not there yet: {NEWEST}" in text


def test_a_mirror_is_no_runs_directory(mirror):
    """No run begins in it, and nothing is pinned or pruned there: that would look like a run from scratch."""
    before = listing(mirror)
    with pytest.raises(UsageError, match="is a mirror, which holds copies of a run"), Run(mirror, {"w": [0]}):
        pass
    assert (2, True) == _said(one_line("pin", mirror, "--step", "30"), "is a mirror")
    assert (2, True) == _said(one_line("prune", mirror, "--keep", "Last(1)"), "is a mirror")
    assert (2, True) == _said(one_line("show", mirror, "--metrics"), "no metrics log")
    assert before == listing(mirror)


# Copying ----------------------------------------------------------------------------------------------------------


def test_a_place_becomes_a_run_that_goes_on(run, mirror, tmp_path):
    """The newest copy, the run's id, and all commands; the next attempt's number is above all that came before."""
    again = tmp_path / "again"
    assert f"{again}: 1 copied" in done("copy", mirror, again)
    assert "identical" in done("diff", run, again)
    assert "ok" in done("verify", again)
    assert NEWEST == os.readlink(again / "checkpoints/latest")
    ids = [json.loads((root / "run.json").read_text())["run"] for root in (run, again)]
    assert ids[0] == ids[1]
    with closing(Store(again)) as store:
        save(store, 40)
        assert store.attempt.number > 1
    assert [30, 40] == [row["step"] for row in asked("ls", again)["checkpoints"]]


def trained(root, until=6):
    """What a run of six steps holds when it has reached step `until`, from wherever it began."""
    held = {"seen": []}
    with suppress(KeyboardInterrupt), Run(root, held, background=False) as run:
        for step in run.steps(6):
            held["seen"].append((step, random.random()))
            run.save()
            if len(held["seen"]) > until:
                raise KeyboardInterrupt
    return held


def test_a_loop_goes_on_from_what_was_copied_from_a_place(tmp_path):
    """With the numbers of the run that was never interrupted."""
    random.seed(3)
    whole = trained(tmp_path / "whole")
    random.seed(3)
    trained(tmp_path / "cut", until=3)
    done("copy", tmp_path / "cut", f"file://{tmp_path}/there")
    done("copy", tmp_path / "there", tmp_path / "again")
    assert 3 <= asked("ls", tmp_path / "again")["checkpoints"][-1]["step"] < 6
    random.seed(4)
    assert whole == trained(tmp_path / "again")


@pytest.mark.parametrize("source", ["run", "mirror"])
@pytest.mark.parametrize("target", ["folder", "place"])
def test_from_anywhere_to_anywhere(source, target, run, mirror, tmp_path):
    """All checkpoints, byte for byte, manifests included; a second time nothing is left to do."""
    src = run if source == "run" else mirror
    dst = tmp_path / "dst" if target == "folder" else f"file://{tmp_path / 'dst'}"
    facts = asked("copy", src, dst, "--all")["checkpoints"]
    assert [10, 20, 30] == [int(each["name"][-3:]) for each in facts if each["verified"]]
    for step in (10, 20, 30):
        assert "identical" in done("diff", f"{run}@{step}", f"{dst}@{step}")
    found = {path.name: path for path in (tmp_path / "dst/checkpoints").rglob("step-*") if not path.is_symlink()}
    for name, path in found.items():
        mine = run / "checkpoints" / name
        assert {each.name: each.read_bytes() for each in mine.iterdir()} == {
            each.name: each.read_bytes() for each in path.iterdir()
        }
    assert 3 == len(found)
    before = listing(tmp_path / "dst")
    assert 3 == done("copy", src, dst, "--all").count("was there already")
    assert before == listing(tmp_path / "dst")


def test_one_step_and_one_checkpoints_directory(run, tmp_path):
    """RUN@STEP, RUN@best, and a checkpoint that was copied somewhere under another name."""
    done("copy", f"{run}@10", tmp_path / "a")
    assert [10] == [row["step"] for row in asked("ls", tmp_path / "a")["checkpoints"]]
    done("copy", f"{run}@best", tmp_path / "a")
    assert [10, 20] == [row["step"] for row in asked("ls", tmp_path / "a")["checkpoints"]]
    shutil.copytree(run / "checkpoints" / NEWEST, tmp_path / "elsewhere")
    done("copy", tmp_path / "elsewhere", tmp_path / "a")
    assert [10, 20, 30] == [row["step"] for row in asked("ls", tmp_path / "a")["checkpoints"]]


def test_a_copy_by_hand_keeps_the_line_of_the_run(run, mirror, tmp_path):
    """A copy goes to the attempt that saved it: a start from there goes on from the newest, and knows no other."""
    with closing(Store(run)) as store:
        save(store, 40)
        number = store.attempt.number
    done("copy", run, f"file://{mirror}")
    assert copy_of(mirror, "step-000000040", number).is_dir()
    assert "step            40" in done("show", mirror)
    assert number == max(each["attempt"] for each in asked("ls", mirror)["attempts"])


def test_what_is_damaged_is_not_copied(run, mirror, tmp_path):
    """By itself it is an error; of all checkpoints the others are copied, and the exit code tells."""
    for path in (run / "checkpoints" / NEWEST, copy_of(mirror)):
        shard = next(path.glob("model*.safetensors"))
        flip(shard, shard.stat().st_size - 1)
    for number, (src, dst) in enumerate([(run, "a"), (mirror, "b"), (run, "file://c"), (mirror, "file://d")]):
        where = tmp_path / f"{number}" if "file" not in dst else f"file://{tmp_path}/{number}"
        code, line = one_line("copy", src, where)
        assert (4, True) == (code, "model" in line), line
        result = invoke("copy", src, where, "--all")
        assert (4, 2) == (result.exit_code, result.stdout.count("  copied  ")), result.output
        assert f"{NEWEST}  DAMAGED, not copied" in result.stdout
        assert [10, 20] == [row["step"] for row in asked("ls", where)["checkpoints"]]


def test_nothing_is_overwritten(run, mirror, tmp_path):
    """Another run, another checkpoint of the same name, a folder of something else, a living run, a folder in a run."""
    other = tmp_path / "other"
    with closing(Store(other)) as store:
        store.save(state(30), step=30)
    before = listing(run) | listing(mirror)
    assert (2, True) == _said(one_line("copy", other, run), "another run")
    assert (2, True) == _said(one_line("copy", other, f"file://{mirror}"), "another run")
    assert before == listing(run) | listing(mirror)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("mine")
    assert (2, True) == _said(one_line("copy", run, tmp_path / "full"), "neither empty nor a run's directory")
    assert (2, True) == _said(one_line("copy", run, run / "copy"), "lies in the run")
    assert (2, True) == _said(one_line("copy", run, run / "checkpoints"), "give the run's directory")
    assert (2, True) == _said(one_line("copy", run, tmp_path / "full/letter.txt"), "name a folder")
    done("copy", f"{run}@10", tmp_path / "same")
    with closing(Store(tmp_path / "same")) as store:
        save(store, 30)
    assert (2, True) == _said(one_line("copy", run, tmp_path / "same"), "is not overwritten")
    with closing(Store(tmp_path / "same")) as store:
        store.claim()
        assert (2, True) == _said(one_line("copy", f"{run}@20", tmp_path / "same"), "may still be running")


def test_a_living_attempt_at_a_place_is_not_ended(run, tmp_path):
    """A checkpoint of a later attempt would supersede it; one of its own disturbs nobody."""
    there = tmp_path / "there"
    with closing(open_place(str(there))) as place:
        remote = RemoteRun(place)
        remote.claim(1, (run / "run.json").read_text(), owner.describe_this_process(), None)
        done("copy", f"{run}@10", f"file://{there}")
        with closing(Store(run)) as store:
            save(store, 40)
        assert (2, True) == _said(one_line("copy", run, f"file://{there}"), "may still be running")
        remote.require_owned(1)
        remote.note_end(1)
    done("copy", run, f"file://{there}")


# Wrong inputs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["ls", "show", "verify", "copy", "export", "diff"])
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("nonsense://host/run", "nonsense"),
        ("file:///no/such/folder/at/all", "no such folder"),
        ("sftp://somebody:s3cret-word@nowhere.invalid/run", "sftp://somebody@nowhere.invalid/run"),
    ],
)
def test_a_wrong_address_is_one_clear_line(command, address, said, tmp_path):
    """Which names the address, without its password."""
    rest = {"copy": [tmp_path / "to"], "export": ["-o", tmp_path / "x.npz"], "diff": [tmp_path]}.get(command, [])
    code, line = one_line(command, address, *rest)
    assert said in line
    assert "s3cret-word" not in line
    assert code in {1, 2, 3}


def test_an_empty_place_says_so(tmp_path):
    """And an address that leads into a run's directory."""
    code, line = one_line("ls", f"file://{tmp_path}/none")
    assert (3, f"holdfast: {tmp_path}/none: no run has copies there") == (code, line)


@pytest.mark.parametrize("command", ["pin", "unpin", "prune", "hold", "release"])
def test_what_changes_a_run_takes_no_address(command, tmp_path):
    """One line, without the password."""
    rest = {"pin": ["--step", "1"], "unpin": ["--step", "1"], "prune": ["--keep", "Last(1)"]}.get(command, [])
    _, line = one_line(command, "sftp://somebody:s3cret-word@nowhere.invalid/run", *rest)
    assert "s3cret-word" not in line


def _said(told, words):
    code, line = told
    return code, words in line
