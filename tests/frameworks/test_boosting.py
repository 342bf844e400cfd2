"""holdfast.xgboost, .lightgbm, .catboost: trainings that are killed between rounds end as those that are not."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import catboost
import lightgbm
import numpy as np
import pytest
import xgboost

from framework_runs import trained
from holdfast import Every, Store
from holdfast.errors import Mismatch, UsageError

MODULES = {
    "catboost": ("numpy", "struck", "catboost", "holdfast.catboost"),
    "lightgbm": ("numpy", "struck", "lightgbm", "sklearn.base", "holdfast.lightgbm"),
    "xgboost": ("numpy", "struck", "xgboost", "sklearn.base", "holdfast.xgboost"),
}
KILLS = ("round:11:KILL", "round:4:TERM")
PAGE = Path(__file__).parents[2] / "docs/boosting.md"
STOPPING = """
import os, signal, xgboost
class Stopping(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        if epoch == 30 and not os.path.exists("stopped"):
            open("stopped", "w").close()
            os.kill(os.getpid(), signal.SIGTERM)
        return False
"""
CASES = {
    "catboost": (
        *(
            "plain",
            "plain stopped",
            "plain ended",
            "plain objective",
            "plain categories",
            "plain classifier background",
        ),
        *("draws", "draws categories stopped", "bayesian", "ordered", "lossguide", "langevin"),
    ),
    "lightgbm": (
        *("plain", "plain stopped", "plain rates objective", "plain categories twice", "plain background continued"),
        *("bagged", "draws", "draws stopped rates", "draws objective", "classes", "binary", "l1", "ranks"),
        *("bagged regressor", "plain classifier", "dart", "goss", "forest", "linear", "quantized", "plain freed"),
    ),
    "xgboost": (
        *("plain", "plain stopped best", "plain argument", "plain rates objective", "plain categories iterator"),
        *("plain categories background", "exact", "approx", "draws", "draws iterator", "draws continued"),
        *("draws objective rates", "forest", "dart", "dart stopped", "linear", "classes", "ranks"),
        *("draws regressor stopped", "draws classifier", "approx_rows", "unbiased"),
    ),
}
AGAIN = {"xgboost approx_rows", "xgboost unbiased"}  # these are trained again
AGAIN |= {f"lightgbm {case}" for case in ("dart", "goss", "forest", "linear", "quantized", "plain freed")}


@pytest.fixture
def python(zygotes, request):
    return zygotes(*MODULES[request.getfixturevalue("library")])


@pytest.mark.parametrize(("library", "case"), [(library, case) for library, cases in CASES.items() for case in cases])
def test_a_killed_boosting_ends_with_the_same_bytes(library, case, python, tmp_path):
    """The model's bytes, the evaluations, callbacks, random numbers and the log, after a KILL and a TERM."""
    script = f"boosting_{library}"
    whole = trained(python, script, tmp_path / "whole", *case.split())
    killed = trained(python, script, tmp_path / "killed", *case.split(), strikes=KILLS)
    assert whole.exits == [0]
    assert killed.exits == [-9, 75, 0]
    assert json.loads(whole.result) == json.loads(killed.result)
    assert [step for step, _ in json.loads(whole.result)["log"]][:2] == [1, 2]
    assert ("are trained again" in killed.said) == (f"{library} {case}" in AGAIN)
    assert "are trained again" not in whole.said


def data(rows=300):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6))
    return x, x[:, 0] * 2 + np.sin(x[:, 1] * 3) + rng.normal(size=rows)


def train_xgboost(callbacks, rounds=8, x_y=None, **parameters):
    x, y = x_y or data()
    parameters = {"nthread": 1, "subsample": 0.5, **parameters}
    return bytes(
        xgboost.train(parameters, xgboost.DMatrix(x, y), rounds, callbacks=callbacks, verbose_eval=False).save_raw()
    )


def train_lightgbm(callbacks, rounds=8, x_y=None, **parameters):
    x, y = x_y or data()
    parameters = {"num_threads": 1, "verbosity": -1, "bagging_fraction": 0.5, "bagging_freq": 1, **parameters}
    return lightgbm.train(parameters, lightgbm.Dataset(x, y), rounds, callbacks=callbacks).model_to_string()


def train_catboost(callbacks, rounds=8, x_y=None, **parameters):
    parameters = {"thread_count": 1, "learning_rate": 0.1, "verbose": False, "allow_writing_files": False, **parameters}
    model = catboost.CatBoostRegressor(iterations=rounds, **parameters)
    return model.fit(*(x_y or data()), callbacks=callbacks, snapshot_interval=0).predict(data()[0]).tobytes()


class Failing(xgboost.callback.TrainingCallback):
    """Fails in the sixth round, as a callback of each of the libraries."""

    order = 7

    def after_iteration(self, *given):
        round_ = given[0].iteration if len(given) == 1 else given[1] + 1
        assert round_ != 6, "cut"
        return len(given) == 1

    def __call__(self, env):
        assert env.iteration != 5, "cut"


