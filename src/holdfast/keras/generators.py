"""The global random generators of Keras and of TensorFlow, as sources of the run."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

from ..state import rng
from ..state.values import python_state, random_state
from .state import as_array

# the attribute that holds Keras' generator; Keras has had a name for it since 3.13
_GLOBAL = "global_seed_generator"


def with_generators(*, tensorflow: bool) -> AbstractContextManager[None]:
    """Let runs save Keras' generator within this block, and with `tensorflow` those of
    TensorFlow.
    """
    sources = {"keras": rng.GeneratorSource(_capture, _restore, _seed)}
    if tensorflow:
        sources["tensorflow"] = rng.GeneratorSource(
            _capture_tensorflow, _restore_tensorflow, _seed_tensorflow
        )
    return rng.with_sources(sources)


def global_seed() -> int | None:
    """Return the last seed given to keras.utils.set_random_seed."""
    seed = global_state.get_global_attribute("global_random_seed")
    return None if seed is None else int(seed)


def _capture() -> Any:
    found = global_state.get_global_attribute(_GLOBAL)
    return None if found is None else as_array(found.state)


def _restore(state: Any) -> list[str]:
    if state is None:
        global_state.set_global_attribute(_GLOBAL, None)
    else:
        seed_generator.global_seed_generator().state.assign(state)
    return []


def _seed(number: int) -> None:
    state = seed_generator.global_seed_generator().state
    state.assign(np.array([number % 2**31, 0], state.dtype))


def _capture_tensorflow() -> Any:
    """Capture the seed of operations outside of functions,
    and the global tf.random.Generator if there is one.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.ops import stateful_random_ops

    drawn, made = getattr(context.context(), "_rng", None), stateful_random_ops.global_generator
    return {
        "operations": None if drawn is None else random_state(drawn.getstate()),
        "generator": None if made is None else np.array(made.state),
    }


def _restore_tensorflow(state: Any) -> list[str]:
    import tensorflow as tf
    from tensorflow.python.eager import context
    from tensorflow.python.ops import stateful_random_ops

    here = context.context()
    if state["operations"] is not None:
        drawn = getattr(here, "_rng", None)
        if drawn is None:
            return [
                "tensorflow: its operations were seeded, and here tf.random.set_seed was not called"
            ]
        drawn.setstate(python_state(state["operations"]))
    if state["generator"] is not None:
        tf.random.get_global_generator().state.assign(state["generator"])
    elif stateful_random_ops.global_generator is not None:
        stateful_random_ops.global_generator = None
    return []


def _seed_tensorflow(number: int) -> None:
    """Seed operations outside of functions with `number`; the seed of functions is unchanged."""
    from tensorflow.python.eager import context

    drawn = getattr(context.context(), "_rng", None)
    if drawn is not None:
        drawn.seed(number)
