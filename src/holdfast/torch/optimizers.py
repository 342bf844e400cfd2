"""Optimizers: restores their state in the stored dtypes, on the right devices, aliased with
nothing.

`Optimizer.load_state_dict` casts fp32 moments of bf16 parameters to bf16 and aliases the tensors
that it receives, so torch's own optimizers are restored directly. Those with hooks or a custom
load_state_dict use that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import msgspec
import torch
from torch.optim import LBFGS, Optimizer

from ..errors import Damaged
from ..state.codec import LeafReader
from ..state.fill import read_whole
from ..state.validation import Whole, convert_stored, is_plain
from . import baseline, gradients
from .baseline import BESIDES
from .modules import is_torchs_own
from .pieces import is_dtensor
from .stored import (
    DTYPES,
    TensorRestore,
    is_stored_tensor,
    load_live_state,
    memory_id,
    require_described,
    tensor_facts,
)

_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def capture(optimizer: Optimizer) -> Any:
    """Return the optimizer's state_dict with tensors by reference, changes made during training,
    and inner optimizers.

    Raises:
        UsageError: it has other groups than when its run was entered.
    """
    state = optimizer.state_dict()
    known = baseline.optimizer_baseline(optimizer)
    besides: dict[str, Any] = {}
    if known is not None:
        known.require_same_groups(optimizer)
        if moved := known.changed_options(optimizer):
            besides["moved"] = moved
        pending = gradients.capture(optimizer) if known.carried.is_saved else {}
        if pending or known.carried.is_read:
            besides["gradients"] = pending
        if known.carried.observed_use is not None:
            besides["gradients_are"] = known.carried.observed_use
    if held := {name: capture(each) for name, each in _inner_optimizers(optimizer).items()}:
        besides["held"] = held
    return {**state, BESIDES: besides} if besides and isinstance(state, dict) else state


def record_baseline(optimizer: Optimizer) -> None:
    """Record the groups and options of the optimizer as its run begins."""
    baseline.record_baseline(optimizer)


def detect_gradient_use(optimizer: Optimizer) -> bool:
    """Return whether the loop has just shown, for the first time, that it uses gradients of the
    step before.
    """
    known = baseline.optimizer_baseline(optimizer)
    return known is not None and known.carried.detect_use(optimizer)


class _UnsavedState(msgspec.Struct):
    """The part of an optimizer's stored state that is not in its state_dict()."""

    # by group, the first values of options that the script itself has changed
    moved: list[dict[str, Any]] = []
    held: dict[str, Any] = {}  # the states of optimizers that it holds, by their places in it
    gradients: dict[str, Any] | None = (
        None  # by the numbers of their parameters, if the loop may use gradients of the step before
    )
    gradients_are: str | None = None  # how the loop treats them: "read" or "discarded"


class _Group(msgspec.Struct):
    params: list[Whole]
    param_names: list[str] | None = None


class _Optimizer(msgspec.Struct):
    state: dict[Any, Any]
    param_groups: list[dict[str, Any]]


for _kind in (_UnsavedState, _Group, _Optimizer):
    # here, where only one thread is: the first use of a type by two can crash msgspec
    msgspec.json.Decoder(_kind)


def _split_stored(stored: Any) -> tuple[Any, _UnsavedState]:
    """Split the stored state of an optimizer from what Holdfast saved beside it.

    Raises:
        Damaged: what is beside its state_dict() is of another kind.
    """
    if not isinstance(stored, Mapping) or BESIDES not in stored:
        return stored, _UnsavedState()
    rest = {key: value for key, value in stored.items() if key != BESIDES}
    return rest, convert_stored(_UnsavedState, stored[BESIDES], "what an optimizer holds")


def is_torchs(value: object) -> bool:
    """Return whether the class of `value` is one of torch's own optimizers or schedulers; of
    others, nothing is known.
    """
    return type(value).__module__.startswith("torch.optim.")


