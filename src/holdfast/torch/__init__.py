"""Torch: what a run needs of it, and `Writer` and `Reader` for direct users of
torch.distributed.checkpoint.

Those two are imported on first use: importing DCP takes a second, and most runs do not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dcp import Reader, Writer

__all__ = ["Reader", "Writer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import dcp

    return getattr(dcp, name)
