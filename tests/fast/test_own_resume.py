"""A program's own resume: the values that its files hold, what its optimizer steps show, and what the drill refuses."""

import csv
import json
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from holdfast.cli.drill import command
from holdfast.drill import DrillOptions, DrillReport, report
from holdfast.drill.own_resume import copies, values
from holdfast.drill.own_resume.program import problem_in, require_patterns, verdict_of
from holdfast.drill.own_resume.steps import ObservedStep, find_losses, losses_in_values, resumed_at
from holdfast.drill.plan import fit_budget
from holdfast.drill.report import Loss
from holdfast.errors import UsageError


def step(number, **changed):
    """The step of a run whose weights, order and generators go on with its number."""
    facts = {
        "optimizer": "SGD",
        "weights": 100 + number,
        "gradients": 200 + number,
        "state": 300 + number,
        "held": 2,
        "options": [{"lr": 0.1 / (1 + number), "momentum": 0.9}],
        "generators": {"torch": 400 + number, "python": 7},
        "batches": [500 + number],
    }
    return ObservedStep(**(facts | changed))


WHOLE = [step(number) for number in range(10)]


def kinds(attempt, *, finished=True, before=5):
    return [each.kind for each in find_losses(WHOLE, attempt, before, finished=finished)]


def resumed(at=4, **changed):
    """An attempt that resumed there and goes on as WHOLE does, but for its first step."""
    return [step(at, **changed), *WHOLE[at + 1 :]]


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"state": 1, "held": 0}, "optimizer"),
        ({"options": [{"lr": 0.5, "momentum": 0.9}]}, "scheduler"),
        ({"options": [{"lr": 0.02, "momentum": 0.9, "weight_decay": 1}]}, None),
        ({"generators": {"torch": 1, "python": 7}, "gradients": 1}, "generator"),
        ({"generators": {"torch": 1, "python": 7}, "batches": [1]}, "generator"),
        ({"generators": {"torch": 404, "python": 1}, "gradients": 1}, "gradients"),  # nobody draws from python's
        ({"batches": [502]}, "batches twice"),
        ({"batches": [507]}, "batches skipped"),
        ({"batches": [1]}, "order"),
        ({"batches": []}, "data"),
        ({"batches": [501, 502, 503, 504]}, None),  # it passed over those
        ({"gradients": 1}, "gradients"),
    ],
)
def test_the_first_step_after_a_resume_names_what_was_lost(changed, kind):
    assert kinds(resumed(**changed)) == ([] if kind is None else [kind])


def test_a_step_that_differs_later_names_it_too():
    later = [*WHOLE[4:6], step(6, options=[{"lr": 0.5, "momentum": 0.9}])]
    (loss,) = find_losses(WHOLE, later, 5, finished=False)
    assert (loss.kind, "2 steps after the resume" in loss.what) == ("scheduler", True)


def test_a_resume_that_is_exact_has_lost_nothing_wherever_it_was_killed_again():
    assert kinds(WHOLE[4:]) == kinds(WHOLE[4:7], finished=False) == kinds([], finished=True) == []


def test_a_loader_that_is_one_batch_ahead_draws_none_for_the_last_step():
    """accelerate's does so: the last step's batch is the one that was drawn before."""
    whole = [*WHOLE[:4], step(4, batches=[504, 505]), step(5, batches=[]), *WHOLE[6:]]
    assert find_losses(whole, [step(5, batches=[504, 505]), *WHOLE[6:]], 7, finished=True) == []
    (loss,) = find_losses(whole, [step(5, batches=[503]), *WHOLE[6:]], 7, finished=True)
    assert loss.kind == "batches twice"


def test_steps_too_many_or_too_few_and_a_new_beginning_are_named():
    assert kinds([*WHOLE[4:], step(10)]) == ["steps"]
    assert kinds(WHOLE[4:8]) == ["steps"]
    assert kinds(WHOLE) == ["started over"]
    assert kinds([step(4, weights=1)]) == ["weights"]
    assert resumed_at(WHOLE, []) == 10


