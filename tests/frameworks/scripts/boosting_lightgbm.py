"""A training with LightGBM, as a script of `framework_runs.trained`: KIND of it, then WORDS.

It takes notes of the model's text, of the evaluations, and of the run's log.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np

from holdfast import Every, journal
from struck import event

PARAMETERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bagged": {"bagging_fraction": 0.6, "bagging_freq": 4},
    "draws": {
        "bagging_fraction": 0.4,
        "bagging_freq": 1,
        "feature_fraction": 0.6,
        "feature_fraction_bynode": 0.6,
        "extra_trees": True,
    },
    "classes": {"objective": "multiclass", "num_class": 3, "feature_fraction": 0.5},
    "binary": {"objective": "binary", "pos_bagging_fraction": 0.5, "neg_bagging_fraction": 0.8, "bagging_freq": 2},
    "l1": {"objective": "l1"},
    "ranks": {"objective": "lambdarank"},
    "dart": {"boosting": "dart"},
    "goss": {"data_sample_strategy": "goss"},
    "forest": {"boosting": "rf", "bagging_fraction": 0.6, "bagging_freq": 1},
    "linear": {"linear_tree": True},
    "quantized": {"use_quantized_grad": True},
}


class Struck:
    """Marks each round, and counts: a callback of the user's own."""

    def __init__(self):
        self.rounds, self.best, self.order = 0, np.inf, 5

    def __call__(self, env):
        event("round")
        self.rounds += 1
        self.best = min([self.best, *(each[2] for each in env.evaluation_result_list)])


def log_cosh(predicted, data):
    """An objective of the user's own, which draws random numbers."""
    difference = predicted - data.get_label()
    return np.tanh(difference) + np.random.normal(scale=0.01, size=difference.shape), 1 / np.cosh(difference) ** 2


def made(rows, seed, kind, words):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8))
    y = x[:, 0] * 2 + np.sin(x[:, 1] * 3) + rng.normal(size=rows)
    if "categories" in words:
        x[:, 3] = rng.integers(0, 12, rows)
    x[rng.random(x.shape) < 0.02] = np.nan
    if kind == "classes" or "classifier" in words:
        y = np.digitize(y, [-1, 1])
    return x, (y > 0).astype(int) if kind in ("ranks", "binary") else y


def main(kind, *words):
    from holdfast.lightgbm import Holdfast

    np.random.seed(0)
    total = int(os.environ.get("TOTAL", "24"))
    parameters: dict[str, Any] = {"num_threads": 1, "num_leaves": 8, "verbosity": -1, **PARAMETERS[kind]}
    (x, y), (x_test, y_test) = made(600, 0, kind, words), made(200, 1, kind, words)
    struck, told, evaluations = Struck(), dict[str, Any](), dict[str, Any]()
    callbacks = [struck, Holdfast("run", every=Every(steps=3), background="background" in words)]
    if "stopped" in words:
        callbacks.append(lightgbm.early_stopping(3, verbose=False))
        parameters["learning_rate"] = 0.25
    if "rates" in words:
        callbacks.append(lightgbm.reset_parameter(learning_rate=lambda number: 0.5 * 0.9**number))
    if {"regressor", "classifier"} & {*words}:
        cls = lightgbm.LGBMClassifier if "classifier" in words else lightgbm.LGBMRegressor
        estimator = cls(n_estimators=total, subsample=0.6, subsample_freq=2, colsample_bytree=0.6, **parameters)
        estimator.fit(x, y, eval_set=[(x_test, y_test)], callbacks=callbacks)
        model, evaluations = estimator.booster_, estimator.evals_result_
        told["predicted"] = hashlib.sha256(estimator.predict(x_test).tobytes()).hexdigest()
    else:
        keeps = {"free_raw_data": "freed" in words, "params": {"max_bin": 63}}
        categories = [3] if "categories" in words else "auto"
        data = lightgbm.Dataset(
            x, y, categorical_feature=categories, group=[20] * 30 if kind == "ranks" else None, **keeps
        )
        if "freed" in words:
            data.construct()
        group = [20] * 10 if kind == "ranks" else None
        test = lightgbm.Dataset(x_test, y_test, reference=data, group=group, **keeps)
        before = None
        if "continued" in words:
            before = lightgbm.train({"num_threads": 1, "verbosity": -1}, lightgbm.Dataset(x, y, **keeps), 3)
        callbacks.append(lightgbm.record_evaluation(evaluations))
        if "objective" in words:
            parameters |= {"objective": log_cosh, "metric": "l2"}
        model = lightgbm.train(
            parameters,
            data,
            total,
            valid_sets=[data, test],
            valid_names=["train", "test"],
            callbacks=callbacks,
            init_model=before,
        )
        second = lightgbm.train({"num_threads": 1, "verbosity": -1}, data, 3) if "twice" in words else model
        told["second"] = hashlib.sha256(second.model_to_string().encode()).hexdigest()
    text = model.model_to_string(num_iteration=-1)
    Path("model.txt").write_text(text)
    told |= {
        "evaluations": evaluations,
        "model": hashlib.sha256(text.encode()).hexdigest(),
        "rounds": [model.current_iteration(), model.best_iteration, model.best_score],
        "counted": [struck.rounds, float(struck.best)],
        "random": float(np.random.rand()),
        "log": [[line["step"], line["values"]] for line in journal.metrics(Path("run"))],
    }
    Path("result.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
