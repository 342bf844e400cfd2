"""One worker of an Optuna sweep. Kill it and start it again: it goes on with its own trial, at its own step.

    python worker.py
    holdfast submit --array 1-4 --time 1:00:00 -- python worker.py      # four workers of one sweep under Slurm

The study lies in a file that all workers append to. A trial is a run of its own in runs/trial-N: what was trained of it
is not trained again. A trial has its worker's name from its first moment, and by that the worker finds it.
"""

import os
import sys

import optuna
import torch
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, TrialState, create_trial
from torch import nn

from holdfast import Every, Last, Run

STORAGE = JournalStorage(JournalFileBackend("sweep.log"))
TRIALS, STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 12, 30
WORKER = os.environ.get("SLURM_ARRAY_TASK_ID", "alone")


def train(trial):
    """Train the trial's model; report as Optuna wants it, and prune."""
    rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
    width = trial.suggest_int("width", 2, 8)
    torch.manual_seed(trial.number)
    model = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    outcome = {"reported": [], "pruned": False}
    state = {"model": model, "optimizer": optimizer, "outcome": outcome}
    with Run(f"runs/trial-{trial.number}", state, keep=Last(2), every=Every(steps=5)) as run:
        for step in run.steps(STEPS):
            x = torch.randn(32, 2)
            loss = nn.functional.mse_loss(model(x), x.prod(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())
            if step % 10 == 9:
                outcome["reported"].append(loss.item())
                trial.report(loss.item(), step)  # after a resume once more, with the same value
                outcome["pruned"] = trial.should_prune()
                if outcome["pruned"]:
                    break
    return outcome


def unfinished(study):
    """Return this worker's trial: the one that it has begun, or one more; None when the study has enough."""
    trials = study.get_trials(deepcopy=False)
    for each in trials:
        if each.state == TrialState.RUNNING and each.user_attrs["worker"] == WORKER:
            return Trial(study, each._trial_id)  # noqa: SLF001  Optuna has no public way
    if len(trials) >= TRIALS:
        return None
    # `study.ask()` and the name would be two moments: a worker killed between them leaves a trial that nobody finds
    new = create_trial(state=TrialState.RUNNING, user_attrs={"worker": WORKER})
    return Trial(study, STORAGE.create_new_trial(STORAGE.get_study_id_from_name("sweep"), new))


def main():
    """Finish trials until the study has enough of them."""
    study = optuna.create_study(study_name="sweep", storage=STORAGE, load_if_exists=True)
    while trial := unfinished(study):
        # the sampler's numbers depend on the trial alone, not on how often the worker was started
        study.sampler = optuna.samplers.TPESampler(seed=trial.number)
        outcome = train(trial)
        if outcome["pruned"]:
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, outcome["reported"][-1])
    print("best", study.best_params, study.best_value)


if __name__ == "__main__":
    main()
