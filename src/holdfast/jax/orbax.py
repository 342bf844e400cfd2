"""Checkpoints of Orbax, read for a new run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from .. import scan
from ..errors import UsageError

_MARK = "_METADATA"  # in the directory of each item that is a tree


def read_foreign(path: Path, name: str) -> dict[str, Any] | None:
    """Return the leaves of the tree at `path`, or of its item `name` or "default", as NumPy's
    arrays by their names.

    None: no Orbax checkpoint of a tree lies there.

    Raises:
        UsageError: Orbax is not installed.
    """
    item = next(
        (each for each in (path / name, path / "default", path) if scan.is_file(each / _MARK)), None
    )
    if item is None:
        return None
    try:
        import orbax.checkpoint as ocp
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{item} is a checkpoint of Orbax: pip install orbax-checkpoint"
        ) from error
    handler = ocp.PyTreeCheckpointHandler()
    described = handler.metadata(item)
    wanted = jax.tree.map(
        lambda _: ocp.RestoreArgs(restore_type=np.ndarray), getattr(described, "tree", described)
    )
    found = handler.restore(item, args=ocp.args.PyTreeRestore(restore_args=wanted))
    paths = jax.tree_util.tree_flatten_with_path(found)[0]
    return {jax.tree_util.keystr(at, simple=True, separator="."): leaf for at, leaf in paths}
