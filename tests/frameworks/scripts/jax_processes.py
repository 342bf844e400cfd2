"""Two processes with an array over both: `jax_processes.py NUMBER PORT`. The run refuses it."""

import sys

import jax
import jax.numpy as jnp

number, port = map(int, sys.argv[1:])
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
mesh = jax.make_mesh((2,), ("x",))
over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
array = jax.make_array_from_process_local_data(over, jnp.arange(4.0), (8,))

from holdfast import Run  # noqa: E402
from holdfast.jax import Tree  # noqa: E402

with Run(f"run-{number}", {"state": Tree({"w": array})}) as run:
    for _ in run.steps(1):
        pass
