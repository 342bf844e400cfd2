"""ModelParts: the parts of a model that this rank holds, and their optimizers.

They are saved by the names of the whole model. A checkpoint holds the parts of all ranks, and each
rank restores the names that it asks for, whichever rank saved them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

import msgspec
from torch import nn
from torch.optim import LBFGS, Optimizer

from ..errors import UsageError
from ..state.captured import CutState
from ..state.fill import read_whole
from ..state.validation import convert_stored
from ..store.parts import CUT
from . import gradients, modules, optimizers
from .baseline import BESIDES

_MOVED = ".moved"  # in a group: the script's first values of options that it changed
_APART = (modules.METADATA, BESIDES)  # of a module's state, what is no tensor with a name
_NAMES = "param_names"  # in a group: the script's own names
_LATE = "late"  # of that: names of buffers that training has registered
_STEPPED = "{} in an optimizer".format  # the name of a parameter's moments and options


class ModelParts:
    """The parts of a model on this rank, such as the stages of a pipeline, and their optimizers.

    `parts`: a module, a list of modules, or a mapping from places in the whole model to modules:
    {"layers.4": block} holds "layers.4.weight". Ranks may hold different names. Parameters that
    several ranks hold under one name are replicas, and must be equal. On another number of ranks,
    or cut otherwise, a run resumes with the same parameters and moments.

    Raises:
        UsageError: a part is no module, a name comes twice, an optimizer has a parameter that no
            part has, or two have the same one.
    """

    def __init__(
        self,
        parts: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
        optimizers: Optimizer | Sequence[Optimizer] = (),
    ) -> None:
        pairs = (
            parts.items() if isinstance(parts, Mapping) else [("", each) for each in _all(parts)]
        )
        self.parts: list[tuple[str, nn.Module]] = list(pairs)
        self.optimizers: list[Optimizer] = _all(optimizers)
        for each in (*(part for _, part in self.parts), *self.optimizers):
            if not isinstance(each, nn.Module | Optimizer):
                kind = type(each).__name__
                raise UsageError(f"ModelParts holds modules and optimizers, and no {kind}")
        names = [name for prefix, part in self.parts for name in _live(prefix, part)]
        if twice := _repeated(names):
            raise UsageError(
                f"two parts hold {twice[0]!r}: give their places in the whole model, "
                'as in ModelParts({"layers.0": first, "layers.1": second})'
            )
        if twice := _repeated([name for each in self.parameter_names() for name in each]):
            raise UsageError(
                f"two optimizers have {twice[0]!r}: ModelParts saves one state of each parameter"
            )

    def parameter_names(self) -> list[list[str]]:
        """Return for each optimizer the names of its parameters, in the order of their numbers."""
        known: dict[int, str] = {}
        for prefix, part in self.parts:
            for name, parameter in modules.named_parameters(part):
                known.setdefault(id(parameter), _join(prefix, name))  # tied ones: the first name
        found = []
        for optimizer in self.optimizers:
            numbered = [each for group in optimizer.param_groups for each in group["params"]]
            if any(id(each) not in known for each in numbered):
                kind = type(optimizer).__name__
                raise UsageError(f"{kind} has a parameter that none of the ModelParts has")
            found.append([known[id(each)] for each in numbered])
        return found


def members(target: object) -> CutState | None:
    """Return the modules and optimizers of `target` as members, if it is ModelParts."""
    return PartsMembers(target) if isinstance(target, ModelParts) else None


class PartsMembers(CutState):
    """The modules and the optimizers. They are saved as {"model": tensors, "state": moments,
    "groups": options}, each by the names of the whole model.
    """

    def __init__(self, target: ModelParts) -> None:
        super().__init__(target, ("modules", "optimizers"))

    def values(self) -> dict[str, Any]:
        """Return modules by their places, and optimizers."""
        return {"modules": dict(self._modules()), "optimizers": list(self.target.optimizers)}

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Yield each part under a key of its own: its place; "", ".1", ".2" for those without."""
        unplaced = chain([""], map(".{}".format, count(1)))
        for prefix, part in self.target.parts:
            yield prefix or next(unplaced), part

    def set_attribute(self, name: str, value: Any) -> None:
        """Refuse every value: the members restore themselves.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"the {name} of ModelParts do not fit: {type(value).__name__}")

    def live_names(self) -> list[str]:
        """Return the names of the tensors of this rank's modules, and those of its optimizers."""
        tensors = [name for prefix, part in self.target.parts for name in _live(prefix, part)]
        return tensors + [_STEPPED(each) for each in chain(*self.target.parameter_names())]

    def shared_with(self, beside: Any) -> str | None:
        """Return the name of a parameter that this module or optimizer has, too."""
        found = []
        if isinstance(beside, Optimizer):
            found = [each for group in beside.param_groups for each in group["params"]]
        elif isinstance(beside, nn.Module):
            found = list(beside.parameters())
        theirs = {*map(id, found)}
        mine = self._parameters() if theirs else ()
        return next((name for name, each in mine if id(each) in theirs), None)

    def _parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        for prefix, part in self.target.parts:
            for name, parameter in modules.named_parameters(part):
                yield _join(prefix, name), parameter

    def replicated(self) -> Iterator[tuple[str, Any]]:
        """Yield parameters and moments by name: ranks that hold the same name hold equal ones."""
        parameters = {name for name, _ in self._parameters()}
        for prefix, part in self.target.parts:
            for name, value in _live(prefix, part).items():
                if name in parameters:
                    yield name, value
        steps = self.target.optimizers
        for optimizer, names in zip(steps, self.target.parameter_names(), strict=True):
            state = optimizers.capture(optimizer)["state"]
            yield from ((f"{names[number]}/moments", each) for number, each in state.items())

    def by_name(self, captured: Mapping[str, Any]) -> dict[str, Any]:
        """Return the captured members by the names of the whole model.

        Raises:
            UsageError: an optimizer has a state that belongs to none of its parameters.
        """
        found: dict[str, Any] = {CUT: 1, "model": {}, "state": {}, "groups": [], "gradients": {}}
        besides: dict[str, Any] = {}
        late: list[str] = []
        for (key, _), (prefix, _) in zip(self._modules(), self.target.parts, strict=True):
            held = captured["modules"][key]
            found["model"] |= {
                _join(prefix, name): each for name, each in modules.stored_tensors(held).items()
            }
            own = {name: dict(held[name]) for name in _APART if name in held}
            late += [_join(prefix, name) for name in own.get(BESIDES, {}).pop(_LATE, ())]
            if own := {name: each for name, each in own.items() if each}:
                besides[f"module {key}"] = own
        named = zip(captured["optimizers"], self.target.parameter_names(), strict=True)
        for place, (held, names) in enumerate(named):
            if held["state"].keys() - set(range(len(names))):
                raise UsageError("an optimizer of ModelParts has a state of no parameter")
            more = dict(held.get(BESIDES, {}))
            moved = more.pop("moved", [{}] * len(held["param_groups"]))
            gradients = more.pop("gradients", {})
            found["gradients"] |= {names[int(number)]: each for number, each in gradients.items()}
            found["state"] |= {names[number]: each for number, each in held["state"].items()}
            for group, first in zip(held["param_groups"], moved, strict=True):
                params = [names[number] for number in group["params"]]
                found["groups"].append({**group, "params": params, _MOVED: first})
            if more:
                besides[f"optimizer {place}"] = more
        rare = {"besides": besides, _LATE: late}
        return found | {name: each for name, each in rare.items() if each}

    def recut(
        self, own: Any, others: Callable[[], Iterable[Any]], everywhere: frozenset[str] | None
    ) -> tuple[Any, list[str]]:
        """Return the stored states of the present modules and optimizers, and what does not fit.

        `everywhere`: the names that some rank holds now, to find lost ones; None: not compared.
        """
        mine, live = _saved(own), {*self.live_names()}
        parts, is_same_cut = [mine], live.difference(mine.late) == mine.names
        if not is_same_cut or everywhere is not None:
            parts += map(_saved, others())
        model = {name: each for part in reversed(parts) for name, each in part.model.items()}
        late = {name for part in parts for name in part.late}
        saved = {name for part in parts for name in part.names}
        lines = [
            f"{name}: in the checkpoint, on no rank here"
            for name in sorted(saved - everywhere if everywhere is not None else ())
        ]
        besides = mine.besides
        if not is_same_cut and any(part.is_uncuttable for part in parts):
            lines.append(
                "modules or optimizers have a state that is in no tensor of theirs: "
                "resume with the parts, and on the ranks, that saved it"
            )
        tensors = {n: each for place in self.target.parts for n, each in _live(*place).items()}
        lines += modules.tied_differences(model, tensors)
        held: dict[str, Any] = {}
        for (key, part), (prefix, _) in zip(self._modules(), self.target.parts, strict=True):
            came = [name for name in _inside(prefix, part, late) if _join(prefix, name) in model]
            full = {name: _join(prefix, name) for name in [*_live("", part), *came]}
            held[key] = {name: model[each] for name, each in full.items() if each in model}
            held[key] |= besides.get(f"module {key}", {})
            if came:
                held[key][BESIDES] = {**held[key].get(BESIDES, {}), _LATE: came}
        steps = []
        named = zip(self.target.optimizers, self.target.parameter_names(), strict=True)
        first = 0
        for place, (optimizer, names) in enumerate(named):
            beside = besides.get(f"optimizer {place}", {})
            alike = mine.groups[first:] if len(mine.groups) == self._group_count() else []
            state, more = _cut_optimizer(optimizer, names, parts, alike, lines)
            if beside.get("gradients_are") == gradients.READ:  # none: those of now are cleared
                more = {"gradients": {}, **more}
            more |= beside
            first += len(optimizer.param_groups)
            steps.append({**state, **({BESIDES: more} if more else {})})
        return {"modules": held, "optimizers": steps}, lines

    def _group_count(self) -> int:
        return sum(len(each.param_groups) for each in self.target.optimizers)


