"""Fits of Lightning's Trainer, killed and started again: everything is as in the fit that nobody killed.

`scripts/lightning_fit.py` says what "everything" is: weights, optimizers, schedulers, random numbers, the order of the
samples, what callbacks and the module count, the files of ModelCheckpoint, two loggers, and the run's own log.
"""

import json
import os
import socket
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from framework_runs import AGAIN, SCRIPTS, trained

OURS = ("struck", "torch", "torchmetrics.classification", "holdfast.lightning", "holdfast.torch.program")
MODULES = (*OURS, "lightning.pytorch")
SCRIPT = "lightning_fit"


@pytest.fixture(scope="module")
def whole(zygotes, tmp_path_factory):
    """The result of an uninterrupted fit, by its arguments."""
    known = {}

    def result(*arguments):
        if arguments not in known:
            place = tmp_path_factory.mktemp("whole")
            known[arguments] = json.loads(trained(zygotes(*MODULES), SCRIPT, place, *arguments).result)
        return known[arguments]

    return result


def is_the_same(whole, zygotes, place, arguments, strikes):
    expected = whole(*arguments)
    assert expected["lines"]
    assert expected["order"]
    found = trained(zygotes(*MODULES), SCRIPT, place, *arguments, strikes=strikes)
    actual = json.loads(found.result)
    assert len(found.exits) == len(strikes) + 1
    assert {name: (expected[name], actual[name]) for name in expected if expected[name] != actual[name]} == {}, (
        found.said[-3000:]
    )
    assert expected == actual
    return found


KILLED = [
    ("in mid-epoch", "", ("batch:3:KILL", "batch:6:TERM", "step:2:KILL")),
    ("in an accumulation group", "accumulate=4", ("batch:5:KILL", "step:2:TERM", "step:3:KILL")),
    ("at an epoch's last batch", "", ("batch:6:KILL", "batch:6:TERM", "batch:6:KILL")),
    ("at an epoch's end", "", ("epoch:1:TERM", "epoch:1:KILL")),
    ("in validation", "", ("validation:4:KILL", "validation:2:TERM", "validation:3:TERM")),
    ("in validation in mid-epoch", "interval=2", ("validation:7:KILL", "validation:4:TERM", "batch:5:KILL")),
    ("with workers", "workers=2", ("batch:3:KILL", "batch:5:TERM", "validation:2:KILL")),
    ("with persistent workers", "workers=2 persistent", ("batch:3:KILL", "validation:2:TERM", "batch:3:TERM")),
    ("optimized by hand", "manual", ("batch:3:KILL", "batch:2:TERM", "batch:6:KILL")),
    ("with a schedule by steps", "cycle accumulate=2", ("batch:4:KILL", "batch:5:TERM")),
    ("with a plateau", "plateau interval=3", ("batch:5:KILL", "batch:6:TERM")),
    ("with limited batches", "limit=4 own", ("batch:3:KILL", "batch:4:TERM", "validation:2:KILL")),
    ("thawed by a hook", "frozen", ("batch:3:TERM", "batch:6:KILL", "batch:2:TERM")),
    ("from a stream", "stream", ("batch:3:KILL", "batch:6:TERM", "batch:2:KILL")),
    ("from two loaders", "two", ("batch:3:KILL", "batch:6:TERM")),
    ("from a loader and a shorter one", "two other=10", ("batch:5:KILL", "batch:6:TERM")),
    ("with SWA", "swa", ("batch:9:KILL", "batch:2:TERM", "batch:2:KILL")),
    ("up to a number of steps", "max_steps=8 epochs=9", ("batch:3:KILL", "batch:3:TERM")),
    ("with loaders made anew", "reload=1", ("batch:9:KILL", "batch:2:TERM")),
    ("stopped early", "patience=1 epochs=9", ("batch:3:KILL", "batch:9:TERM", "validation:2:KILL")),
    ("by a script that resumes by itself", "theirs", ("batch:9:KILL", "batch:6:TERM")),
    ("with the configuration of LightningCLI", "cli", ("batch:9:KILL", "batch:6:TERM")),
    ("saved in the background", "behind", ("batch:9:TERM", "batch:3:KILL")),
]
if [*map(int, metadata.version("lightning").split(".")[:2])] >= [2, 6]:
    KILLED.append(("with averaged weights", "average", ("batch:3:KILL", "batch:8:TERM", "validation:2:KILL")))


