"""JAX: arrays as leaves of any state, and `Tree`, which holds a pytree in the state of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import UsageError

if TYPE_CHECKING:
    from .tree import Tree

__all__ = ["Tree"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from . import tree
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise UsageError("holdfast.jax needs JAX: pip install jax") from error
    return getattr(tree, name)
