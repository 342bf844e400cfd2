"""Repair: `holdfast doctor --repair` puts every mess right, touches no whole checkpoint, and then has nothing to do."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

import messes
from holdfast import journal
from holdfast.mirror.folder import Folder
from holdfast.mirror.records import folder
from holdfast.mirror.remote import Remote
from holdfast.store.store import Store
from holdfast.supervise.place import enter
from messes import PLANTS, built, dies, name, run_id
from stores import flip, having, invoke, listing, put, steps, whole
from unread import unreadable


def wholes(root):
    """{name: its files, by identity and content} of every checkpoint that is whole."""
    return {
        checkpoint.path.name: {
            path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
            for path in checkpoint.path.iterdir()
        }
        for checkpoint in Store(root).checkpoints()
        if not list(checkpoint.problems())
    }


def repaired(root, *words):
    told = invoke("doctor", "--repair", root, "--json", *words)
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)["repaired"]


@pytest.mark.parametrize("plant", [*PLANTS, messes.all_at_once], ids=lambda plant: plant.__name__)
def test_a_mess_is_told_put_right_and_gone(tmp_path, plant):
    """Doctor names it, --repair mends it and says so, no whole checkpoint is touched, and the run goes on."""
    root = built(tmp_path / "run")
    run = run_id(root)
    plant(root)
    before = wholes(root)
    told = json.loads(invoke("doctor", root, "--json").stdout)["checks"]
    assert [check for check in told if check["name"] == "mess"] or plant is messes.folder_of_a_doctor
    done = repaired(root)
    assert done or plant is messes.folder_of_a_doctor  # whose successor has removed it already
    after = wholes(root)
    assert before.items() <= after.items()
    assert repaired(root) == []
    assert "nothing to do" in invoke("doctor", "--repair", root).stdout
    assert not [c for c in json.loads(invoke("doctor", root, "--json").stdout)["checks"] if c["name"] == "mess"]
    assert run_id(root) == run
    assert {each["path"] for each in done} <= {line["path"] for line in lines(root)}
    put(Store(root), 5)
    assert {1, 2, 3, 4, 5} <= {*steps(Store(root))}
    assert whole(Store(root).load(), 5)
    assert Store(root).pins() == {name(2)}


def lines(root):
    return [event for log in journal.logs(root) for event in log.events if event["event"] == "repaired"]


def test_a_run_that_is_well_has_nothing_to_do(tmp_path):
    """And no attempt is begun for it."""
    root = built(tmp_path / "run")
    before = listing(root)
    assert repaired(root) == []
    assert listing(root) == before
    assert [log.attempt for log in journal.logs(root)] == [1]


def test_a_run_that_may_be_going_on_is_refused_by_name(tmp_path):
    """Nothing is changed, and doctor does not call what it has under way a mess."""
    root = built(tmp_path / "run")
    messes.half_export(root)
    store = Store(root)
    messes.half(store.claim().room / name(9))
    before = listing(root)
    told = invoke("doctor", "--repair", root)
    assert told.exit_code == 2
    assert "attempt 2 may still be running" in told.stderr
    assert listing(root) == before
    assert "mess" not in invoke("doctor", root).stdout


def aside(root, step, word="damaged"):
    """A checkpoint that was set aside and is whole."""
    store = Store(root, keep=messes.KEEP)
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
    messes.half_export(root)
    back = [each for each in repaired(root) if each["cure"] == "bring back"]
    assert (len(back), (root / "checkpoints" / name(4)).exists()) == ((1, True) if step == 4 else (0, False))


def test_what_is_no_damage_any_more_and_what_was_a_decision_stay_apart(tmp_path):
    """What the user went back from, what is still damaged, and another run's stay in quarantine."""
    root = built(tmp_path / "run")
    aside(root, 4, "went-back")
    flip(aside(root, 3) / "model.safetensors")
    other = having(tmp_path / "other", 1).root
    shutil.copytree(other / "checkpoints" / name(1), root / "quarantine" / f"{name(6)}-damaged")
    shutil.copytree(other / "checkpoints" / name(1), root / "quarantine" / f"{name(1)}-damaged")
    assert repaired(root) == []
    assert len(list((root / "quarantine").iterdir())) == 4


