"""A training with CatBoost, as a script of `framework_runs.trained`: KIND of it, then WORDS.

It takes notes of the model without what no two trainings of CatBoost share (an id, a time), of the evaluations, and of
the run's log.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from catboost import CatBoostClassifier, CatBoostRegressor, Pool

from holdfast import Every, journal
from struck import event

PARAMETERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "draws": {"bootstrap_type": "Bernoulli", "subsample": 0.5, "rsm": 0.5},
    "bayesian": {"bootstrap_type": "Bayesian", "random_strength": 2},
    "ordered": {"boosting_type": "Ordered"},
    "lossguide": {"grow_policy": "Lossguide", "max_leaves": 8},
    "langevin": {"langevin": True},
}


class Struck:
    """Marks each iteration, and counts: a callback of the user's own."""

    def __init__(self, last):
        self.iterations, self.last = 0, last

    def after_iteration(self, info):
        event("round")
        self.iterations += 1
        return self.iterations != self.last


class LogCosh:
    """An objective of the user's own."""

    def calc_ders_range(self, approxes, targets, weights):
        difference = np.array(approxes) - np.array(targets)
        return list(zip(-np.tanh(difference), -1 / np.cosh(difference) ** 2, strict=True))


def made(rows, seed, words):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8))
    y = x[:, 0] * 2 + np.sin(x[:, 1] * 3) + rng.normal(size=rows)
    if "classifier" in words:
        y = np.digitize(y, [-1, 1])
    if "categories" not in words:
        return Pool(x, y)
    rows = [[*row[:7], f"kind {int(abs(row[7]) * 4)}"] for row in x.tolist()]
    return Pool(rows, y, cat_features=[7])


def main(kind, *words):
    from holdfast.catboost import Holdfast

    data, test = made(600, 0, words), made(200, 1, words)
    struck, total = Struck(16 if "ended" in words else -1), int(os.environ.get("TOTAL", "24"))
    parameters: dict[str, Any] = {"thread_count": 1, "depth": 4, "verbose": False, "random_seed": 3, **PARAMETERS[kind]}
    if "objective" in words:
        parameters |= {"loss_function": LogCosh(), "eval_metric": "RMSE", "leaf_estimation_iterations": 1}
        parameters |= {"leaf_estimation_method": "Newton", "boost_from_average": False}
    cls = CatBoostClassifier if "classifier" in words else CatBoostRegressor
    model = cls(iterations=total, allow_writing_files=False, **parameters)
    if "stopped" in words:
        model.set_params(learning_rate=0.8)
    holdfast = Holdfast("run", every=Every(steps=3), background="background" in words)
    model.fit(
        data,
        eval_set=test,
        callbacks=[struck, holdfast],
        snapshot_interval=0,
        early_stopping_rounds=5 if "stopped" in words else None,
    )
    model.save_model("model.json", format="json", pool=data)
    found = json.loads(Path("model.json").read_text())
    del found["model_info"]
    told = {
        "model": hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest(),
        "predicted": hashlib.sha256(model.predict(test).tobytes()).hexdigest(),
        "evaluations": model.get_evals_result(),
        "iterations": [model.tree_count_, model.get_best_iteration(), model.get_best_score()],
        "counted": struck.iterations,
        "log": [[line["step"], line["values"]] for line in journal.metrics(Path("run"))],
    }
    Path("result.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
