"""NumPy's arrays, scalars and random generators. Imported when a state or a file contains one."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import Damaged, UsageError
from ..pages import Data, DistantBytes, slabs
from .codec import (
    ITEMSIZE,
    UNSOUND,
    Block,
    LeafReader,
    Node,
    PendingLeaf,
    SharedBlock,
    is_stored_leaf,
    read_into_memory,
    require_size,
)

# NumPy's own dtypes by name; others by its spelling, or by their name in ml_dtypes (bfloat16,
# float8_e5m2, int4, ...)
PLAIN = frozenset(
    name for name in ITEMSIZE if name in np.sctypeDict and np.dtype(name).isbuiltin == 1
)
_MOST_WORDS = 2**16  # of a seed sequence's pool; NumPy's own choice is 4
BIT_GENERATORS: Mapping[str, Any] = {
    kind.__name__: kind
    for kind in (
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.MT19937,
        np.random.Philox,
        np.random.SFC64,
    )
}


def encode_node(value: Any) -> Node | None:
    if type(value) is np.ndarray:
        dtype_json(value.dtype)
        return None
    if isinstance(value, np.generic):
        # tobytes() of an empty string has one letter too many
        data = value.tobytes()[: value.dtype.itemsize]
        return Node("numpy_scalar", [dtype_json(value.dtype), data.hex()])
    if isinstance(value, np.dtype):
        return Node("numpy.dtype", dtype_json(value))
    if type(value) is np.random.Generator:
        bits = value.bit_generator
        return Node(
            "numpy.Generator", [_bit_generator_name(bits), [bits.state, _seed_sequence_of(bits)]]
        )
    if type(value) is np.random.RandomState:
        return Node("numpy.RandomState", _legacy_state(value))
    if type(value) is np.random.SeedSequence:
        content = [value.entropy, list(value.spawn_key), value.pool_size, value.n_children_spawned]
        return Node("numpy.SeedSequence", [_entropy(content[0]), *content[1:]])
    raise UsageError("only plain arrays are saved: numpy.asarray(it) is one")


def decode_node(tag: str, content: Any) -> Any:
    return _VALUES[tag](content)


def group_into_blocks(arrays: Sequence[Any]) -> list[SharedBlock]:
    return [SharedBlock(_encode(array), {index: None}) for index, array in enumerate(arrays)]


def _encode(array: Any) -> Block:
    name, described = _dtype_name(array.dtype)
    attrs: dict[str, Any] = {} if described is None else {"dtype": described}
    flags = array.flags
    if flags.f_contiguous and not flags.c_contiguous:
        attrs["order"] = "F"
    return Block("numpy", name, array.shape, _data(array), attrs)


def _data(array: Any) -> Data:
    if array.flags.c_contiguous or not array.nbytes:
        return _memory(array)
    return DistantBytes(_StridedItems(array), array.nbytes)


def why_not_in_place(live: Any) -> str:
    if type(live) is np.random.SeedSequence:
        return ""
    if type(live) is not np.ndarray:
        return "it is no plain array"
    if not live.flags.writeable:
        return "it is read-only: numpy.array(it) is a copy that can be written"
    twice = any(
        step == 0 and extent > 1 for step, extent in zip(live.strides, live.shape, strict=True)
    )
    return (
        "several of its items are one in memory: numpy.array(it) has a place for each"
        if twice
        else ""
    )


def list_differences(live: Any, stored: Any) -> list[str]:
    here = _array_facts(live)
    if here is None:
        return ["an array in the checkpoint, none here"]
    there = _array_facts(stored)
    if there is None:
        return ["no array in the checkpoint, one here"]
    shapes = [] if there[2] == here[2] else [f"shape {there[2]} in the checkpoint, {here[2]} here"]
    return shapes + (
        [] if there[:2] == here[:2] else [f"dtype {there[0]} in the checkpoint, {here[0]} here"]
    )


def _array_facts(array: Any) -> tuple[Any, ...] | None:
    """Return the facts in which two arrays, read or not, must agree."""
    if not is_stored_leaf(array):
        return (*_dtype_name(array.dtype), array.shape) if type(array) is np.ndarray else None
    named = (
        (array.dtype, array.attrs.get("dtype"))
        if array.kind == "numpy"
        else (f"{array.kind} leaf", None)
    )
    return (*named, tuple(array.shape))


def fill_in_place(pairs: Sequence[tuple[Any, Any]]) -> None:
    read_into_memory(
        [(stored, _data(live)) for live, stored in pairs if is_stored_leaf(stored) and live.nbytes]
    )
    for live, stored in pairs:
        if not is_stored_leaf(stored) and live is not stored:
            np.copyto(live, stored)


def memory_span(live: Any) -> tuple[int, int]:
    start = stop = live.__array_interface__["data"][0]
    if live.size:
        for step, extent in zip(live.strides, live.shape, strict=True):
            start, stop = start + min(0, step * (extent - 1)), stop + max(0, step * (extent - 1))
        stop += live.itemsize
    return start, stop


def stacking_forms(rows: list[Any]) -> list[Any] | None:
    """Return for each row what must be equal to stack arrays or NumPy's numbers; None if some
    cannot be stacked.
    """
    if isinstance(rows[0], np.generic):
        found: list[Any] = [each.dtype for each in rows]
        return found if all(map(_is_plain, set(found))) else None
    if type(rows[0]) is not np.ndarray or not all(
        each.size and each.ndim and each.flags.c_contiguous for each in rows
    ):
        return None
    found = [(each.dtype, each.shape) for each in rows]
    return found if all(_is_plain(dtype) for dtype, _ in set(found)) else None


def _is_plain(dtype: Any) -> bool:
    return dtype.name in PLAIN and dtype.isnative


def memory_identities(arrays: list[Any]) -> list[Any]:
    return list(map(id, arrays))


def column_array(values: list[Any], dtype: str | None) -> Any:
    return np.array(values, dtype)


def stack(rows: list[Any]) -> Any:
    return np.concatenate(rows).reshape(len(rows), *rows[0].shape)


def unstack(array: Any) -> list[Any]:
    return [each.copy() for each in array]


def memory_watcher(live: Any) -> Callable[[], bool]:
    """Return a function that tells whether anybody still holds the memory of `live`."""
    while isinstance(live.base, np.ndarray):
        live = live.base
    if live.base is not None:  # other memory, which somebody holds
        return lambda: True
    reference = weakref.ref(live)
    return lambda: reference() is not None


def refill_generator(live: Any, stored: Any) -> bool:
    if type(live) is type(stored) is np.random.RandomState:
        live.set_state(_legacy_state(stored))
        return True
    if type(live) is type(stored) is np.random.SeedSequence:
        _refill_seed(live, stored)
        return True
    if not type(live) is type(stored) is np.random.Generator:
        return False
    here, there = live.bit_generator, stored.bit_generator
    if type(here) is not type(there) or (_seed_sequence_of(here) is None) != (
        _seed_sequence_of(there) is None
    ):
        return False
    refill_bit_generator(here, there.state, _seed_sequence_of(there))
    return True


def refill_bit_generator(live: Any, state: Any, seed: Any) -> None:
    """Bring a bit generator into this state. `seed`:
    the sequence that spawns its children; None: it spawned none.
    """
    live.state = state
    here = _seed_sequence_of(live)
    if here is not None and (seed is not None or here.n_children_spawned):
        _refill_seed(
            here,
            np.random.SeedSequence(here.entropy, spawn_key=here.spawn_key)
            if seed is None
            else seed,
        )


def _refill_seed(live: Any, stored: Any) -> None:
    live.__setstate__(stored.__reduce__()[2])  # as pickle would: its attributes are read-only


def require_seed(stored: Any) -> None:
    if stored is not None and type(stored) is not np.random.SeedSequence:
        raise TypeError(f"{type(stored).__name__} is no SeedSequence")


def spawned_seed(bits: Any) -> Any:
    """Return the seed sequence of a bit generator that has spawned children, else None."""
    seed = _seed_sequence_of(bits)
    return seed if seed is not None and seed.n_children_spawned else None


class _StridedItems:
    """The items of an array that is not in C order."""

    def __init__(self, array: Any) -> None:
        # fields are copied with what lies between them
        self._array = array.view(np.dtype((np.void, array.itemsize)))
        self.itemsize: int = array.itemsize

    def gather(self, start: int, target: memoryview) -> None:
        for slab, part in self._parts(start, target):
            part[...] = slab

    def scatter(self, start: int, source: memoryview) -> None:
        for slab, part in self._parts(start, source):
            slab[...] = part

    def _parts(self, start: int, memory: memoryview) -> Iterator[tuple[Any, Any]]:
        flat, at, first = np.frombuffer(memory, self._array.dtype), 0, start // self.itemsize
        for slab in slabs(self._array, first, first + flat.size):
            yield slab, flat[at : at + slab.size].reshape(slab.shape)
            at += slab.size


@lru_cache
def _dtype_name(dtype: Any) -> tuple[str, Any]:
    """Return a dtype's name, and its description where the name is not enough."""
    described = dtype_json(dtype)
    plain = (dtype.name in PLAIN and dtype.isnative) or described == dtype.name
    return dtype.name if plain else dtype.str, None if isinstance(described, str) else described