class _SavedParts(msgspec.Struct, forbid_unknown_fields=True):
    """What one rank has saved, by the names of the whole model. Values are handles."""

    model: dict[str, Any]
    state: dict[str, Any]
    groups: list[dict[str, Any]]
    gradients: dict[str, Any]
    besides: dict[str, dict[str, Any]] = {}
    late: list[str] = []

    @property
    def names(self) -> set[str]:
        """What a rank must hold to restore this; a buffer that comes in training needs no name."""
        return {*self.model}.difference(self.late) | {*map(_STEPPED, self.groups_of())}

    @property
    def is_uncuttable(self) -> bool:
        """Whether there is more than tensors and options: what modules keep beside their state."""
        return any({*each} - {"gradients_are"} for each in self.besides.values())

    def groups_of(self) -> dict[str, dict[str, Any]]:
        """Return the group of each parameter."""
        return {
            name: group
            for group in self.groups
            for name in convert_stored(list[str], group.get("params"), "ModelParts")
        }


msgspec.json.Decoder(_SavedParts)  # here, where only one thread is


def _saved(stored: Any) -> _SavedParts:
    """Return what a rank has saved.

    Raises:
        Damaged: it is no state of ModelParts.
    """
    whole = convert_stored(dict[str, Any], stored, "ModelParts")
    rest = {name: each for name, each in whole.items() if name != CUT}
    return convert_stored(_SavedParts, rest, "ModelParts")


