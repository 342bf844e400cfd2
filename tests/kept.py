"""State through JSON and bytes and back, as a store would keep it; and all that two values have to have in common."""

import datetime as dt
import enum
import json
import struct
from collections import deque
from dataclasses import is_dataclass

import msgspec
import numpy as np

from holdfast.state import codec, tree


class Kept:
    """A leaf as a store hands it out: only its description and its bytes are left."""

    shape: tuple[int, ...]

    def __init__(self, key, block, **changes):
        described = {"kind": block.kind, "dtype": block.dtype, "shape": block.shape, "attrs": block.attrs, **changes}
        self.__dict__.update(json.loads(json.dumps(described)))
        self.key, self.shape = key, tuple(self.shape)
        self.data = bytes(block.data)
        self.size_bytes = len(self.data)

    def read(self):
        return bytearray(self.data)

    def read_into(self, target):
        assert len(target) == self.size_bytes
        target[:] = self.data


def stored_of(state, *, handles=False, **options):
    """`state` through JSON and bytes, and back; with `handles` its leaves are not read yet."""
    flat = tree.flatten(state)
    kept = {key: Kept(key, block) for key, block in flat.leaves.items()}
    leaf = kept.__getitem__ if handles else lambda key: codec.decode_leaf(kept[key])
    return tree.unflatten(msgspec.json.decode(msgspec.json.encode(flat.tree)), leaf, **options)


def round_trip(state, **options):
    """`state` through JSON and bytes, and back."""
    return stored_of(state, **options)


def leaf_round_trip(leaf, **changes):
    return codec.decode_leaf(Kept("x", codec.encode_leaf(leaf), **changes))


def bits(value):
    """Equal for two values exactly when their types, their order and layout, and every bit are the same."""
    return type(value), *_inside(value)


def _inside(value):
    if isinstance(value, enum.Enum):
        return (value,)
    if isinstance(value, float | complex):
        return (struct.pack(">dd", value.real, value.imag),)
    if isinstance(value, np.ndarray | np.generic):
        fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        return value.dtype, value.dtype.str, value.shape, fortran, value.tobytes()
    if isinstance(value, dict):
        return [(bits(key), bits(each)) for key, each in value.items()], getattr(value, "default_factory", None)
    if isinstance(value, set | frozenset):
        return (sorted((msgspec.json.encode(tree.flatten(each).tree), str(type(each))) for each in value),)
    if isinstance(value, list | tuple | deque):
        return [bits(each) for each in value], getattr(value, "maxlen", None)
    if is_dataclass(value):
        names = vars(value) if hasattr(value, "__dict__") else value.__slots__
        return [(name, bits(getattr(value, name))) for name in names]
    if isinstance(value, dt.datetime | dt.time):
        return value.replace(tzinfo=None), value.fold, repr(value.tzinfo)
    if hasattr(value, "untyped_storage"):
        stride = value.stride() if value.numel() else ()
        return value.dtype, tuple(value.shape), stride, value.device.type, value.requires_grad, raw(value.cpu())
    return (value,)


def raw(tensor):
    """A tensor's numbers in C order, as bytes."""
    import torch

    plain = tensor.detach().resolve_conj().resolve_neg()
    carrier = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(plain.element_size(), plain.dtype)
    in_c_order = plain.view(carrier).clone(memory_format=torch.contiguous_format)
    return bytes(in_c_order.view(-1).view(torch.uint8).numpy()) if plain.numel() else b""


def random_bits(dtype, count):
    import torch

    data = torch.randint(0, 2 if dtype is torch.bool else 256, (count * dtype.itemsize,), dtype=torch.uint8)
    return data.view(dtype)
