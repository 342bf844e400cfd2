"""Notes what each optimizer step of a drilled program begins with. Python imports this file by its
name, in the program's own interpreter, which may lack Holdfast: standard library only.

A line for each step: digests of the weights, gradients, optimizer state, random generators and of
the batches that the data loaders have handed out since the step before.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import json
import os
import random
import sys
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))
LOG = "HOLDFAST_OBSERVED"  # the file, of this process and its children
_batches: list[int] = []


def digest(value: Any, seed: int = 0) -> int:
    """A CRC-32 of the bytes of all tensors and of the text of all numbers in `value`."""
    if isinstance(value, dict):
        for key in value:
            seed = digest(value[key], zlib.crc32(repr(key).encode(), seed))
        return seed
    if isinstance(value, (list, tuple)):
        for each in value:
            seed = digest(each, seed)
        return seed
    if hasattr(value, "data_ptr"):
        return _digest_tensor(value, seed)
    if hasattr(value, "tobytes"):
        return zlib.crc32(value.tobytes(), seed)
    if isinstance(value, (bytes, bytearray)):
        return zlib.crc32(value, seed)
    if value is None or isinstance(value, (bool, int, float, str)):
        return zlib.crc32(repr(value).encode(), seed)
    inside = getattr(value, "__dict__", None)  # a batch of a class of the program's own
    return digest(inside, seed) if inside else zlib.crc32(type(value).__name__.encode(), seed)


def _digest_tensor(tensor: Any, seed: int) -> int:
    whole = getattr(tensor, "to_local", lambda: tensor)().detach().cpu().contiguous()
    size = whole.numel() * whole.element_size()
    if not size:
        return zlib.crc32(b"", seed)
    data = (ctypes.c_char * size).from_address(whole.data_ptr())
    return zlib.crc32(data, seed)


def _generators() -> dict[str, int]:
    found = {"python": digest(repr(random.getstate()))}
    if "numpy" in sys.modules:
        found["numpy"] = digest(sys.modules["numpy"].random.get_state(legacy=True)[1:3])
    found["torch"] = digest(sys.modules["torch"].get_rng_state())
    return found


def _options(group: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for name, value in group.items():
        if name not in ("params", "param_names"):
            plain = value.item() if hasattr(value, "item") else value
            kept[name] = plain if isinstance(plain, (bool, int, float, str)) else repr(plain)
    return kept


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    state = [optimizer.state[each] for each in parameters if each in optimizer.state]
    line = {
        "optimizer": type(optimizer).__name__,
        "weights": digest(parameters),
        "gradients": digest([each.grad for each in parameters]),
        "state": digest(state),
        "held": len(state),
        "options": [_options(group) for group in optimizer.param_groups],
        "generators": _generators(),
        "batches": list(_batches),
        "rank": int(os.environ.get("RANK", "0")),
    }
    del _batches[:]
    with open(os.environ[LOG], "a") as file:
        file.write(json.dumps(line) + "\n")


def _patch_optimizer(module: Any) -> None:
    add = getattr(module, "register_optimizer_step_pre_hook", None)
    if add is not None:
        add(_before_step)


def _patch_loader(module: Any) -> None:
    iterator = vars(module)["_BaseDataLoaderIter"]
    original = iterator.__next__

    def next_batch(self: Any) -> Any:
        batch = original(self)
        _batches.append(digest(batch))
        return batch

    iterator.__next__ = next_batch


_PATCHES = {
    "torch.optim.optimizer": _patch_optimizer,
    "torch.utils.data.dataloader": _patch_loader,
}


class _Patching(importlib.machinery.PathFinder):
    """Finds the modules of _PATCHES as Python does, and changes them once they are executed."""

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        patch = _PATCHES.get(fullname)
        spec = super().find_spec(fullname, path, target) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        loader.exec_module = exec_module
        return spec


def _run_hidden() -> None:
    """Execute the sitecustomize that this one hides."""
    others = [each for each in sys.path if os.path.abspath(each or ".") != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get(LOG):
    sys.meta_path.insert(0, _Patching)
    for _name in [each for each in _PATCHES if each in sys.modules]:
        _PATCHES[_name](sys.modules[_name])
_run_hidden()
