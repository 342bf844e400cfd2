"""A table of the names in pickles of torch, NumPy and Python, and how to interpret each. None of
them is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..state.codec import ITEMSIZE
from .pickles import DICT, ORDERED, PERSISTENT, PickledCall
from .region import Region
from .trees import Known, Step, TensorStorage, TreeBuilder, custom_node

# Source: torch.storage._dtype_to_storage_type_map
STORAGES: Mapping[str, str] = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "UntypedStorage": "uint8",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
}
_NUMPY_KINDS: Mapping[str, str] = {
    "f": "float",
    "i": "int",
    "u": "uint",
    "c": "complex",
    "b": "bool",
}


def _build_tensor(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    storage, offset, shape, stride, *rest = made.args
    if _is_lazy(rest[2:]):
        return tree.build_unknown(made, path)
    return tree.add_tensor(
        path, tree.storage(storage), offset, _size_tuple(shape), _size_tuple(stride)
    )


def _build_tensor_with_dtype(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    storage, offset, shape, stride, _, _, dtype, *rest = made.args
    if _is_lazy(rest):
        return tree.build_unknown(made, path)
    found: TensorStorage = tree.storage(storage)._replace(dtype=dtype.name)
    return tree.add_tensor(path, found, offset, _size_tuple(shape), _size_tuple(stride))


def _build_bytes_of_tensor(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    """Build a leaf of bytes from a tensor of an unknown kind: such tensors are compared as
    bytes.
    """
    try:
        place = tree.storage(made).place
    except (ValueError, TypeError, LookupError):
        return custom_node(PERSISTENT, None)
    return tree.add_leaf(
        path, "bytes", (place.size if isinstance(place, Region) else len(place),), place
    )


def _is_lazy(metadata: Sequence[Any]) -> bool:
    """Return whether the numbers are the conjugates or negatives of the stored ones. Source:
    torch._utils
    """
    pairs = [pair for each in metadata if isinstance(each, PickledCall) for pair in each.pairs]
    return any(key in ("conj", "neg") and value for key, value in pairs)


def _size_tuple(value: Any) -> tuple[Any, ...]:
    """Return the sizes in a tuple, or in a torch.Size."""
    found = (
        value.args[0] if isinstance(value, PickledCall) and value.kind == "torch.Size" else value
    )
    if not isinstance(found, tuple | list):
        raise TypeError("no sizes")
    return tuple(found)


def _build_from_type(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    function, kind, args, *_ = made.args
    inner = PickledCall(str(function), tuple(args))
    if str(kind) in ("torch.Tensor", "torch.nn.parameter.Parameter"):
        return tree.build_node(inner, path)
    return custom_node(str(kind), tree.build_node(inner, (*path, "value")))


def _build_first_argument(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    return tree.build_node(made.args[0], path)


def _build_mapping(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    tag = DICT if made.kind == DICT else "ordered"
    node = tree.build_mapping([*_call_pairs(made), *made.pairs], path, tag)
    if not isinstance(made.state, PickledCall) or not made.state.pairs:
        return node
    fields = {str(key): tree.build_node(each, (*path, f".{key}")) for key, each in made.state.pairs}
    return {"ordered_with": [node[tag], fields]} if tag == "ordered" else node


def _call_pairs(made: PickledCall) -> list[tuple[Any, Any]]:
    """Return the pairs that `OrderedDict([[key, value], ...])` was called with: older versions of
    Python pickle it so.
    """
    rows = made.args[0] if made.args else []
    if isinstance(rows, PickledCall):
        return rows.pairs
    return [(key, value) for key, value in rows]


def _build_defaultdict(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    factory = str(made.args[0]) if made.args and made.args[0] is not None else None
    return {"defaultdict": [factory, tree.build_mapping(made.pairs, path, "ordered")["ordered"]]}


def _build_counter(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    return tree.build_mapping([*_call_pairs(made), *made.pairs], path, "counter")


def _build_members(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    nodes = tree.build_members([*(made.args[0] if made.args else []), *made.items], path)
    return nodes if made.kind == "list" else {made.kind: sorted(nodes, key=msgspec.json.encode)}


def _build_complex(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    return {"complex": tree.build_members(made.args, path)}


def _build_deque(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    first, most = (*made.args, (), None)[:2]
    return {
        "deque": [
            most if isinstance(most, int) else None,
            tree.build_members([*(first or ()), *made.items], path),
        ]
    }


def _build_bytes(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    return tree.build_node(_latin1_bytes(made), path)


def _latin1_bytes(value: Any) -> bytes:
    """Return bytes, also from the second protocol of pickle, which writes them as text in
    latin1.
    """
    if isinstance(value, PickledCall) and value.kind in ("_codecs.encode", "bytes", "bytearray"):
        text, *rest = value.args or (b"",)
        return (
            _latin1_bytes(text)
            if not rest
            else text.encode("latin1" if rest[0] != "utf-8" else "utf-8")
        )
    if isinstance(value, str):
        return value.encode("latin1")
    return bytes(value) if isinstance(value, bytes | bytearray) else bytes(_refuse(value))


def _refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} where bytes were expected")


def _build_device(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    del tree, path
    return {"torch.device": ":".join(map(str, made.args))}


def _build_size(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    return {"size": tree.build_members(_size_tuple(made), path)}


def _build_array(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    """Build an array of NumPy from (version, shape, dtype, is in Fortran's order, bytes)."""
    _, shape, dtype, fortran, data = made.state
    name = _numpy_dtype(dtype)
    if name is None:
        return tree.build_unknown(made, path)
    return _numpy_leaf(tree, path, (_latin1_bytes(data), name, shape, fortran))


def _build_array_of_buffer(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    data, dtype, shape, order = made.args
    name = _numpy_dtype(dtype)
    if name is None:
        return tree.build_unknown(made, path)
    return _numpy_leaf(tree, path, (_latin1_bytes(data), name, shape, order == "F"))


def _numpy_leaf(tree: TreeBuilder, path: Step, array: tuple[bytes, str, Any, Any]) -> Any:
    data, name, shape, fortran = array
    stride = [1] * len(shape)
    for axis in range(len(shape)) if fortran else reversed(range(len(shape))):
        before = axis - 1 if fortran else axis + 1
        if 0 <= before < len(shape):
            stride[axis] = stride[before] * shape[before]
    return tree.add_tensor(
        path, TensorStorage(f"array {'/'.join(path)}", name, data), 0, tuple(shape), stride
    )


def _numpy_dtype(dtype: Any) -> str | None:
    """Return Holdfast's name for a dtype of NumPy; None for one that has no plain little-endian
    items.
    """
    text = dtype.args[0] if isinstance(dtype, PickledCall) and dtype.kind == "numpy.dtype" else ""
    order = dtype.state[1] if text and isinstance(dtype.state, tuple) else "|"
    match = re.fullmatch(r"([fiucb])(\d+)", str(text))
    if match is None or order == ">":
        return None
    kind, size = match.groups()
    name = "bool" if kind == "b" else f"{_NUMPY_KINDS[kind]}{8 * int(size)}"
    return name if name in ITEMSIZE else None


def _numpy_scalar(tree: TreeBuilder, made: PickledCall, path: Step) -> Any:
    del path
    name = _numpy_dtype(made.args[0])
    if name is None:
        return tree.build_unknown(made, ())
    text = made.args[0].args[0]
    return {
        "numpy_scalar": [
            f"{'|' if text[1:] == '1' else '<'}{text}",
            _latin1_bytes(made.args[1]).hex(),
        ]
    }


KNOWN: Mapping[str, Known] = {
    DICT: _build_mapping,
    ORDERED: _build_mapping,
    "collections.defaultdict": _build_defaultdict,
    "collections.Counter": _build_counter,
    "collections.deque": _build_deque,
    "complex": _build_complex,
    **dict.fromkeys(("set", "frozenset", "list"), _build_members),
    **dict.fromkeys(("_codecs.encode", "bytes", "bytearray"), _build_bytes),
    **dict.fromkeys(
        ("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"), _build_tensor
    ),
    "torch._utils._rebuild_tensor_v3": _build_tensor_with_dtype,
    **dict.fromkeys(
        ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"),
        _build_first_argument,
    ),
    "torch._tensor._rebuild_from_type_v2": _build_from_type,
    "torch.Size": _build_size,
    "torch.device": _build_device,
    **dict.fromkeys(
        (f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core")), _build_array
    ),
    **dict.fromkeys(
        (f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")), _build_array_of_buffer
    ),
    **dict.fromkeys(
        (f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")), _numpy_scalar
    ),
    PERSISTENT: _build_bytes_of_tensor,
}

# Other names in pickles of plain data; they are not reported.
HARMLESS = frozenset(KNOWN) | {
    "numpy.dtype",
    "numpy.ndarray",
    "torch.Tensor",
    "torch.nn.parameter.Parameter",
    *(f"{module}.{name}" for name in STORAGES for module in ("torch", "torch.storage")),
    *(f"torch.{name}" for name in ITEMSIZE),
}
