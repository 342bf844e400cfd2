"""A run with many checkpoints, made in seconds: true manifests over one shard that all of them share."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast import Checkpoint, Store
from holdfast.store import format

PARTS = ("attention.query", "attention.key", "attention.value", "attention.output", "mlp.up", "mlp.down")


def make(root: Path, *, checkpoints: int, leaves: int) -> None:
    """Save one checkpoint below `root`, and give it `checkpoints` - 1 successors, 100 steps apart."""
    names = [f"transformer.layers.{index // 6}.{PARTS[index % 6]}.weight" for index in range(leaves)]
    store = Store(root)
    first = store.save({"model": {name: bytes(array("d", [float(len(name))] * 256)) for name in names}}, step=0)
    store.close()
    copy(first, [100 * number for number in range(1, checkpoints)])


def copy(first: Checkpoint, steps: Iterable[int]) -> None:
    """Give a checkpoint a sister for each of these steps."""
    shards = [path for path in first.path.iterdir() if path.name != format.MANIFEST]
    parent = first.manifest
    for number, step in enumerate(steps, 1):
        created = datetime.fromtimestamp(1.7e9 + 60 * number, UTC).isoformat()
        metrics: dict[str, float | str | None] = {"loss": 1 / number, "accuracy": 1 - 1 / number}
        changes = {"step": step, "created": created, "metrics": metrics, "parent": str(parent.name)}
        manifest = msgspec.structs.replace(parent, **changes)
        place = first.path.with_name(str(manifest.name))
        place.mkdir()
        for shard in shards:
            os.link(shard, place / shard.name)
        (place / format.MANIFEST).write_bytes(format.encode(manifest))
        parent = manifest


if __name__ == "__main__":
    make(Path(sys.argv[1]), checkpoints=int(sys.argv[2]), leaves=int(sys.argv[3]))
