"""Objects that are captured and restored by themselves: by their framework's adapter, by their
state_dict(), or, if they are random generators, by their state.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib import import_module
from typing import Any
from weakref import WeakSet

from ..errors import NotFound
from ..legible import key_text
from ..state import codec
from ..state.captured import ATOMS, MUTABLE, AttributeSet
from ..state.fill import read_whole
from ..state.rebinding import Members
from ..state.validation import errors_as_damage
from ..store.checkpoint import Checkpoint

# (what is asked for, package): the module that does it
_MODULES = {
    # capture, differences, restore of a framework's objects
    ("adapter", "torch"): "holdfast.torch.live",
    ("adapter", "holdfast.jax"): "holdfast.jax.live",
    ("adapter", "holdfast.keras"): "holdfast.keras.live",
    ("adapter", "accelerate"): "holdfast.accelerate.live",
    # objects of a framework that stand for their members
    ("members", "accelerate"): "holdfast.accelerate.accelerator",
    ("members", "holdfast.torch"): "holdfast.torch.model_parts",
    # a model's weights alone
    ("weights", "torch"): "holdfast.torch.weights",
    ("weights", "holdfast.jax"): "holdfast.jax.weights",
    # which of a captured object's leaves are parameters or moments: of other frameworks' objects
    # nothing is known
    ("trainable", "torch"): "holdfast.torch.trainable",
    ("trainable", "holdfast.keras"): "holdfast.keras.trainable",
}

# optimizers whose `lr` a trainer sets before each step, from the script's value
STEERED: WeakSet[Any] = WeakSet()


def adapter_for(target: Any) -> Any:
    """Return the adapter module of the framework of `target`, or None when there is none."""
    modules = _modules_for(target, "adapter")
    return next((module for module in modules if module.handles(target)), None)


def members_as_attributes(target: Any) -> Any:
    """Return the members of a framework's object that consists of others; else `target` itself.

    Raises:
        UsageError: its members cannot be tracked.
    """
    modules = _modules_for(target, "members")
    return next(
        (found for module in modules if (found := module.members(target)) is not None), target
    )


def weight_reader_for(target: Any) -> Any:
    """Return the module that reads weights into `target`, or None when `target` is no model."""
    module = next(iter(_modules_for(target, "weights")), None)
    return module if module is not None and module.is_model(target) else None


def weight_leaves(captures: Iterable[tuple[Any, Any]]) -> Iterator[Any]:
    """Yield the leaves that are model parameters or optimizer moments; each save checks that they
    are finite.

    `captures`: objects and their states. Other numbers may be infinite without a fault.
    """
    for target, captured in captures:
        for module in _modules_for(target, "trainable")[:1]:
            yield from module.trainable_leaves(target, captured)


def stored_state_at(checkpoint: Checkpoint, path: str, types: Iterable[type] = ()) -> Any:
    """Return the checkpoint's state of the object at `path`, with its leaves as handles.

    `path`: a key of `Tracked.self_restoring_objects`.

    Raises:
        NotFound: the checkpoint contains nothing there.
    """
    if path in checkpoint.parts():
        return checkpoint.handles(part=path, types=types)
    name, *steps = path.split("/")
    where = f"{checkpoint.path}: holds no {path!r}"
    return member_at(checkpoint.handles(part=name, types=types), steps, where)


def member_at(found: Any, steps: Iterable[str], otherwise: str) -> Any:
    """Return the member of a stored state that these keys lead to.

    Raises:
        NotFound: there is none, with the text `otherwise`.
    """
    for step in steps:
        if isinstance(found, list | tuple | deque):
            found = dict(enumerate(found))
        members = (
            {key_text(key): member for key, member in found.items()}
            if isinstance(found, dict)
            else {}
        )
        if step not in members:
            raise NotFound(otherwise)
        found = members[step]
    return found


def model_facts(target: Any) -> dict[str, Any] | None:
    """Return class and number of parameters,
    for the checkpoint's document; None when `target` is no model.
    """
    adapter = adapter_for(target)
    count = adapter.parameter_count(target) if adapter is not None else None
    return None if count is None else {"class": adapter.class_name(target), "parameters": count}


def _modules_for(target: Any, what: str) -> list[Any]:
    return _modules_for_class(type(target), what)  # type: ignore[arg-type]  # a class is hashable


@lru_cache(maxsize=1024)  # a state of thousands of tensors asks for the same class at each
def _modules_for_class(kind: Any, what: str) -> list[Any]:
    names = dict.fromkeys(_framework_names(kind))
    return [import_module(_MODULES[what, name]) for name in names if (what, name) in _MODULES]


def _framework_names(kind: type) -> list[str]:
    return [_package_of(each.__module__.split(".")) for each in kind.__mro__]


def _package_of(module: list[str]) -> str:
    """Return the class's package; for our own classes also the subpackage,
    which is named after a framework.
    """
    return ".".join(module[:2]) if module[0] == "holdfast" else module[0]


def is_generator(target: Any) -> bool:
    """Whether `target` is a random generator of Python or NumPy.
    Each kind keeps its state in a different way.
    """
    return (
        isinstance(target, random.Random)
        or _is_numpy_generator(target)
        or _is_legacy_generator(target)
    )


def _is_numpy_generator(target: Any) -> bool:
    """Whether `target` is a NumPy generator. Checks its class:
    a wrapper may have every attribute, or raise at one.
    """
    return hasattr(type(target), "bit_generator")


def _is_legacy_generator(target: Any) -> bool:
    return type(target).__name__ == "RandomState" and _framework_names(type(target))[0] == "numpy"


def _generator_differences(generator: Any, stored: Any) -> list[str]:
    """Return how the stored state of a generator does not fit; a copy of the generator tries the
    state.

    Raises:
        Damaged: it is the state of no such generator.
    """
    with errors_as_damage("a generator's state"):
        stored = read_whole(stored)
        if isinstance(generator, random.Random):
            if type(generator).setstate is random.Random.setstate:
                random.Random().setstate(stored["random"])  # noqa: S311
        elif _is_legacy_generator(generator):
            stored["random_state"].get_state(legacy=False)
        else:
            from ..state import numpy_leaves

            here, there = type(generator.bit_generator), stored["bit_generator"]["bit_generator"]
            if there != here.__name__:
                return [f"bit_generator: {there!s:.80} in the checkpoint, {here.__name__} here"]
            numpy_leaves.require_bit_state(stored["bit_generator"])
            numpy_leaves.require_seed(stored.get("seed_seq"))
    return []


class ObjectAdapters:
    """Captures, compares and restores objects inside a state by their own adapters: see
    `state.fill.Own`.
    """

    def has(self, value: Any) -> bool:
        kind = type(value)
        if (
            kind in ATOMS
            or kind in MUTABLE
            or kind is tuple
            or isinstance(value, type | AttributeSet)
        ):
            return False
        # a dictionary with `__getattr__ = dict.get` has every attribute: as None
        stateful = callable(getattr(value, "state_dict", None)) and callable(
            getattr(value, "load_state_dict", None)
        )
        return bool(stateful or is_generator(value) or adapter_for(value))

    def capture(self, value: Any) -> Any:
        adapter = adapter_for(value)
        if adapter is not None:
            return adapter.capture(value)
        if isinstance(value, random.Random):
            return {"random": value.getstate()}
        if _is_legacy_generator(value):
            return {"random_state": value}
        if _is_numpy_generator(value):
            from ..state import numpy_leaves

            seed = numpy_leaves.spawned_seed(value.bit_generator)
            return {
                "bit_generator": value.bit_generator.state,
                **({} if seed is None else {"seed_seq": seed}),
            }
        return value.state_dict()

    def differences(self, value: Any, stored: Any) -> list[str]:
        adapter = adapter_for(value)
        if adapter is not None:
            return list(adapter.differences(value, stored))
        return _generator_differences(value, stored) if is_generator(value) else []

    def restore(self, value: Any, stored: Any) -> None:
        adapter = adapter_for(value)
        if adapter is not None:
            adapter.restore(value, stored)
            return
        stored = read_whole(stored)
        if isinstance(value, random.Random):
            value.setstate(stored["random"])
        elif _is_legacy_generator(value):
            value.set_state(stored["random_state"].get_state(legacy=False))
        elif _is_numpy_generator(value):
            from ..state import numpy_leaves

            numpy_leaves.refill_bit_generator(
                value.bit_generator, stored["bit_generator"], stored.get("seed_seq")
            )
        else:
            value.load_state_dict(stored)

    def places(self, value: Any) -> Members:
        """Members that a restore fills and that can be set (buffers),
        each with a call that gives it new memory.
        """
        return dict(getattr(adapter_for(value), "rebindable_buffers", lambda _: {})(value))


OBJECTS = ObjectAdapters()


def is_random(value: Any) -> bool:
    """Whether it is a random generator, also of a framework."""
    return is_generator(value) or (
        type(value).__name__ == "Generator" and codec.framework_of(type(value)) is not None
    )
