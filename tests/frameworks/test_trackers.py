"""What W&B and MLflow show of a run that was killed: their own files, read back by their own means."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast import journal
from holdfast.track.to_wandb import _records

TESTS = Path(__file__).parents[1]
SCRIPT = TESTS / "frameworks" / "scripts" / "tracked.py"
MAGIC, LAST = 7, 24
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what MLflow imports


def at_wandb(place):
    """Of each run at W&B, by its name: its rows as (step, values), its notes and its config."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = {}
    for file in sorted(place.glob("run/trackers/wandb/offline-run-*/*.wandb")):
        for _, data in _records(file, MAGIC):
            record = Record.FromString(data)
            if record.HasField("run"):
                rows, notes, config = found.setdefault(record.run.display_name, ([], [], {}))
                notes.append(record.run.notes)
            for item in record.config.update:
                config[item.key] = json.loads(item.value_json)
            if record.HasField("history"):
                row = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
                assert row["_step"] == record.history.step.num
                rows.append((row["_step"], {name: row[name] for name in sorted(row) if name[0] != "_"}))
    return found


def at_mlflow(place):
    """The same of MLflow, by its client. A value that stands there twice fails."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{place}/db/mlflow.db")
    found = {}
    for run in client.search_runs([client.get_experiment_by_name("digits").experiment_id]):
        rows = {}
        for name in sorted(run.data.metrics):
            for point in client.get_metric_history(run.info.run_id, name):
                assert name not in rows.setdefault(point.step, {}), f"{name} twice at {point.step}"
                rows[point.step][name] = point.value
        assert run.info.run_name not in found
        notes = [run.data.tags.get("mlflow.note.content", "")]
        found[run.info.run_name] = sorted(rows.items()), notes, run.data.params
    return found


def logged(place, first=1):
    """What the metrics log says, a row a step."""
    rows = {}
    for line in journal.metrics(place / "run"):
        rows.setdefault(line["step"], {}).update(line["values"])
    return [(step, dict(sorted(values.items()))) for step, values in sorted(rows.items()) if step >= first]


def started(place, **options):
    (place / "home").mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, SCRIPT, "run"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(TESTS), "HOME": str(place / "home"), "TRACKED": json.dumps(options)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def train(place, **options):
    """One attempt; return what it said."""
    with started(place, **options) as process:
        said = process.communicate(timeout=300)[0]
    assert process.returncode == (-signal.SIGKILL if options.get("kill") else 0), said
    return said


@pytest.fixture(scope="module")
def new_place(tmp_path_factory):
    """A function that makes a folder with an empty store of MLflow, which takes long to make."""
    pytest.importorskip("wandb")
    mlflow = pytest.importorskip("mlflow")
    empty = tmp_path_factory.mktemp("store") / "mlflow.db"
    mlflow.MlflowClient(f"sqlite:///{empty}").search_experiments()

    def made():
        place = tmp_path_factory.mktemp("tracked")
        (place / "db").mkdir()
        (place / "db" / "mlflow.db").write_bytes(empty.read_bytes())
        return place

    return made


@pytest.fixture(scope="module")
def unkilled(new_place):
    place = new_place()
    said = train(place)
    assert "not kept up" not in said
    return place


def test_a_run_that_was_not_killed_stands_there_as_it_was_logged(unkilled):
    """Each step once, with the ends of the epochs; hyperparameters without their secrets."""
    assert [*range(1, LAST + 1)] == [step for step, _ in logged(unkilled)]
    for shown in (at_wandb(unkilled), at_mlflow(unkilled)):
        rows, _, config = shown["run"]
        assert logged(unkilled) == rows
        assert ("0.1", "[redacted]") == (str(config["lr"]), config["token"])


def test_after_five_kills_their_export_is_that_of_the_unkilled_run(new_place, unkilled):
    """In mid-epoch, some when the trackers have all that is durable, some before they have begun."""
    place, dice = new_place(), random.Random(29)
    for sent in (True, False, False, True, False):
        train(place, kill=dice.randint(4, 6), sent=sent)
    said = train(place)
    assert "in 6 attempts" in said
    assert at_wandb(unkilled)["run"][0] == at_wandb(place)["run"][0]
    assert at_mlflow(unkilled)["run"][0] == at_mlflow(place)["run"][0]
    assert ["run"] == [*at_wandb(place)] == [*at_mlflow(place)]
    kept = b"".join(file.read_bytes() for file in (place / "run").rglob("*") if file.is_file())
    assert b"hunter22" not in kept


def workers(process):
    """The processes that serve the trackers of this attempt."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(each) for each in children if b"holdfast.track" in Path(f"/proc/{each}/cmdline").read_bytes()]


@pytest.mark.parametrize(("tracker", "seed", "longest_s"), [("wandb", 1, 4), ("wandb", 2, 3), ("mlflow", 3, 9)])
def test_a_worker_that_is_killed_at_any_time_repeats_nothing(tracker, seed, longest_s, new_place):
    """Between a batch, its answer and the note of it, and while it opens the run. The training goes on."""
    place, dice, killed = new_place(), random.Random(seed), 0
    with started(place, sleep=1.0, trackers=[tracker]) as process:
        while process.poll() is None:
            time.sleep(dice.uniform(0.5, longest_s))
            for worker in workers(process) if process.poll() is None else ():
                os.kill(worker, signal.SIGKILL)
                killed += 1
            if len(logged(place)) == LAST:
                break
        said = process.communicate(timeout=300)[0]
    assert 0 == process.returncode, said
    assert killed > 2
    assert "is not kept up: its process ended (signal 9); it is tried again" in said
    shown = at_wandb(place) if tracker == "wandb" else at_mlflow(place)
    assert logged(place) == shown["run"][0]
    assert ["run"] == [*shown]


def test_a_tracker_that_is_away_for_the_first_half_is_caught_up(new_place):
    """One line says that it is away, and one that it is back."""
    place = new_place()
    (place / "db" / "mlflow.db").unlink()
    (place / "db").rmdir()
    (place / "db").touch()  # MLflow's store cannot be opened there; the script makes way for it in step 12
    said = train(place, sleep=1.5, trackers=["mlflow"])
    assert 1 == said.count("MLflow sqlite:///db/mlflow.db digits is not kept up: its process ended")
    assert 1 == said.count("is kept up again")
    assert logged(place) == at_mlflow(place)["run"][0]


def test_steps_that_come_again_are_sent_again_only_with_other_values(new_place):
    """After `go_back`: equal ones stand there once; others stand in a run of their own, with a note."""
    place = new_place()
    train(place)
    whole = logged(place)
    assert "came again" not in train(place, go_back=12)
    for shown in (at_wandb(place), at_mlflow(place)):
        assert [whole] == [rows for rows, _, _ in shown.values()]
    said = train(place, go_back=15, shift=1.0)
    assert 2 == said.count("step 16 came again with other values than run (")
    for shown in (at_wandb(place), at_mlflow(place)):
        assert {"run", "run-from-step-16"} == {*shown}
        assert whole == shown["run"][0]
        rows, notes, _ = shown["run-from-step-16"]
        assert logged(place, 16) == rows != whole[15:]
        assert "at step 16, with other values" in notes[0]
    told = [event for log in journal.logs(place / "run") for event in log.events if event["event"] == "tracker_told"]
    assert 2 == len(told)
