"""Tracked: the live objects of a run's state; each is captured and restored through its adapter."""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from ..errors import Mismatch, UsageError
from ..legible import is_text, key_text
from ..state import codec, finite, generators, tree
from ..state.captured import (
    ATOMS,
    MUTABLE,
    AttributeSet,
    CutState,
    StateAdapter,
    capture_objects,
    is_plain,
    kept_factory,
    look_anew,
)
from ..state.fill import Act, InPlaceRestore
from ..state.nodes import leaf_keys
from ..state.rebinding import RebindingTracker
from ..state.unflatten import enough_stack
from ..store import format
from ..store.checkpoint import Checkpoint
from .objects import (
    OBJECTS,
    STEERED,
    ObjectAdapters,
    adapter_for,
    member_at,
    members_as_attributes,
    stored_state_at,
    weight_leaves,
)
from .vars import Vars

RESERVED = "holdfast"  # the top-level key of the run's own state
_BIG_BYTES = 64 << 10  # a smaller leaf is digested at once
# facts, seed and prediction mode of the framework as a whole
_PROGRAMS = {"torch": "holdfast.torch.program"}


class _NoOwnObjects(ObjectAdapters):
    """Run.vars contains no object that restores itself."""

    def has(self, _: Any) -> bool:
        return False


class CapturedState(NamedTuple):
    """A captured state,
    and the ids of its leaves that are parameters of models or moments of optimizers.
    """

    state: dict[str, Any]
    weights: frozenset[int]