def _build_array(stored: LeafReader, data: memoryview | None = None) -> Any:
    """Return an array as `stored` describes it, over `data` or in fresh memory."""
    try:
        dtype = dtype_of(stored.attrs.get("dtype", stored.dtype))
        require_size(stored, dtype.itemsize)
        return np.ndarray(stored.shape, dtype, data)
    except UNSOUND as error:
        raise Damaged(f"leaf {stored.key!r}: {error}") from error


def allocate_leaf(stored: LeafReader) -> PendingLeaf:
    array = _build_array(stored)
    return PendingLeaf(
        _memory(array),
        lambda: _in_fortran_order(array) if stored.attrs.get("order") == "F" else array,
    )


def _in_fortran_order(array: Any) -> Any:
    if array.dtype.names is None or not array.nbytes:
        return np.asfortranarray(array)
    return np.asfortranarray(array.view(np.dtype((np.void, array.itemsize)))).view(array.dtype)


def build_mapped(stored: LeafReader, data: memoryview) -> Any:
    if stored.attrs.get("order") == "F" or not data:
        return None
    array = _build_array(stored, data)
    return array if array.flags.aligned else None


def _memory(array: Any) -> memoryview:
    """Return the bytes of a contiguous array: some dtypes do not provide their buffer as bytes."""
    if array.nbytes == 0:
        return memoryview(b"")
    return memoryview(array.reshape(-1).view(np.uint8))