def _inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers in the attributes of one that is not torch's and does not save them by
    a state_dict() of its own.

    One that shares the state of this one is saved with it.
    """
    if is_torchs(optimizer) or type(optimizer).state_dict is not Optimizer.state_dict:
        return {}
    places = [
        place
        for name, value in vars(optimizer).items()
        for place in [(name, value), *((f"{name}/{key}", each) for key, each in _items(value))]
    ]
    return {
        name: each
        for name, each in places
        if isinstance(each, Optimizer)
        and each is not optimizer
        and each.state is not optimizer.state
    }


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list | tuple) else ()


def differences(optimizer: Optimizer, stored: Any) -> list[str]:
    """Return one line for each group, option or moment that does not fit; changes nothing."""
    stored, besides = _split_stored(stored)
    here = _inner_optimizers(optimizer)
    lines = [f"{name}: only in the checkpoint" for name in besides.held if name not in here]
    for name, each in here.items():
        lines += (
            [f"{name}/{line}" for line in differences(each, besides.held[name])]
            if name in besides.held
            else []
        )
    lines += _own_differences(optimizer, stored)
    return lines or [*gradients.differences(optimizer, besides.gradients or {})]


def _own_differences(optimizer: Optimizer, stored: Any) -> list[str]:
    if _loads_itself(optimizer):
        return []
    if not isinstance(stored, dict) or not {"state", "param_groups"} <= stored.keys():
        return [
            (
                f"{type(stored).__name__} in the checkpoint that "
                "is not an optimizer's state, an optimizer here"
            )
        ]
    _require_groups(stored)
    here, there = optimizer.param_groups, stored["param_groups"]
    if len(there) != len(here):
        return [f"param_groups: {len(there)} in the checkpoint, {len(here)} here"]
    lines = []
    for number, (group, old) in enumerate(zip(here, there, strict=True)):
        lines += _group_differences(f"param_groups/{number}", group, old, optimizer.defaults)
    return lines or _moment_differences(optimizer, stored)


_NUMBERS = (int, float, tuple)
_CHOSEN = baseline.OPTIONS[1:]  # all but the rate


def overridden_options(optimizer: Optimizer, stored: Any) -> list[str]:
    """Return one line for each option whose value in the script differs from the checkpoint's,
    which will be used.

    Its first word is the option's name.
    """
    lines: list[str] = []
    stored, besides = _split_stored(stored)
    groups = stored.get("param_groups") if isinstance(stored, dict) else None
    if not isinstance(groups, list) or not all(isinstance(old, dict) for old in groups):
        return lines  # its own load_state_dict handles it
    for number, (group, old) in enumerate(zip(optimizer.param_groups, groups, strict=False)):
        first = besides.moved[number] if number < len(besides.moved) else {}
        base = "initial_lr" if "initial_lr" in old else "lr"  # the present rate may be a schedule's
        pairs = {
            name: (group.get(name), old.get(name)) for name in _CHOSEN if "max_momentum" not in old
        }
        pairs["lr"] = group.get(base, group["lr"]), old.get(base)
        lines += [
            f"{name} is {here} here and {there} in the checkpoint"
            for name, (here, there) in pairs.items()
            if isinstance(here, _NUMBERS)
            and isinstance(there, _NUMBERS)
            and here != there
            and is_plain(there)
            and not (name in first and is_plain(first[name]) and here == first[name])
        ]
    return list(dict.fromkeys(lines))


def restore(optimizer: Optimizer, stored: Mapping[str, Any]) -> None:
    """Set state and options. Live tensors that fit are written in place, so that captured graphs
    still use them.

    Raises:
        Mismatch: the optimizer's own load_state_dict refused.
    """
    stored, besides = _split_stored(stored)
    if _loads_itself(optimizer):
        state = read_whole(stored)
        load_live_state(optimizer, state)
        _undo_casts(optimizer, state)
    else:
        _restore_own(optimizer, stored)
    for name, each in _inner_optimizers(optimizer).items():
        if name in besides.held:
            restore(each, besides.held[name])
    known = baseline.optimizer_baseline(optimizer)
    if known is not None:
        known.record_options(optimizer, besides.moved)
    if besides.gradients is not None:
        gradients.set_gradients(gradients.parameters(optimizer), besides.gradients)
    if known is not None:
        known.carried.resume(optimizer, besides.gradients_are, pending=bool(besides.gradients))


def _restore_own(optimizer: Optimizer, stored: Mapping[str, Any]) -> None:
    parameters = dict(_numbered_parameters(optimizer, stored["param_groups"]))
    place = _Placement(parameters.values())
    for group, old in zip(optimizer.param_groups, stored["param_groups"], strict=True):
        _restore_group(group, old, place)
    groups = {
        id(parameter): group for group in optimizer.param_groups for parameter in group["params"]
    }
    before = dict(optimizer.state)
    optimizer.state.clear()
    for key, entry in stored["state"].items():
        parameter = parameters.get(key)
        if parameter is None:
            optimizer.state[key] = read_whole(entry)
            continue
        live, group = before.get(parameter), groups[id(parameter)]
        if isinstance(entry, dict):
            optimizer.state[parameter] = place.restore_entry(entry, live, parameter, group)
        else:  # an author's own kind of state
            optimizer.state[parameter] = place.restore_entry(
                {"": entry}, {"": live}, parameter, group
            )[""]
    place.filling.read_all()
    optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})
    if optimizer.state:
        # it has stepped: a scheduler that steps first should not warn
        vars(optimizer)["_opt_called"] = True


# takes a stored tensor and the live value in its place
_Device = Callable[[Any, Any], torch.device]


class _Placement:
    """Where a stored tensor goes: into the live one that it replaces, or into a new one of the
    stored layout.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.taken = {memory_id(parameter) for parameter in parameters}
        self.placed: dict[str, torch.Tensor] = {}
        self.filling = TensorRestore()  # after its run the tensors have their values
        self._parameter: torch.Tensor | None = None  # the parameter whose entry is restored

    def restore_entry(
        self,
        stored: Mapping[str, Any],
        live: Any,
        parameter: torch.Tensor,
        group: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Restore the state of one parameter of `group` on its device,
        except tensors that were on the CPU.
        """
        mixed = len({_device_of(leaf) for leaf in stored.values() if is_stored_tensor(leaf)}) > 1
        captured = bool(group.get("capturable") or group.get("fused"))

        def device(key: str) -> _Device:
            may_stay = (key == "step" or mixed) and not captured
            return lambda leaf, _: (
                torch.device("cpu") if may_stay and _device_of(leaf) == "cpu" else parameter.device
            )

        old, self._parameter = live if isinstance(live, dict) else {}, parameter
        found = {
            key: self.restore_value(item, old.get(key), device(key)) for key, item in stored.items()
        }
        self._parameter = None
        return found

    def restore_value(self, stored: Any, live: Any, device: _Device) -> Any:
        """Return `stored` decoded, with tensors read into the tensors of `live` where they fit."""
        if is_stored_tensor(stored):
            return self._restore_tensor(stored, live, device(stored, live))
        if isinstance(stored, torch.Tensor):
            return stored.to(device(stored, live))
        if isinstance(stored, deque):
            items = self.restore_value(
                list(stored), list(live) if isinstance(live, deque) else None, device
            )
            return deque(items, stored.maxlen)
        if type(stored) is dict:
            old = live if isinstance(live, dict) else {}
            return {
                key: self.restore_value(item, old.get(key), device) for key, item in stored.items()
            }
        if type(stored) in (list, tuple):
            olds = (
                live
                if type(live) in (list, tuple) and len(live) == len(stored)
                else [None] * len(stored)
            )
            return type(stored)(
                self.restore_value(item, each, device)
                for item, each in zip(stored, olds, strict=True)
            )
        return read_whole(stored)

    def _restore_tensor(self, stored: LeafReader, live: Any, device: torch.device) -> torch.Tensor:
        if stored.key not in self.placed:
            if self._fits(stored, live, device):
                self.filling.read_into(live.detach(), stored)
            else:
                live = self.filling.read_new(stored, device, self._parameter)
            self.taken.add(memory_id(live))
            self.placed[stored.key] = live
        return self.placed[stored.key]

    def _fits(self, stored: LeafReader, live: Any, device: torch.device) -> bool:
        return (
            isinstance(live, torch.Tensor)
            and tensor_facts(live) == tensor_facts(stored)
            and live.device == device
            and _is_laid_out(live, stored.attrs.get("stride"))
            and memory_id(live) not in self.taken
        )


def _restore_group(group: dict[str, Any], old: Mapping[str, Any], place: _Placement) -> None:
    """Give the group the checkpoint's options in its order, then options of the live group alone;
    `params` stay.
    """
    elsewhere = group["params"][0].device if group["params"] else torch.device("cpu")

    def device(leaf: Any, live: Any) -> torch.device:
        if isinstance(live, torch.Tensor):
            return live.device
        return torch.device("cpu") if _device_of(leaf) == "cpu" else elsewhere

    options: dict[str, Any] = {}
    for key, value in old.items():
        live = group.get(key)
        if key == "params" or (key == "param_names" and live is not None):
            continue
        if isinstance(live, torch.Tensor) and isinstance(value, int | float):
            live.detach().fill_(value)
            options[key] = live
        else:
            options[key] = place.restore_value(value, live, device)
    only_here = {key: value for key, value in group.items() if key not in options}
    group.clear()
    group.update(options | only_here)


def _numbered_parameters(
    optimizer: Optimizer, old_groups: Iterable[Mapping[str, Any]]
) -> Iterable[tuple[int, torch.Tensor]]:
    for group, old in zip(optimizer.param_groups, old_groups, strict=True):
        yield from zip(old["params"], group["params"], strict=True)


def _require_groups(stored: Any) -> None:
    """Require stored groups that an optimizer can have.

    Raises:
        Damaged: no optimizer has such groups.
    """
    found = convert_stored(_Optimizer, stored, "an optimizer's state")
    groups = [convert_stored(_Group, group, "an optimizer's group") for group in found.param_groups]
    numbers = [number for group in groups for number in group.params]
    if len({*numbers}) != len(numbers):
        raise Damaged("an optimizer's groups share a parameter")


def _group_differences(
    path: str, group: Mapping[str, Any], old: Mapping[str, Any], defaults: Mapping[str, Any]
) -> list[str]:
    if len(old["params"]) != len(group["params"]):
        return [
            (
                f"{path}: {len(old['params'])} parameters in "
                f"the checkpoint, {len(group['params'])} here"
            )
        ]
    lines = [
        f"{path}/{option}: missing in the checkpoint; was it saved by another kind of optimizer?"
        for option, value in defaults.items()
        # torch adds those itself
        if option not in old and value is not None and not isinstance(value, bool)
    ]
    names = zip(old.get("param_names", ()), group.get("param_names", ()), strict=False)
    return lines + [
        f"{path}: parameter {position} is {there} in the checkpoint, {here} here"
        for position, (there, here) in enumerate(names)
        if _without_values(there) != _without_values(here)
    ]


def _without_values(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "module"))


_ADAM = ("exp_avg", "exp_avg_sq")
_MOMENTS = {  # of torch's optimizers: what each parameter has after the first step, besides "step"
    **dict.fromkeys(("Adam", "AdamW", "NAdam", "RAdam", "SparseAdam"), _ADAM),
    "Adamax": ("exp_avg", "exp_inf"),
    "Adadelta": ("square_avg", "acc_delta"),
    "Adagrad": ("sum",),
    "RMSprop": ("square_avg",),
    "Rprop": ("prev", "step_size"),
    "ASGD": ("ax",),
}


def _moment_differences(optimizer: Optimizer, stored: Mapping[str, Any]) -> list[str]:
    """Return one line for each of torch's moments that is missing, or has neither its parameter's
    shape nor 1 in a factored dimension.

    LBFGS flattens its moments, and other authors' optimizers may project them: these are not
    compared.
    """
    if isinstance(optimizer, LBFGS) or not is_torchs(optimizer):
        return []
    lines = []
    wanted = _MOMENTS.get(type(optimizer).__name__, ())
    for number, parameter in _numbered_parameters(optimizer, stored["param_groups"]):
        entry = convert_stored(
            dict[str, Any], stored["state"].get(number, {}), f"an optimizer's state/{number}"
        )
        if (
            entry
            and wanted
            and (lacks := [name for name in ("step", *wanted) if name not in entry])
        ):
            lines.append(
                f"state/{number}: no {', '.join(lacks)} in the checkpoint: "
                "another kind of optimizer saved it"
            )
        moments = {name: entry[name] for name in wanted if name in entry}
        if tensor_facts(entry.get("momentum_buffer")) is not None:  # SGD has it only with momentum
            moments["momentum_buffer"] = entry["momentum_buffer"]
        lines += _kind_differences(f"state/{number}", moments, parameter)
        for key, value in entry.items():
            if is_stored_tensor(value):
                require_described(value)
            there, here = tensor_facts(value), tuple(parameter.shape)
            if there is None or len(there.shape) != len(here):
                continue
            if any(old not in (1, new) for old, new in zip(there.shape, here, strict=True)):
                lines.append(
                    f"state/{number}/{key}: shape {there.shape} "
                    f"in the checkpoint, parameter {here} here"
                )
    return lines


def _kind_differences(
    path: str, moments: Mapping[str, Any], parameter: torch.Tensor
) -> Iterator[str]:
    """Yield a line for each moment of real numbers where `parameter` is complex, and vice versa.

    Raises:
        Damaged: one is no tensor of real or complex numbers.
    """
    for name, value in moments.items():
        dtype = (
            DTYPES.get(value.dtype) if is_stored_tensor(value) else getattr(value, "dtype", None)
        )
        if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or dtype.is_complex):
            raise Damaged(f"an optimizer's {path}/{name} is no tensor of real or complex numbers")
        if dtype.is_complex != parameter.is_complex():
            yield (
                f"{path}/{name}: dtype {str(dtype).removeprefix('torch.')} in the checkpoint, "
                f"parameter {str(parameter.dtype).removeprefix('torch.')} here"
            )


def _loads_itself(optimizer: Optimizer) -> bool:
    names = ("state_dict", "load_state_dict")
    return (
        any(getattr(optimizer, hooks, None) for hooks in _HOOKS)
        or any(name in vars(optimizer) for name in names)
        or not all(is_torchs_own(type(optimizer), name, "torch.optim.") for name in names)
    )


def _undo_casts(optimizer: Optimizer, state: Any) -> None:
    """Restore the stored tensor where torch's load_state_dict,
    called with hooks, has cast it to another dtype.
    """
    if type(optimizer).load_state_dict is not Optimizer.load_state_dict or not isinstance(
        state, dict
    ):
        return
    for number, parameter in enumerate(
        chain.from_iterable(group["params"] for group in optimizer.param_groups)
    ):
        live = optimizer.state.get(parameter, {})
        for key, value in state.get("state", {}).get(number, {}).items():
            now = live.get(key)
            if (
                isinstance(value, torch.Tensor)
                and isinstance(now, torch.Tensor)
                and now.dtype != value.dtype
            ):
                live[key] = value.to(now.device)


def _is_laid_out(live: torch.Tensor, stride: list[int] | None) -> bool:
    if is_dtensor(live):
        return True  # each rank's piece may have any shape
    return live.is_contiguous() if stride is None else list(live.stride()) == stride


def _device_of(stored: Any) -> str:
    return str(stored.attrs.get("device", "cpu")) if is_stored_tensor(stored) else "cpu"
