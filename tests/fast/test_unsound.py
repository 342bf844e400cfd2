"""Weights that are infinite or NaN: the save that finds them says so, and the last checkpoint without them stays."""

import errno
import math
import os
import signal
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from holdfast import Best, Every, Last, Run, Store, disk, journal
from holdfast.errors import NotFinite, UsageError
from holdfast.mirror.records import parse_copy
from holdfast.rules import Whole
from holdfast.store.checkpoint_index import CheckpointIndex
from run_ranks import among_threads
from stores import asked, invoke
from toy import Toy, events, names, new_run

WRONG = [math.nan, math.inf, -math.inf]


def objects(width=3, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width)).to(dtype)
    model.register_buffer("mask", torch.full((width, width), -math.inf).triu(1))
    return {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)}


def learn(state):
    state["optimizer"].zero_grad()
    dtype = next(state["model"].parameters()).dtype
    state["model"](torch.randn(4, 2).to(dtype)).square().sum().backward()
    state["optimizer"].step()


def spoil(state, value=math.nan):
    with torch.no_grad():
        state["model"][0].weight[1, 1] = value


def train(path, state, steps, spoiled=(), **options):
    """A run in which the weights are spoiled in these steps, and whole again in the next one."""
    whole: dict[str, Any] = {}
    with Run(path, state, **{"every": Every(steps=1), "keep": Last(99), "background": False, **options}) as run:
        for step in run.steps(steps):
            state["model"].load_state_dict(whole, strict=False)
            learn(state)
            whole = {}
            if step + 1 in spoiled:
                whole = {name: tensor.clone() for name, tensor in state["model"].state_dict().items()}
                spoil(state)
            yield step + 1


def done(training):
    for _ in training:
        pass


def found(path):
    return {checkpoint.step: checkpoint.head.not_finite for checkpoint in Store(path).checkpoints()}


def told(path):
    return [event for event in events(path, "told") if event.get("kind") == "not_finite"]


@pytest.mark.parametrize(
    ("dtype", "value", "background"),
    [
        (dtype, value, background)
        for dtype, background in zip(
            (torch.float32, torch.float64, torch.bfloat16, torch.float16), cycle((True, False)), strict=False
        )
        for value in WRONG
    ],
)
def test_a_weight_that_is_not_finite_marks_the_checkpoint(tmp_path, dtype, value, background):
    """Of each precision, whichever way it is saved; the marks name the leaves, and the ones before have none."""
    state = objects(dtype=dtype)
    with Run(tmp_path, state, every=Every(steps=1), keep=Last(9), background=background) as run:
        for step in run.steps(3):
            learn(state)
            if step == 2:
                spoil(state, value)
            run.save()
    assert {1: [], 2: [], 3: ["model/0.weight"]} == found(tmp_path)
    marked = [key for key, leaf in Store(tmp_path)[3].manifest.leaves.items() if leaf.finite is False]
    assert ["model/0.weight"] == marked


def test_a_moment_marks_it_too(tmp_path):
    """The weights follow one step later."""
    state = objects()
    with Run(tmp_path, state, every=None) as run:
        for _ in run.steps(1):
            learn(state)
            state["optimizer"].state[state["model"][0].bias]["exp_avg_sq"][0] = math.inf
    assert {1: ["optimizer/state/1/exp_avg_sq"]} == found(tmp_path)


class Picky(torch.optim.SGD):
    """An optimizer that remembers a bound in a tensor of its own."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["best"] = torch.tensor(math.inf)
            for parameter in group["params"]:
                self.state[parameter]["best"] = torch.tensor(math.inf)


def test_infinities_that_are_normal_mark_nothing(tmp_path, capsys):
    """Masks and statistics in buffers, a plateau's best, the bounds of an optimizer, variables, plain values."""
    state: dict[str, Any] = objects()
    state["optimizer"] = Picky(state["model"].parameters(), lr=0.01, momentum=0.9)
    state["plateau"] = torch.optim.lr_scheduler.ReduceLROnPlateau(state["optimizer"])
    state["values"] = {"best": math.inf, "tensor": torch.full((3,), math.nan), "array": np.array([np.inf])}
    state["model"][1].running_var.fill_(math.inf)
    with Run(tmp_path, state, every=None, vars={"best": math.inf, "array": np.array([np.nan])}) as run:
        for _ in run.steps(1):
            learn(state)
    assert {1: []} == found(tmp_path)
    assert "not_finite" not in Store(tmp_path)[1].path.joinpath("manifest.json").read_text()
    assert "finite" not in capsys.readouterr().err


