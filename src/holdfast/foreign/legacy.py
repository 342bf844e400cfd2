"""What torch.save wrote before version 1.6: five pickles, then the bytes of each storage. Also a pickle by itself."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from ..errors import Damaged
from ..state.codec import ITEMSIZE
from ..store.problems import Problem
from . import pickles
from .content import Content
from .known import KNOWN
from .pickles import PERSISTENT, Object
from .pt import imports, reference
from .region import Region
from .trees import Step, Storage, Tree

_MAGIC = 0x1950A86A20F9469CFC6C  # source: torch.serialization.MAGIC_NUMBER
_COUNT = struct.Struct("<q")


def read(region: Region, path: Step = ()) -> Content:
    """Return what a file that begins with a pickle holds; `path` goes before the keys of its leaves.

    Raises:
        Damaged: it is cut.
        StoreError: it holds more than is read.
    """
    with region.window() as file:
        value = pickles.read(file, region.path)
        is_torch = type(value) is int and value == _MAGIC
        places: dict[str, Region] = {}
        flaws: list[Problem] = []
        if is_torch:
            _version, _system, value, keys = (pickles.read(file, region.path) for _ in range(4))
            places, flaws = _places(file, region, value, keys)
    tree = Tree(region.path, KNOWN, lambda made: _storage(places, region, made))
    name = "torch before 1.6" if is_torch else "pickle"
    return Content(name, tree.node(value, path), tree.leaves, [region.path], facts=imports(value), flaws=flaws)


def _storage(places: dict[str, Region], region: Region, made: Any) -> Storage:
    key, dtype, _ = reference(made)
    return Storage(key, dtype, places.get(key, Region(region.path, 0, 0)))


def _places(file: BinaryIO, region: Region, value: Any, keys: Any) -> tuple[dict[str, Region], list[Problem]]:
    """Return where each storage lies, and what does not fit: each begins with the number of its items."""
    known, places, flaws = dict(_references(value)), dict[str, Region](), list[Problem]()
    for key in keys if isinstance(keys, list) else ():
        if not isinstance(key, str) or key not in known:
            raise Damaged(f"{region.path}: the storage {key!r} is none that its pickle names")
        dtype, count = known[key]
        at, head = file.tell(), file.read(_COUNT.size)
        if len(head) < _COUNT.size or _COUNT.unpack(head)[0] != count:
            flaws.append(Problem(region.path, at, region.size, f"the storage {key} is cut, or has another length"))
            break
        start, size = at + _COUNT.size, count * ITEMSIZE[dtype]
        places[key] = region.cut(start, start + size)
        file.seek(start + size)
    return places, flaws


def _references(value: Any) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield key, dtype and length of each storage that the pickle refers to."""
    rest, seen = [value], set[int]()
    while rest:
        each = rest.pop()
        if id(each) in seen or not isinstance(each, list | tuple | Object):
            continue
        seen.add(id(each))
        if isinstance(each, Object) and each.kind == PERSISTENT:
            try:
                key, dtype, count = reference(each)
            except (ValueError, TypeError, LookupError):
                continue  # the tree shows it by its name
            yield key, (dtype, count)
        rest += pickles.inside(each)
