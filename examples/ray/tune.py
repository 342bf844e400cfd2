"""Ray Tune: kill each trial's worker once, pause each trial once, and compare all with trials that nothing disturbed.

pip install "ray[tune]"
python examples/ray/tune.py    # two minutes; its last line is `identical`
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from torch import nn

from holdfast import Every, Last, Run


def train(config):
    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    reported = []
    path = Path(config["runs"], f"seed-{config['seed']}")  # the same in each start of the trial
    state = {"model": model, "optimizer": optimizer, "reported": reported}
    with Run(path, state, keep=Last(2), every=Every(steps=3)) as run:
        for loss in reported:  # Tune counts a trial's reports anew in each start
            tune.report({"loss": loss})
        for step in run.steps(40):
            x = torch.randn(32, 2)
            loss = nn.functional.mse_loss(model(x), x.prod(1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss.item())
            time.sleep(0.01)
            if config["killed"] and step == 17 and not path.with_suffix(".killed").exists():
                path.with_suffix(".killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if step % 10 == 9:
                reported.append(loss.item())
                tune.report({"loss": loss.item()})


class Pauses(FIFOScheduler):
    """Pauses each trial once, at its second report."""

    paused = frozenset()

    def on_trial_result(self, _controller, trial, result):
        if result["training_iteration"] != 2 or trial.trial_id in self.paused:
            return TrialScheduler.CONTINUE
        self.paused |= {trial.trial_id}
        return TrialScheduler.PAUSE


def tuned(place, scheduler=None, *, killed=False):
    """Run three trials; of each, the losses by their number as Tune has them at last."""
    place.mkdir()
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={"seed": tune.grid_search([0, 1, 2]), "runs": str(place), "killed": killed},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(place / "ray"), failure_config=tune.FailureConfig(max_failures=2)),
    )
    frames = {each.config["seed"]: each.metrics_dataframe for each in tuner.fit()}
    return {seed: dict(zip(frame["training_iteration"], frame["loss"], strict=True)) for seed, frame in frames.items()}


def main():
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        whole = tuned(place / "whole")
        other = {"killed": tuned(place / "killed", killed=True), "paused": tuned(place / "paused", Pauses())}
        for kind, losses in other.items():
            if losses != whole:
                sys.exit(f"{kind}: {losses}, and undisturbed {whole}")
            for seed in whole:
                runs = [str(place / each / f"seed-{seed}") for each in ("whole", kind)]
                unseeded = ("--exempt", "*rng/numpy", "--exempt", "*rng/python")
                diff = [sys.executable, "-m", "holdfast", "diff", *unseeded, *runs]
                if subprocess.run(diff, check=False).returncode != 0:
                    sys.exit(f"{kind}, seed {seed}: different")
    print("identical")


if __name__ == "__main__":
    main()