def test_of_equal_weights_the_step_with_the_same_optimizer_state_counts():
    """A warm-up from a learning rate of zero moves nothing in its first step."""
    whole = [step(0), step(1, weights=100), step(2)]
    assert resumed_at(whole, [step(0)]) == 0
    assert resumed_at(whole, [step(1, weights=100)]) == 1


def written(path, **files):
    """These files in a folder, by their names with `_` for the dot."""
    path.mkdir()
    for name, content in files.items():
        target = path / ".".join(name.rsplit("_", 1))
        if target.suffix == ".pt":
            torch.save(content, target)
        elif target.suffix == ".npz":
            np.savez(target, x=content)
        elif target.suffix == ".csv":
            with target.open("w", newline="") as file:
                csv.writer(file).writerows(content)
        elif target.suffix == ".jsonl":
            target.write_text("".join(json.dumps(each) + "\n" for each in content))
        else:
            target.write_text(json.dumps(content) if target.suffix == ".json" else content)
    return copies.written_files(path, {})


FILES: dict[str, Any] = {
    "model_pt": {"w": torch.ones(3), "time": 1.0, "epoch": 3},
    "log_csv": [["1", "0.5"], ["2", "0.25"]],
    "rows_jsonl": [{"loss": 1.5}],
    "result_json": {"best": 0.5, "took_s": 1.0, "of": [1, {"x": 2}]},
    "x_npz": np.arange(3),
    "note_txt": "done",
}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, []),
        ({"model_pt": {"w": torch.tensor([1.0, 1.0, 2.0]), "time": 9.0, "epoch": 3}}, ["model.pt w: "]),
        ({"model_pt": {"w": torch.ones(3), "time": 9.0, "epoch": 4}}, ["model.pt epoch: "]),
        ({"log_csv": [["1", "0.5"], ["2", "0.25"], ["2", "0.25"]]}, ["log.csv length: 4 values became 6"]),
        ({"rows_jsonl": [{"loss": 1.75}]}, ["rows.jsonl 0/loss: 1.5 became 1.75"]),
        ({"result_json": {"best": 0.5, "took_s": 8.0, "of": [1, {"x": 3}]}}, ["result.json of/1/x: 2 became 3"]),
        ({"x_npz": np.arange(1, 4)}, ["x.npz x.npy: "]),
        ({"note_txt": "failed"}, ["note.txt: its bytes differ"]),
    ],
)
def test_files_are_compared_by_value_and_without_what_two_undisturbed_runs_leave_otherwise(tmp_path, changed, told):
    """The time in the checkpoint, and that in the result, differ from run to run."""
    first = written(tmp_path / "first", **FILES)
    beside = {
        "model_pt": FILES["model_pt"] | {"time": 2.0},
        "result_json": FILES["result_json"] | {"took_s": 3.0},
    }
    second = written(tmp_path / "second", **(FILES | beside))
    killed = written(tmp_path / "killed", **(FILES | beside | changed))
    compared = values.compare_runs(first, second, killed)
    assert (compared.files, len(compared.differences)) == (6, len(told))
    assert all(str(each).startswith(begin) for each, begin in zip(compared.differences, told, strict=True))


@pytest.mark.parametrize(
    ("killed", "told"), [(["0 9.5", "1 8.5", "2 9.9"], []), (["0 9.5", "1 8.5", "3 7.5"], ["'2' became '3'"])]
)
def test_a_column_of_times_is_not_compared_where_two_runs_took_as_long_by_chance(tmp_path, killed, told):
    """CatBoost's time_left.tsv: most rows differ in two undisturbed runs, and one or another does not."""
    rows = {"first": ["0 9.1", "1 8.1", "2 7.5"], "second": ["0 9.2", "1 8.2", "2 7.5"], "killed": killed}
    paths = [written(tmp_path / name, log_csv=[row.split() for row in content]) for name, content in rows.items()]
    assert [each.what for each in values.compare_runs(*paths).differences] == told


