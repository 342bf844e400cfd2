"""Stable-Baselines3: one callback makes `model.learn` save, stop in time and resume bit for bit.

from holdfast.stable_baselines3 import Holdfast

model.learn(100_000, callback=Holdfast("runs/cartpole"))
"""

from importlib.util import find_spec

from ..errors import UsageError

if find_spec("stable_baselines3") is None:
    raise UsageError(
        "holdfast.stable_baselines3 needs Stable-Baselines3: pip install stable-baselines3"
    )

from .callback import Holdfast
from .state import Resumable

__all__ = ["Holdfast", "Resumable"]
