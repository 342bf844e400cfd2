"""Keras: one callback makes `model.fit` resume bit for bit, on TensorFlow, JAX and torch.

model.fit(x, y, callbacks=[holdfast.keras.Holdfast("runs/digits")])
"""

from __future__ import annotations

try:
    import keras
except ImportError as error:
    from ..errors import UsageError

    raise UsageError(
        "holdfast.keras needs Keras 3 and a backend: pip install keras tensorflow"
    ) from error

from .callback import Holdfast
from .export import export

__all__ = ["Holdfast", "export"]

if not hasattr(keras, "config"):  # keras.config came with Keras 3
    from ..errors import UsageError

    raise UsageError(
        "holdfast.keras needs Keras 3; this is an older one: pip install --upgrade keras"
    )