TRAIN = {"xgboost": train_xgboost, "lightgbm": train_lightgbm, "catboost": train_catboost}
HOLDFAST = {each: import_module(f"holdfast.{each}").Holdfast for each in TRAIN}
LIBRARIES = pytest.mark.parametrize("library", TRAIN)


@pytest.fixture
def anew(monkeypatch):
    """Lets a run be started again in this process, as in a process of its own."""
    return lambda: monkeypatch.setattr("holdfast.trainers.training._finished", set())


@LIBRARIES
def test_a_finished_boosting_is_finished_and_goes_on_with_a_larger_total(library, anew, tmp_path):
    """The model is that of a training that had the total from the start; a second start makes no round."""
    train, holdfast = TRAIN[library], HOLDFAST[library]
    whole = train([holdfast(tmp_path / "whole")], 12)
    first = train([holdfast(tmp_path / "run")], 8)
    assert library != "lightgbm" or "[force_col_wise: 1]" in first  # else a clock decides
    anew()
    assert train([holdfast(tmp_path / "run")], 8) == first != whole
    anew()
    assert train([holdfast(tmp_path / "run")], 12) == whole


@LIBRARIES
def test_an_error_leaves_the_run_and_a_new_start_continues(library, tmp_path):
    """The journal has the error; the next start ends with the whole training's model."""
    train, holdfast = TRAIN[library], HOLDFAST[library]
    whole = train([holdfast(tmp_path / "whole")])
    with pytest.raises(AssertionError, match="cut"):
        train([Failing(), holdfast(tmp_path / "run", every=Every(steps=2), background=False)])
    assert Store(tmp_path / "run").latest().step == 4
    assert train([holdfast(tmp_path / "run")]) == whole


@LIBRARIES
def test_what_is_given_twice_is_refused(library, tmp_path):
    """A callback for two trainings, and two for one."""
    train, holdfast = TRAIN[library], HOLDFAST[library]
    once = holdfast(tmp_path / "a")
    train([once])
    with pytest.raises(UsageError, match=r"before|another training"):
        train([once])
    with pytest.raises(UsageError, match="remove the others"):
        train([holdfast(tmp_path / "b"), holdfast(tmp_path / "c")])


@LIBRARIES
def test_changed_parameters_are_told_and_have_no_effect_or_are_refused(library, anew, capsys, tmp_path):
    """XGBoost and LightGBM: a line names the parameter. CatBoost refuses its snapshot itself."""
    train, holdfast = TRAIN[library], HOLDFAST[library]
    train([holdfast(tmp_path)], 4)
    anew()
    if library == "catboost":
        with pytest.raises(catboost.CatBoostError, match="params"):
            train([holdfast(tmp_path)], 8, l2_leaf_reg=9)
        return
    name = {"xgboost": "lambda", "lightgbm": "lambda_l2"}[library]
    train([holdfast(tmp_path)], 8, **{name: 9.0})
    assert f"{name} is 9" in capsys.readouterr().err


def test_rounds_that_are_trained_again_must_make_the_stored_model(anew, tmp_path):
    """dart in LightGBM goes on to a larger total; on other data than before it is refused, and not continued."""
    x, y = data()
    holdfast = HOLDFAST["lightgbm"]
    train_lightgbm([holdfast(tmp_path)], 4, boosting="dart")
    anew()
    longer = train_lightgbm([holdfast(tmp_path)], 6, boosting="dart")
    assert longer == train_lightgbm([holdfast(tmp_path / "whole")], 6, boosting="dart")
    anew()
    with pytest.raises(Mismatch, match="another model than the checkpoint has"):
        train_lightgbm([holdfast(tmp_path)], 8, (x, -y), boosting="dart")


@pytest.mark.filterwarnings("ignore:Failed to import numba")
def test_an_objective_of_catboost_that_draws_is_refused(tmp_path):
    """Its numbers are drawn before the safe point of the iteration before."""

    class Noisy:
        def calc_ders_range(self, approxes, targets, weights):
            return [(t - a + np.random.normal(), -1.0) for a, t in zip(approxes, targets, strict=True)]

    noisy = {"loss_function": Noisy(), "eval_metric": "RMSE", "leaf_estimation_iterations": 1}
    with pytest.raises(UsageError, match="draws random numbers"):
        train_catboost([HOLDFAST["catboost"](tmp_path)], **noisy, boost_from_average=False)


def test_cross_validation_is_refused(tmp_path):
    """Its models are several, and one run has the rounds of one."""
    x, y = data()
    with pytest.raises(UsageError, match="give it to train"):
        xgboost.cv({}, xgboost.DMatrix(x, y), 2, callbacks=[HOLDFAST["xgboost"](tmp_path)])
    with pytest.raises(UsageError, match="give it to train"):
        lightgbm.cv(
            {"verbosity": -1}, lightgbm.Dataset(x, y), 2, stratified=False, callbacks=[HOLDFAST["lightgbm"](tmp_path)]
        )


def model_xgboost(rounds, before=None, **parameters):
    """Ended and continued by `xgb_model`, as in https://github.com/dmlc/xgboost/issues/10324."""
    matrix = xgboost.DMatrix(*data(1000))
    return bytes(xgboost.train({"nthread": 1, **parameters}, matrix, rounds, xgb_model=before).save_raw())


