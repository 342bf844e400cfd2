"""Finite: whether floating numbers, as they lie in memory, are all finite.

In most formats all numbers with the largest exponent are infinite or NaN. Read as integers of the
same width they are the greatest of all: as signed ones those with a plus, as unsigned ones those
with a minus. Two maxima find them, without a copy and without a false alarm.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

BLOCK_BYTES = 4 << 20  # bytes at a time: they may still be in a cache for the second maximum

# dtype -> bytes of a number, and the smallest bits of a positive one that is not finite
_FIRST: Mapping[str, tuple[int, int]] = {
    "float16": (2, 0x7C00),
    "bfloat16": (2, 0x7F80),
    "float32": (4, 0x7F80_0000),
    "float64": (8, 0x7FF0_0000_0000_0000),
    "complex32": (2, 0x7C00),
    "bcomplex32": (2, 0x7F80),
    "complex64": (4, 0x7F80_0000),
    "complex128": (8, 0x7FF0_0000_0000_0000),
    "float8_e5m2": (1, 0x7C),
    "float8_e4m3": (1, 0x78),
    "float8_e3m4": (1, 0x70),
    "float8_e4m3fn": (1, 0x7F),  # has no infinity
}
# its bits are their one NaN
_MINUS_ZERO = ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz")


def can_check() -> bool:
    """Return whether numbers can be checked in this process: that needs NumPy."""
    return find_spec("numpy") is not None


def is_floating(dtype: str) -> bool:
    """Return whether the dtype is a known one whose numbers can be infinite or NaN."""
    return dtype in _FIRST or dtype in _MINUS_ZERO


def is_finite(data: memoryview, dtype: str) -> bool:
    """Return whether all numbers of a floating `dtype` in `data` are finite. Other threads run
    meanwhile.
    """
    import numpy as np  # the core does not need it

    if dtype in _MINUS_ZERO:
        return not data.nbytes or int(np.frombuffer(data, "i1").min()) > -128
    width, first = _FIRST[dtype]
    least = first | 1 << (8 * width - 1)  # of those with a minus
    for start in range(0, data.nbytes, BLOCK_BYTES):
        signed = np.frombuffer(data[start : start + BLOCK_BYTES], f"<i{width}")
        if int(signed.max()) >= first or int(signed.view(f"<u{width}").max()) >= least:
            return False
    return True
