"""Programs without a network: each example is killed and compared, and a sweep's study ends as without the kills."""

import json
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import emcee
import jax
import numpy as np
import numpyro
import pytest
from emcee.state import State
from numpyro.infer import MCMC, NUTS
from scipy.optimize import rosen
from scipy.optimize._differentialevolution import DifferentialEvolutionSolver
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier

from holdfast import Every, Fields, Run
from holdfast.jax import Tree
from toy import Cut

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.name for path in (EXAMPLES / "computations").glob("*.py"))
STUDY = """
import json, optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
study = optuna.load_study(study_name="sweep", storage=JournalStorage(JournalFileBackend("sweep.log")))
print(json.dumps([[t.number, t.params, t.value, t.state.name, t.intermediate_values] for t in study.get_trials()]))
"""


def test_there_are_examples():
    """And the page names each."""
    page = (EXAMPLES.parent / "docs/computations.md").read_text(encoding="utf-8")
    assert len(SCRIPTS) == 6
    assert [name for name in SCRIPTS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_identical(tmp_path, name):
    """Its drill kills it twice."""
    command = [sys.executable, "-m", "holdfast", "drill", "--kills", "2", "--seed", "3", "--"]
    command += [sys.executable, str(EXAMPLES / "computations" / name)]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "\nidentical\n" in found.stdout
    assert "kills proven: 2 of 2" in found.stdout


def trials(place):
    found = subprocess.run([sys.executable, "-c", STUDY], cwd=place, capture_output=True, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def _killed(command, place, when):
    """Whether the worker was killed, when it began so many trials. Its last line ends the loop."""
    with subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as worker:
        begun = 0
        for line in worker.stderr:
            begun += "starts fresh" in line or "resumes" in line
            if begun == when:
                worker.send_signal(signal.SIGKILL)
    return worker.returncode != 0


def test_a_killed_sweep_has_the_same_study(tmp_path):
    """Parameters, values, reports, and which trials were pruned. Killed whenever one more trial has begun."""
    command = [sys.executable, str(EXAMPLES / "sweep/worker.py"), "8"]
    for name in ("full", "killed"):
        (tmp_path / name).mkdir()
    subprocess.run(command, cwd=tmp_path / "full", check=True, capture_output=True)
    dice, kills = random.Random(5), 0
    while kills < 4 and _killed(command, tmp_path / "killed", dice.randint(2, 3)):
        kills += 1
    assert kills >= 2
    subprocess.run(command, cwd=tmp_path / "killed", check=True, capture_output=True)
    assert trials(tmp_path / "killed") == trials(tmp_path / "full")
    assert "PRUNED" in {state for _, _, _, state, _ in trials(tmp_path / "full")}


BEGINS = """
import os, signal, sys
sys.path.insert(0, {sweep!r})
import worker
begin = worker.STORAGE.create_new_trial
worker.STORAGE.create_new_trial = lambda *words: (begin(*words), os.kill(os.getpid(), signal.SIGKILL))
worker.main()
"""


def test_a_trial_whose_worker_is_killed_as_it_begins_is_found_again(tmp_path, monkeypatch):
    """By the name of a task, which stands in the trial from its first moment: https://github.com/optuna/optuna/issues/1641."""
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    begins = [sys.executable, "-c", BEGINS.format(sweep=str(EXAMPLES / "sweep")), "1"]
    assert subprocess.run(begins, cwd=tmp_path, check=False, capture_output=True).returncode == -signal.SIGKILL
    assert ["RUNNING"] == [state for _, _, _, state, _ in trials(tmp_path)]
    subprocess.run(
        [sys.executable, str(EXAMPLES / "sweep/worker.py"), "1"], cwd=tmp_path, check=True, capture_output=True
    )
    assert ["COMPLETE"] == [state for _, _, _, state, _ in trials(tmp_path)]


def resumed(place, make, steps):
    """Whether a run that is cut in its middle comes to what one without a cut comes to; and that.

    `make`: a state, what a step does, and the result.
    """
    found = []
    for name, cut in (("whole", None), ("cut", steps // 2), ("cut", None)):
        state, step, result = make()
        with suppress(Cut), Run(place / name, state, every=Every(steps=1), background=False) as run:
            for number in run.steps(steps):
                if number == cut:
                    raise Cut
                step()
        found.append(result())
    assert found[1] != found[0]
    return found[2] == found[0], found[0]


def test_a_resumed_chain_of_emcee_ends_at_its_number_of_steps(tmp_path):
    """emcee takes all of them once more, to 80: https://github.com/dfm/emcee/issues/339."""
    start, backend = np.random.default_rng(0).normal(size=(8, 2)), emcee.backends.Backend()
    sampler = lambda: emcee.EnsembleSampler(8, 2, lambda x: -0.5 * np.sum(x * x), backend=backend)
    for begin in (start, None):
        sampler().run_mcmc(begin, 40)
    assert backend.iteration == 80

    def make():
        chain: dict[str, Any] = {"x": start, "log": []}
        dice, one = np.random.RandomState(1), sampler()

        def step():
            *_, end = one.sample(State(chain["x"], random_state=dice.get_state()), store=False)
            dice.set_state(end.random_state)
            chain["x"] = end.coords
            chain["log"].append(end.coords.tolist())

        return {"chain": chain, "dice": dice}, step, lambda: chain["log"]

    same, log = resumed(tmp_path, make, 40)
    assert same
    assert len(log) == 40


def test_a_resumed_linear_model_has_the_weights_of_one_go(tmp_path):
    """`warm_start` has others: https://github.com/scikit-learn/scikit-learn/issues/10011."""
    x, y = make_classification(random_state=0)
    own = [SGDClassifier(random_state=1, tol=None, max_iter=n, warm_start=True).fit(x, y) for n in (5, 10)]
    assert own[0].fit(x, y).coef_.tolist() != own[1].coef_.tolist()

    def make():
        dice = np.random.default_rng(1)
        model = SGDClassifier(random_state=1, shuffle=False).partial_fit(x, y, [0, 1])

        def step():
            order = dice.permutation(len(x))
            model.partial_fit(x[order], y[order])

        return {"model": Fields(model, "coef_", "intercept_", "t_"), "dice": dice}, step, lambda: [*model.coef_[0]]

    assert resumed(tmp_path, make, 10)[0]


def test_a_resumed_evolution_of_scipy_has_the_costs_of_one_go(tmp_path):
    """With its population and energies alone, as advised, it has others: https://github.com/scipy/scipy/issues/6517."""
    solver = lambda dice: DifferentialEvolutionSolver(rosen, [(-2, 2)] * 3, rng=dice, popsize=5)
    names = ("population", "population_energies")

    def make():
        dice = np.random.default_rng(3)
        one = solver(dice)
        next(one)
        fields = Fields(one, *names, "_random_population_index", "scale", "_nfev")
        return {"solver": fields, "dice": dice}, lambda: next(one), one.population_energies.tolist

    same, energies = resumed(tmp_path, make, 20)
    assert same
    first, again = (solver(np.random.default_rng(3)) for _ in range(2))
    for _ in range(11):
        next(first)
    for name in names:
        setattr(again, name, getattr(first, name).copy())
    for _ in range(10):
        next(again)
    assert again.population_energies.tolist() != energies


def test_a_resumed_warm_up_of_numpyro_has_the_step_size_of_one_go(tmp_path):
    """Each `run` begins its warm-up from scratch: https://github.com/pyro-ppl/numpyro/issues/1397."""
    model = lambda: numpyro.sample("x", numpyro.distributions.Normal(0, 1))

    def own(*parts):
        key, state = jax.random.PRNGKey(0), None
        for part in parts:
            chain = MCMC(NUTS(model), num_warmup=part, num_samples=1, progress_bar=False)
            chain.warmup(key, init_params=state and state.z)
            state = chain.post_warmup_state
        return float(state.adapt_state.step_size)

    assert own(20, 20) != own(40)

    def make():
        kernel = NUTS(model)
        tree = Tree(kernel.init(jax.random.PRNGKey(0), 40, None, (), {}))

        move = jax.jit(lambda state: kernel.sample(state, (), {}))

        def step():
            tree.value = move(tree.value)

        return {"kernel": tree}, step, lambda: float(tree.value.adapt_state.step_size)

    assert resumed(tmp_path, make, 40)[0]
