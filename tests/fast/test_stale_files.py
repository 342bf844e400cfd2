"""Stale files: `holdfast doctor` names what helps nobody in a run's directory, says what to do, and changes nothing."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import stale_files
from holdfast import Every, Last, Run
from holdfast.errors import Damaged
from holdfast.mirror.folder import FolderPlace
from holdfast.mirror.records import copy_folder
from holdfast.mirror.remote import RemoteRun
from holdfast.store.store import Store
from holdfast.supervise.place import enter_directory
from stale_files import PLANTS, built, dies, name
from stores import having, invoke, listing, steps
from toy import Cut, Passes, Toy
from unread import unreadable


def found(place):
    """What doctor says of stale files: (level, what, todo). It leaves all of it as it is."""
    before = listing(place)
    before.pop(".holdfast-doctor-123", None)  # of a doctor that was killed: the next one removes it
    told = json.loads(invoke("doctor", place, "--json").stdout)["checks"]
    assert listing(place) == before
    return [(each["level"], each["what"], each["todo"]) for each in told if each["name"] == "mess"]


def train(root, cut=None):
    random.seed(3)
    toy, passes = Toy(), Passes(cut)
    with Run(root, {"toy": toy}, every=Every(steps=1), keep=Last(3), background=False) as run:
        for _ in run.epochs(3):
            for batch in run.batches(range(4)):
                passes.one()
                toy.learn(batch)
                run.log(loss=toy.value % 7)
    return toy.value, [(line["step"], line["values"]) for line in run.metrics()]


@pytest.mark.parametrize("plant", [stale_files.all_at_once, *PLANTS[::5]], ids=lambda plant: plant.__name__)
def test_a_stale_file_is_told_and_the_run_ends_with_the_same_bits(tmp_path, plant):
    """Killed, littered and resumed: the state and the log are those of a run that nothing happened to.

    All at once, and some alone; tests/prove has each alone.
    """
    is_told(tmp_path, plant)


def is_told(tmp_path, plant):
    wanted = train(tmp_path / "alone")
    root = tmp_path / "a run"
    with pytest.raises(Cut):
        train(root, cut=7)
    plant(root)
    told = found(root)
    assert told or plant is stale_files.folder_of_a_doctor  # whose successor has removed it already
    assert all(todo for _, _, todo in told)
    stops = [todo for level, _, todo in told if level == "problem"]
    assert bool(stops) == (plant in (stale_files.odd_run_json, stale_files.all_at_once))
    if stops:
        assert f"holdfast doctor '{root}' says what to do first" in invoke("status", root).stdout
        with pytest.raises(Damaged, match="move it away"):
            train(root)
        (todo,) = stops
        subprocess.run(shlex.split(todo.split("`")[1]), check=True)
    assert train(root) == wanted
    left = " ".join(what for _, what, _ in found(root))
    assert not [word for word in ("left by attempt", "latest", "run.json ") if word in left], left


def test_a_run_that_is_well_has_no_mess(tmp_path):
    assert found(built(tmp_path / "run")) == []


def test_what_a_run_that_may_be_going_on_has_under_way_is_no_mess(tmp_path):
    root = built(tmp_path / "run")
    stale_files.half_export(root)
    stale_files.half(Store(root).claim().room / name(9))
    assert found(root) == []


def aside(root, step, word="damaged"):
    """A checkpoint that was set aside and is whole."""
    store = Store(root, keep=stale_files.KEEP)
    path = store.quarantine(store[step], word)
    store.close()
    return path


def restored(root, step):
    """A later attempt that went on from that step."""
    dies(root, lambda store: (store.attempt.record("restored", step=step, phase="step"), store.attempt.flush()))


@pytest.mark.parametrize("step", [4, 3])
def test_a_later_start_from_an_earlier_step_keeps_it_in_quarantine(tmp_path, step):
    """The run has gone on without it: it is no longer of the run's present. From its own step on it is."""
    root = built(tmp_path / "run")
    aside(root, 4)
    restored(root, step)
    told = [todo for _, what, todo in found(root) if "lacks no file" in what]
    assert len(told) == (step == 4)
    for todo in told:
        verify, move = todo.split("`")[1::2]
        assert 0 == invoke(*shlex.split(verify)[1:]).exit_code
        subprocess.run(shlex.split(move), check=True)
        assert steps(Store(root)) == [1, 2, 3, 4]