@pytest.mark.parametrize(("how", "arguments", "strikes"), KILLED, ids=[how for how, _, _ in KILLED])
def test_a_killed_fit_ends_as_the_whole_one(whole, zygotes, tmp_path, how, arguments, strikes):
    """Wherever KILL and TERM hit, and whatever trains."""
    is_the_same(whole, zygotes, tmp_path, tuple(arguments.split()), strikes)


def states(place):
    """What each checkpoint of the run in `place` holds: the digest of every leaf, and the tree around them."""
    manifests = {
        path.parent.name: json.loads(path.read_text()) for path in place.glob("run/checkpoints/step-*/manifest.json")
    }
    return {
        name: [{key: leaf["digest"] for key, leaf in found["leaves"].items()}, found["tree"]["dict"]["trainer"]]
        for name, found in manifests.items()
    }


def test_every_state_on_the_way(zygotes, tmp_path):
    """Each save after a resume holds what that of the whole fit does, whose values may be one object in two places."""
    words = ("all", "interval=3", "accumulate=2")
    trained(zygotes(*MODULES), SCRIPT, tmp_path / "whole", *words)
    strikes = ("batch:3:KILL", "epoch:1:TERM", "batch:5:KILL")
    trained(zygotes(*MODULES), SCRIPT, tmp_path / "killed", *words, strikes=strikes)
    expected, actual = states(tmp_path / "whole"), states(tmp_path / "killed")
    assert len(expected) > 6
    assert expected.keys() == actual.keys()
    assert [name for name in sorted(expected) if expected[name] != actual[name]] == []


def test_under_its_older_name(zygotes, tmp_path):
    """`pytorch_lightning` is the same code, with classes of its own."""
    python, words = zygotes(*OURS, "pytorch_lightning"), ("pytorch_lightning", "accumulate=2")
    expected = trained(python, SCRIPT, tmp_path / "whole", *words).result
    found = trained(python, SCRIPT, tmp_path / "killed", *words, strikes=("batch:3:KILL", "validation:2:TERM"))
    assert expected == found.result


@pytest.mark.parametrize("ends", ["epochs", "steps"])
def test_a_finished_fit_trains_nothing_until_its_limit_is_raised(whole, zygotes, tmp_path, ends):
    """Started again it leaves all as it is. With more epochs it ends as a fit that had them from the beginning."""
    python = zygotes(*MODULES)
    first, then = ("epochs=2", "epochs=4") if ends == "epochs" else ("max_steps=6 epochs=9", "max_steps=12 epochs=9")
    done = trained(python, SCRIPT, tmp_path, *first.split())
    order = (tmp_path / "order.txt").read_text()
    again = trained(python, SCRIPT, tmp_path, *first.split())
    assert "already finished" in again.said
    assert (done.result, order) == (again.result, (tmp_path / "order.txt").read_text())
    raised = json.loads(trained(python, SCRIPT, tmp_path, *then.split()).result)
    assert whole(*then.split()) == raised


def test_an_early_stop_is_the_end(whole, zygotes, tmp_path):
    """A fit that EarlyStopping has ended is finished as well, although epochs are left."""
    words = ("patience=1", "epochs=9")
    done = trained(zygotes(*MODULES), SCRIPT, tmp_path, *words)
    again = trained(zygotes(*MODULES), SCRIPT, tmp_path, *words)
    assert "already finished" in again.said
    assert whole(*words)["counts"][3] < 9
    assert done.result == again.result


def test_more_epochs_after_an_early_stop(zygotes, tmp_path):
    """A larger limit lets it go on, until EarlyStopping stops it again."""
    done, more = (
        json.loads(trained(zygotes(*MODULES), SCRIPT, tmp_path, "patience=1", epochs).result)
        for epochs in ("epochs=9", "epochs=12")
    )
    assert done["counts"][3] < 9
    assert more["counts"][3] > done["counts"][3]
    assert more["counts"][0] > done["counts"][0]


