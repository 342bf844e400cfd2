"""Exactness: whatever kills a training run, the bytes at its end are those of one that was never killed.

All places, loaders, threads and workers; tests/slow/test_exactness.py asks a sample of them.
"""

import pytest

from exactness import (
    ANYWHERE,
    DONE,
    EPOCH_KILLS,
    KILLED,
    LATE,
    STEP_KILLS,
    STEP_STOPS,
    STOPS,
    body,
    check,
    differences,
    evaluation,
    with_signal,
)

KILL = "A kill in a training, at a step, an evaluation or a save"


# Three epochs of six steps; saves at 4, 6-end, 8, 12, 12-end, 16 and 18-end.
# The same 18 steps in one loop, the evaluation inside the body of every sixth; saves at 4, 6, 8, 12, 16 and 18.


@pytest.mark.parametrize("loader", ["plain", "sampler", "steps"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_that_is_killed_anywhere_ends_in_the_same_bytes(lab, tally, threads, workers, loader):
    """SIGKILL at any of these places, and the next attempts reach the state of a run that was never killed.

    steps() has no loader; there the workers are those of the evaluation's.
    """
    evaluating = 0 if loader == "sampler" else workers
    cases = STEP_KILLS if loader == "steps" else EPOCH_KILLS
    asked = {"threads": threads, "workers": workers, "loader": loader, "save_every": 4}
    tally(KILL, tried=check(lab, cases, **asked, evaluation_workers=evaluating))


@pytest.mark.parametrize(("loader", "workers"), [("plain", 0), ("plain", 2), ("sampler", 2), ("steps", 0)])
def test_a_run_that_is_asked_to_stop_anywhere_ends_in_the_same_bytes(lab, tally, loader, workers):
    """SIGTERM at any of these places is obeyed at the next safe point, with exit code 75."""
    cases = STEP_STOPS if loader == "steps" else STOPS
    cases = {case: with_signal("TERM", kills) for case, kills in cases.items()}
    asked = {"threads": 2, "workers": workers, "loader": loader, "save_every": 4}
    tally("A stop signal in a training", tried=check(lab, cases, **asked, evaluation_workers=0))


# Places that need no step number: an epoch has as many batches as the loader makes of it.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("loader", ["batch_sampler", "stateful", "iterable"])
def test_every_kind_of_loader_goes_on_where_it_was(lab, tally, loader, workers):
    """A batch sampler of the user's, torchdata's StatefulDataLoader, an IterableDataset that is read again.

    Nobody promises that the last one can be: it is saved at epochs' ends, and the first of these must be there.
    """
    asked = {"threads": 2, "workers": workers, "loader": loader, "background": loader != "iterable"}
    later = {"four times": [body(8), body(9, signal="TERM"), evaluation(1), body(14)]} if loader == "iterable" else {}
    tally(KILL, tried=check(lab, ANYWHERE | later, **asked, evaluation_workers=0))


@pytest.mark.parametrize("loader", ["own_state", "nested"])
def test_loops_of_other_shapes_go_on_where_they_were(lab, tally, loader):
    """A loader that keeps its own state, and steps inside of epochs."""
    tally(KILL, tried=check(lab, ANYWHERE, loader=loader))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("loader", ["plain", "sampler", "batch_sampler"])
def test_the_number_of_workers_may_change_from_attempt_to_attempt(lab, loader, persistent):
    """0, 2, 4 workers, then 1: the same bytes as with none, and the change is told."""
    asked = {"loader": loader, "persistent": persistent, "threads": 2, "save_every": 4}
    reference = lab.run({}, workers=0, **asked)
    kills = [
        (0, body(5)),
        (2, evaluation(1)),
        (4, body(15)),
        (1, None),
    ]
    outcome = lab.run(*({"workers": workers, "kill": kill} for workers, kill in kills), **asked)
    assert outcome.codes == [KILLED, KILLED, KILLED, DONE], outcome.log
    assert differences(reference.end, outcome.end, exempt="/fingerprint/") == []
    assert differences(reference.end, outcome.end) != [], "the fingerprint knows how many there were"
    assert "workers: 0, now 2" in outcome.log


# What is not taken over from the attempt before -> where it shows in the final checkpoint.
SABOTAGE = {
    "model": "model/head.weight digest",
    "ema": "ema/module.head.weight digest",
    "optimizer": "optimizer/state/0/exp_avg digest",
    "cosine": "tree/dict/cosine",
    "plateau": "tree/dict/plateau",
    "scaler": "tree/dict/scaler",
    "python": "holdfast/rng/python",
    "numpy": "holdfast/rng/numpy",
    "torch": "holdfast/rng/torch",
    "position": "at step",
}


@pytest.mark.parametrize("forgotten", SABOTAGE)
def test_the_oracle_goes_red_for_whatever_is_forgotten(lab, forgotten):
    """The same kill with one thing not restored ends elsewhere, and the comparison names the place."""
    asked = {"forget": [forgotten], "loader": "own_state"}
    reference = lab.run({}, **asked)
    outcome = lab.killed(body(9), **LATE, **asked)
    assert outcome.codes == [KILLED, DONE], outcome.log
    found = differences(reference.end, outcome.end)
    assert [where for where in found if where.startswith(SABOTAGE[forgotten])], found
    assert [where for where in found if where.startswith("metrics line")], "the log shows it too"
