"""The Trainer of transformers, killed and started again: bit for bit, with all that it remembers."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from framework_runs import SCRIPTS, trained
from holdfast.torch.loader import feed_for

IMPORTED = (
    *("torch", "torch._dynamo", "transformers", "transformers.trainer", "accelerate", "holdfast.transformers.walk"),
    *("holdfast.transformers.callback", "holdfast.torch.live", "holdfast.torch.program", "holdfast.torch.loader"),
    *("holdfast.torch.rng", "holdfast.torch.leaves", "struck"),
)

LOADERS = {
    "no workers": ("workers=0",),
    "workers": ("workers=2",),
    "persistent workers": ("workers=2", "persistent=true"),
}
STRIKES = {
    "in mid-epoch, between groups": ("batch:16:KILL", "batch:4:TERM"),
    "in a group of accumulation": ("batch:15:TERM", "batch:11:KILL"),
    "at an epoch's last batch": ("batch:10:TERM", "batch:10:KILL"),
    "in an evaluation": ("validation:1:TERM", "validation:2:KILL"),
}


@pytest.fixture(scope="module")
def python(zygotes):
    return zygotes(*IMPORTED)


@pytest.fixture(scope="module")
def whole(python, tmp_path_factory):
    """What an uninterrupted run gives, for each kind of loader."""
    return {
        name: trained(python, "hf_trainer", tmp_path_factory.mktemp("whole"), *words).result
        for name, words in LOADERS.items()
    }


@pytest.mark.parametrize("strikes", STRIKES.values(), ids=STRIKES)
@pytest.mark.parametrize("loader", LOADERS)
def test_a_killed_training_ends_with_the_same_bits(python, whole, tmp_path, loader, strikes):
    """Weights, optimizer, random numbers, log history, TrainOutput, TrainerState, and the batches of each step."""
    found = trained(python, "hf_trainer", tmp_path, *LOADERS[loader], strikes=strikes)
    assert json.loads(found.result) == json.loads(whole[loader])
    assert found.said.count("resumes at step") >= 1


def test_the_callback_changes_no_bit_of_a_training(python, whole, tmp_path):
    """The same order of samples, the same random numbers, the same log: as without it."""
    plain = trained(python, "hf_trainer", tmp_path, "holdfast=false")
    assert json.loads(plain.result) == json.loads(whole["no workers"])


def test_a_finished_training_returns_the_whole_and_trains_nothing(python, whole, tmp_path):
    first = trained(python, "hf_trainer", tmp_path)
    (tmp_path / "result.json").unlink()
    count = (tmp_path / "steps-0.jsonl").read_text().count("\n")
    again = trained(python, "hf_trainer", tmp_path)
    a, b = json.loads(first.result), json.loads(again.result)
    del a["random"], b["random"]  # the finished run's generators are left as the script has them
    assert a == b
    assert (tmp_path / "steps-0.jsonl").read_text().count("\n") == count
    assert "already finished" in again.said


# What else a Trainer does ----------------------------------------------------------------------------------------

STEPS = {"eval_strategy": "steps", "eval_steps": 2, "logging_steps": 1}
BEST = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 1, "load_best_model_at_end": True}
OWN = {"save_strategy": "steps", "save_steps": 2}
CASES = {
    "evaluation at steps": {"trainer": STEPS},
    "best model": {"trainer": {**STEPS, **BEST, "metric_for_best_model": "loss"}},
    "early stopping": {"early": 1, "trainer": {**STEPS, **BEST, "metric_for_best_model": "loss", "learning_rate": 0.5}},
    "group_by_length": {"trainer": {"train_sampling_strategy": "group_by_length"}},
    "another order": {"trainer": {"accelerator_config": {"use_seedable_sampler": False}}},
    "a seed of the data": {"trainer": {"data_seed": 11}},
    "evaluation at the start": {"trainer": {"eval_on_start": True}},
    "plateau": {"trainer": {"lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"}},
    "no accumulation": {"trainer": {"gradient_accumulation_steps": 1, "max_steps": 15}},
    "ended in mid-epoch": {"trainer": {"max_steps": 6}},
    "a stop by a callback": {"stops": 7},
    "a subclass that remembers": {"remembers": True},
    "a subclass whose attribute is named": {"remembers": "named"},
    "a script that resumes by itself": {"theirs": True, "trainer": OWN},
    "such a script, killed before the first save": {"theirs": True, "every": 0, "trainer": OWN},
    "streamed": {"iterable": True, "trainer": {"max_steps": 9}},
    "streamed, of unknown length": {"iterable": True, "sized": False, "trainer": {"max_steps": 9}},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_whatever_the_trainer_does_a_kill_changes_nothing(python, tmp_path, case):
    words = [f"{name}={json.dumps(value)}" for name, value in case.items()]
    whole = trained(python, "hf_trainer", tmp_path / "whole", *words)
    found = trained(python, "hf_trainer", tmp_path / "cut", *words, strikes=("batch:11:KILL", "batch:5:TERM"))
    assert json.loads(found.result) == json.loads(whole.result)
    assert json.loads(whole.result)["steps"]


def test_another_data_seed_is_another_order(python, tmp_path):
    first, second = (
        trained(python, "hf_trainer", tmp_path / str(seed), f'trainer={{"data_seed": {seed}}}').result
        for seed in (1, 2)
    )
    assert [json.loads(each)["steps"][0][0][0] for each in (first, second)] not in ([], [[0, 1], [0, 1]])
    assert json.loads(first)["steps"] != json.loads(second)["steps"]


def _constant(**more):
    return "trainer=" + json.dumps({"lr_scheduler_type": "constant", **more})


def test_more_epochs_continue_a_finished_training(python, whole, tmp_path):
    """With a rate that does not depend on the total, as if they had been asked for at once."""
    words = [_constant(num_train_epochs=epochs) for epochs in (2, 3)]
    at_once = trained(python, "hf_trainer", tmp_path / "whole", words[1])
    trained(python, "hf_trainer", tmp_path / "cut", words[0])
    more = trained(python, "hf_trainer", tmp_path / "cut", words[1], strikes=("batch:4:KILL",))
    assert json.loads(more.result) == json.loads(at_once.result)


def test_more_steps_continue_in_the_middle_of_the_epoch(python, tmp_path):
    """The samples are those of a training that was to go so far from the beginning."""
    words = [_constant(max_steps=steps) for steps in (6, 9)]
    at_once = trained(python, "hf_trainer", tmp_path / "whole", words[1])
    trained(python, "hf_trainer", tmp_path / "cut", words[0])
    more = trained(python, "hf_trainer", tmp_path / "cut", words[1])
    a, b = ([[numbers for numbers, _ in step] for step in json.loads(each.result)["steps"]] for each in (at_once, more))
    assert a == b
    assert len(a) == 9


def test_what_is_refused_and_what_stays_behind(python, tmp_path):
    """Each refusal is one line with its reason; after any end the trainer is as it was."""
    told = json.loads(trained(python, "hf_refused", tmp_path).result)
    assert {
        told.pop(name) for name in ("trained", "more steps", "as before", "after", "persistent", "begun", "overridden")
    } == {"nothing"}
    assert {told.pop(name) for name in ("failed", "cut")} == {"the error of the training"}
    assert [name for name, line in told.items() if "\n" in line or not line] == []
    words = {"resume_from_checkpoint": "without resume_from_checkpoint", "enable_jit_checkpoint": "leave out"}
    words |= {"auto_find_batch_size": "batch size", "collator": "Leave its seed out", "several": "one trainer has one"}
    words |= {"finished": "has finished this run", "shorter": "8 of 12 steps are done, and the training has 6 now"}
    words |= {"a name twice": "the name 'model' is taken", "layerwise": "without 'layerwise'"}
    words |= {"state_dict": "was replaced", "deepspeed": "in place of deepspeed=", "fsdp1": "'fsdp_version': 2"}
    words |= {"tensor parallel": "were not tried"}
    assert told.keys() == words.keys()
    assert [name for name, line in told.items() if words[name] not in line] == []


def test_pending_gradients_come_back_where_their_parameters_are():
    from holdfast.transformers.progress import _STATE, TrainerProgress

    def progress(device, kind=torch.ones):
        model = torch.nn.Linear(1, 1, bias=False, device=device)
        model.weight.grad = kind(1, 1, device=device)
        state = SimpleNamespace(**dict.fromkeys((*_STATE, "max_steps", "num_train_epochs"), 0), log_history=[])
        args = SimpleNamespace(device="cpu", gradient_accumulation_steps=2)
        callbacks = SimpleNamespace(callbacks=[])
        loss = torch.zeros(())
        return TrainerProgress(
            SimpleNamespace(model=model, state=state, args=args, callback_handler=callbacks, _tr_loss=loss)
        )

    stored = progress("cpu").state_dict()
    there = progress("meta", torch.zeros)
    there.load_state_dict(stored)
    assert there._trainer.model.weight.grad.device.type == "meta"
    here = progress("cpu", torch.zeros)
    here.load_state_dict(stored)
    here._trainer.model.weight.grad += 1
    assert stored["gradients"]["weight"].item() == 1


def test_a_shuffled_stream_of_datasets_is_read_again():
    """Its state_dict() leaves out the samples that wait in the buffer; without shuffle() it is exact."""
    datasets = pytest.importorskip("datasets")
    plain = datasets.Dataset.from_dict({"x": list(range(8))}).to_iterable_dataset()
    shuffled = plain.shuffle(seed=1, buffer_size=4)
    streams = plain, plain.map(dict), shuffled, shuffled.map(dict)
    kinds = [type(feed_for(torch.utils.data.DataLoader(each), 0)).__name__ for each in streams]
    assert kinds == ["DatasetFeed", "DatasetFeed", "IterableFeed", "IterableFeed"]


# PEFT ------------------------------------------------------------------------------------------------------------


def test_a_frozen_base_is_linked_and_lora_resumes(zygotes, tmp_path):
    """From the third save on at most 1.5% of the bytes are written, with 200 MB frozen."""
    python = zygotes(*IMPORTED, "peft")
    whole = trained(python, "hf_peft", tmp_path / "whole")
    checkpoints = sorted((tmp_path / "whole" / "run" / "checkpoints").glob("step-*"))
    assert len(checkpoints) == 6
    known, written = set(), []
    for checkpoint in checkpoints:
        files = {path.stat().st_ino: path.stat().st_size for path in checkpoint.iterdir()}
        written.append(sum(size for inode, size in files.items() if inode not in known))
        known |= files.keys()
    assert written[0] > 200e6
    assert max(written[2:]) <= 0.015 * written[0]
    found = trained(python, "hf_peft", tmp_path / "cut", strikes=("step:2:KILL", "step:3:TERM"))
    assert json.loads(found.result) == json.loads(whole.result)


# Several processes -----------------------------------------------------------------------------------------------


def launched(place, *words, strikes=(), **environment):
    """Launch two processes until they are done; return their exit codes and the text of the result."""
    place.mkdir(parents=True, exist_ok=True)
    script = SCRIPTS / "hf_trainer.py"
    launch = [
        sys.executable,
        "-m",
        "accelerate.commands.launch",
        "--num_processes",
        "2",
        "--cpu",
        "--mixed_precision",
        "no",
    ]
    codes = []
    for number in range(4):
        strike = strikes[number] if number < len(strikes) else ""
        done = subprocess.run(
            [*launch, "--num_machines", "1", "--dynamo_backend", "no", str(script), *words],
            cwd=place,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(SCRIPTS.parent.parent), os.environ.get("PYTHONPATH", "")]),
                "OMP_NUM_THREADS": "1",
                "STRIKE": strike,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        codes.append(done.returncode)
        if strike:
            assert "struck: " in done.stdout, done.stdout[-3000:]
            assert done.returncode != 0
        elif done.returncode == 0:
            return codes, (place / "result.json").read_text()
    raise AssertionError(f"{codes}\n{done.stdout[-4000:]}")


def test_two_processes_under_accelerate_launch(tmp_path):
    """With gloo: each rank has its part of every batch, and a kill of one is a kill of both."""
    _, whole = launched(tmp_path / "whole", "every=1")
    codes, found = launched(tmp_path / "cut", "every=1", strikes=("batch:5:KILL", "batch:2:TERM"))
    assert json.loads(found) == json.loads(whole)
    assert len(codes) == 3
    assert len(json.loads(whole)["steps"]) == 2 * 6


def test_trl_trains_on_with_its_own_sums(zygotes, tmp_path):
    """SFTTrainer's accuracy, entropy and tokens are sums since its last log; saves lie between two logs."""
    pytest.importorskip("trl")
    python = zygotes(*IMPORTED, "peft", "datasets", "trl")
    whole = trained(python, "hf_sft", tmp_path / "whole")
    found = trained(python, "hf_sft", tmp_path / "cut", strikes=("step:5:KILL", "step:1:TERM", "validation:1:TERM"))
    assert json.loads(found.result) == json.loads(whole.result)
    assert json.loads(whole.result)["history"][0]["mean_token_accuracy"]
