"""holdfast.xgboost, .lightgbm, .catboost: trainings that are killed between rounds end as those that are not."""

import json

import pytest

from framework_runs import trained

MODULES = {
    "catboost": ("numpy", "struck", "catboost", "holdfast.catboost"),
    "lightgbm": ("numpy", "struck", "lightgbm", "sklearn.base", "holdfast.lightgbm"),
    "xgboost": ("numpy", "struck", "xgboost", "sklearn.base", "holdfast.xgboost"),
}
KILLS = ("round:11:KILL", "round:4:TERM")
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
    assert ("are trained again" in killed.said) == (f"{library} {case}" in AGAIN)
    assert "are trained again" not in whole.said