def dtype_json(dtype: Any) -> Any:
    """A dtype with its byte order, as JSON: NumPy's short spelling, or the fields with their
    offsets.

    Raises:
        UsageError: its values are not bytes (object, StringDType), or another library's than
            ml_dtypes'.
    """
    if dtype.subdtype is not None:
        return {"item": dtype_json(dtype.subdtype[0]), "shape": list(dtype.subdtype[1])}
    if dtype.names is not None:
        fields = [_field_json(name, *dtype.fields[name]) for name in dtype.names]
        return {"fields": fields, "size_bytes": dtype.itemsize}
    if dtype.type.__module__ == "ml_dtypes" and dtype.name in ITEMSIZE:
        return dtype.name
    if dtype.hasobject or dtype.kind not in "biufcmMSUV" or np.dtype(dtype.str) != dtype:
        raise UsageError(f"values of dtype {dtype} are not plain bytes")
    return dtype.str


def _field_json(name: str, dtype: Any, offset: int, title: Any = None) -> list[Any]:
    if not (title is None or isinstance(title, str)):
        raise UsageError(f"the title of its field {name} is no string")
    return [name, dtype_json(dtype), offset, title]


def dtype_of(described: Any) -> Any:
    """The dtype that `dtype_json` described, or that a name in `PLAIN` names.

    Raises:
        TypeError, ValueError: it is no such description.
        UsageError: it is one of ml_dtypes, which is not installed.
    """
    if isinstance(described, str):
        if described in PLAIN:
            return np.dtype(described)
        # np.dtype would warn of old names
        if described[:1] in "<>|" and described[1:2] in "biufcmMSUV":
            dtype = np.dtype(described)
            if dtype.str == described:
                return dtype
        if described in ITEMSIZE:
            return _of_ml_dtypes(described)
        raise ValueError(f"{described!r} is not a dtype of plain bytes")
    if not isinstance(described, dict):
        raise TypeError("a dtype is a string or an object")
    if "item" in described:
        return np.dtype((dtype_of(described["item"]), tuple(described["shape"])))
    columns = zip(*described["fields"], strict=True) if described["fields"] else ((), (), (), ())
    names, formats, offsets, titles = columns
    fields: dict[str, Any] = {
        "names": names,
        "formats": [dtype_of(each) for each in formats],
        "offsets": offsets,
    }
    if any(title is not None for title in titles):
        fields["titles"] = titles
    fields["itemsize"] = described["size_bytes"]
    made: Any = np.dtype(fields)  # type: ignore[call-overload]
    return made


