"""XGBoost: one callback makes a training save, stop in time and resume to the same bytes.

from holdfast.xgboost import Holdfast

xgboost.train(parameters, data, 1000, callbacks=[Holdfast("runs/trees")])
"""

from importlib.util import find_spec

from ..errors import UsageError

if find_spec("xgboost") is None:
    raise UsageError("holdfast.xgboost needs XGBoost: pip install xgboost")

from .callback import Holdfast

__all__ = ["Holdfast"]
