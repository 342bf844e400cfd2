"""Tracked: the live objects that make up a run's state, captured and restored through one adapter each."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..errors import Mismatch, UsageError
from ..legible import is_text
from ..state import tree
from ..store import format
from ..store.checkpoint import Checkpoint

RESERVED = "holdfast"  # the top-level key of what the run itself remembers
_ADAPTERS = {"torch": "holdfast.torch.live"}  # capture, differences, restore of a framework's objects
_PROGRAMS = {"torch": "holdfast.torch.program"}  # facts, seed, stillness and steps of the framework as a whole
_WEIGHTS = {"torch": "holdfast.torch.weights"}  # a model's weights alone


@runtime_checkable
class Stateful(Protocol):
    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


class Tracked:
    """The caller's mapping of names to live objects."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        if not isinstance(objects, Mapping):
            raise UsageError(
                "the tracked objects stand in one mapping: Run(path, dict(model=model, optimizer=optimizer))"
            )
        for name, target in objects.items():
            _require_trackable(name, target)
        self.objects = dict(objects)
        self._reducers: list[Any] = []
        self._cold: dict[str, Any] = {}  # what reducers have seen that were not there to be warmed

    def capture(self) -> dict[str, Any]:
        """The state of every object; tensors by reference."""
        return {name: _capture(target) for name, target in self.objects.items()}

    def digests(self) -> Digests:
        """What identifies the present state, leaf by leaf."""
        return digests(self.capture())

    def types(self) -> set[type]:
        """The caller's own types that the state holds: the ones that a checkpoint may name."""
        return tree.types_in(self.capture())

    def differences(self, checkpoint: Checkpoint, types: Iterable[type]) -> list[str]:
        """What of `checkpoint` does not fit the live objects; nothing is touched."""
        stored = set(checkpoint.parts()) - {RESERVED}
        lines = [f"{name}: not in the checkpoint" for name in self.objects if name not in stored]
        lines += [f"{name}: in the checkpoint, but not tracked here" for name in sorted(stored - set(self.objects))]
        for name, target in self.objects.items():
            adapter = adapter_for(target)
            if name in stored and adapter is not None:
                handles = checkpoint.handles(part=name, types=types)
                lines += [f"{name}/{line}" for line in adapter.differences(target, handles)]
        return lines

    def outvoted(self, checkpoint: Checkpoint, types: Iterable[type]) -> dict[str, list[str]]:
        """For each object, the options that the script gives otherwise than the checkpoint, whose values are used."""
        found = {}
        for name, target in self.objects.items():
            adapter = adapter_for(target)
            if adapter is not None:
                found[name] = adapter.outvoted(target, checkpoint.handles(part=name, types=types))
        return found

    def reducers(self) -> dict[str, Any]:
        """What several ranks' frameworks have seen that decides in which order they sum."""
        if not self._reducers:
            self._reducers = [module.Reducers(self.objects) for module in framework_modules()]
        return {name: seen for each in self._reducers for name, seen in each.capture().items()}

    def warm(self, seen: Mapping[str, Any]) -> None:
        """Let them see it again, before a restore, on all ranks at once."""
        self._cold = dict(seen)
        self.warm_late()

    def warm_late(self) -> None:
        """The same with those that have come since: a script may wrap its model after the restore."""
        for module in framework_modules() if self._cold else ():
            for name in module.Reducers(self.objects).warm(self._cold):
                del self._cold[name]

    def restore(self, checkpoint: Checkpoint, types: Iterable[type]) -> None:
        """Put the checkpoint's state into the live objects. Half-way failures leave them mixed."""
        for name, target in self.objects.items():
            adapter = adapter_for(target)
            if adapter is not None:
                adapter.restore(target, checkpoint.handles(part=name, types=types))
            else:
                _restore_plain(target, checkpoint.load(part=name, types=types))


