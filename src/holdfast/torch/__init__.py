"""Torch: what a run needs of it, `ModelParts` for models that are cut over ranks, and `Writer` and
`Reader` for direct users of torch.distributed.checkpoint.

They are imported on first use: importing DCP takes a second, and most runs do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dcp import Reader, Writer
    from .model_parts import ModelParts

__all__ = ["ModelParts", "Reader", "Writer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "ModelParts":
        from .model_parts import ModelParts

        return ModelParts
    from . import dcp

    return getattr(dcp, name)
