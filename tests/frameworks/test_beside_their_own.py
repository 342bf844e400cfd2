"""Killed once in mid-epoch and run again: what a framework's own mechanism loses, and that ours loses nothing.

docs/exactness.md shows the table that this prints.
"""

import json

import pytest

from framework_runs import trained

TABLE = "table: beside the frameworks' own mechanisms: docs/exactness.md"
EPOCHS, BATCHES, KILL = 3, 7, "batch:11:KILL"
OURS = 11 + 3 * 7 - 9  # batches trained: those until the kill, and those after the save of step 9
SAME = {  # framework -> whether its own mechanism ends with the same weights, and with the same log
    "keras": (False, False),
    "lightning": (False, False),
    "transformers": (False, False),
    "accelerate": (False, False),
    "jax": (True, True),
}
MODULES = {
    "keras": ("keras",),
    "lightning": ("lightning.pytorch",),
    "transformers": ("transformers", "transformers.trainer"),
    "accelerate": ("torch", "accelerate"),
    "jax": ("jax", "optax", "orbax.checkpoint"),
}


@pytest.mark.parametrize("framework", MODULES)
def test_its_own_mechanism_loses_this_and_ours_nothing(framework, zygotes, tmp_path, monkeypatch, record_property):
    """Both save every three batches. Ours is beside an uninterrupted run of ours, which has its own order of data."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    python = zygotes("numpy", "struck", *MODULES[framework])

    def run(mode, *strikes):
        place = tmp_path / f"{mode}{len(strikes)}"
        result = json.loads(trained(python, f"beside_{framework}", place, mode, strikes=strikes).result)
        return result, len((place / "batches").read_text().split())

    def same(one, other):
        return tuple(one[part] == other[part] for part in ("weights", "log"))

    (plain, batches), (own, own_batches) = run("none"), run("own", KILL)
    (ours, our_batches), (killed, killed_batches) = run("holdfast"), run("holdfast", KILL)
    record_property(TABLE, f"{framework} | {same(own, plain)} | {own_batches} of {batches}")
    assert batches == our_batches == EPOCHS * BATCHES
    assert killed_batches == OURS
    assert same(killed, ours) == (True, True)
    assert same(own, plain) == SAME[framework]