def test_another_runs_events_are_left_alone(zygotes, tmp_path):
    """In the directory of TensorBoard's logger: those that were there before, and those that came meanwhile."""
    trained(zygotes(*MODULES), SCRIPT, tmp_path, "board", strikes=("batch:3:KILL",))
    there = [path.read_bytes() for path in sorted(tmp_path.glob("board/version_0/events.out.tfevents.?"))]
    assert there == [b"another's"] * 2


def pair(python, place, *arguments, strikes=("", "")):
    """Run both processes of a fit, as `srun` or `torchrun` would start them; return their exit codes and output."""
    place.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "NODE_RANK": "0", "WORLD_SIZE": "2"}
    shared["HOLDFAST_RANKS_TIMEOUT_S"] = "5"  # nobody ends the process that is left, as a launcher would
    started = [
        subprocess.Popen(
            [*python, str(SCRIPTS / f"{SCRIPT}.py"), "devices=2", *arguments],
            cwd=place,
            env={**os.environ, **shared, "LOCAL_RANK": str(rank), "STRIKE": strikes[rank]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [each.communicate(timeout=120)[0] for each in started]
    return [each.returncode for each in started], said


def test_two_processes(zygotes, tmp_path):
    """DDP: a signal to either of them stops both; one that is killed takes the other along."""
    python, words = zygotes(*MODULES), ("accumulate=2", "epochs=8")
    codes, said = pair(python, tmp_path / "whole", *words)
    assert codes == [0, 0], said
    place = tmp_path / "killed"
    for strikes, expected in (
        (("batch:2:TERM", ""), [AGAIN, AGAIN]),
        (("", "batch:2:KILL"), None),
        (("", "validation:2:TERM"), [AGAIN, AGAIN]),
        (("batch:2:KILL", ""), None),
        (("", ""), [0, 0]),
    ):
        codes, said = pair(python, place, *words, strikes=strikes)
        assert not any(strikes) or any("struck: " in text for text in said), said
        assert codes == expected if expected else 0 not in codes, (codes, said)
    expected, actual = (json.loads((each / "result.json").read_text()) for each in (tmp_path / "whole", place))
    assert [name for name in expected if expected[name] != actual[name]] == []


def test_processes_that_lightning_starts(zygotes, tmp_path):
    """Its observer of these processes takes no 75 for a crash."""
    tests, source = Path(__file__).parents[1], Path(__file__).parents[2] / "src"
    path = os.pathsep.join([str(tests), str(source)])
    python, words = zygotes(*MODULES), ("devices=2", "epochs=1")
    expected = trained(python, SCRIPT, tmp_path / "whole", *words, PYTHONPATH=path).result
    found = trained(python, SCRIPT, tmp_path / "killed", *words, strikes=("batch:2:TERM",), PYTHONPATH=path)
    assert found.exits == [AGAIN, 0]
    assert expected == found.result


def test_what_it_leaves_alone(zygotes, tmp_path):
    """Files of another training, and a run that is finished; attributes of every plain kind come back."""
    assert json.loads(trained(zygotes(*MODULES), "lightning_laws", tmp_path).result) == "all laws hold"


def test_what_is_refused(zygotes, tmp_path):
    """Each in one line that says what to do instead."""
    refused = json.loads(trained(zygotes(*MODULES), "lightning_refused", tmp_path).result)
    assert "leave ckpt_path out" in refused["ckpt_path"]
    assert "start_from=" in refused["ckpt_path"]
    assert "one trainer has one holdfast.lightning" in refused["two callbacks"]
    assert "write training_step(batch)" in refused["dataloader_iter"]
    assert "call fully_shard() in configure_model()" in refused["fsdp"]
    assert "a loss scaler that only DeepSpeed saves" in refused["deepspeed"]
    assert "tensor_parallel_size=1" in refused["tensor parallel"]
    assert "adds parameter groups" in refused["finetuning"]
    assert "trains nothing" in refused["no batches"]
    for name in ("no sample", "no sample again", "an empty stream"):
        assert "gave no batch" in refused[name]
    assert "nothing" == refused["samples at last"]
    assert "is taken by the trainer's own objects" in refused["state"]
    assert "takes (self, more) and not (self)" in refused["another version"]
    assert all("\n" not in line for line in refused.values())
