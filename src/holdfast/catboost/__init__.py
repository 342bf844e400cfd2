"""CatBoost: one callback makes a training save, stop in time and resume to the same trees.

from holdfast.catboost import Holdfast

CatBoostRegressor(iterations=1000).fit(x, y, callbacks=[Holdfast("runs/trees")])
"""

from importlib.util import find_spec

from ..errors import UsageError

if find_spec("catboost") is None:
    raise UsageError("holdfast.catboost needs CatBoost: pip install catboost")

from .callback import Holdfast

__all__ = ["Holdfast"]
