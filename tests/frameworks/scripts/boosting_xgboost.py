"""A training with XGBoost, as a script of `framework_runs.trained`: KIND of it, then WORDS.

It takes notes of the model's bytes, of the evaluations, and of the run's log.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import xgboost

from holdfast import Every, journal
from struck import event

PARAMETERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "exact": {"tree_method": "exact", "subsample": 0.6, "colsample_bytree": 0.5},
    "approx": {"tree_method": "approx", "colsample_bynode": 0.5},
    "approx rows": {"tree_method": "approx", "subsample": 0.5},
    "draws": {"subsample": 0.5, "colsample_bytree": 0.7, "colsample_bylevel": 0.7, "colsample_bynode": 0.7},
    "forest": {"num_parallel_tree": 3, "subsample": 0.5, "colsample_bynode": 0.5},
    "dart": {"booster": "dart", "rate_drop": 0.3, "subsample": 0.7},
    "linear": {"booster": "gblinear", "updater": "coord_descent"},
    "classes": {"objective": "multi:softprob", "num_class": 3, "subsample": 0.5},
    "ranks": {"objective": "rank:ndcg", "subsample": 0.7},
    "unbiased": {"objective": "rank:ndcg", "lambdarank_unbiased": True},
}


class Struck(xgboost.callback.TrainingCallback):
    """Marks each round, and counts: a callback of the user's own."""

    def __init__(self):
        super().__init__()
        self.rounds, self.best = 0, np.inf

    def after_iteration(self, model, epoch, evals_log):
        event("round")
        self.rounds += 1
        self.best = min([self.best, *(values[-1] for each in evals_log.values() for values in each.values())])
        return False


class Batches(xgboost.DataIter):
    def __init__(self, x, y):
        super().__init__()
        self.parts, self.at = list(zip(np.array_split(x, 4), np.array_split(y, 4), strict=True)), 0

    def next(self, input_data):
        if self.at == len(self.parts):
            return False
        x, y = self.parts[self.at]
        input_data(data=x, label=y)
        self.at += 1
        return True

    def reset(self):
        self.at = 0


def log_cosh(predicted, data):
    """An objective of the user's own, which draws random numbers."""
    difference = predicted - (data.get_label() if hasattr(data, "get_label") else data)
    return np.tanh(difference) + np.random.normal(scale=0.01, size=difference.shape), 1 / np.cosh(difference) ** 2


def made(rows, seed, kind, words):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 8))
    y = x[:, 0] * 2 + np.sin(x[:, 1] * 3) + rng.normal(size=rows)
    if "categories" in words:
        x[:, 3] = rng.integers(0, 12, rows)
    if kind == "classes" or "classifier" in words:
        y = np.digitize(y, [-1, 1])
    return x, (y > 0).astype(float) if kind in ("ranks", "unbiased") else y


def main(kind, *words):
    from holdfast.xgboost import Holdfast

    np.random.seed(0)
    total = int(os.environ.get("TOTAL", "24"))
    parameters: dict[str, Any] = {"nthread": 1, "max_depth": 4, **PARAMETERS[kind.replace("_", " ")]}
    (x, y), (x_test, y_test) = made(600, 0, kind, words), made(200, 1, kind, words)
    holdfast = Holdfast("run", every=Every(steps=3), background="background" in words)
    struck, told = Struck(), dict[str, Any]()
    callbacks = [struck, holdfast]
    if "stopped" in words:
        callbacks.insert(0, xgboost.callback.EarlyStopping(rounds=2, save_best="best" in words))
    if "rates" in words:
        callbacks.append(xgboost.callback.LearningRateScheduler(lambda number: 0.5 * 0.9**number))
    if {"regressor", "classifier"} & {*words}:
        parameters["n_jobs"] = parameters.pop("nthread")
        cls = xgboost.XGBClassifier if "classifier" in words else xgboost.XGBRegressor
        estimator = cls(n_estimators=total, callbacks=callbacks, **parameters)
        estimator.fit(x, y, eval_set=[(x_test, y_test)], verbose=False)
        model, told["evaluations"] = estimator.get_booster(), estimator.evals_result()
        told["predicted"] = hashlib.sha256(estimator.predict(x_test).tobytes()).hexdigest()
    else:
        evaluations = {}
        if "iterator" in words:
            data = xgboost.QuantileDMatrix(Batches(x, y), max_bin=64)
            parameters["max_bin"] = 64
        else:
            types = ["c" if "categories" in words and place == 3 else "float" for place in range(8)]
            data = xgboost.DMatrix(x, y, feature_types=types, enable_categorical=True)
        others = {} if "iterator" in words else {"feature_types": types, "enable_categorical": True}
        test = xgboost.DMatrix(x_test, y_test, **others)
        if "rank" in parameters.get("objective", ""):
            data.set_group([20] * 30)
            test.set_group([20] * 10)
        before = xgboost.train({"nthread": 1, "seed": 5}, data, 3) if "continued" in words else None
        model = xgboost.train(
            parameters,
            data,
            total,
            evals=[(data, "train"), (test, "test")],
            callbacks=callbacks,
            evals_result=evaluations,
            verbose_eval=False,
            xgb_model=before,
            obj=log_cosh if "objective" in words else None,
            early_stopping_rounds=3 if "argument" in words else None,
        )
        told["evaluations"] = evaluations
    raw = bytes(model.save_raw("ubj"))
    Path("model.ubj").write_bytes(raw)
    told |= {
        "model": hashlib.sha256(raw).hexdigest(),
        "rounds": model.num_boosted_rounds(),
        "attributes": model.attributes(),
        "counted": [struck.rounds, float(struck.best)],
        "random": float(np.random.rand()),
        "log": [[line["step"], line["values"]] for line in journal.metrics(Path("run"))],
    }
    Path("result.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