def test_parameters_are_known_wherever_they_stand(tmp_path):
    """In containers, wrapped, tied, laid out otherwise, alone; a tensor without gradients is no parameter."""
    tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    tied["b"].weight = tied["a"].weight
    images: Any = nn.Conv2d(2, 2, 3)
    images = images.to(memory_format=torch.channels_last)
    wrapped = nn.DataParallel(nn.Linear(2, 2, bias=False))
    state: dict[str, Any] = {
        "nets": {"list": [tied, images], "wrapped": wrapped},
        "alone": nn.Parameter(torch.ones(2)),
        "plain": {"grad": torch.ones(2, requires_grad=True), "none": torch.ones(2)},
    }
    with torch.no_grad():
        plain = state["plain"]
        for each in (tied["b"].weight, wrapped.module.weight, state["alone"], *plain.values()):
            each.view(-1)[0] = math.nan
        images.weight[1, 1, 2, 2] = math.inf
    with Run(tmp_path, state, every=None) as run:
        for _ in run.steps(1):
            pass
    keys = {"nets/list/0/a.weight", "nets/list/1/weight", "nets/wrapped/weight", "alone", "plain/grad"}
    assert keys == {*found(tmp_path)[1]}


@given(st.data())
def test_a_number_anywhere_in_a_big_leaf_is_found(tmp_path_factory, data):
    """Whatever lies around it: files of several chunks, leaves that begin inside one, copied or as they lie."""
    path = tmp_path_factory.mktemp("run")
    sizes = data.draw(st.lists(st.sampled_from([1, 3, 1000, (1 << 17) + 3, (1 << 20) + 5]), min_size=1, max_size=5))
    weights = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in sizes])
    which = data.draw(st.integers(0, len(sizes) - 1))
    where = data.draw(st.integers(0, sizes[which] - 1) | st.just(sizes[which] - 1))
    with Run(path, {"model": weights}, every=Every(steps=1), background=data.draw(st.booleans())) as run:
        for step in run.steps(2):
            with torch.no_grad():
                weights[which][where] = step or math.nan
                if not step:
                    run.save()
    assert [f"model/{which}"] == found(path)[1]
    assert [] == found(path)[2]


def test_a_leaf_that_is_linked_keeps_its_mark(tmp_path):
    """Its bytes are not looked at again, also after a restart. Once it is written anew, it is looked at again."""
    frozen = nn.Linear(600, 600).requires_grad_(requires_grad=False)
    state = {"frozen": frozen, **objects()}
    with torch.no_grad():
        frozen.weight[3, 3] = math.nan
    done(train(tmp_path, state, 4))
    done(train(tmp_path, state, 6))
    assert all(["frozen/weight"] == keys for keys in found(tmp_path).values())
    manifest = Store(tmp_path)[6].manifest
    assert manifest.files[manifest.leaves["frozen/weight"].shard].links > 0
    for _ in train(tmp_path, state, 7):
        frozen.weight[3, 3] = 0.0
    assert [] == found(tmp_path)[7]


def test_of_a_divided_leaf_only_the_pieces_that_hold_count(tmp_path, monkeypatch):
    """What a file still contains of a time with NaN is no weight."""
    monkeypatch.setattr("holdfast.store.divided.LEAST_BYTES", 64 << 10)
    monkeypatch.setattr("holdfast.store.divided.PIECE_BYTES", 4 << 10)
    table = nn.Embedding(256, 256)
    with Run(tmp_path, {"table": table}, every=Every(steps=1), keep=Last(99), whole=Whole(99)) as run:
        for step in run.steps(8):
            with torch.no_grad():
                table.weight[step] += 1.0
                table.weight[200, 7] = math.nan if step in (3, 4) else 1.0
            run.save()
    wrong = ["table/weight"]
    assert {1: [], 2: [], 3: [], 4: wrong, 5: wrong, 6: [], 7: [], 8: []} == found(tmp_path)
    last = Store(tmp_path)[8].manifest.leaves
    assert any(key.startswith("@") for key in last)
    assert any(leaf.finite is False for leaf in last.values())  # an old version of a piece


# What is told and kept ---------------------------------------------------------------------------------------------


