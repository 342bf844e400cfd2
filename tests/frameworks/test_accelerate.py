"""A loop with accelerate and without a Trainer: killed anywhere, it ends as the uninterrupted one does."""

import json
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DistributedType
from torch import nn
from torch.utils.data import DataLoader

from causes import TORCH
from framework_runs import AGAIN, SCRIPTS, trained
from holdfast import Run
from holdfast.accelerate.loader import feed_for
from holdfast.errors import UsageError

MODULES = (
    *TORCH,
    "torch.nn.parallel",
    "accelerate",
    "holdfast.accelerate.loader",
    "holdfast.accelerate.live",
    "struck",
)

# Variants of the loop, and where it is killed: an attempt's seventh batch, its first epoch's last one, ...
CUTS = {
    "accumulated": ("batch:5:TERM", "batch:5:KILL", "batch:4:TERM", "validation:1:KILL"),
    "seedable": ("batch:7:KILL", "batch:4:TERM", "validation:1:TERM"),
    "manual": ("batch:5:TERM", "batch:8:KILL", "batch:4:TERM"),
    "across": ("batch:11:TERM", "batch:2:KILL", "validation:1:TERM"),
    "break": ("batch:8:TERM", "batch:5:KILL", "validation:1:TERM"),
    "bf16": ("batch:5:TERM", "batch:7:KILL"),
    "ordered": ("batch:11:TERM", "batch:12:KILL", "validation:1:TERM"),
    "stream": ("batch:5:TERM", "batch:11:TERM", "batch:13:KILL"),
    "dispatch": ("batch:5:TERM", "batch:11:TERM", "batch:12:KILL"),
    "synchronized": ("batch:5:TERM", "batch:8:KILL"),
    "workers": ("batch:5:TERM",),
}


@pytest.fixture(scope="module")
def python(zygotes):
    return zygotes(*MODULES)


@pytest.fixture(scope="module")
def whole(python, tmp_path_factory):
    """The result of the uninterrupted variant."""
    known = {}

    def result(variant):
        if variant not in known:
            known[variant] = json.loads(
                trained(python, "accelerate_loop", tmp_path_factory.mktemp(variant), variant).result
            )
        return known[variant]

    return result


@pytest.mark.parametrize("variant", CUTS)
def test_a_killed_loop_ends_as_the_uninterrupted_one(python, whole, tmp_path, variant):
    """Weights, moments, rates, each batch with what accelerate said of it, validation, and metrics."""
    found = trained(python, "accelerate_loop", tmp_path, variant, strikes=CUTS[variant])
    assert json.loads(found.result) == whole(variant)
    assert len(found.exits) == len(CUTS[variant]) + 1
    assert "put back" not in found.said


@pytest.mark.parametrize("variant", ["seedable", "ordered", "stream", "across seedable", "manual ordered"])
def test_the_run_changes_nothing_of_the_loop(python, tmp_path, variant):
    """Without Holdfast the same script has the same weights, batches, flags and random numbers."""
    words = variant.split()
    with_run = trained(python, "accelerate_loop", tmp_path / "with", *words)
    without = trained(python, "accelerate_loop", tmp_path / "without", *words, "bare")
    found, expected = json.loads(with_run.result), json.loads(without.result)
    assert {**found, "metrics": []} == expected


def test_safe_points_lie_at_the_ends_of_groups(whole):
    """4 steps of 11 batches in an epoch, the last with 2 batches, and each group's metrics in one line."""
    facts = whole("accumulated")
    batches = [line for line in facts["seen"] if len(line) > 4]
    synced = [line[2] for line in batches]
    assert synced == [number in {2, 5, 8, 10} for number in range(11)] * 3
    assert [line[3] for line in batches] == [number == 10 for number in range(11)] * 3
    assert {line[4] for line in batches} == {2}
    assert [step for step, _, values in facts["metrics"] if "loss" in values] == list(range(1, 13))