class Tracked:
    """The caller's mapping of names to live objects, together with the variables of the loop."""

    def __init__(self, objects: Mapping[str, Any], variables: Vars | None = None) -> None:
        if not isinstance(objects, Mapping):
            raise UsageError(
                "the tracked objects stand in one mapping: "
                "Run(path, dict(model=model, optimizer=optimizer))"
            )
        live = {name: members_as_attributes(target) for name, target in objects.items()}
        for name, target in live.items():
            _require_trackable(name, target)
        self.given = objects
        self.objects = {name: target for name, target in live.items() if target is not None}
        self._require_apart()
        self.variables = Vars() if variables is None else variables
        self.places: RebindingTracker | None = None
        # leaves that the last restore filled itself, without a user's load_state_dict
        self.filled: set[str] = set()
        # on rank 0, of models that are cut over ranks: the names that some rank holds
        self.names_everywhere: dict[str, frozenset[str]] = {}
        self._reducers: list[Any] = []
        self._cold: dict[str, Any] = {}  # state of reducers that do not exist yet

    def _require_apart(self) -> None:
        """Require that nothing beside a model that is cut over ranks has a state of its parameters:
        it would come back by ranks, to other parameters.
        """
        cut = self.cut_states()
        beside = self.self_restoring_objects().items() if cut else ()
        for path, each in beside:
            for name, parts in cut.items():
                if path.partition("/")[0] not in cut and (held := parts.shared_with(each)):
                    raise UsageError(
                        f"state[{path!r}] is a {type(each).__qualname__} with {held!r}, which "
                        f"state[{name!r}] has: give it to ModelParts, and do not track it beside"
                    )

    def remember_objects(self) -> None:
        """Remember which object each place holds, before the restore. A second block changes
        nothing.
        """
        if self.places is not None:
            return
        given = {f"run.vars.{name}": each for name, each in self.variables.given().items()}
        self.places = RebindingTracker(OBJECTS, OBJECTS.places, self._roots, given)

    def rebound_objects(self) -> list[str]:
        """Return the places that hold another object than at the beginning, if the first one
        is still referenced.
        """
        return [] if self.places is None else self.places.rebound_places()

    def _roots(self) -> dict[str, Any]:
        return {
            **self.objects,
            "": {f"run.vars.{name}": each for name, each in self.variables.state_dict().items()},
        }

    def self_restoring_objects(self) -> dict[str, Any]:
        """The objects that restore themselves,
        also inside containers, by their paths; each once.
        """
        return _deduplicate(self._own_objects())

    def generators(self) -> dict[str, Any]:
        """Copies of the random generators among the objects,
        also in dicts and lists, by their paths.
        """
        found = (
            each
            for name, target in self.objects.items()
            for each in generators.find_generators(name, target)
        )
        return {path: generators.copy_generator(each) for path, each in found}

    def refill_generators(self, stored: Mapping[str, Any]) -> None:
        """Bring the generators into the states that `generators` had returned."""
        for name, target in self.objects.items() if stored else ():
            for path, each in generators.find_generators(name, target):
                if path in stored:
                    generators.refill_generator(each, stored[path])

    def nested_paths(self) -> list[str]:
        """Return the paths of all self-restoring objects in containers. One object may have
        several paths.
        """
        return [path for path, _ in self._own_objects() if "/" in path]

    def _own_objects(self) -> list[tuple[str, Any]]:
        with enough_stack():
            return [
                found
                for name, target in self.objects.items()
                for found in _self_restoring_objects(name, target)
            ]

    def adapter_calls(self, verb: str) -> list[Callable[[], Any]]:
        """What the adapters do with the objects:
        `enter` as a run begins, `look`, `at_safe_point`, and `leave`.
        """
        found: list[Callable[[], Any]] = []
        for each in self.self_restoring_objects().values():
            adapter = adapter_for(each)
            # a framework's wrapper around it
            target = adapter.unwrap(each) if hasattr(adapter, "unwrap") else each
            adapter = adapter_for(target)
            if hasattr(adapter, "changes_in_training") and adapter.changes_in_training(target):
                # of a generator, each reference counts: Watch
                found.append(partial(getattr(adapter, verb), target))
        return found

    def call_adapters(self, verb: str) -> None:
        for act in self.adapter_calls(verb):
            act()

    @property
    def keeps_gradients(self) -> bool:
        """Whether an object among them saves gradients itself, as accelerate's Accelerator."""
        return any(getattr(type(each), "keeps_gradients", False) for each in self.objects.values())

    def capture(self) -> dict[str, Any]:
        """Return the state of every object; tensors by reference."""
        return self._capture_known(self._capture_defaultdicts())

    def captured_variables(self) -> dict[str, Any]:
        """Return the values of the variables, as they are saved."""
        known = self._capture_defaultdicts(_NoOwnObjects())
        values = self.variables.state_dict()
        return (
            {name: capture_objects(each, _NoOwnObjects(), known) for name, each in values.items()}
            if known
            else values
        )

    def _capture_defaultdicts(self, own: StateAdapter = OBJECTS) -> dict[int, tuple[Any, Any]]:
        """Captures of the defaultdicts that stand where one stood at the beginning: the live one
        keeps its factory.
        """
        known: dict[int, tuple[Any, Any]] = {}
        for each in () if self.places is None else self.places.initial_defaultdicts():
            if each.default_factory not in (None, *tree.FACTORIES.values()):
                members = {key: capture_objects(member, own, known) for key, member in each.items()}
                known[id(each)] = each, defaultdict(kept_factory, members)
        return known

    def capture_with_weights(self) -> CapturedState:
        """Return the state, and which of its leaves are weights: none if their numbers
        cannot be checked.
        """
        known = self._capture_defaultdicts()
        state = self._capture_known(known)
        return CapturedState(
            state,
            frozenset(map(id, weight_leaves(known.values())))
            if finite.can_check()
            else frozenset(),
        )

    def _capture_known(self, known: dict[int, tuple[Any, Any]]) -> dict[str, Any]:
        with enough_stack():
            return {
                name: capture_objects(target, OBJECTS, known)
                for name, target in self.objects.items()
            }

    def digests(self) -> StateDigests:
        """Return the digests of the present state, leaf by leaf."""
        return digest_state(self.capture())

    def allowed_types(self) -> set[type]:
        """The caller's own types that the state holds: the ones that a checkpoint may name."""
        return tree.types_in(self.capture())

    def differences(
        self, checkpoint: Checkpoint, plan: RestorePlan, nested: Iterable[str]
    ) -> list[str]:
        """Return how `checkpoint` does not fit the live objects; nothing is changed.

        `nested`: the places in containers that held an object with a state of its own at the save.
        """
        stored = set(checkpoint.parts()) - {RESERVED}
        lines = [
            f"{name}: not in the checkpoint{_NONE_THERE}"
            for name in self.objects
            if name not in stored
        ]
        for name in sorted(stored - set(self.objects)):
            here = (
                f"None here{_NONE_HERE}"
                if name in self.given
                else "not tracked here; track it by this name again"
            )
            lines.append(f"{name}: in the checkpoint, but {here}")
        inside = [(path, each) for path, each in plan.own if path.partition("/")[0] in stored]
        lost = [
            f"{path}: not in the checkpoint"
            for path, each in inside
            if not plan.lines and not plan.fill.is_filled(each)
        ]
        lines += [*plan.lines, *plan.fill.misfits] + [
            line for line in lost if line not in plan.fill.misfits
        ]
        nested = [path for path in nested if path.partition("/")[0] not in self.cut_states()]
        absent = sorted({*nested}.difference(path for path, _ in plan.own))
        return lines + [
            f"{path}: an object with a state of its own in the checkpoint, none here"
            for path in absent
        ]

    def plan_restore(
        self, checkpoint: Checkpoint, types: Iterable[type], *, compare: bool
    ) -> RestorePlan:
        """Return how the live objects would be filled with the checkpoint's state;
        nothing is changed.
        """
        fill, stored = (
            InPlaceRestore(OBJECTS, self.places, compare=compare),
            set(checkpoint.parts()),
        )
        # what can only be filled comes first: another place that holds it too can be set
        names = sorted(
            (name for name in self.objects if name in stored),
            key=lambda name: (
                OBJECTS.has(self.objects[name]) or not codec.is_leaf(self.objects[name])
            ),
        )
        states: dict[str, Any] = {}
        lines: list[str] = []
        for name in names:
            states[name], misfits = self._stored_state(name, checkpoint, types)
            lines += [f"{name}/{line}" for line in misfits]
        acts = (
            []
            if lines
            else [fill.plan_top(name, self.objects[name], states[name]) for name in names]
        )
        return RestorePlan(fill, acts, self._own_objects(), states, lines)

    def _stored_state(
        self, name: str, checkpoint: Checkpoint, types: Iterable[type]
    ) -> tuple[Any, list[str]]:
        """Return the stored state of one object, and what of it fits no rank: of a model that is
        cut over ranks it is put together from what all ranks have saved.
        """
        own, target = checkpoint.handles(part=name, types=types), self.objects[name]
        if not isinstance(target, CutState):
            return own, []

        def others() -> Iterator[Any]:
            for view in checkpoint.rank_views():
                if view.rank != checkpoint.rank and name in view.parts():
                    yield view.handles(part=name, types=types)

        return target.recut(own, others, self.names_everywhere.get(name))

    def cut_states(self) -> dict[str, CutState]:
        """The objects of which each rank holds other names, by their names in the state."""
        return {name: each for name, each in self.objects.items() if isinstance(each, CutState)}

    def overridden_options(
        self, checkpoint: Checkpoint, plan: RestorePlan, types: Iterable[type]
    ) -> dict[str, list[str]]:
        """For each object,
        the options whose values in the script differ from the checkpoint's, which are used.
        """
        return {
            path: [line for line in lines if target not in STEERED or not line.startswith("lr ")]
            for path, target in _deduplicate(plan.own).items()
            if (adapter := adapter_for(target)) is not None
            for name, *steps in [path.split("/")]
            for lines in [
                adapter.overridden_options(
                    target,
                    member_at(plan.states[name], steps, f"{checkpoint.path}: holds no {path!r}")
                    if name in plan.states
                    else stored_state_at(checkpoint, path, types),
                )
            ]
        }

    def reducer_orders(self) -> dict[str, Any]:
        """Return the order of sums that the reducers of several ranks have determined."""
        if not self._reducers:
            self._reducers = [
                module.ReducerLayouts(self.self_restoring_objects())
                for module in framework_modules()
            ]
        return {name: seen for each in self._reducers for name, seen in each.capture().items()}

    def restore_reducers(self, seen: Mapping[str, Any]) -> None:
        """Restore the order of sums in DDP's reducers before the state, on all ranks at once."""
        self._cold = dict(seen)
        self.restore_late_reducers()

    def restore_late_reducers(self) -> None:
        """Do the same for reducers that were created since: a script may wrap its model
        after the restore.
        """
        for module in framework_modules() if self._cold else ():
            for name in module.ReducerLayouts(self.self_restoring_objects()).restore_layouts(
                self._cold
            ):
                del self._cold[name]

    def restore(self, checkpoint: Checkpoint, plan: RestorePlan) -> None:
        """Fill the live objects as planned. A failure half-way leaves them mixed."""
        require_fit(plan.fill.misfits, checkpoint)
        themselves = {
            path.partition("/")[0] for path, each in plan.own if adapter_for(each) is None
        }
        self.filled = {name for name in self.objects if name.partition("/")[0] not in themselves}
        plan.fill.read_leaves()
        for put in plan.acts:
            put()
        look_anew()


