"""Files that were made 64 GiB long, nearly all of it a hole, in the place of small ones: read in little memory."""

import os

import pytest

from holdfast import journal
from holdfast.errors import Damaged, UsageError
from holdfast.store import format
from holdfast.store.attempt import read_run
from holdfast.store.checkpoint import Checkpoint
from hostile_stores import rewrite, two_ranks, valid
from small_rooms import in_a_small_room
from stores import invoke

HUGE_BYTES = 64 << 30
ROOM_BYTES = 256 << 20


def codes(*asked):
    """The exit codes of commands, each in little memory, and what they say of an error."""

    def law():
        told = [invoke(*words.split()) for words in asked]
        return [f"{each.exit_code}{each.stderr}" for each in told]

    return in_a_small_room(law, ROOM_BYTES)


def test_a_manifest_of_64_gib_is_damage(tmp_path):
    folder = valid(tmp_path)
    os.truncate(folder / "manifest.json", HUGE_BYTES)
    ls, verify, show = codes(f"ls {tmp_path}", f"verify {tmp_path}", f"show {tmp_path}")
    assert ("0", "4") == (ls, verify)
    assert show.startswith("4holdfast: ")
    assert f"manifest.json: {HUGE_BYTES} bytes long; whole, it has at most {format.MOST_BYTES}" in show


def test_a_ranks_part_of_64_gib_is_damage(tmp_path):
    """What needs only the other parts goes on."""
    folder = two_ranks(tmp_path)
    size = (folder / "rank-00001.json").stat().st_size
    os.truncate(folder / "rank-00001.json", HUGE_BYTES)
    ls, verify, show = codes(f"ls {tmp_path}", f"verify {tmp_path}", f"show {tmp_path} --rank 1")
    assert ("0", "4") == (ls, verify)
    assert f"rank-00001.json: {HUGE_BYTES} bytes long; whole, it has at most {size}" in show
    assert Checkpoint(folder).as_rank(0).head.step == 7


def test_a_part_whose_manifest_says_64_gib_is_not_read_either(tmp_path):
    """The manifest is a stranger's, too."""
    folder = two_ranks(tmp_path)
    rewrite(folder, lambda fields: fields["files"]["rank-00001.json"].update(size_bytes=HUGE_BYTES))
    os.truncate(folder / "rank-00001.json", HUGE_BYTES)
    verify, show = codes(f"verify {tmp_path}", f"show {tmp_path} --rank 1")
    assert verify == "4"
    assert f"at most {format.MOST_BYTES}" in show


def test_a_hole_in_a_journal_ends_a_line(tmp_path):
    """The lines on both sides of it are read."""
    valid(tmp_path)
    path = journal.logs(tmp_path)[0].path
    before = journal.read(path)
    os.truncate(path, HUGE_BYTES)
    journal.append(path, [{"event": "told", "time": 1.0}])

    def law():
        return [str(event["event"]) for event in journal.read(path)]

    assert [*(event["event"] for event in before), "told"] == in_a_small_room(law, ROOM_BYTES)
    assert ["0"] == codes(f"ls {tmp_path}")


def test_a_run_json_of_64_gib_is_damage(tmp_path):
    valid(tmp_path)
    os.truncate(tmp_path / "run.json", HUGE_BYTES)
    with pytest.raises(Damaged, match=r"run\.json: not what Holdfast wrote"):
        read_run(tmp_path)


def test_a_state_that_needs_a_larger_manifest_is_not_saved(monkeypatch):
    """It could not be read."""
    monkeypatch.setattr(format, "MOST_BYTES", 1 << 20)
    with pytest.raises(UsageError, match="put numbers into arrays"):
        format.require_small_tree(b"x")
