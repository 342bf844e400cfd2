"""holdfast.ultralytics: a detector that is killed in mid-epoch ends as one that is not."""

import json
from importlib import import_module

import pytest
from ultralytics.models.yolo.detect import DetectionTrainer

from framework_runs import trained
from holdfast.errors import UsageError
from holdfast.trainers.known import NAMES
from holdfast.trainers.names import unknown_digest, why_not_wrapped
from holdfast.ultralytics import Holdfast

TABLE = "table: beside the frameworks' own mechanisms: docs/exactness.md"
BATCHES = 30  # 3 epochs of 10


@pytest.mark.parametrize("name", NAMES["ultralytics"], ids=lambda name: name.path)
def test_a_name_is_as_known(name):
    import_module(name.path.partition(":")[0])
    assert why_not_wrapped(name) == unknown_digest(name) == ""


@pytest.fixture
def fit(zygotes, tmp_path, monkeypatch):
    """Train in a folder of that name, until it is done."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("YOLO_VERBOSE", "false")  # an import prints nothing
    python = zygotes("numpy", "cv2", "struck", "ultralytics", "ultralytics.models.yolo.detect", "holdfast.ultralytics")

    def done(name, *arguments, strikes=()):
        return trained(python, "ultralytics_fit", tmp_path / name, *arguments, strikes=strikes)

    return done


CASES = {  # three batches to a step do not divide an epoch; the last epoch has no mosaics
    "nbs=12": ("batch:6:KILL", "batch:17:TERM", "batch:3:KILL"),  # the second at an end with a pending gradient
    "nbs=8 workers=2": ("batch:14:TERM", "batch:14:KILL"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_killed_training_ends_as_an_uninterrupted_one(case, fit, tmp_path):
    """Model, moving average, best.pt and results.csv; pending gradients, warm-up and mosaics of workers among it."""
    whole = fit("whole", "holdfast", *case.split())
    killed = fit("killed", "holdfast", *case.split(), strikes=CASES[case])
    assert killed.exits[-1] == 0
    assert whole.result == killed.result
    seen = (tmp_path / "killed/batches").read_text()
    again = json.loads(fit("killed", "holdfast", *case.split()).result)  # trains nothing, and validates best.pt
    assert (tmp_path / "killed/batches").read_text() == seen
    assert (again["best"], again["log"]) == (json.loads(whole.result)["best"], json.loads(whole.result)["log"])


def test_its_own_resume_loses_this_and_ours_nothing(fit, tmp_path, record_property):
    """The results.csv of a resumed training goes another way: ultralytics/ultralytics#2235 (2023), #23973 (2026)."""
    kill = ("batch:16:KILL",)
    plain, own = fit("plain", "none"), fit("own", "own", strikes=kill)
    ours, killed = fit("ours", "holdfast"), fit("killed", "holdfast", strikes=kill)
    batches = {name: len((tmp_path / name / "batches").read_text().splitlines()) for name in ("own", "killed")}
    record_property(TABLE, f"ultralytics | {batches['own']} and {batches['killed']} of {BATCHES}")
    assert killed.result == ours.result
    one, other = json.loads(own.result), json.loads(plain.result)
    assert (one["weights"] == other["weights"], one["log"] == other["log"]) == (False, False)
    assert one["log"][:2] == other["log"][:2]  # equal until the interruption
    assert batches == {"own": 16 + 20, "killed": 16 + 15}


@pytest.mark.parametrize(
    ("given", "said"),
    [({}, "Give exist_ok=True"), ({"time": 1.0}, "Give epochs="), ({"batch": -1}, "found by trial")],
)
def test_what_could_not_be_exact_is_refused(given, said, tmp_path):
    """Each with the word to give instead."""
    (tmp_path / "val").mkdir()
    (tmp_path / "data.yaml").write_text(f"path: {tmp_path}\ntrain: val\nval: val\nnames: [a]")
    fixed = {"model": "yolo26n.yaml", "data": str(tmp_path / "data.yaml"), "device": "cpu", "project": str(tmp_path)}
    walked = Holdfast(tmp_path / "run", trainer=DetectionTrainer)
    with pytest.raises(UsageError, match=said):
        walked({**fixed, "task": "detect", "exist_ok": bool(given), **given})