class RestorePlan(NamedTuple):
    """How a checkpoint would be restored."""

    fill: InPlaceRestore
    acts: list[Act]
    own: list[tuple[str, Any]]  # the objects that restore themselves, by their paths
    states: Mapping[str, Any]  # the stored states, with handles on their leaves
    lines: list[str]  # of models that are cut over ranks: what fits no rank


def _deduplicate(own: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[int, tuple[str, Any]] = {}
    for path, each in own:
        found.setdefault(id(each), (path, each))
    return dict(found.values())


_NONE_THERE = " (it was None or not tracked when that was saved)"
_NONE_HERE = ": give the object, or begin a new run with start_from="


def _self_restoring_objects(
    path: str, value: Any, within: frozenset[int] = frozenset()
) -> Iterator[tuple[str, Any]]:
    """Yield the objects in `value` that restore themselves.
    `within`: ids of the containers around it.
    """
    if OBJECTS.has(value):
        yield path, value
        return
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, AttributeSet):
        members = value.values().items()
    elif isinstance(value, dict):
        members = value.items()
    elif isinstance(value, list | tuple | deque) and not is_plain(value):
        members = enumerate(value)
    around = within | {id(value)}
    for key, member in members:
        if type(member) not in ATOMS and id(member) not in around:
            yield from _self_restoring_objects(f"{path}/{key_text(key)}", member, around)


