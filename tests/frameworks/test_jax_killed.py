"""Trainings in JAX with their state in a `Tree`: killed in mid-epoch and at its end, they end with the same bits."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from framework_runs import SCRIPTS, trained

MODULES = (
    *("struck", "numpy", "jax", "jax.numpy", "optax", "flax.linen", "flax.training.train_state", "flax.nnx", "equinox"),
    *("holdfast.jax", "holdfast.jax.live", "holdfast.jax.weights", "orbax.checkpoint"),
)
STYLES = ("optax", "bf16", "donated", "sharded", "linen", "nnx", "equinox")


@pytest.mark.parametrize("style", STYLES)
def test_a_training_ends_with_the_same_bits(style, zygotes, tmp_path):
    """Killed by KILL and TERM in mid-epoch and at an epoch's last batch: state, samples seen and metrics are equal."""
    python = zygotes(*MODULES)
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"} if style == "sharded" else {}
    whole = trained(python, "jax_training", tmp_path / "whole", style, **devices)
    strikes = ("batch:4:KILL", "batch:2:TERM", "batch:2:TERM")
    killed = trained(python, "jax_training", tmp_path / "killed", style, strikes=strikes, **devices)
    assert killed.exits == [-9, 75, 75, 0]
    expected, found = json.loads(whole.result), json.loads(killed.result)
    assert len(expected["seen"]) == 12
    assert len(expected["log"]) == 14
    assert expected == found


def test_plain_attributes_that_come_or_go_are_refused(zygotes, tmp_path):
    """At the save, and before anything is restored."""
    done = trained(zygotes(*MODULES), "jax_attributes", tmp_path)
    assert "all laws hold" in done.result


def on(count):
    return {"XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}


def placed(python, place, *words, devices):
    """What jax_places.py has found, what it has left, and what its own arrays are on so many devices."""
    done = subprocess.run(
        [*python, str(SCRIPTS / "jax_places.py"), *words],
        env={**os.environ, **on(devices)},
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = f"found-{devices}.json", f"left-{devices}.json", "mine.json"
    return [json.loads((place / name).read_text()) for name in names]


def test_arrays_over_four_devices_go_on_over_two_and_one(zygotes, tmp_path):
    """Same bits; on other devices they lie as the script lays them out there, on the same ones as at the save."""
    python = zygotes(*MODULES)
    saved = tmp_path / "saved"
    saved.mkdir()
    _, left, own = placed(python, saved, "moved", devices=4)
    assert left["free"][2:] != own["free"][2:]
    for devices in (4, 2, 1):
        place = tmp_path / str(devices)
        shutil.copytree(saved, place)
        found, _, here = placed(python, place, devices=devices)
        assert {name: fact[:2] for name, fact in left.items()} == {name: fact[:2] for name, fact in found.items()}
        expected = left if devices == 4 else here
        assert {name: fact[2:] for name, fact in expected.items()} == {name: fact[2:] for name, fact in found.items()}
        assert len(found) == 8


def test_an_array_of_several_processes_is_refused(tmp_path):
    """Each process has only a part of it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPTS / "jax_processes.py"), str(rank), port],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for said in [rank.communicate(timeout=200)[0] for rank in ranks]:
        assert 'cannot save state["state"]["w"]' in said, said
        assert "parts of it lie in other processes" in said, said


def test_a_checkpoint_of_orbax_starts_a_run(zygotes, tmp_path):
    """All leaves of a Linen state come back by their names; another shape is named, and nothing is read."""
    done = subprocess.run(
        [*zygotes(*MODULES), str(SCRIPTS / "jax_from_orbax.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "seen: 5" in done.stdout


def test_the_example_is_identical_under_the_drill(tmp_path):
    """In fresh processes, with hash seeds of their own."""
    example = Path(__file__).parents[2] / "examples" / "jax" / "train.py"
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "drill", "--kills", "3", "--", sys.executable, str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "identical" in done.stdout, done.stdout
