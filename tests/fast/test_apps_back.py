"""App files without {checkpoint} in `resume`: the program reads its own files, and gets them back as they were kept."""

import errno
import os
import time

import pytest

from holdfast import disk
from holdfast.apps.file import AppFile, read
from holdfast.apps.take import copy_if_unchanged
from holdfast.errors import UsageError

LEAST = """
start = ["solve"]
checkpoint = ["state*", "more/*"]
finished = { files = ["result"] }
"""


@pytest.fixture
def work(tmp_path):
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def program(work, more=""):
    (work / "app.toml").write_text(more + LEAST)
    return AppFile(read(work / "app.toml"), work, work / "run" / "app")


def put(place, **files):
    """Files in `place`, each newer than the one before it and than all that were there."""
    for at, (name, text) in enumerate(files.items(), time.time_ns()):
        path = place / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, ns=(at, at))
    return place


def there(work):
    return {
        path.relative_to(work).as_posix(): path.read_text()
        for path in sorted(work.rglob("*"))
        if path.is_file() and not path.is_relative_to(work / "run") and path.name != "app.toml"
    }


def aside(work):
    """What the first start has moved."""
    (found,) = (work / "run" / "app").glob("found-*")
    return there(found)


def test_the_program_finds_what_was_kept_and_nothing_else(work, tmp_path, capsys):
    """What differs, and what was not there, is moved aside and told; a second start finds all in place."""
    kept = put(tmp_path / "step-7", state="5", more__rng="x")
    (kept / "manifest.json").write_text("ours")
    put(work, state="6, half", state_new="half", notes="mine")
    it = program(work)
    assert ["solve"] == it.begin([], kept, None)
    assert {"state": "5", "more/rng": "x", "notes": "mine"} == there(work)
    assert {"state": "6, half", "state_new": "half"} == aside(work)
    (found,) = (work / "run" / "app").iterdir()
    said = f"state, state_new: not what was kept, and now in {found}; the program goes on from step-7"
    assert f"holdfast: {said}\n" == capsys.readouterr().err
    before = (work / "state").stat()
    it.begin([], kept, None)
    assert before == (work / "state").stat()
    assert "" == capsys.readouterr().err


def test_when_nothing_was_kept_it_starts_without_files(work, capsys):
    """What a killed start has left may be half a file; the program must not take it for its own."""
    put(work, state="half")
    program(work).begin([], None, None)
    assert ({}, {"state": "half"}) == (there(work), aside(work))
    assert capsys.readouterr().err.endswith("it starts afresh\n")


def test_of_the_programs_own_only_what_was_replaced_last_is_set_aside(work, tmp_path):
    """So that crashes do not fill the disk. What lay there before the first start may be a user's: all of it stays."""
    kept = put(tmp_path / "step-7", state="5")
    for number in "12":
        it = program(work)
        for left in ({"state": f"mine {number}"}, {"state": "6", "state2": "6"}, {"state": "7"}):
            put(work, **left)
            it.begin([], kept, None)
    assert {"state": "7"} == there(work / "run" / "app" / "replaced")
    found = sorted((work / "run" / "app").glob("found-*"))
    assert [{"state": "mine 1"}, {"state": "mine 2"}] == [there(each) for each in found]


def test_all_files_are_one_checkpoint(work, tmp_path):
    """The program reads them all, whoever wrote them. There is a new checkpoint when one of them has changed."""
    kept = put(tmp_path / "step-7", state="1", state2="1")
    it = program(work)
    it.begin([], kept, None)
    assert it.checkpoint() is None
    put(work, state2="2")
    files = [work / "state", work / "state2"]
    assert files == it.checkpoint().files
    later = program(work)
    assert files == later.left(0).files == later.found().files
    assert later.left(time.time() + 9) is None