class Digests(NamedTuple):
    """A state's identity: a digest for every leaf, and one for the tree around them under "tree:<name>"."""

    of: dict[str, str]

    def changed(self, other: Digests) -> list[str]:
        """Keys that are not the same in both, sorted."""
        return sorted(key for key in self.of.keys() | other.of.keys() if self.of.get(key) != other.of.get(key))


def digests(captured: Mapping[str, Any]) -> Digests:
    flat = tree.flatten(dict(captured))
    found = {key: format.digest(block.data)[:16] for key, block in flat.leaves.items()}
    for name, node in flat.tree["dict"].items():
        found[f"tree:{name}"] = format.digest(format.json_bytes(node))[:16]
    return Digests(found)


def adapter_for(target: Any) -> Any:
    """The framework's own adapter module for `target`, or None for what is merely stateful."""
    module = next((import_module(_ADAPTERS[name]) for name in _frameworks(target) if name in _ADAPTERS), None)
    return module if module is not None and module.handles(target) else None


def weights_for(target: Any) -> Any:
    """The module that reads weights into `target`, or None when it is no model."""
    module = next((import_module(_WEIGHTS[name]) for name in _frameworks(target) if name in _WEIGHTS), None)
    return module if module is not None and module.is_model(target) else None


def _frameworks(target: Any) -> list[str]:
    return [kind.__module__.partition(".")[0] for kind in type(target).__mro__]


def framework_modules() -> list[Any]:
    """Of the frameworks that this program uses: facts(), initial_seed(), still(targets), Steps(targets, before),
    ranks(timeout_s), Reducers(objects).
    """
    return [import_module(home) for name, home in _PROGRAMS.items() if name in sys.modules]


@contextmanager
def still(targets: Collection[object]) -> Iterator[None]:
    """Models as they are for a prediction, gradients off; afterwards as they were."""
    with ExitStack() as stack:
        for module in framework_modules():
            stack.enter_context(module.still(targets))
        yield


def _require_trackable(name: object, target: Any) -> None:
    if not isinstance(name, str) or not name or name == RESERVED:
        raise UsageError(f"state key {name!r}: names are non-empty strings, and {RESERVED!r} is Holdfast's own")
    if not is_text(name):
        raise UsageError(f"state has the name {name!r}, which is no text: give it one in UTF-8")
    if isinstance(target, type) or not (isinstance(target, Stateful) or _is_generator(target) or adapter_for(target)):
        raise UsageError(
            f"state[{name!r}] is a {type(target).__qualname__}, without state_dict() and load_state_dict(); "
            "numbers and lists that the loop itself changes live in run.vars"
        )


def _is_generator(target: Any) -> bool:
    """Whether it is a random generator, which keeps its state in an attribute of its own."""
    return isinstance(target, random.Random) or hasattr(target, "bit_generator")


def _capture(target: Any) -> Any:
    adapter = adapter_for(target)
    if adapter is not None:
        return adapter.capture(target)
    if isinstance(target, random.Random):
        return {"random": target.getstate()}
    if hasattr(target, "bit_generator"):
        return {"bit_generator": target.bit_generator.state}
    return target.state_dict()


def _restore_plain(target: Any, stored: Any) -> None:
    if isinstance(target, random.Random):
        target.setstate(stored["random"])
    elif hasattr(target, "bit_generator"):
        target.bit_generator.state = stored["bit_generator"]
    else:
        target.load_state_dict(stored)


def require_fit(lines: list[str], checkpoint: Checkpoint) -> None:
    if lines:
        shown = "".join(f"\n  {line}" for line in lines[:20])
        more = f"\n  ... and {len(lines) - 20} more" if len(lines) > 20 else ""
        raise Mismatch(
            f"{checkpoint.path} does not fit the live objects; nothing was overwritten. To begin a new run from the "
            f"weights that fit, use start_from={str(checkpoint.path)!r} with another directory.{shown}{more}"
        )