def test_a_file_that_the_killed_run_did_not_leave_is_told(tmp_path):
    first, second = (written(tmp_path / name, **FILES) for name in ("first", "second"))
    killed = {name: path for name, path in first.items() if name != "x.npz"}
    compared = values.compare_runs(first, second, killed)
    assert [*map(str, compared.differences)] == ["x.npz: is not there"]


def test_what_a_kill_left_undone_is_found_and_a_whole_checkpoint_is_not_accused(tmp_path):
    """A resume that fails has a cause: the file that is cut, or the one that a folder still lacks."""
    for name in ("whole", "killed"):
        written(tmp_path / name, model_pt={"w": torch.ones(3)}, state_json={"epoch": 1}, note_txt="x")
    whole, killed = [tmp_path / "whole"], tmp_path / "killed"
    for path in (killed, killed / "state.json", killed / "note.txt", killed / "model.pt"):
        assert problem_in(path, whole) == ""
    (killed / "note.txt").unlink()
    assert problem_in(killed, whole) == "note.txt is missing"
    assert problem_in(killed, [*whole, killed]) == ""  # not each one has it
    for name in ("state.json", "model.pt"):
        written(tmp_path / name, model_pt={"w": torch.ones(3)}, state_json={"epoch": 1})
        (tmp_path / name / name).write_bytes((tmp_path / name / name).read_bytes()[:-5])
        assert name in problem_in(tmp_path / name, [])
        assert name in problem_in(tmp_path / name / name, [])
    (killed / "note.txt").touch()
    assert "empty" in problem_in(killed / "note.txt", [])


def test_a_loss_is_told_where_nothing_could_be_compared():
    """A program without torch that cannot be started again leaves nothing to compare."""
    facts: dict[str, Any] = {"verdict": report.NOT_PROVEN, "command": [], "seed": 1, "kills_asked": 0, "steps": 0}
    assert verdict_of(DrillReport(**facts)) == report.NOT_PROVEN
    assert verdict_of(DrillReport(**facts, losses=[Loss("torn checkpoint", "")])) == report.DIFFERENT
    assert verdict_of(DrillReport(**facts | {"steps": 3})) == report.IDENTICAL


def test_names_say_what_was_lost_where_the_training_was_equal():
    said = [values.ValueDifference("final.pt", "ema/w", "differs"), values.ValueDifference("log.csv", "length", "more")]
    assert [each.kind for each in losses_in_values(said, [])] == ["moving average", "rows"]
    assert [each.kind for each in losses_in_values(said, find_losses(WHOLE, resumed(state=1), 5, finished=True))] == [
        "rows"
    ]
    final = values.ValueDifference("final.npz", "w", "differs")
    for some, known in (([final], ["value"]), ([said[1]], ["rows"]), ([final, said[1]], ["value", "rows"])):
        assert [each.kind for each in losses_in_values(some, [])] == known


def test_a_copy_has_all_but_the_checkpoints_and_links_to_what_is_large_or_hidden(tmp_path, monkeypatch):
    """A program may write into its copy: of what it reads only, a link is enough."""
    monkeypatch.setattr(copies, "LINKED_BYTES", 100)
    source, target = tmp_path / "source", tmp_path / "copy"
    for name, size in {"train.py": 10, "data/large": 200, "data/small": 5, "out/1.pt": 9, ".git/head": 3}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(b"x" * size)
    (source / "train.py").chmod(0o755)
    copies.copy_directory(source, target, ["out/*.pt"])
    assert sorted(os.listdir(target)) == [".git", "data", "out", "train.py"]
    assert os.listdir(target / "out") == []
    assert [(target / "data" / name).is_symlink() for name in ("large", "small")] == [True, False]
    assert (target / ".git").is_symlink()
    assert os.access(target / "train.py", os.X_OK)
    monkeypatch.setattr(copies, "MOST_FILES", 2)
    with pytest.raises(UsageError, match="more than 2 files"):
        copies.copy_directory(source, tmp_path / "again", [])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume-with", "python x.py"], "needs --checkpoints"),
        (["--resume-with", "python 'x.py"], "No closing quotation"),
        (["--github", "--json"], "leave out --json"),
        (["--resume-with", "python x.py", "--checkpoints", "/tmp/*.pt"], "relative to this directory"),
        (["--resume-with", "python x.py", "--checkpoints", "../*.pt"], "relative to this directory"),
        (["--resume-with", "python x.py", "--checkpoints", "*.pt", "--fix"], "--fix adds to scripts with a Run"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, said):
    ended = CliRunner().invoke(command, [*words, "--", "true"])
    assert said in str(ended.exception), ended


