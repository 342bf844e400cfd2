"""Boosted trees with XGBoost, LightGBM or CatBoost; one callback lets the training be killed at any time.

holdfast drill --kills 3 -- python examples/boosting/train.py xgboost
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

library = sys.argv[1] if len(sys.argv) > 1 else "xgboost"
rng = np.random.default_rng(0)
x = rng.normal(size=(6_000, 20))
y = x[:, 0] * 2 + np.sin(x[:, 1] * 3) * x[:, 2] + rng.normal(size=6_000)
train, test = slice(0, 5_000), slice(5_000, None)
rounds = 200

if library == "xgboost":
    import xgboost

    from holdfast.xgboost import Holdfast

    data = xgboost.DMatrix(x[train], y[train])
    evaluations = [(xgboost.DMatrix(x[test], y[test]), "test")]
    parameters = {"nthread": 2, "eta": 0.1, "subsample": 0.8, "colsample_bynode": 0.8}
    holdfast = Holdfast("runs/boosting")
    model = xgboost.train(parameters, data, rounds, evals=evaluations, verbose_eval=100, callbacks=[holdfast])
    Path("model.ubj").write_bytes(model.save_raw("ubj"))
elif library == "lightgbm":
    import lightgbm

    from holdfast.lightgbm import Holdfast

    data = lightgbm.Dataset(x[train], y[train])
    tests = [lightgbm.Dataset(x[test], y[test], reference=data)]
    parameters = {
        "num_threads": 2,
        "bagging_fraction": 0.8,
        "bagging_freq": 5,
        "feature_fraction": 0.8,
        "verbosity": -1,
    }
    callbacks = [lightgbm.log_evaluation(100), Holdfast("runs/boosting")]
    model = lightgbm.train(parameters, data, rounds, valid_sets=tests, callbacks=callbacks)
    model.save_model("model.txt")
else:
    from catboost import CatBoostRegressor

    from holdfast.catboost import Holdfast

    model = CatBoostRegressor(
        iterations=rounds, thread_count=2, allow_writing_files=False, random_seed=0, learning_rate=0.1, verbose=False
    )
    holdfast = Holdfast("runs/boosting")
    model.fit(x[train], y[train], eval_set=(x[test], y[test]), callbacks=[holdfast], snapshot_interval=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_model(f"{folder}/model.json", format="json")
        trees = json.loads(Path(folder, "model.json").read_text())
    del trees["model_info"]  # it has an id and a time, which no two trainings of CatBoost share
    Path("trees.json").write_text(json.dumps(trees))