def _cut_optimizer(
    optimizer: Optimizer,
    names: Sequence[str],
    parts: Sequence[_SavedParts],
    alike: Sequence[dict[str, Any]],
    lines: list[str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state as `optimizer` would have saved it, by the numbers of its parameters, and
    what would stand beside it. Add to `lines` what does not fit.

    `alike`: this rank's groups before, if there were as many: an empty one has the options of its
    place.
    """
    homes, entries, pending = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for part in reversed(parts):
        homes |= part.groups_of()
        entries |= part.state
        pending |= part.gradients
    groups, moved = [], []
    for position, live in enumerate(optimizer.state_dict()["param_groups"]):
        held = [names[number] for number in live["params"]]
        lines += [f"{name}: no optimizer had it" for name in held if name not in homes]
        found = [homes[name] for name in held if name in homes]
        options = [_options(each) for each in found]
        if any(each != options[0] for each in options[1:]):
            lines.append(f"param_groups/{position}: its parameters had groups of other options")
        if isinstance(optimizer, LBFGS) and found and list(found[0]["params"]) != held:
            lines.append("LBFGS has one state of all its parameters: give it the same ones")
        spare = alike[position] if alike and not held else live
        chosen = {key: each for key, each in (found or [spare])[0].items() if key != _NAMES}
        moved.append(chosen.pop(_MOVED, {}))
        groups.append(chosen | {key: live[key] for key in ("params", _NAMES) if key in live})
    numbered = dict(enumerate(names))
    state = {number: entries[name] for number, name in numbered.items() if name in entries}
    gradients = {str(number): pending[name] for number, name in numbered.items() if name in pending}
    more = {"moved": moved} if any(moved) else {}
    found_state = {"state": state, "param_groups": groups}
    return found_state, more | ({"gradients": gradients} if gradients else {})


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: each for key, each in group.items() if key not in ("params", _NAMES, _MOVED)}
    whole: dict[str, Any] = read_whole(kept)
    return whole


def _live(prefix: str, part: nn.Module) -> dict[str, Any]:
    return {_join(prefix, name): each for name, each in modules.live_entries(part).items()}


def _inside(prefix: str, part: nn.Module, names: Iterable[str]) -> Iterator[str]:
    """Yield those of `names` that lie in a module of `part`, by its own names."""
    known = dict(modules.unwrap(part).named_modules(remove_duplicate=False))
    for name in sorted(names):
        if name.startswith(begin := _join(prefix, "")):
            own = name.removeprefix(begin)
            if own.rpartition(".")[0] in known:
                yield own


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _all(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]
