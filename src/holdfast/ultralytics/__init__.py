"""Ultralytics: one word makes `model.train` save, stop in time and resume bit for bit.

from holdfast.ultralytics import Holdfast

model.train(data="my.yaml", epochs=100, exist_ok=True, trainer=Holdfast("runs/x"))
"""

from importlib.util import find_spec

from ..errors import UsageError

if find_spec("ultralytics") is None:
    raise UsageError("holdfast.ultralytics needs Ultralytics: pip install ultralytics")

from .trainer import Holdfast

__all__ = ["Holdfast"]
