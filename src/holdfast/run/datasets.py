"""Datasets: which random functions a loader's dataset calls, and what it changes when read. Only reads byte code."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

DRAWS = frozenset(
    [
        *("random", "randint", "randrange", "rand", "randn", "randperm", "rand_like", "randn_like", "getrandbits"),
        *("choice", "choices", "shuffle", "sample", "permutation", "multinomial", "bernoulli", "default_rng"),
        *("normal", "uniform", "integers", "standard_normal", "gauss"),
        *("normal_", "uniform_", "random_", "bernoulli_", "exponential_"),
    ]
)
_CHANGES = frozenset(("append", "extend", "add", "pop", "update", "insert", "clear", "sort", "reverse", "remove"))
_DEEPEST = 4


def describe(loader: Any) -> dict[str, list[str]]:
    """Return the random functions that `loader` and its dataset call, and the attributes that reading changes."""
    draws: set[str] = set()
    changes: set[str] = set()
    for part in _parts(loader, _DEEPEST):
        for code in _codes(type(part)):
            draws |= DRAWS & set(code.co_names)
            changes |= _changed(code)
    return {"draws": sorted(draws), "changes": sorted(changes)}


def _parts(loader: Any, depth: int) -> Iterator[Any]:
    """Yield the loader, and the script's objects inside it."""
    if type(loader).__module__.partition(".")[0] not in ("torch", "torchdata", "holdfast", "builtins"):
        yield loader
    attributes = getattr(loader, "__dict__", {})
    for name in ("dataset", "sampler", "batch_sampler", "transform", "transforms", "target_transform", "collate_fn"):
        part = attributes.get(name)
        for each in part if isinstance(part, list | tuple) else [part]:
            if each is not None and depth and hasattr(each, "__dict__"):
                yield from _parts(each, depth - 1)


def _codes(kind: type) -> Iterator[CodeType]:
    """Yield the code of every method except the constructor."""
    for each in (value for parent in kind.__mro__ for value in vars(parent).items()):
        name, function = each[0], getattr(each[1], "__func__", each[1])  # a static method wraps its function
        if name != "__init__" and isinstance(function, FunctionType) and kind.__module__ == function.__module__:
            yield function.__code__
            yield from (inner for inner in function.__code__.co_consts if isinstance(inner, CodeType))


def _changed(code: CodeType) -> set[str]:
    """Attributes that the code assigns or stores into (`self.cache[0] = ...`), and calls that change a container."""
    found, before, attribute = set(_CHANGES.intersection(code.co_names)), "", ""
    for each in dis.get_instructions(code):
        if each.opname in ("STORE_ATTR", "DELETE_ATTR"):
            found.add(each.argval)
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD") and code.co_varnames[:1] == (before,):
            attribute = str(each.argval)
        if each.opname == "STORE_SUBSCR":
            found.add(attribute)
        before = str(each.argval) if each.opname.startswith("LOAD_FAST") else ""
    return found - {""}