def test_the_last_checkpoint_without_stays_beside_them(tmp_path, capsys):
    """However many follow, whatever the rule. It is told once, with the way back. Later the rule alone counts."""
    state = objects()
    training = train(tmp_path, state, 9, spoiled=(3, 4, 5, 6), keep=Last(2))
    kept = [[int(name[5:]) for name in names(tmp_path)] for _ in training]
    assert [[], [1], [1, 2], [2, 3], [2, 3, 4], [2, 4, 5], [2, 5, 6], [6, 7], [7, 8]] == kept
    (line,) = told(tmp_path)
    assert "step-000000003 has infinite or NaN numbers in model/0.weight; step-000000002 is" in line["what"]
    assert "go_back=2" in line["what"]
    assert 1 == capsys.readouterr().err.count("infinite or NaN")


def test_a_manifest_that_cannot_be_read_meanwhile_fails_no_save(tmp_path, monkeypatch, capsys):
    """The save that found the weights is committed. The line lacks the way back, and training goes on."""
    real = CheckpointIndex._manifest_facts

    def unreadable(index, name):
        if name == "step-000000001":
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return real(index, name)

    monkeypatch.setattr(CheckpointIndex, "_manifest_facts", unreadable)
    done(train(tmp_path, objects(), 3, spoiled=(3,)))
    monkeypatch.undo()
    assert ["model/0.weight"] == found(tmp_path)[3]
    assert [] == events(tmp_path, "save_failed")
    assert "the last one without cannot be told now: [Errno 5]" in capsys.readouterr().err


def test_a_resume_from_such_weights_is_told(tmp_path, capsys):
    """The run goes on as it was; where the last one without is, the line says."""
    state = objects()
    done(train(tmp_path, state, 2, spoiled=(2,)))
    capsys.readouterr()
    done(train(tmp_path, objects(), 3))
    assert "goes on from weights that are not finite: step-000000002" in capsys.readouterr().err
    assert ["step-000000002"] * 2 == [event["name"] for event in told(tmp_path)]


def test_where_there_was_none_without_nothing_is_promised(tmp_path, capsys):
    """From the first save on."""
    done(train(tmp_path, objects(), 2, spoiled=(1, 2)))
    assert "no checkpoint with finite weights is here" in capsys.readouterr().err


