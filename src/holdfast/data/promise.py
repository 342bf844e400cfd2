"""Whether a loader is known to yield the same batches when it is read again. Only its type decides;
no data is read.

Python's own iterators repeat if the objects inside them do, for example lists. The code of a class
or a generator may read ahead, or depend on earlier actions of the process. So its replay counts as
unproven until a drill has shown it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from itertools import chain, tee
from types import CodeType, FunctionType, GeneratorType
from typing import Any, NamedTuple

import xxhash

from .stateful import loses_its_place

# modules of iterators without a script's code
_PYTHONS = {"builtins", "itertools", "_io", "_csv", "collections"}
# packages of progress bars -> the attribute with the iterable inside a bar
_SHOWS = {"tqdm": "iterable"}
# package -> our module with find_unproven(), for its iterators
_REPLAY = {"torch": "holdfast.torch.loader"}


class UnprovenCode(NamedTuple):
    """A loader's code, or a framework, that may behave differently after a resume. A drill can
    prove that it does not.
    """

    code: str  # 32 hex digits that change with it
    kind: str  # its name, for people
    # of a framework: its parts that changed since it was tested; empty: it is a loader's code
    changed: str = ""


def describe_unproven(unknown: Any) -> UnprovenCode:
    """Return an `UnprovenCode` for a class or a generator's code; return an `UnprovenCode`
    unchanged.
    """
    return (
        unknown
        if isinstance(unknown, UnprovenCode)
        else UnprovenCode(code_digest(unknown), code_name(unknown))
    )


def find_unproven(loader: Any) -> Any:
    """Return the class, or the generator's code,
    whose replay is unproven; None if all of `loader` is known.
    """
    kind = type(loader)
    if kind is GeneratorType:
        return loader.gi_code
    home = kind.__module__.partition(".")[0]
    # a script's code, whatever its module is called
    own = isinstance(getattr(kind, "__iter__", None), FunctionType)
    # these begin a loader in mid-pass
    if kind.__module__ in _PYTHONS and not own and kind not in {chain, tee}:
        return next(filter(None, map(find_unproven, _inner_iterators(loader))), None)
    if home in _SHOWS and hasattr(loader, _SHOWS[home]):
        return find_unproven(iterator_for_check(getattr(loader, _SHOWS[home])))
    # a stream of Hugging Face, also in torchdata's nodes: only its seed and epoch decide its order
    if is_of_datasets(loader) or loses_its_place(loader):
        return None
    if home in _REPLAY and home in sys.modules:
        from importlib import import_module

        return import_module(_REPLAY[home]).find_unproven(loader)
    return kind


def is_of_datasets(stream: Any) -> bool:
    """Return whether it is a stream of Hugging Face's package datasets."""
    return type(stream).__module__.partition(".")[0] == "datasets"


def roots_of(loader: Any) -> list[Any]:
    """Return the objects whose attributes may decide what an unknown `loader` yields."""
    if type(loader) is GeneratorType:
        frame = loader.gi_frame
        return [] if frame is None else [*frame.f_locals.values()]
    if type(loader).__module__ in _PYTHONS:
        return [root for each in _inner_iterators(loader) for root in roots_of(each)]
    return [loader]


def iterator_for_check(value: Any) -> Any:
    """Return a container's iterator for `find_unproven`; nothing is read from it."""
    return iter(value) if type(value) in {list, tuple, range} else value


def _inner_iterators(iterator: Any) -> Iterator[Any]:
    """Yield the iterators of which one of Python's own iterators consists."""
    for each in gc.get_referents(iterator):
        members = each if type(each) is tuple else (each,)
        yield from (member for member in members if isinstance(member, Iterator))


def code_name(kind: Any) -> str:
    """Return the name of a class or of a generator's code, for people."""
    return str(getattr(kind, "co_qualname", None) or getattr(kind, "__qualname__", kind))


def code_digest(kind: Any) -> str:
    """Return 32 hex digits that change when the code of a class or of a generator changes."""
    found = xxhash.xxh3_128()
    for part in [kind] if isinstance(kind, CodeType) else kind.__mro__[:-1]:
        _hash_code(found.update, part)
    return found.hexdigest()


def _hash_code(update: Callable[[bytes], None], part: Any) -> None:
    if isinstance(part, type):
        update(f"{part.__module__}.{part.__qualname__}".encode())
        for name, value in sorted(vars(part).items()):
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(function, FunctionType):
                update(name.encode())
                _hash_code(update, function.__code__)
    elif isinstance(part, CodeType):
        update(part.co_code + repr((part.co_name, part.co_names, part.co_varnames)).encode())
        for constant in part.co_consts:
            _hash_code(update, constant)
    else:
        update(repr(part).encode())
