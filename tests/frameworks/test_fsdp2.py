"""FSDP2 in Hugging Face's Trainer and in Lightning: all ranks killed, and resumed on as many or on others."""

import json
import os
import shutil
import subprocess
from collections import Counter
from importlib import metadata
from itertools import chain, islice

import pytest
from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler
from torch.distributed import TCPStore
from torch.utils.data import BatchSampler, DataLoader

from framework_runs import SCRIPTS
from holdfast.errors import Mismatch
from holdfast.torch.plans import plan_for

HF = ("transformers", "transformers.trainer", "accelerate", "holdfast.transformers.walk")
MODULES = {"transformers": HF, "at_load": HF, "lightning": ("lightning.pytorch", "holdfast.lightning")}
SINCE = {
    "transformers": ("accelerate", [1, 6]),
    "at_load": ("transformers", [5, 23]),
    "lightning": ("lightning", [2, 5]),
}
KNOWN = [  # to the versions that are installed; Lightning's lowest has it
    trainer
    for trainer, (package, since) in SINCE.items()
    if [*map(int, metadata.version(package).split(".")[:2])] >= since or trainer == "lightning"
]
COMMON = ("struck", "torch", "torch.distributed.fsdp", "torch.distributed.checkpoint", "holdfast.torch.program")
SAMPLES, EPOCHS, STEPS = 48, 3, 12
KILLED = -9


def attempt(python, trainer, place, number, world=2, strike="", mode="holdfast"):
    """Run all ranks as torchrun does, which keeps their store itself; `strike` hits each of them."""
    place.mkdir(exist_ok=True)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = str(store.port)
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "WORLD_SIZE": str(world)}
    shared |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared |= {"GLOO_SOCKET_IFNAME": "lo", "STRIKE": strike, "ATTEMPT": str(number), "HOLDFAST_RANKS_TIMEOUT_S": "30"}
    started = [
        subprocess.Popen(
            [*python, str(SCRIPTS / "fsdp2.py"), trainer, mode],
            cwd=place,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    said = [each.communicate(timeout=200)[0] for each in started]
    codes = [each.returncode for each in started]
    assert codes == [KILLED if strike else 0] * world, "\n".join(said)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def contents(place, number):
    """The digest of all tensors before each step of an attempt."""
    return {step: found for attempt, step, found in lines(place / "states.jsonl") if attempt == str(number)}


def samples(place, number):
    """Which samples all ranks of an attempt took in each step."""
    found = {}
    for path in sorted(place.glob("seen-*.jsonl")):
        for attempt, step, numbers in lines(path):
            if attempt == str(number):
                found.setdefault(step, []).extend(numbers)
    return found


@pytest.fixture(scope="module", params=KNOWN)
def killed(request, zygotes, tmp_path_factory):
    """The trainer, an uninterrupted run, and one of which all ranks were killed once."""
    trainer, place = request.param, tmp_path_factory.mktemp(request.param)
    python = zygotes(*COMMON, *MODULES[trainer])
    attempt(python, trainer, place / "whole", 0)
    attempt(python, trainer, place / "cut", 0, strike="step:7:KILL")
    return python, trainer, place


def test_all_ranks_killed_twice_and_resumed_end_with_the_same_bits(killed, tmp_path):
    """Weights, moments, losses, averages of DTensors, and what the trainer logs."""
    python, trainer, place = killed
    shutil.copytree(place / "cut", tmp_path / "cut")
    attempt(python, trainer, tmp_path / "cut", 1, strike="step:3:KILL")
    attempt(python, trainer, tmp_path / "cut", 2)
    whole, found = (json.loads((each / "result.json").read_text()) for each in (place / "whole", tmp_path / "cut"))
    assert whole["kinds"] == ["DTensor"]
    assert [name for name in whole if whole[name] != found[name]] == []
    assert 0 < min(contents(tmp_path / "cut", 1)) < min(contents(tmp_path / "cut", 2))


@pytest.mark.parametrize("world", [1, 3])
def test_another_number_of_ranks_has_the_same_tensors_and_takes_each_sample_once(killed, tmp_path, world):
    """The steps have the same samples, too; from the first one on the sums are those of another order."""
    python, trainer, place = killed
    shutil.copytree(place / "cut", tmp_path / "cut")
    attempt(python, trainer, tmp_path / "cut", 1, world)
    whole, found = contents(place / "whole", 0), contents(tmp_path / "cut", 1)
    began = min(found)
    assert began > STEPS // EPOCHS
    assert began % (STEPS // EPOCHS)
    assert found[began] == whole[began]
    before, after = samples(tmp_path / "cut", 0), samples(tmp_path / "cut", 1)
    taken = {step: each for step, each in before.items() if step < began} | after
    assert {step: sorted(each) for step, each in taken.items()} == {
        step: sorted(each) for step, each in samples(place / "whole", 0).items()
    }
    per = STEPS // EPOCHS
    epochs = [Counter(chain(*(taken[step] for step in range(at * per, at * per + per)))) for at in range(EPOCHS)]
    assert epochs == [Counter(range(SAMPLES))] * EPOCHS


def dealt(processes, each, position, steps, *, split=False):
    """What so many processes take in the next steps, and where each of them is then."""
    taken, positions = [], []
    for process in range(processes):
        sampler = BatchSampler(SeedableRandomSampler(range(SAMPLES)), each, drop_last=False)
        sampler.sampler.initial_seed = 3
        shard = BatchSamplerShard(sampler, processes, process, split) if processes > 1 else sampler
        plan = plan_for(DataLoader(range(SAMPLES), batch_sampler=shard), 5)
        taken.append([*islice(plan.walk(0, position), steps)])
        positions.append(taken[-1][-1].position)
    return [sorted(chain(*(each.indices for each in step))) for step in zip(*taken, strict=True)], positions[0]


def test_any_number_of_processes_deals_out_the_rest_of_an_epoch():
    """Again and again, and back to a number that there was; never with other samples in a step."""
    start = {"epoch": 0, "batches": 0, "samples": 0}
    whole, _ = dealt(2, 3, start, 8)
    steps, position = dealt(2, 3, start, 2)
    for processes, each, split in ((3, 2, False), (1, 6, False), (2, 6, True), (2, 3, False)):
        more, position = dealt(processes, each, position, 1, split=split)
        steps += more
    more, end = dealt(2, 3, position, 2)
    assert steps + more == whole
    assert (end["batches"], end["dealt"]["samples"]) == (8, SAMPLES)
    with pytest.raises(Mismatch, match="a step took 6 samples of all processes, and would take 4"):
        dealt(2, 2, position, 1)
    position["dealt"]["digest"] = "0"
    with pytest.raises(Mismatch, match="are others than before"):
        dealt(3, 2, position, 1)