@pytest.mark.parametrize("file", ["manifest.json", "model.safetensors"])
@pytest.mark.parametrize("place", ["checkpoints", "quarantine"])
def test_what_cannot_be_read_is_no_damage_and_stays(tmp_path, place, file):
    """Repair names it, exits with 12 and puts the rest right. It comes back once it can be read."""
    root = built(tmp_path / "run")
    bad = root / "checkpoints" / name(4) if place == "checkpoints" else aside(root, 4)
    bad /= file
    seen = (place, file) != ("checkpoints", "model.safetensors")  # bytes of checkpoints are not read
    (root / "run.json").unlink()
    messes.half_export(root)
    before = listing(bad.parent)
    with unreadable(bad):
        assert (f"{bad}" in invoke("doctor", root).stdout) == seen
        for first in (True, False):
            told = invoke("doctor", "--repair", root)
            assert (12 if seen else 0, "") == (told.exit_code, told.stderr), told.output
            assert (f"{bad.parent}: cannot be read now: " in told.stdout) == seen
            assert (str(bad) in told.stdout) == seen
            assert first == ("put right" in told.stdout)
            assert listing(bad.parent) == before
        facts = json.loads(invoke("doctor", "--repair", root, "--json").stdout)
        assert ([], int(seen)) == (facts["repaired"], len(facts["left"]))
    assert ["bring back"] * (place == "quarantine") == [each["cure"] for each in repaired(root)]
    assert steps(Store(root)) == [1, 2, 3, 4]


@pytest.mark.parametrize("size", [0, 100])
def test_a_damaged_manifest_is_left_to_the_next_start_and_named(tmp_path, size):
    """Repair does not say that there is nothing wrong: exit 4."""
    root = built(tmp_path / "run")
    bad = root / "checkpoints" / name(4)
    os.truncate(bad / "manifest.json", size)
    before = listing(root / "checkpoints")
    told = invoke("doctor", "--repair", root)
    assert (4, "") == (told.exit_code, told.stderr), told.output
    assert f"{bad}: its manifest is damaged: " in told.stdout
    assert "moves it to quarantine/" in told.stdout
    assert before == listing(root / "checkpoints")
    assert f"warning  mess: {bad}: its manifest is damaged: " in invoke("doctor", root).stdout
    messes.half_export(root)
    told = invoke("doctor", "--repair", root)
    assert (4, True) == (told.exit_code, "1 put right" in told.stdout)


def test_what_is_no_mess_of_ours_stays(tmp_path):
    """Files of the user's, in whatever folder of the run, are neither told nor touched."""
    root = built(tmp_path / "run")
    for path in ("notes.txt", "checkpoints/notes", "checkpoints/step-9", "history/x", "quarantine/x", ".hidden"):
        (root / path).write_text("mine")
    before = listing(root)
    assert repaired(root) == []
    assert listing(root) == before


def test_a_fresh_draft_is_left_to_its_process(tmp_path):
    """What may be of a start or a pin under way stays for an hour."""
    root = built(tmp_path / "run")
    for plant in (messes.draft_of_run_json, messes.half_pin, messes.folder_of_a_doctor):
        plant(root)
    for path in (root / ".run-0123.json", root / "pins/.0123.part", root / ".holdfast-doctor-123"):
        os.utime(path)
    assert repaired(root) == []


def test_half_copies_in_a_mirror_go_when_who_made_them_is_gone(tmp_path):
    """Whole copies, and half ones of an attempt that may be alive, stay."""
    root, place = built(tmp_path / "run"), tmp_path / "mirror"
    remote, text = Remote(Folder(place)), (root / "run.json").read_text()
    for attempt in (1, 2):
        remote.claim(attempt, text, {"host": "elsewhere"}, None)
        messes.half(place / folder(attempt, name(9)))
        if attempt == 1:
            remote.copy(1, root / "checkpoints" / name(1))
            remote.end(1)
    left = place / "claims/.000001.json.0123.new"
    left.write_bytes(b"half")
    messes.aged(left)
    before = listing(place / folder(1, name(1)))
    assert [Path(each["path"]).relative_to(place).as_posix() for each in repaired(place)] == [
        folder(1, name(9)),
        "claims/.000001.json.0123.new",
    ]
    assert listing(place / folder(1, name(1))) == before
    assert (place / folder(2, name(9))).exists()
    assert repaired(place) == []


def test_what_killed_supervisors_left_goes(tmp_path):
    """Their signs of life, and the empty script of a submission; those of a living one stay."""
    place, (heard, told) = tmp_path / "work", os.pipe()

    def live():
        enter(place, "x", tmp_path, {})
        os.write(told, b"x")
        signal.pause()

    child = os.fork()
    if child == 0:
        live()
    os.read(heard, 1)
    (sign,) = place.glob("alive-*")
    assert repaired(place) == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert [each["path"] for each in repaired(place)] == [str(sign)]
    assert repaired(place) == []
    submitted = tmp_path / "submitted"
    submitted.mkdir()
    (submitted / "job.sh").write_bytes(b"")
    messes.aged(submitted / "job.sh")
    assert [each["path"] for each in repaired(submitted)] == [str(submitted / "job.sh")]
    assert not submitted.exists()


def test_where_there_is_no_run_one_line_says_so(tmp_path):
    """With the exit code of what was not found, or of a use that can be mended."""
    assert invoke("doctor", "--repair", tmp_path).exit_code == 3
    assert invoke("doctor", "--repair").exit_code == 2
    assert invoke("doctor", "--repair", built(tmp_path / "run") / "checkpoints" / name(1)).exit_code == 0