def test_the_newest_without_is_read_back_before_older_ones_go(tmp_path):
    """It is what a mended run begins from. Damaged, it goes to quarantine, and the one before takes its place."""
    state = objects()
    training = train(tmp_path, state, 6, spoiled=(4, 5, 6), keep=Last(3))
    while next(training) != 4:
        pass
    sound = Store(tmp_path)[3]
    with open(next(sound.path.glob("model*")), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    done(training)
    assert ["step-000000003-damaged"] == [path.name for path in (tmp_path / "quarantine").iterdir()]
    assert [f"step-00000000{step}" for step in (2, 4, 5, 6)] == names(tmp_path)


def test_a_disk_that_lets_nothing_go_to_quarantine_fails_no_save(tmp_path, monkeypatch, capsys):
    """The new checkpoint is committed; what is damaged is told, and moved when the disk lets it."""
    state = objects()
    training = train(tmp_path, state, 8, spoiled=(4, 5, 6, 7), keep=Last(3))
    while next(training) != 4:
        pass
    with open(next(Store(tmp_path)[3].path.glob("model*")), "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    real = disk.rename_new

    def refused(source, target):
        if "quarantine" in target.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        real(source, target)

    monkeypatch.setattr(disk, "rename_new", refused)
    while next(training) != 7:
        pass
    assert [] == events(tmp_path, "save_failed")
    assert "cannot move a checkpoint to quarantine" in capsys.readouterr().err
    monkeypatch.undo()
    done(training)
    assert [path.name for path in tmp_path.glob("quarantine/*")] == ["step-000000003-damaged"]


def test_a_mirror_knows_it_from_the_manifest_of_a_copy(tmp_path):
    """Its rule is applied to copies alone."""
    done(train(tmp_path, objects(), 2, spoiled=(2,)))
    for step, finite in ((1, True), (2, False)):
        path = Store(tmp_path)[step].path
        copy = parse_copy((path / "manifest.json").read_bytes(), 1, path.name, path)
        assert finite is copy.facts().finite is Store(tmp_path)[step].facts().finite


def test_ls_and_show_say_which(tmp_path):
    """In text and in JSON; of a checkpoint without, nothing."""
    done(train(tmp_path, objects(), 3, spoiled=(3,)))
    listed = invoke("ls", tmp_path)
    assert 1 == listed.output.count("not finite")
    assert "infinite or NaN numbers in model/0.weight" in invoke("show", tmp_path).output
    assert "NaN" not in invoke("show", tmp_path, "--step", 2).output
    rows = asked("ls", tmp_path)["checkpoints"]
    assert [[], [], ["model/0.weight"]] == [row["not_finite"] for row in rows]
    assert ["model/0.weight"] == asked("show", tmp_path)["not_finite"]


def test_status_and_doctor_say_the_way_back(tmp_path):
    """Started as before, the run is refused again. A finished run is told as well."""
    with pytest.raises(NotFinite):
        done(train(tmp_path, objects(), 9, spoiled=(3,), stop_on_nan=True))
    told = invoke("status", tmp_path).output
    assert "next   mend the cause, write Run(..., go_back=2), then: start it again\n" in told
    assert "NaN    step-000000003 has infinite or NaN numbers" in told
    doctor = invoke("doctor", tmp_path).output
    assert "problem  weights: step-000000003 has" in doctor
    assert "start with Run(..., go_back=2)" in doctor
    done(train(tmp_path, objects(), 9))
    assert "next   holdfast show" in invoke("status", tmp_path).output
    assert "go_back=2" in invoke("status", tmp_path).output


def test_a_metric_that_is_not_finite_is_told_once_and_never_best(tmp_path, capsys):
    """An infinity is no better than NaN; each name has its own line."""
    with new_run(tmp_path, Toy(), keep=Best("acc", max)) as run:
        for value in (0.5, math.inf, math.nan, -math.inf, 0.1):
            run.log(acc=value, loss=-value)
            run.safe_point()
    assert 1 == Store(tmp_path, keep=Best("acc", max)).best().step
    lines = capsys.readouterr().err.splitlines()
    assert ["acc is inf at step 1", "loss is -inf at step 1"] == [
        line.partition("run.log: ")[2].partition(";")[0] for line in lines if "run.log" in line
    ]


# Stopping ----------------------------------------------------------------------------------------------------------


def last(path):
    return journal.logs(path)[-1].events[-1]


@pytest.mark.parametrize("background", [True, False])
def test_a_run_that_stops_on_nan_ends_with_an_error_and_says_the_way_back(tmp_path, background):
    """It is saved all the same. No start goes on from it, until the run goes back."""
    options = {"stop_on_nan": True, "background": background}
    with pytest.raises(NotFinite, match=r"step-000000003 has infinite or NaN numbers in model/0\.weight") as raised:
        done(train(tmp_path, objects(), 9, spoiled=(3,), **options))
    assert 1 == raised.value.exit_code
    assert ("failed", "NotFinite") == (last(tmp_path)["event"], last(tmp_path)["kind"])
    assert not last(tmp_path)["counts"]
    newest = names(tmp_path)[-1]
    for _ in range(3):
        with pytest.raises(NotFinite, match=r"does not go on from there: step-000000003 .* Run\(\.\.\., go_back=2\)"):
            done(train(tmp_path, objects(), 9, **options))
    assert newest == names(tmp_path)[-1]
    assert not [*tmp_path.glob("quarantine/*")]
    done(train(tmp_path, objects(), 9, go_back=2, **options))
    assert 9 == Store(tmp_path).latest().step
    assert not any(found(tmp_path).values())


def test_a_run_that_stops_on_nan_does_not_branch_from_such_weights(tmp_path):
    """It ends as a save ends it, before the first step. A branch from finite weights goes on."""
    done(train(tmp_path / "source", objects(), 3, spoiled=(3,)))
    finite, spoiled = ((tmp_path / "source/checkpoints" / name) for name in names(tmp_path / "source")[-2:])
    for _ in range(2):
        with pytest.raises(NotFinite, match=r"does not branch from \S+step-000000003: .* in model/0\.weight") as raised:
            done(train(tmp_path / "branch", objects(), 9, stop_on_nan=True, branch_from=spoiled))
        assert 1 == raised.value.exit_code
        assert ("failed", "NotFinite") == (last(tmp_path / "branch")["event"], last(tmp_path / "branch")["kind"])
    assert [] == names(tmp_path / "branch")
    done(train(tmp_path / "branch", objects(), 9, stop_on_nan=True, branch_from=finite))
    assert 9 == Store(tmp_path / "branch").latest().step
    done(train(tmp_path / "careless", objects(), 9, branch_from=spoiled))


def test_a_run_may_go_back_to_one_place_as_often_as_it_ends_there(tmp_path):
    """A line with go_back that stays in the script is not done twice, unless what followed is lost anyway."""
    for _ in range(2):
        with pytest.raises(NotFinite):
            done(train(tmp_path, objects(), 9, spoiled=(3,), stop_on_nan=True, go_back=2 if found(tmp_path) else None))
    done(train(tmp_path, objects(), 4, stop_on_nan=True, go_back=2))
    done(train(tmp_path, objects(), 6, stop_on_nan=True, go_back=2))
    assert 1 == len([event for event in events(tmp_path, "restored") if event["checkpoint"] == "step-000000004"])


def test_going_back_to_a_step_fetches_the_one_without(tmp_path):
    """A new machine has neither; a place has both."""
    state, options = objects(), {"stop_on_nan": True, "mirror": {tmp_path / "place": Every(steps=1)}}
    with pytest.raises(NotFinite), Run(tmp_path / "a", state, every=Every(steps=1), **options) as run:
        for _ in run.epochs(1):
            for _ in run.steps(2):
                learn(state)
            spoil(state)
            run.save()
    with Run(tmp_path / "b", objects(), every=None, go_back=2, **options) as run:
        assert 2 == run.step
    assert "step-000000002" == events(tmp_path / "b", "restored")[-1]["checkpoint"]


def test_going_back_to_a_step_takes_the_one_without(tmp_path):
    """The end of an epoch may have spoiled what its last step had left whole."""
    state = objects()
    with pytest.raises(NotFinite), Run(tmp_path, state, every=Every(steps=1), stop_on_nan=True) as run:
        for _ in run.epochs(3):
            for _ in run.steps(2):
                learn(state)
            spoil(state)
            run.save()
    assert ["step-000000001", "step-000000002", "step-000000002-end"] == names(tmp_path)
    with Run(tmp_path, objects(), every=None, stop_on_nan=True, go_back=2) as run:
        assert 2 == run.step
    assert "step-000000002" == events(tmp_path, "restored")[-1]["checkpoint"]


def test_a_notice_is_no_reason_to_be_run_again(tmp_path):
    """The save of the stop finds it: the process ends with the error, and its last line is no stop."""
    state = objects()
    with pytest.raises(NotFinite), Run(tmp_path, state, every=None, stop_on_nan=True) as run:
        for _ in run.steps(9):
            learn(state)
            spoil(state)
            os.kill(os.getpid(), signal.SIGTERM)
    assert "failed" == last(tmp_path)["event"]
    assert ["step-000000001"] == names(tmp_path)


def test_an_end_with_such_weights_is_no_end(tmp_path):
    """The last save finds it."""
    with pytest.raises(NotFinite):
        done(train(tmp_path, objects(), 2, spoiled=(2,), every=None, stop_on_nan=True))
    assert "failed" == last(tmp_path)["event"]


def test_where_nothing_is_known_to_be_a_weight_it_is_refused(tmp_path):
    """A promise that could not be kept is not made."""
    with (
        pytest.raises(UsageError, match="stop_on_nan=True: of nothing that is tracked"),
        Run(tmp_path, {"w": torch.ones(3)}, stop_on_nan=True) as run,
    ):
        for _ in run.steps(2):
            pass


@pytest.mark.parametrize("whose", [0, 1])
def test_what_one_rank_finds_ends_all(tmp_path, monkeypatch, whose):
    """Each writes a part of what is common, and what is its own: a finding counts for the checkpoint."""

    def work(rank):
        torch.manual_seed(0)
        own = nn.Linear(2, 2)
        with torch.no_grad():
            own.weight.fill_(rank)
        with Run(tmp_path, {"own": own}, every=Every(steps=2), stop_on_nan=True, background=False) as run:
            for step in run.steps(12):
                if step == 3 and rank == whose:
                    with torch.no_grad():
                        own.weight[0, 0] = math.nan

    outcomes = list(among_threads(monkeypatch)(2, work))
    assert [NotFinite] * 2 == [type(each) for each in outcomes]
    again = list(among_threads(monkeypatch)(2, work))
    assert ["does not go on from there" in str(each) for each in again] == [True, True], again
    assert ["own/weight"] == found(tmp_path)[4]
    assert [] == found(tmp_path)[2]
