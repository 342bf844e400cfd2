"""nn.Module: captures named tensors by reference, and reads stored bytes straight into the live
memory.

A captured module is a dict of plain state_dict names. Wrappers do not appear in them: DDP,
DataParallel and torch.compile are unwrapped. Parts that a copy into live memory would bypass
(hooks, overridden state_dict methods, extra state, lazy parameters) use the module's own
load_state_dict. Only these parts are read twice.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..errors import UsageError
from ..state.codec import is_stored_leaf
from ..state.fill import read_whole
from ..state.rebinding import Members
from ..state.validation import Whole, convert_stored
from . import baseline
from .baseline import BESIDES
from .pieces import divided_like, is_dtensor, local_tensor
from .stored import (
    TensorRestore,
    is_stored_tensor,
    load_live_state,
    tensor_differences,
    tensor_facts,
)

# no state_dict name begins with a dot: modules and tensors cannot have an empty name
METADATA = ".metadata"
_HOOKS = (
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)
_METHODS = ("state_dict", "load_state_dict", "_save_to_state_dict", "_load_from_state_dict")


def capture(module: nn.Module) -> dict[str, Any]:
    """Return the state by plain names, tensors by reference; with version numbers if a custom
    load_state_dict needs them.

    Raises:
        UsageError: a lazy parameter has no shape yet.
    """
    root = unwrap(module)
    state = root.state_dict()
    if lazy := [name for name, value in state.items() if is_lazy(value)]:
        raise UsageError(
            f"{lazy[0]} has no shape yet; run one batch through the model before it is saved"
        )
    plain = _unwrapping_names(state)
    tree = {plain(name): value for name, value in state.items()}
    customised = customised_prefixes(root)
    versions = {
        plain(name): dict(version)
        for name, version in getattr(state, "_metadata", {}).items()
        if _is_under(name, customised)
    }
    besides = _unsaved_state(root, tree, plain, customised)
    return (
        tree | ({METADATA: versions} if versions else {}) | ({BESIDES: besides} if besides else {})
    )


def record_baseline(module: nn.Module) -> None:
    """Record the structure of the module as its run begins."""
    root = unwrap(module)
    baseline.record_baseline(root, live_entries(root))


def check_buffers(module: nn.Module) -> None:
    """Check the buffers that are not in the state_dict():
    which ones change, and which are computed once.
    """
    root = unwrap(module)
    known = baseline.module_baseline(root)
    if known is not None:
        known.note_computed_buffers(baseline.unsaved_buffers(root))


def _unsaved_state(
    root: nn.Module, tree: Mapping[str, Any], plain: Callable[[str], str], own: set[str]
) -> dict[str, Any]:
    """Return what training has added to a module: names of buffers, and buffers that its
    state_dict() leaves out.
    """
    known = baseline.module_baseline(root)
    if known is None:
        return {}
    buffers = {plain(name) for name, _ in root.named_buffers(remove_duplicate=False)}
    passed = {
        name
        for name in known.shapes.keys() | tree.keys()
        if _is_under(name, {plain(each) for each in own})
    }
    late = known.new_buffers(tree, buffers - passed, passed, class_name(root))
    apart = known.changed_buffers(baseline.unsaved_buffers(root))
    return ({"late": late} if late else {}) | ({"apart": apart} if apart else {})


def differences(module: nn.Module, stored: Any) -> list[str]:
    """Return one line for each key, shape or dtype that does not fit; changes nothing.

    Keys below a module with a custom load_state_dict are not compared: it may rename them.
    """
    if not isinstance(stored, Mapping):
        return [f"{type(stored).__name__} in the checkpoint, a module here"]
    require_names(stored)
    root = unwrap(module)
    state = root.state_dict()
    plain = _unwrapping_names(state)
    live = {plain(name): value for name, value in state.items()}
    own = {plain(name) for name in customised_prefixes(root)}
    there = stored_tensors(stored)
    late = {name for name in stored_unsaved_state(stored).late if name in there}
    lines = [*_buffers_without_module(root, {*late, *stored_unsaved_state(stored).apart})]
    there = {name: value for name, value in there.items() if name not in late}
    live = {name: value for name, value in live.items() if name not in late}
    lines += [
        f"{name}: missing in the checkpoint"
        for name in live
        if name not in there and not _is_under(name, own)
    ]
    lines += [
        f"{name}: only in the checkpoint"
        for name in there
        if name not in live and not _is_under(name, own)
    ]
    for name, value in there.items():
        lines += tensor_differences(name, value, live.get(name))
    return lines + tied_differences(there, live)


def _buffers_without_module(root: nn.Module, names: Iterable[str]) -> Iterator[str]:
    """Yield the buffers of the checkpoint whose module does not exist here."""
    modules = {name for name, _ in root.named_modules(remove_duplicate=False)}
    yield from (
        f"{name}: only in the checkpoint"
        for name in names
        if name.rpartition(".")[0] not in modules
    )


class UnsavedState(msgspec.Struct):
    """What training had added to a module: names of buffers, and buffers that its state_dict()
    leaves out.
    """

    late: list[str] = []
    apart: dict[str, Any] = {}


def stored_unsaved_state(stored: Mapping[str, Any]) -> UnsavedState:
    """Return the `UnsavedState` in a stored module.

    Raises:
        Damaged: it is of another kind.
    """
    return convert_stored(UnsavedState, stored.get(BESIDES, {}), "a module's buffers")


def stored_tensors(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a module's stored state without the entries that are not in its state_dict()."""
    return {name: value for name, value in stored.items() if name not in (METADATA, BESIDES)}