def test_as_many_kills_are_done_as_fit_into_the_budget():
    options = DrillOptions(kills=5, budget_s=100)
    assert fit_budget(options, 20, 5, 3).kills == 5
    assert fit_budget(options, 20, 10, 3).kills == 2
    assert fit_budget(DrillOptions(kills=5), 1e9, 1e9, 3).kills == 5
    with pytest.raises(UsageError, match=r"takes about 135 s here, and the budget is 100 s"):
        fit_budget(options, 40, 5, 3)


def test_a_folder_is_a_checkpoint_that_changes_with_any_file_in_it(tmp_path):
    """Trainers write several files into one; the newest folder is the one to resume from."""
    for number in (1, 2):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}/model").write_text("x")
        os.utime(tmp_path / f"checkpoint-{number}/model", (number, number))
    before = copies.list_checkpoints(tmp_path, ["checkpoint-*"])
    assert [path.name for path in before] == ["checkpoint-1", "checkpoint-2"]
    (tmp_path / "checkpoint-1/optimizer").write_text("xy")
    after = copies.list_checkpoints(tmp_path, ["checkpoint-*"])
    assert [path.name for path in after] == ["checkpoint-2", "checkpoint-1"]
    assert after[tmp_path / "checkpoint-1"] != before[tmp_path / "checkpoint-1"]


def test_the_observer_digests_what_a_batch_may_be():
    """Equal content has an equal digest, and another content another, in whatever a loader hands out."""
    from holdfast.drill.own_resume.observe.sitecustomize import digest

    made = [
        {"x": torch.arange(6).reshape(2, 3), "y": [np.arange(3), "text", 1, None]},
        {"x": torch.arange(6).reshape(2, 3).T, "y": [np.arange(3), "text", 1, None]},
        {"x": torch.arange(6).reshape(2, 3), "y": [np.arange(3), "text", 2, None]},
        (torch.zeros(0), SimpleNamespace(a=1)),
        (torch.zeros(0), SimpleNamespace(a=2)),
        b"bytes",
    ]
    assert len({digest(each) for each in made}) == len(made)
    assert digest(made[0]) == digest({"x": torch.arange(6).reshape(2, 3), "y": [np.arange(3), "text", 1, None]})


def test_checkpoints_that_would_be_written_through_a_link_are_refused(tmp_path):
    """The user's own files lie there; what begins with a dot is a link in each copy."""
    (tmp_path / "real").mkdir()
    source = tmp_path / "here"
    (source / ".hidden").mkdir(parents=True)
    (source / "out").symlink_to("../real")
    for pattern in ("out/*.pt", "out/x/*.pt", ".hidden/*.pt"):
        with pytest.raises(UsageError, match="is a link"):
            copies.copy_directory(source, tmp_path / "copy", [pattern])
    copies.copy_directory(source, tmp_path / "copy", ["new/*.pt"])


@pytest.mark.parametrize("option", [{"steps": 3}, {"damage": False}, {"exempt": ("loss",)}, {"save_every_steps": 2}])
def test_what_only_a_run_understands_is_refused(option):
    with pytest.raises(UsageError, match="is for programs with a Run"):
        require_patterns(DrillOptions(resume_with="x {checkpoint}", checkpoints=("*.pt",), **option))