def _of_ml_dtypes(name: str) -> Any:
    try:
        kind = getattr(importlib.import_module("ml_dtypes"), name, None)
    except ModuleNotFoundError:
        raise UsageError(f"this checkpoint holds {name} arrays: pip install ml_dtypes") from None
    if kind is None:
        raise ValueError(f"ml_dtypes has no {name}")
    return np.dtype(kind)


def _decode_scalar(content: Any) -> Any:
    described, text = content
    dtype = dtype_of(described)
    data = bytes.fromhex(text)
    if len(data) != dtype.itemsize:
        raise ValueError(f"{len(data)} bytes are not one {dtype}")
    array = np.zeros((), dtype)
    if data:
        _memory(array)[:] = data
    return array[()]


def _bit_generator_name(bits: Any) -> str:
    name = type(bits).__name__
    if BIT_GENERATORS.get(name) is not type(bits):
        raise UsageError(f"its bit generator {name} is none of {', '.join(BIT_GENERATORS)}")
    return name


def _entropy(entropy: Any) -> Any:
    return (
        entropy if entropy is None or isinstance(entropy, int) else [int(word) for word in entropy]
    )


def _seed_sequence_of(bits: Any) -> Any:
    """Return the generator's seed sequence: restored from the state alone, `spawn` would repeat
    itself.
    """
    seed = getattr(bits, "seed_seq", None)
    return seed if type(seed) is np.random.SeedSequence else None


def _decode_generator(content: Any) -> Any:
    name, (state, seed) = content
    bits = BIT_GENERATORS[name](seed)
    _require_whole(state)
    bits.state = state
    return np.random.Generator(bits)


def require_bit_state(state: Any) -> None:
    """Require a valid state of one of NumPy's bit generators, by setting it on a new one. NumPy
    raises an error otherwise.
    """
    kind = BIT_GENERATORS.get(state["bit_generator"])
    if kind is not None:
        _require_whole(state)
        kind().state = state


def _require_whole(state: Any) -> None:
    """Require a bit generator's state to consist of whole numbers: NumPy would truncate others."""
    for value in state.values():
        if isinstance(value, dict):
            _require_whole(value)
        elif (
            not isinstance(value, int | str | np.integer)
            and getattr(value, "dtype", np.dtype("f4")).kind not in "iu"
        ):
            raise TypeError(f"{type(value).__name__} is no whole number")


def _legacy_state(generator: Any) -> Any:
    state = generator.get_state(legacy=False)
    if state["bit_generator"] != "MT19937":  # set_state accepts no other
        name = state["bit_generator"]
        raise UsageError(
            f"a RandomState can be saved with MT19937 only, and this one draws from {name}: use "
            f"numpy.random.Generator(numpy.random.{name}(seed)), which gives other numbers"
        )
    return state


def _decode_random_state(state: Any) -> Any:
    generator = np.random.RandomState()
    generator.set_state(state)
    return generator


def _decode_seed_sequence(content: Any) -> Any:
    entropy, spawn_key, pool_size, children = content
    # it reserves memory for the pool
    if not 4 <= pool_size <= _MOST_WORDS or not 0 <= children < 2**32:
        raise ValueError(f"a pool of {pool_size} words, and {children} children")
    return np.random.SeedSequence(
        entropy, spawn_key=spawn_key, pool_size=pool_size, n_children_spawned=children
    )


_VALUES = {
    "numpy_scalar": _decode_scalar,
    "numpy.dtype": dtype_of,
    "numpy.Generator": _decode_generator,
    "numpy.RandomState": _decode_random_state,
    "numpy.SeedSequence": _decode_seed_sequence,
}
