"""Links beside a run's own directory: in a mirror's folder, in a file that is cut, in a checkpoint that is healed."""

import pytest

from holdfast import disk
from holdfast.mirror import checkpoint_fetcher
from holdfast.mirror.folder import FolderPlace
from holdfast.mirror.place import Refused
from holdfast.store.checkpoint import Checkpoint
from hostile_stores import valid


@pytest.fixture
def outside(tmp_path):
    """A folder of somebody else's, with the names that a mirror has."""
    folder = tmp_path / "outside/step-000000001"
    folder.mkdir(parents=True)
    for name in ("manifest.json", "model.safetensors"):
        (folder / name).write_bytes(b"theirs")
    return tmp_path / "outside"


def listing(folder):
    return {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def test_a_mirror_writes_through_no_link(tmp_path, outside):
    """Where an attempt's folder leads elsewhere, each change is refused with the link's name; reading goes on."""
    place = FolderPlace(tmp_path / "place")
    (tmp_path / "place").mkdir()
    (tmp_path / "place/000001").symlink_to(outside)
    before = listing(outside)
    changes = [
        lambda: place.create("000001/new.json", b"x"),
        lambda: place.put("000001/step-000000001/model.safetensors", 1, lambda: iter([b"x"])),
        lambda: place.copy("000001/step-000000001/model.safetensors", "000002/x"),
        lambda: place.remove("000001/step-000000001"),
    ]
    for change in changes:
        with pytest.raises(Refused, match=r"place/000001 is a symbolic link to .*outside"):
            change()
    assert before == listing(outside)
    assert b"theirs" == place.read("000001/step-000000001/manifest.json")


def test_of_a_checkpoint_that_is_a_link_only_the_link_is_removed(tmp_path, outside):
    (tmp_path / "place/000001").mkdir(parents=True)
    (tmp_path / "place/000001/step-000000001").symlink_to(outside / "step-000000001")
    before = listing(outside)
    FolderPlace(tmp_path / "place").remove("000001/step-000000001")
    assert [] == list((tmp_path / "place/000001").iterdir())
    assert before == listing(outside)


def test_no_file_is_cut_by_way_of_a_link(tmp_path):
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "link").symlink_to("theirs")
    with pytest.raises(OSError, match="symbolic links"):
        disk.truncate(tmp_path / "link", 0)
    disk.truncate(tmp_path / "theirs", 3)
    assert b"the" == (tmp_path / "theirs").read_bytes()


def test_a_file_of_another_run_is_not_healed(tmp_path):
    """Neither in a checkpoint that is a link, nor below a folder in it that is one."""
    own = valid(tmp_path / "run")
    link = tmp_path / "run/checkpoints/step-000000003"
    link.symlink_to(own)
    (own / "folder").mkdir()
    (own / "linked").symlink_to("folder")
    assert checkpoint_fetcher._lies_in_run(Checkpoint(own), "model.safetensors")
    assert checkpoint_fetcher._lies_in_run(Checkpoint(own), "folder/a")
    assert not checkpoint_fetcher._lies_in_run(Checkpoint(own), "linked/a")
    assert not checkpoint_fetcher._lies_in_run(Checkpoint(link), "model.safetensors")