class _Version(msgspec.Struct):
    """Torch's metadata of each module; a module of the script may have more."""

    version: Whole | None = None


for _kind in (_Version, UnsavedState):
    # here, where only one thread is: the first use of a type by two can crash msgspec
    msgspec.json.Decoder(_kind)


def require_names(stored: Mapping[str, Any]) -> None:
    """Check the form of a module's stored state.

    Raises:
        Damaged: no module has such names, or such version numbers.
    """
    convert_stored(dict[str, Any], stored, "a module's state")
    convert_stored(dict[str, dict[str, Any]], stored.get(METADATA, {}), "a module's metadata")
    convert_stored(dict[str, _Version], stored.get(METADATA, {}), "a module's metadata")


def live_entries(module: nn.Module) -> dict[str, Any]:
    """Return the live state by plain names."""
    state = unwrap(module).state_dict()
    plain = _unwrapping_names(state)
    return {plain(name): value for name, value in state.items()}


def named_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters by plain names; a tied one comes by each of its names."""
    root = unwrap(module)
    plain = _unwrapping_names(root.state_dict())
    for name, parameter in root.named_parameters(remove_duplicate=False):
        yield plain(name), parameter


def restore(module: nn.Module, stored: Mapping[str, Any]) -> None:
    """Fill the live tensors; parameters keep their identity, so that optimizers still refer to
    them.

    Raises:
        Mismatch: the module's own load_state_dict refused.
    """
    root, filling = unwrap(module), TensorRestore()
    for name, value in [
        *((each, stored[each]) for each in stored_unsaved_state(stored).late),
        *stored_unsaved_state(stored).apart.items(),
    ]:
        _restore_buffer(root, name, value, filling)
    state = root.state_dict()
    plain = _unwrapping_names(state)
    customised = customised_prefixes(root)
    for name, live in state.items():
        if not _is_under(name, customised):
            filling.read_into(live, stored[plain(name)])
    filling.read_all()
    if customised:
        load_live_state(root, _own_state(state, plain, customised, stored))


def rebindable_buffers(module: nn.Module) -> Members:
    """Return the buffers, each with a call that sets a new tensor, for when another name holds the
    memory of the present one.
    """
    return {
        f"{path}.{name}" if path else name: (buffer, partial(_part, owner, name))
        for path, owner in unwrap(module).named_modules()
        for name, buffer in owner.named_buffers(recurse=False)
    }


def _part(owner: nn.Module, name: str) -> None:
    setattr(owner, name, torch.empty_like(getattr(owner, name)))


def _restore_buffer(root: nn.Module, name: str, stored: Any, filling: TensorRestore) -> None:
    """Give a module the stored buffer, in place where the live one fits."""
    path, _, key = name.rpartition(".")
    home = root.get_submodule(path)
    live = dict(home.named_buffers(recurse=False)).get(key)
    if live is not None and tensor_facts(live) == tensor_facts(stored):
        filling.read_into(live, stored)
        return
    near = next(chain([live] if live is not None else [], root.parameters(), root.buffers()), None)
    device = torch.device("cpu") if near is None else near.device
    tensor = filling.read_new(stored, device) if is_stored_tensor(stored) else stored.to(device)
    if key in home._buffers:  # noqa: SLF001  None, or another tensor
        setattr(home, key, tensor)
    else:
        vars(home).pop(key, None)
        home.register_buffer(key, tensor)


def unwrap(module: nn.Module) -> nn.Module:
    """Return the module inside DDP, DataParallel and torch.compile, in any order of nesting."""
    while True:
        if isinstance(module, nn.parallel.DistributedDataParallel | nn.DataParallel):
            module = module.module
        elif type(module).__module__.startswith(
            "torch._dynamo"
        ):  # OptimizedModule; importing it costs a second
            module = module.get_submodule("_orig_mod")
        else:
            return module


def customised_prefixes(root: nn.Module) -> set[str]:
    """Names of the submodules whose state a plain copy would bypass."""
    modules = list(root.named_modules(remove_duplicate=False))
    kinds = {kind for kind in {type(module) for _, module in modules} if _is_customised_kind(kind)}
    return {name for name, module in modules if type(module) in kinds or _is_customised(module)}


@contextmanager
def evaluation_mode(modules: Iterable[object]) -> Iterator[None]:
    """Put modules in evaluation mode without gradients within this block; restore their training
    flags afterwards.

    Objects that are not modules are ignored.
    """
    roots = [module for module in modules if isinstance(module, nn.Module)]
    flags = [(module, module.training) for root in roots for module in root.modules()]
    try:
        for root in roots:
            root.eval()
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def parameter_count(target: object) -> int | None:
    """Number of parameters of a module (tied ones once, lazy ones not); None for anything else."""
    if not isinstance(target, nn.Module):
        return None
    return sum(parameter.numel() for parameter in target.parameters() if not is_lazy(parameter))


def class_name(target: object) -> str:
    """Return the module's class without wrappers."""
    kind = type(unwrap(target) if isinstance(target, nn.Module) else target)
    if kind.__module__.startswith("torch.distributed.fsdp._fully_shard"):
        kind = kind.__mro__[2]  # a class that FSDP2 makes of the module's own, and of FSDPModule
    return f"{kind.__module__}.{kind.__qualname__}"