class StateDigests(NamedTuple):
    """Identify a state: a digest for each leaf,
    and for the tree around them under "tree:<name>".
    """

    of: dict[str, str]

    def changed_keys(self, other: StateDigests) -> list[str]:
        """Keys that are not the same in both, sorted."""
        return sorted(
            key for key in self.of.keys() | other.of.keys() if self.of.get(key) != other.of.get(key)
        )


def digest_state(
    captured: Mapping[str, Any],
    stored: Mapping[str, format.LeafEntry] | None = None,
    filled: Collection[str] = (),
) -> StateDigests:
    """Digest a state. For big leaves of `filled` that are also in `stored`,
    take the digests from there.
    """
    flat, stored = tree.flatten(dict(captured)), stored or {}
    nodes = flat.tree["dict"].items() if stored else ()
    others = {key for name, node in nodes if name not in filled for key in leaf_keys(node)}
    found = {}
    for key, block in flat.leaves.items():
        kept = stored.get(key) if key not in others and block.data.nbytes >= _BIG_BYTES else None
        known = "" if kept is None or kept.size_bytes != block.data.nbytes else kept.digest
        found[key] = (
            known if known and format.kind_of(known) == format.XXH3 else format.digest(block.data)
        )[:16]
    for name, node in flat.tree["dict"].items():
        found[f"tree:{name}"] = format.digest(format.json_bytes(node))[:16]
    return StateDigests(found)


def framework_modules() -> list[Any]:
    """The modules of the frameworks that this program uses: facts(), initial_seed(),
    still(targets), ranks(timeout_s), Reducers(objects).
    """
    return [import_module(_PROGRAMS[name]) for name in _PROGRAMS if name in sys.modules]


@contextmanager
def prediction_mode(targets: Collection[object]) -> Iterator[None]:
    """Within this block, models are in prediction mode without gradients;
    afterwards they are as before.
    """
    with ExitStack() as stack:
        for module in framework_modules():
            stack.enter_context(module.evaluation_mode(targets))
        yield


def _require_trackable(name: object, target: Any) -> None:
    if not isinstance(name, str) or not name or name == RESERVED:
        raise UsageError(
            f"state key {name!r}: names are non-empty strings, and {RESERVED!r} is Holdfast's own"
        )
    if not is_text(name):
        raise UsageError(f"state has the name {name!r}, which is no text: give it one in UTF-8")
    if why := _why_untrackable(name, target):
        raise UsageError(f"state[{name!r}] is a {type(target).__qualname__}{why}")


def _why_untrackable(name: str, target: Any) -> str:
    """Why it cannot be restored in place, and the alternative; empty if it can."""
    kind = type(target)
    if isinstance(target, dict) and any(keys <= target.keys() for keys in _COPIES):
        return (
            " that a state_dict() has returned, a copy: "
            "give the optimizer, the scheduler or the scaler itself"
        )
    if target is None or kind in MUTABLE or isinstance(target, AttributeSet) or OBJECTS.has(target):
        return ""
    instead = f"write Run(..., vars=dict({name}=...)), and run.vars.{name} in the loop"
    if kind in ATOMS or isinstance(target, _FIXED):
        has_objects = isinstance(target, tuple) and any(map(OBJECTS.has, target))
        return f", which cannot be changed in place: {'give a list' if has_objects else instead}"
    framework = None if isinstance(target, type) else codec.framework_of(kind)
    if framework is None:
        fields = f'name the attributes that change: state=dict({name}=Fields({name}, "...", "..."))'
        return f", without state_dict() and load_state_dict(): give it both, or {fields}"
    why = str(codec.import_adapter(framework).why_not_in_place(target))
    return f" and cannot be filled in place: {why}; or {instead}" if why else ""


_COPIES = (  # torch's, by their keys
    {"state", "param_groups"},
    {"last_epoch", "_step_count"},
    {"scale", "backoff_factor", "_growth_tracker"},
)
_FIXED = (tuple, frozenset, range, complex, bytes, str, int, float)


def require_fit(lines: list[str], checkpoint: Checkpoint) -> None:
    if lines:
        shown = "".join(f"\n  {line}" for line in lines[:20])
        more = f"\n  ... and {len(lines) - 20} more" if len(lines) > 20 else ""
        raise Mismatch(
            f"{checkpoint.path} does not fit the live objects; "
            "nothing was overwritten. To begin a new run from the "
            f"weights that fit, use start_from={str(checkpoint.path)!r} "
            f"with another directory.{shown}{more}"
        )
