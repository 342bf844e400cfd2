"""A chain of NumPyro's NUTS: its kernel's state is a pytree, and the samples are a list."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import NUTS

from holdfast import Every, Last, Run
from holdfast.jax import Tree

WARM_UP, STEPS = 50, 120
SEEN = jnp.array([0.5, 1.0, -0.3, 2.0])


def model(seen):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("seen", dist.Normal(mean, 1), obs=seen)


kernel = NUTS(model)
tree = Tree(kernel.init(jax.random.PRNGKey(0), WARM_UP, None, (SEEN,), {}))
move = jax.jit(lambda state: kernel.sample(state, (SEEN,), {}))
samples = []
with Run("runs/nuts", {"kernel": tree, "samples": samples}, keep=Last(3), every=Every(steps=10)) as run:
    for step in run.steps(STEPS):
        tree.value = move(tree.value)
        if step >= WARM_UP:
            samples.append(float(tree.value.z["mean"]))
        run.log(mean=float(tree.value.z["mean"]))
print("mean", sum(samples) / len(samples))