def _unwrapping_names(names: Iterable[str]) -> Callable[[str], str]:
    """Return a function that removes `_orig_mod` and a leading `module` from names; the identity if
    two names would collide.
    """
    names = list(names)
    whole = all(_without_orig_mod(name).startswith("module.") for name in names)

    def plain(name: str) -> str:
        name = _without_orig_mod(name)
        return (
            name.removeprefix("module").removeprefix(".")
            if whole and name.split(".")[0] == "module"
            else name
        )

    return plain if len({plain(name) for name in names}) == len(names) else lambda name: name


def _without_orig_mod(name: str) -> str:
    return (
        name
        if "_orig_mod" not in name
        else ".".join(part for part in name.split(".") if part != "_orig_mod")
    )


def _is_under(name: str, prefixes: set[str]) -> bool:
    if not prefixes:
        return False
    parts = name.split(".")
    return any(".".join(parts[:length]) in prefixes for length in range(len(parts) + 1))


def _is_customised(module: nn.Module) -> bool:
    """Whether the module itself is custom, whatever its kind.

    Lazy modules are: they have a hook until their first batch.
    """
    hooked = any(
        _is_script_hook(hook)
        for hooks in _HOOKS
        for hook in (getattr(module, hooks, None) or {}).values()
    )
    return hooked or any(name in vars(module) for name in _METHODS)


def _is_script_hook(hook: Any) -> bool:
    """Return whether a hook is the script's own. FSDP2 shards its modules again before state_dict()
    runs; copying into the shards needs nothing more.
    """
    return not str(getattr(getattr(hook, "hook", hook), "__module__", "")).startswith(
        "torch.distributed.fsdp._fully_shard"
    )


def _is_customised_kind(kind: type[nn.Module]) -> bool:
    return (
        not all(is_torchs_own(kind, name, "torch.nn.") for name in _METHODS)
        or kind.get_extra_state is not nn.Module.get_extra_state
        or kind.set_extra_state is not nn.Module.set_extra_state
    )


def is_torchs_own(kind: type, method: str, home: str) -> bool:
    """Return whether a module of torch's under `home` defines the method that `kind` has.

    Batch norm and its like override theirs only to read checkpoints of older versions; torch.ao's
    do more.
    """
    definer = next(base for base in kind.__mro__ if method in vars(base))
    return definer.__module__.startswith(home)


def _own_state(
    state: Mapping[str, Any],
    plain: Callable[[str], str],
    customised: set[str],
    stored: Mapping[str, Any],
) -> OrderedDict[str, Any]:
    """Return the argument of load_state_dict:
    new tensors below custom modules; elsewhere the live ones, unchanged.
    """
    raw = {plain(name): name for name in state}
    theirs = {
        raw.get(name, name): value
        for name, value in stored.items()
        if name not in (METADATA, BESIDES) and (name not in raw or _is_under(raw[name], customised))
    }
    given = OrderedDict(
        {name: value for name, value in state.items() if not _is_under(name, customised)}
    )
    for name, value in read_whole(theirs).items():
        live = state.get(name)
        given[name] = (
            divided_like(live, value)
            if is_dtensor(live) and isinstance(value, torch.Tensor)
            else value
        )
    versions = stored.get(METADATA, {})
    live_versions = getattr(state, "_metadata", {})
    metadata = {name: versions.get(plain(name), version) for name, version in live_versions.items()}
    vars(given)["_metadata"] = OrderedDict(metadata)
    return given


def tied_differences(there: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Return one line for each tensor that shares memory here but was stored separately: the second
    would silently overwrite the first.
    """
    first: dict[Any, str] = {}
    lines = []
    for name, tensor in live.items():
        if (
            not isinstance(tensor, torch.Tensor)
            or is_lazy(tensor)
            or tensor.is_meta
            or not local_tensor(tensor).numel()
        ):
            continue
        other = first.setdefault(
            (tensor.device, local_tensor(tensor).data_ptr(), tensor_facts(tensor), tensor.stride()),
            name,
        )
        one, two = there.get(other), there.get(name)
        if is_stored_leaf(one) and is_stored_leaf(two) and one.key != two.key:
            lines.append(f"{name}: on its own in the checkpoint, tied to {other} here")
    return lines
