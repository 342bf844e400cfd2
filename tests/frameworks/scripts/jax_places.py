"""Arrays over all devices of this process: `jax_places.py` saves them, or says how they came back.

With the word `moved`, the step before the save lays an array out in another way than the script does.
"""

import hashlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from holdfast import Run
from holdfast.jax import Tree

count = jax.device_count()
mesh = jax.make_mesh((max(1, count // 2), min(2, count)), ("x", "y"))
specs = {
    "both": PartitionSpec("x", "y"),
    "rows": PartitionSpec(("x", "y")),
    "columns": PartitionSpec(None, "y"),
    "whole": PartitionSpec(),
}


def placed(seed):
    """Arrays that are laid out in every way, big enough to be copied piece by piece."""
    numbers = np.random.default_rng(seed).normal(size=(64, 24, 40)).astype("float32")
    found = {name: jax.device_put(numbers + len(name), NamedSharding(mesh, spec)) for name, spec in specs.items()}
    found["int4"] = jax.device_put((numbers * 3).astype("int4"), NamedSharding(mesh, specs["both"]))
    found["last"] = jax.device_put(jnp.asarray(numbers), jax.devices()[-1])
    found["free"] = jnp.asarray(numbers)
    found["keys"] = jax.device_put(jax.random.split(jax.random.key(seed), 8), NamedSharding(mesh, specs["rows"]))
    return found


def facts(tree):
    """Of each leaf: the digest of its bytes, and where they lie."""
    found = {}
    for name, leaf in tree.items():
        data = jax.random.key_data(leaf) if name == "keys" else leaf
        told = hashlib.sha256(np.asarray(data).tobytes()).hexdigest()
        found[name] = [told, str(leaf.dtype), str(leaf.sharding), leaf.committed]
    return found


tree = Tree(placed(len(sys.argv[1:])))
with Run("run", {"state": tree}) as run:
    Path(f"found-{count}.json").write_text(json.dumps(facts(tree.value)))
    for _ in run.steps(1):
        moved = {"free": jax.device_put(tree.value["free"], NamedSharding(mesh, specs["both"]))}
        tree.value = {**tree.value, **moved} if "moved" in sys.argv else tree.value
    Path(f"left-{count}.json").write_text(json.dumps(facts(tree.value)))
Path("mine.json").write_text(json.dumps(facts(placed(1))))