def model_lightgbm(rounds, before=None, **parameters):
    """Ended and continued by `init_model`, as in https://github.com/lightgbm-org/LightGBM/issues/6610."""
    parameters = {"num_threads": 1, "verbosity": -1, "force_col_wise": True, **parameters}
    before = before and lightgbm.Booster(model_str=before)
    return lightgbm.train(parameters, lightgbm.Dataset(*data(1000)), rounds, init_model=before).model_to_string()


OWN = {  # of the table in docs/boosting.md: whether the library itself continues exactly
    "xgboost": {
        "{}": True,
        '{"subsample": 0.5}': False,
        '{"subsample": 0.5, "seed_per_iteration": true}': False,
        '{"colsample_bytree": 0.5}': False,
        '{"booster": "dart", "rate_drop": 0.2}': False,
        '{"tree_method": "approx", "subsample": 0.5}': False,
    },
    "lightgbm": {
        "{}": True,
        '{"bagging_fraction": 0.5, "bagging_freq": 1}': False,
        '{"feature_fraction": 0.5}': False,
        '{"extra_trees": true}': False,
        '{"boosting": "dart"}': False,
        '{"data_sample_strategy": "goss"}': False,
        '{"linear_tree": true}': False,
        '{"use_quantized_grad": true}': False,
    },
}


@pytest.mark.parametrize(("library", "given"), [(library, given) for library in OWN for given in OWN[library]])
def test_the_library_itself_loses_this_and_ours_nothing(library, given, tmp_path):
    """Ended after 9 of 24 rounds and continued; ours ends by an error in the sixth round."""
    parameters, model = json.loads(given), {"xgboost": model_xgboost, "lightgbm": model_lightgbm}[library]
    first = model(9, **parameters)
    own = model(15, bytearray(first) if library == "xgboost" else first, **parameters)
    whole = model(24, **parameters)
    if library == "lightgbm":  # the rest names the parameters
        own, whole = (each.split("\nparameters:")[0] for each in (own, whole))
    assert (own == whole) == OWN[library][given]
    train, holdfast = TRAIN[library], HOLDFAST[library]
    plain = {"bagging_freq": 0} if library == "lightgbm" and "bagging_freq" not in parameters else {}
    parameters = {**plain, **parameters}
    whole = train([holdfast(tmp_path / "whole")], 24, **parameters)
    with pytest.raises(AssertionError, match="cut"):
        train([Failing(), holdfast(tmp_path / "run", every=Every(steps=2), background=False)], 24, **parameters)
    assert train([holdfast(tmp_path / "run")], 24, **parameters) == whole


def test_a_snapshot_without_a_seed_is_continued(tmp_path):
    """https://github.com/catboost/catboost/issues/308: the trees are those of a training without an end."""
    whole = train_catboost([])
    with pytest.raises(AssertionError, match="cut"):
        train_catboost([Failing(), HOLDFAST["catboost"](tmp_path, every=Every(steps=2), background=False)])
    assert train_catboost([HOLDFAST["catboost"](tmp_path)]) == whole


def test_the_program_of_the_page_is_killed_and_goes_on(tmp_path):
    """docs/boosting.md: stopped by SIGTERM in the middle, its model file is that of a run without a stop."""
    [program] = re.findall(r"^```python program\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    stopping = "    callbacks=[Stopping(), Holdfast"
    stopped = STOPPING + program.replace("    callbacks=[Holdfast", stopping)
    assert stopping in stopped
    for place, script, exits in (("whole", program, [0]), ("stopped", stopped, [75, 0])):
        (tmp_path / place).mkdir()
        (tmp_path / place / "train.py").write_text(script)
        for expected in exits:
            done = subprocess.run([sys.executable, "train.py"], check=False, cwd=tmp_path / place, timeout=200)
            assert done.returncode == expected
    files = [(tmp_path / place / "model.ubj").read_bytes() for place in ("whole", "stopped")]
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("library", "case"),
    [
        ("xgboost", "plain stopped best"),
        ("lightgbm", "draws stopped rates"),
        ("catboost", "plain ended"),
        ("catboost", "draws categories stopped"),
    ],
)
def test_a_training_that_was_ended_early_stays_ended(library, case, python, tmp_path):
    """By early stopping or by a callback: another start of the script ends with the same model and evaluations."""
    first = trained(python, f"boosting_{library}", tmp_path, *case.split())
    again = trained(python, f"boosting_{library}", tmp_path, *case.split())
    assert json.loads(again.result) == json.loads(first.result)
    assert "already finished" in again.said


def test_lightgbm_draws_rows_as_often_as_bagging_freq_says(tmp_path):
    """The number of rows that are drawn is that of the round before, but in each third round."""
    text = train_lightgbm([HOLDFAST["lightgbm"](tmp_path)], 9, bagging_freq=3, min_data_in_leaf=5)
    counts = [sum(map(int, found.split())) for found in re.findall(r"^leaf_count=(.*)$", text, re.MULTILINE)]
    assert counts == [each for each in counts[::3] for _ in range(3)]
    assert len(set(counts)) > 1