def test_what_is_still_damaged_and_what_was_a_decision_stay_apart(tmp_path):
    """What the user went back from, what lacks a file, and another run's."""
    root = built(tmp_path / "run")
    aside(root, 4, "went-back")
    (aside(root, 3) / "model.safetensors").unlink()
    other = having(tmp_path / "other", 1).root
    shutil.copytree(other / "checkpoints" / name(1), root / "quarantine" / f"{name(6)}-damaged")
    shutil.copytree(other / "checkpoints" / name(1), root / "quarantine" / f"{name(1)}-damaged")
    assert found(root) == []


@pytest.mark.parametrize("place", ["checkpoints", "quarantine"])
def test_what_cannot_be_read_is_no_damage(tmp_path, place):
    root = built(tmp_path / "run")
    bad = root / "checkpoints" / name(4) if place == "checkpoints" else aside(root, 4)
    with unreadable(bad / "manifest.json"):
        ((level, what, todo),) = [each for each in found(root) if "cannot be read now: " in each[1]]
    assert ("warning", "ask again later") == (level, todo)
    assert what.startswith(f"{bad}: ")


@pytest.mark.parametrize("size", [0, 100])
def test_a_damaged_manifest_is_named_and_the_next_start_sees_to_it(tmp_path, size):
    root = built(tmp_path / "run")
    bad = root / "checkpoints" / name(4)
    os.truncate(bad / "manifest.json", size)
    told = [each for each in found(root) if each[1].startswith(f"{bad}: its manifest is damaged: ")]
    assert ["warning"] == [level for level, _, _ in told]
    assert "moves it to quarantine/" in told[0][2]


def test_what_is_no_mess_of_ours_is_not_told(tmp_path):
    """Files of the user's, in whatever folder of the run."""
    root = built(tmp_path / "run")
    for path in ("notes.txt", "checkpoints/notes", "checkpoints/step-9", "history/x", "quarantine/x", ".hidden"):
        (root / path).write_text("mine")
    assert found(root) == []


def test_a_fresh_draft_is_left_to_its_process(tmp_path):
    """What may be of a start or a pin under way is no stale file for an hour."""
    root = built(tmp_path / "run")
    for plant in (stale_files.draft_of_run_json, stale_files.half_pin):
        plant(root)
    for path in (root / ".run-0123.json", root / "pins/.0123.part"):
        os.utime(path)
    assert found(root) == []


def test_half_copies_in_a_mirror_are_told_when_who_made_them_is_gone(tmp_path):
    """Whole copies, and half ones of an attempt that may be alive, are not."""
    root, place = built(tmp_path / "run"), tmp_path / "mirror"
    remote, text = RemoteRun(FolderPlace(place)), (root / "run.json").read_text()
    for attempt in (1, 2):
        remote.claim(attempt, text, {"host": "elsewhere"}, None)
        stale_files.half(place / copy_folder(attempt, name(9)))
        if attempt == 1:
            remote.copy(1, root / "checkpoints" / name(1))
            remote.note_end(1)
    left = place / "claims/.000001.json.0123.new"
    left.write_bytes(b"half")
    stale_files.aged(left)
    paths = [Path(what.partition(": ")[0]).relative_to(place).as_posix() for _, what, _ in found(place)]
    assert paths == [copy_folder(1, name(9)), "claims/.000001.json.0123.new"]


def test_what_killed_supervisors_left_is_told(tmp_path):
    """Their signs of life, and the empty script of a submission; those of a living one are not."""
    place, (heard, told) = tmp_path / "work", os.pipe()

    def live():
        enter_directory(place, "x", tmp_path, {})
        os.write(told, b"x")
        signal.pause()

    child = os.fork()
    if child == 0:
        live()
    os.read(heard, 1)
    (sign,) = place.glob("alive-*")
    assert found(place) == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert [str(sign)] == [what.partition(": ")[0] for _, what, _ in found(place)]
    submitted = tmp_path / "submitted"
    submitted.mkdir()
    (submitted / "job.sh").write_bytes(b"")
    stale_files.aged(submitted / "job.sh")
    assert [str(submitted / "job.sh")] == [what.partition(": ")[0] for _, what, _ in found(submitted)]