@pytest.mark.parametrize("left", [{"state5": "5"}, {"state5": "damaged"}, {}])
def test_of_numbered_files_the_older_ones_stay(work, tmp_path, left):
    """With `newest` they are no part of the checkpoint, and may be results. A newer one than was kept goes aside: the
    program would take it.
    """
    put(work, state4="4", **left)
    kept = put(tmp_path / "step-7", state5="5")
    put(work, state6="half")
    program(work, "newest = true\n").begin([], kept, None)
    assert {"state4": "4", "state5": "5"} == there(work)
    assert {"state6": "half"} | {name: text for name, text in left.items() if text != "5"} == aside(work)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_link_to_another_disk_stays_one(work, tmp_path, monkeypatch, elsewhere):
    """The file behind it is replaced where it lies; it is copied aside where a rename is impossible."""
    kept = put(tmp_path / "step-7", state="5")
    far = put(tmp_path / "scratch", state="half") / "state"
    (work / "state").symlink_to(far)
    rename, refused = disk.replace, []

    def refuse(source, target):
        if elsewhere and not source.name.endswith(".new"):
            refused.append(source)
            raise OSError(errno.EXDEV, "another disk")
        rename(source, target)

    monkeypatch.setattr(disk, "replace", refuse)
    program(work).begin([], kept, None)
    assert ("5", True) == (far.read_text(), (work / "state").is_symlink())
    assert {"state": "half"} == aside(work)
    assert refused == [far] * elsewhere


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(
    "step", [{"latest": "5", "state5": "5"}, {"latest": "5", "state5": "5", "state6": "6"}, {"latest": "6"}]
)
def test_a_link_inside_is_itself_a_file(work, tmp_path, monkeypatch, elsewhere, step):
    """`latest` names the newest of the files beside it: each is put back with its own bytes, and the target stays."""
    kept = put(tmp_path / "step-7", **step)
    put(work, state5="5", state6="6")
    (work / "latest").symlink_to("state6")
    rename = disk.replace

    def refuse(source, target):
        if elsewhere and not source.name.endswith(".new"):
            raise OSError(errno.EXDEV, "another disk")
        rename(source, target)

    monkeypatch.setattr(disk, "replace", refuse)
    (work / "app.toml").write_text(LEAST.replace('["state*', '["latest", "state*'))
    AppFile(read(work / "app.toml"), work, work / "run" / "app").begin([], kept, None)
    assert step == there(work)
    (found,) = (work / "run" / "app").glob("found-*")
    assert {"state5", "state6"} - step.keys() <= {path.name for path in found.iterdir()}


def test_two_links_to_one_file_elsewhere(work, tmp_path):
    """The file is moved once; each name gets its own bytes."""
    kept = put(tmp_path / "step-7", state="5", state2="4")
    far = put(tmp_path / "scratch", state="half") / "state"
    for name in ("state", "state2"):
        (work / name).symlink_to(far)
    program(work).begin([], kept, None)
    assert {"state": "5", "state2": "4"} == there(work)
    (found,) = (work / "run" / "app").glob("found-*")
    assert "half" == (found / "state").read_text()


@pytest.mark.parametrize("mark", ["supervisor.jsonl", "run.json"])
def test_another_runs_checkpoints_stay_where_they_are(work, tmp_path, mark):
    """A recursive pattern matches them, too: they are neither moved nor kept."""
    mine = {"other/checkpoints/step-1/state": "theirs", "other/app/found-1/state": "theirs", f"other/{mark}": ""}
    put(work, **{name.replace("/", "__"): text for name, text in mine.items()}, sub__checkpoints__state="6")
    (work / "app.toml").write_text(LEAST.replace("state*", "**/state"))
    it = AppFile(read(work / "app.toml"), work, work / "run" / "app")
    assert [work / "sub/checkpoints/state"] == it.found().files
    it.begin([], put(tmp_path / "step-7", state="5"), None)
    assert mine | {"state": "5"} == there(work)


def test_a_private_file_stays_private(work, tmp_path):
    """In the store, and where it is put back."""
    put(work, state="5")
    (work / "state").chmod(0o600)
    kept = tmp_path / "step-7"
    kept.mkdir()
    it = program(work)
    assert copy_if_unchanged(it.found(), kept)
    put(work, state="half")
    it.begin([], kept, None)
    assert [0o600] * 2 == [path.stat().st_mode & 0o777 for path in (kept / "state", work / "state")]


def test_resume_may_name_words_of_its_own(work, tmp_path):
    """Without `resume` it is started again with the words of `start`."""
    kept = put(tmp_path / "step-7", state="5")
    for resume, expected in (("", ["solve"]), ('resume = ["solve", "--go-on"]\n', ["solve", "--go-on"])):
        it = program(work, resume)
        assert ["solve"] == it.begin([], None, None)
        assert expected == it.begin([], kept, None)
        assert {"state": "5"} == there(work)


def test_files_are_not_put_back_among_our_own(tmp_path):
    """With `--run .` a pattern may match the store: refused before anything is moved."""
    put(tmp_path, state="mine")
    (tmp_path / "app.toml").write_text(LEAST)
    it = AppFile(read(tmp_path / "app.toml"), tmp_path, tmp_path / "app")
    with pytest.raises(UsageError, match="give a --run DIR"):
        it.begin([], None, None)
    assert "mine" == (tmp_path / "state").read_text()
