"""Exactness: whatever kills a training run, the bytes at its end are those of one that was never killed.

A sample of places, loaders and workers; tests/prove/test_every_kill.py asks all of them.
"""

import subprocess
import sys

import pytest

from exactness import (
    ANYWHERE,
    DONE,
    EPOCH_KILLS,
    KILLED,
    LATE,
    SCRIPT,
    STEP_KILLS,
    STOPS,
    End,
    body,
    check,
    differences,
    with_signal,
)


def each(nth, cases, first=0):
    found = dict([*cases.items()][first::nth])
    assert found
    return found


@pytest.mark.parametrize(
    ("cases", "asked"),
    [
        (each(6, EPOCH_KILLS), {"loader": "plain", "workers": 2, "threads": 2, "evaluation_workers": 0}),
        (each(6, EPOCH_KILLS, 2), {"loader": "sampler"}),
        (each(7, STEP_KILLS, 2), {"loader": "steps", "threads": 2}),
    ],
    ids=lambda value: value.get("loader", ""),
)
def test_a_run_that_is_killed_anywhere_ends_in_the_same_bytes(lab, cases, asked):
    """SIGKILL at any of these places, and the next attempts reach the state of a run that was never killed."""
    check(lab, cases, save_every=4, **asked)


def test_a_run_that_is_asked_to_stop_anywhere_ends_in_the_same_bytes(lab):
    """SIGTERM at any of these places is obeyed at the next safe point, with exit code 75."""
    cases = {case: with_signal("TERM", kills) for case, kills in each(4, STOPS, 1).items()}
    check(lab, cases, threads=2, save_every=4)


@pytest.mark.parametrize(
    ("number", "loader"), [*enumerate(["batch_sampler", "stateful", "iterable", "own_state", "nested"])]
)
def test_every_kind_of_loader_and_loop_goes_on_where_it_was(lab, number, loader):
    """A batch sampler of the user's, torchdata's loader, a stream that is read again, a state of its own, nested
    steps.
    """
    check(lab, each(3, ANYWHERE, number % 3), loader=loader)


def test_groups_of_batches_are_never_torn(lab):
    """With accumulate=4 an epoch of six batches has two steps, and a kill in the middle of a group does it again
    whole.
    """
    cases = {
        "before the first save": [body(0, passes=2)],
        "in the middle of a whole group": [body(2, passes=3)],
        "in the middle of a short group": [body(3, passes=1)],
        "at an epoch's end": [{"at": "committed", "name": "step-000000004-end"}],
        "three times": [
            body(2, passes=3),
            body(2, passes=1, signal="TERM"),
            body(5, passes=0),
        ],
    }
    check(lab, cases, threads=2, accumulate=4, save_every=1)


def test_persistent_workers_see_every_epoch(lab):
    """Workers that outlive many epochs augment as fresh ones do, before and after a kill."""
    reference = lab.run({}, workers=2, persistent=True)  # fresh ones draw a seed in every epoch, as plain loaders do
    outcome = lab.killed(body(9), workers=2, persistent=True)
    assert differences(reference.end, outcome.end) == []


def test_the_oracle_sees_one_bit_of_each_fact(lab):
    """Every single fact of a final checkpoint, and every line of the metrics log, when altered alone is reported
    alone.
    """
    reference = lab.run({}).end
    areas = ("model/", "ema/", "optimizer/", "holdfast/rng/", "tree/dict/cosine", "tree/dict/holdfast/dict/position")
    assert [area for area in areas if not [key for key in reference.facts if key.startswith(area)]] == []
    for key, fact in reference.facts.items():
        assert differences(reference, End({**reference.facts, key: f"not {fact}"}, reference.metrics)) == [key]
    for number in range(len(reference.metrics)):
        short = [*reference.metrics[:number], *reference.metrics[number + 1 :]]
        assert differences(reference, End(reference.facts, short)) != []


def test_the_network_is_large_enough_for_its_threads():
    """The matrix would prove nothing about two threads if one did all the work."""
    code = (
        "import os, training; tasks = lambda: len(os.listdir('/proc/self/task'))\n"
        "for threads in (1, 2):\n"
        "    training.torch.set_num_threads(threads); before = tasks()\n"
        "    made = training.Training(training.DEFAULTS); made.model(made.fixed[:8][0])\n"
        "    print(tasks() > before)"
    )
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, cwd=SCRIPT.parent, capture_output=True, text=True, check=True)
    assert ["False", "True"] == told.stdout.split()


OPTIMIZER = ["ema", "optimizer", "cosine", "plateau", "scaler"]


RNG = ["python", "numpy", "torch"]


ROWS = {
    "model": ({"forget": [*OPTIMIZER, *RNG, "position"], "loader": "global_order", "seeded": False}, False),
    "and optimizer, scheduler": ({"forget": [*RNG, "position"], "loader": "global_order", "seeded": False}, False),
    "and random numbers": ({"forget": ["position"], "loader": "global_order", "seeded": False}, False),
    "and seen batches skipped": ({"loader": "global_order", "seeded": False}, False),
    "and the order from (seed, epoch)": ({"loader": "plain", "seeded": False}, True),
    "the same with workers": ({"loader": "plain", "seeded": False, "workers": 2}, False),
    "and augmentation from (seed, epoch, index)": ({"loader": "plain", "workers": 2}, True),
}


@pytest.mark.parametrize("restored", ROWS)
def test_each_row_of_what_exactness_needs(lab, restored):
    """Only when everything is restored are the final bytes identical; one thing short, and they differ."""
    asked, identical = ROWS[restored]
    reference = lab.run({}, **asked)
    outcome = lab.killed(body(9), **LATE, **asked)
    assert outcome.codes == [KILLED, DONE], outcome.log
    assert (differences(reference.end, outcome.end) == []) == identical
