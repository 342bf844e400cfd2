"""Export to .pt: plain tensors that `torch.load(weights_only=True)` reads. It is written without
torch.

It is a zip archive of the tensors' bytes, and of a pickle that describes them; pickletools.py has
the operations. Source: torch/serialization.py (`_save`) and torch/_tensor.py
(`_reduce_ex_internal`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..errors import UsageError
from ..state.codec import ITEMSIZE, ML_DTYPES
from .tensors import Chunk, Tensor, write_zip

# torch's class for the memory of numbers of a type; for types that are not here it is
# UntypedStorage
_STORAGES = {
    "bool": "BoolStorage",
    "uint8": "ByteStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}


def write_pt(tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """Yield the chunks of a .pt file with a dict of tensors on the CPU; tied tensors share memory
    when loaded.

    Raises:
        UsageError: torch has no dtype for a tensor.
    """
    for tensor in tensors:
        if tensor.dtype not in ITEMSIZE or tensor.dtype in ML_DTYPES:
            raise UsageError(f"{tensor.name}: torch has no {tensor.dtype}; export to .npz")
    storages: dict[str, Tensor] = {}
    for tensor in tensors:
        storages.setdefault(tensor.identity, tensor)
    return write_zip(
        _archive_files(
            _pickle_of(tensors, {identity: number for number, identity in enumerate(storages)}),
            storages,
        )
    )


def _archive_files(
    described: bytes, storages: Mapping[str, Tensor]
) -> Iterator[tuple[str, Iterable[Chunk]]]:
    yield "archive/data.pkl", [described]
    yield "archive/byteorder", [b"little"]
    for number, tensor in enumerate(storages.values()):
        yield f"archive/data/{number}", tensor.chunks()
    yield "archive/version", [b"3\n"]


def _pickle_of(tensors: Sequence[Tensor], numbers: Mapping[str, int]) -> bytes:
    """Return the pickle of a dict of the tensors; `numbers`: the number of each tensor's memory."""
    members = b"".join(
        _pickle_text(tensor.name) + _pickle_tensor(tensor, numbers[tensor.identity])
        for tensor in tensors
    )
    return b"\x80\x02}(" + members + b"u."


def _pickle_tensor(tensor: Tensor, number: int) -> bytes:
    """Return the call that makes a tensor from its memory."""
    shape, typed = tensor.shape, tensor.dtype in _STORAGES
    strides = [
        math.prod(max(1, extent) for extent in shape[axis + 1 :]) for axis in range(len(shape))
    ]
    count = math.prod(shape) if typed else tensor.size_bytes
    kind = (
        _pickle_name("torch", _STORAGES[tensor.dtype])
        if typed
        else _pickle_name("torch.storage", "UntypedStorage")
    )
    memory = (
        _pickle_tuple(
            [
                _pickle_text("storage"),
                kind,
                _pickle_text(str(number)),
                _pickle_text("cpu"),
                _pickle_number(count),
            ]
        )
        + b"Q"
    )
    places = [
        memory,
        _pickle_number(0),
        _pickle_tuple(map(_pickle_number, shape)),
        _pickle_tuple(map(_pickle_number, strides)),
    ]
    # it requires no gradient, and has no hooks
    rest = [b"\x89", _pickle_name("collections", "OrderedDict") + b")R"]
    rest += [] if typed else [_pickle_name("torch", tensor.dtype)]
    rebuild = _pickle_name("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
    return rebuild + _pickle_tuple([*places, *rest]) + b"R"


def _pickle_tuple(parts: Iterable[bytes]) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def _pickle_name(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _pickle_text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + len(data).to_bytes(4, "little") + data


def _pickle_number(number: int) -> bytes:
    data = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(data)]) + data