# accelerate's complete NLP example ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "strikes"),
    [
        ("manual", ("batch:5:TERM", "batch:8:KILL", "validation:1:TERM", "batch:1:TERM")),
        ("accumulate", ("batch:5:TERM", "batch:8:KILL", "validation:1:KILL", "batch:1:TERM")),
    ],
)
def test_the_complete_nlp_example_ends_as_uninterrupted(python, tmp_path, kind, strikes):
    """Its own way to accumulate leaves gradients pending in most checkpoints; that of `accumulate` in none."""
    whole = trained(python, "accelerate_nlp", tmp_path / "whole", kind)
    killed = trained(python, "accelerate_nlp", tmp_path / "killed", kind, strikes=strikes)
    assert killed.result == whole.result
    facts = json.loads(whole.result)
    assert len(facts["seen"]) == 33
    ends = [11, 22, 33] if kind == "manual" else [4, 8, 12]
    assert [step for step, _, values in facts["lines"] if "f1" in values] == ends


# Two processes --------------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def pair(python, script, place, *arguments, strike="", rank="0"):
    """Run SCRIPT in two processes at once, as a launcher would; return their exit codes and what they said."""
    place.mkdir(parents=True, exist_ok=True)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "ACCELERATE_USE_CPU": "true"}
    paths = {"PYTHONPATH": str(SCRIPTS.parent.parent), "STRIKE": strike, "STRIKE_RANK": rank}
    children = [
        subprocess.Popen(
            [*python, str(SCRIPTS / f"{script}.py"), *arguments],
            cwd=place,
            env={**os.environ, **shared, **paths, "RANK": number, "LOCAL_RANK": number},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in ("0", "1")
    ]
    said = [child.communicate(timeout=120)[0] for child in children]
    return [child.returncode for child in children], "\n".join(said)


def results(place):
    return [json.loads((place / name).read_text()) for name in ("result.json", "result-1.json")]


@pytest.mark.parametrize("variant", ["accumulated", "seedable", "split", "stream", "across"])
def test_two_processes_end_as_uninterrupted(python, tmp_path, variant):
    """Each has its own batches, synchronised orders, and gradients that wait for the group's end."""
    codes, said = pair(python, "accelerate_loop", tmp_path / "whole", variant)
    assert codes == [0, 0], said
    killed = tmp_path / "killed"
    codes, said = pair(python, "accelerate_loop", killed, variant, strike="batch:4:TERM", rank="1")
    assert codes == [AGAIN, AGAIN], said
    codes, said = pair(python, "accelerate_loop", killed, variant, strike="batch:3:KILL", rank="0")
    assert codes[0] == -9
    assert codes[1] != 0, said
    codes, said = pair(python, "accelerate_loop", killed, variant, strike="validation:1:TERM", rank="0")
    assert codes == [AGAIN, AGAIN], said
    codes, said = pair(python, "accelerate_loop", killed, variant)
    assert codes == [0, 0], said
    assert results(killed) == results(tmp_path / "whole")
    one, other = results(killed)
    assert one["weights"] == other["weights"]
    assert one["seen"] != other["seen"]


def test_accelerate_launch_is_killed_and_goes_on(python, tmp_path):
    """The NLP example in two processes that `accelerate launch` starts, one of them killed; `holdfast run` goes on.

    Compared with two processes that nobody interrupts.
    """
    codes, said = pair(python, "accelerate_nlp", tmp_path / "whole", "manual")
    assert codes == [0, 0], said
    place = tmp_path / "killed"
    place.mkdir()
    again = [sys.executable, "-m", "holdfast", "run", "--retries", "1", "--"]
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    script = ["--main_process_port", free_port(), str(SCRIPTS / "accelerate_nlp.py"), "manual"]
    paths = {"PYTHONPATH": f"{SCRIPTS.parent.parent}:{os.environ.get('PYTHONPATH', '')}", "STRIKE": "batch:11:KILL"}
    environment = {**os.environ, **paths, "STRIKE_RANK": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*again, *launch, *script], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("struck: ") == 1
    assert results(place) == results(tmp_path / "whole")


# What is refused, and what an Accelerator brings along ---------------------------------------------------------------


@pytest.fixture
def accelerator():
    """One process; the next test has another one."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield Accelerator(cpu=True, gradient_accumulation_steps=2)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def first_batch(run, loader):
    for _ in run.epochs(1):
        for batch in run.batches(loader):
            return batch
    return None


def test_a_prepared_loader_wants_the_accelerator(accelerator, tmp_path):
    """Only with it, no checkpoint can lose the gradients of a group that has not ended."""
    model, loader = accelerator.prepare(nn.Linear(1, 1), DataLoader(torch.ones(4, 1)))
    with pytest.raises(UsageError, match=r"dict\(accelerator=accelerator\)"), Run(tmp_path, {"model": model}) as run:
        first_batch(run, loader)


def test_what_has_a_position_of_its_own_is_refused(accelerator, tmp_path):
    """skip_first_batches, a stateful loader, unequal numbers of batches, and a last batch that the first one fills."""
    loader = accelerator.prepare(DataLoader(torch.ones(9, 1)))
    keeps = accelerator.prepare(DataLoader(torch.ones(9, 1)))
    keeps.use_stateful_dataloader = True
    facts = {"num_processes": 2, "process_index": 0, "even_batches": False}
    uneven = prepare_data_loader(DataLoader(torch.ones(9, 1)), **facts)
    dispatched, whole = (
        prepare_data_loader(DataLoader(torch.ones(9, 1), drop_last=drops), dispatch_batches=True, put_on_device=True)
        for drops in (False, True)
    )
    dispatched.state = whole.state = SimpleNamespace(num_processes=2)
    assert feed_for(whole, 0) is not None
    refused = [
        (accelerator.skip_first_batches(loader, 2), "without skip_first_batches"),
        (keeps, "remove use_stateful_dataloader=True"),
        (uneven, "even_batches=False"),
        (dispatched, "Give the loader drop_last=True"),
    ]
    for number, (each, line) in enumerate(refused):
        with pytest.raises(UsageError, match=line), Run(tmp_path / str(number), {"accelerator": accelerator}) as run:
            first_batch(run, each)


def test_an_accelerator_that_has_prepared_nothing_is_refused(accelerator, tmp_path):
    """Otherwise the first start would train, and no other one could restore what it had saved."""
    with pytest.raises(UsageError, match=r"enter the run behind accelerator\.prepare"):
        Run(tmp_path, {"accelerator": accelerator})


def test_an_accelerator_that_divides_the_model_is_refused(accelerator, tmp_path, monkeypatch):
    """FSDP, DeepSpeed and the like were not tried."""
    monkeypatch.setattr(Accelerator, "distributed_type", DistributedType.FSDP)
    with pytest.raises(UsageError, match="an Accelerator with FSDP was not tried"):
        Run(tmp_path, {"accelerator": accelerator})


def stepped(model, optimizer, scheduler):
    model(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    scheduler.step()
    return [each["exp_avg"] for each in optimizer.state.values()]


@pytest.mark.parametrize("whole", [True, False])
def test_prepared_objects_come_back_with_their_dtypes(accelerator, tmp_path, whole):
    """As members of the Accelerator and by themselves; torch's own load_state_dict would cast these moments."""

    def objects():
        model = nn.Linear(3, 3).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return accelerator.prepare(model, optimizer, scheduler)

    def state(found):
        return (
            {"accelerator": accelerator}
            if whole
            else dict(zip(("model", "optimizer", "scheduler"), found, strict=True))
        )

    first = objects()
    with Run(tmp_path, state(first)) as run:
        for _ in run.steps(1):
            stepped(*first)
            for entry in first[1].state.values():
                entry["exp_avg"] = entry["exp_avg"].float() + 1e-4
    accelerator.free_memory()
    again = objects()
    with Run(tmp_path, state(again)):
        moments = [entry["exp_avg"] for entry in again[1].state.values()]
        assert [each.dtype for each in moments] == [torch.float32] * 2
        saved = [entry["exp_avg"] for entry in first[1].state.values()]
        assert all(torch.equal(one, other) for one, other in zip(moments, saved, strict=True))
        assert again[2].get_last_lr() == first[2].get_last_lr() == [pytest.approx(0.01)]


def test_a_scaler_comes_back(accelerator, tmp_path):
    """Mixed precision's scale is part of the Accelerator; accelerate makes one on a GPU only."""
    accelerator.prepare(nn.Linear(1, 1))
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with Run(tmp_path, {"accelerator": accelerator}) as run:
        for _ in run.steps(1):
            accelerator.scaler.scale(torch.zeros(1))
            accelerator.scaler.update(4.0)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with Run(tmp_path, {"accelerator": accelerator}):
        assert accelerator.scaler.get_scale() == 4.0
