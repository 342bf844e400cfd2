"""The drill names the true cause: planted scripts, each with one omission, and the same scripts with it mended.

The scripts stand in drill_scripts/. With FIX set each does what the first line of advice says, and the drill must find it
identical. `right.py` has scripts that omit nothing. The table of what was found is printed after the tests.
"""

import sys

import pytest

from causes import TORCH, Planted, drilled, zygote

pytestmark = [pytest.mark.slow, pytest.mark.drill]

BY_ITSELF = "not deterministic by itself"
PLANTED = [
    Planted("t_scheduler", "scheduler", "scheduler=scheduler"),
    Planted("t_scaler", "scaler", "scaler=scaler"),
    Planted("t_second_optimizer", "optimizer", "optimizer_d=optimizer_d"),
    Planted("t_ema", "EMA", "shadow=shadow"),
    Planted("replay_buffer", "attributes", 'buffer=Fields(buffer, "observations", "pos", "full")'),
    Planted("environment", "generator", 'env_np_random=env.np_random, env=Fields(env, "state", "elapsed")'),
    Planted("own_generator", "generator", "rng=rng"),
    Planted("t_own_sampler", "error", "the sampler's order cannot be replayed", verdict="refused"),
    Planted("own_order", "order", "holdfast.data.Shuffle", verdict="refused"),
    Planted("t_crops_fresh", "augmentation", "holdfast.data.Seeded(dataset, seed=0)"),
    Planted("t_crops_persistent", "augmentation", "holdfast.data.Seeded(dataset, seed=0)"),
    Planted("hidden_state", "variable", "run.vars.hidden"),
    Planted("prefetched", "variable", "run.vars.ahead"),
    Planted("one_ahead", "prefetched batch", "for batch in run.batches(loader)", verdict="refused"),
    Planted("accumulator", "accumulator", "run.vars.total"),
    Planted("learning_rate", "variable", "run.vars.lr"),
    Planted("early_stopping", "variable", "run.vars.bad"),
    Planted("evaluations", "accumulator", "run.vars.evaluations"),
    Planted("index", "enumerate", "in run.enumerate(loader)"),
    Planted("own_vars", "run.vars unused", "write run.vars.best"),
    Planted("t_rebound", "rebound", "run.vars.hidden"),
    Planted("t_module_attribute", "attributes", 'model_more=Fields(model, "hidden")'),
    Planted("between", "variable", "run.vars.shift"),
    Planted("dataset_changes", "attributes", 'dataset=Fields(dataset, "reads")'),
    Planted("function_attribute", "attributes", 'noise=Fields(noise, "calls")'),
    Planted("lazy_cache", "attributes", 'dataset=Fields(dataset, "cache")'),
    Planted("t_frozen", "frozen parameters", "for p in model[0].parameters(): p.requires_grad_"),
    Planted("no_epochs", "error", "for epoch in run.epochs(3):", verdict="refused"),
    Planted("t_unseeded", "unseeded", "torch.manual_seed(0)", BY_ITSELF),
    Planted("leftover", "leftover file", "leftover.py", BY_ITSELF),
    Planted("hash_order", "hash order", "sorted(set(...))", BY_ITSELF, fresh=True),
    Planted("clock", "clock", "no time of day", BY_ITSELF),
]
RIGHT = [
    "epochs",
    "draws",
    "early_stopping",
    "index",
    "buffer",
    "environment",
    "trainer",
    "accumulated",
    "best_weights",
    "monte_carlo",
    "counted_from_one",
    "drawn_for_each_epoch",
    "ahead",
]
ROW = "row of the table of causes"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    with zygote(tmp_path_factory.mktemp("plain"), "numpy") as python:
        yield python


@pytest.fixture(scope="module")
def torch(tmp_path_factory):
    with zygote(tmp_path_factory.mktemp("torch"), *TORCH) as python:
        yield python


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.script)
def test_an_omission_is_found_by_its_name_and_mended_by_the_first_line(planted, tmp_path, request, record_property):
    """The verdict, the cause, the line to write; and with that line written the drill says `identical`."""
    python = (
        [sys.executable]
        if planted.fresh
        else request.getfixturevalue("torch" if planted.script[:2] == "t_" else "plain")
    )
    found = drilled(python, planted.script, tmp_path, fix=False)
    mended = drilled(python, planted.script, tmp_path, fix=True)
    row = (planted.script, found.verdict, found.cause, planted.line, mended.verdict)
    record_property(ROW, " | ".join(row))
    assert (found.verdict, planted.verdict) == (planted.verdict, found.verdict), found
    assert planted.cause in (found.cause, *found.text.split("; ")) or f"{planted.cause}: " in found.text, found
    assert planted.line in found.text
    assert mended.verdict == "identical", mended


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_script_is_not_accused(name, plain, tmp_path, record_property):
    """Whatever shape its loop has."""
    found = drilled(plain, "right", tmp_path, fix=False, words=[name])
    record_property(ROW, f"right: {name} | {found.verdict} | {found.cause}")
    assert found.verdict == "identical", found
