"""LightGBM: one callback makes a training save, stop in time and resume to the same text.

from holdfast.lightgbm import Holdfast

lightgbm.train(parameters, data, 1000, callbacks=[Holdfast("runs/trees")])
"""

from importlib.util import find_spec

from ..errors import UsageError

if find_spec("lightgbm") is None:
    raise UsageError("holdfast.lightgbm needs LightGBM: pip install lightgbm")

from .callback import Holdfast

__all__ = ["Holdfast"]
