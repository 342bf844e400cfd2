"""Distance: how far apart the numbers of two leaves are. NumPy computes it, or Python, slower, if
NumPy is missing.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from ..legible import counted

Data = bytes | bytearray | memoryview
MOST_VALUES = 1 << 19  # compared one by one without NumPy: about a second


class Distance(NamedTuple):
    """The differences between two leaves of one dtype and shape.
    The two parts of a complex number count singly.
    """

    differing: int  # values whose bits differ
    of: int  # values in each
    largest: float | None  # absolute difference; None when every differing pair has a NaN
    # most steps from one number to the next, of floats of the same sign; None: there is no such
    # pair
    ulps: int | None
    # pairs of floats whose signs differ: between them lies every tiny number, and steps would say
    # nothing
    signs: int
    nan_in_a: int  # pairs of which only that of a is NaN: such a pair has no difference
    nan_in_b: int
    # values compared or passed over as equal; fewer than `of`: the rest was not compared
    looked_at: int

    def __str__(self) -> str:
        far = "" if self.largest is None else f", largest difference {self.largest:.3g}"
        alike = " where the sign is the same" if self.signs else ""
        steps = "" if self.ulps is None else f" ({in_ulps(self.ulps)}{alike})"
        kinds = {
            "in sign": self.signs,
            "NaN in a only": self.nan_in_a,
            "NaN in b only": self.nan_in_b,
        }
        some = "".join(f", {count:,} of them {kind}" for kind, count in kinds.items() if count)
        rest = (
            ""
            if self.looked_at == self.of
            else f"; only the first {self.looked_at:,} were looked at (with NumPy, all)"
        )
        return f"{self.differing:,} of {self.of:,} values differ{some}{far}{steps}{rest}"


class _FloatFormat(NamedTuple):
    code: Literal["B", "b", "H", "h", "I", "i", "Q", "q"]  # of struct, for the bits as an integer
    decode: Callable[[int], float] | None = None  # bits to number; None: the integer is the number


def _unpack_with(bits: str, code: str) -> Callable[[int], float]:
    return lambda number: float(struct.unpack(f"<{code}", struct.pack(f"<{bits}", number))[0])


def _bfloat16(number: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", number << 16))[0])


def _e5m2(number: int) -> float:
    return float(struct.unpack("<e", struct.pack("<H", number << 8))[0])


def _e4m3fn(number: int) -> float:
    exponent, fraction = number >> 3 & 15, number & 7
    if (exponent, fraction) == (15, 7):
        return float("nan")
    size = (8 + fraction) * 2.0 ** (exponent - 10) if exponent else fraction * 2.0**-9
    return -size if number & 0x80 else size


FORMATS: Mapping[str, _FloatFormat] = {
    "bool": _FloatFormat("B"),
    "uint8": _FloatFormat("B"),
    "int8": _FloatFormat("b"),
    "uint16": _FloatFormat("H"),
    "int16": _FloatFormat("h"),
    "uint32": _FloatFormat("I"),
    "int32": _FloatFormat("i"),
    "uint64": _FloatFormat("Q"),
    "int64": _FloatFormat("q"),
    "float8_e4m3fn": _FloatFormat("B", _e4m3fn),
    "float8_e5m2": _FloatFormat("B", _e5m2),
    "bfloat16": _FloatFormat("H", _bfloat16),
    "float16": _FloatFormat("H", _unpack_with("H", "e")),
    "float32": _FloatFormat("I", _unpack_with("I", "f")),
    "float64": _FloatFormat("Q", _unpack_with("Q", "d")),
    "complex32": _FloatFormat("H", _unpack_with("H", "e")),
    "bcomplex32": _FloatFormat("H", _bfloat16),
    "complex64": _FloatFormat("I", _unpack_with("I", "f")),
    "complex128": _FloatFormat("Q", _unpack_with("Q", "d")),
}


def ulps(a: float, b: float) -> int | None:
    """Return the steps from one float64 number to another of the same sign; None if their signs
    differ.
    """
    x, y = (struct.unpack("<Q", struct.pack("<d", number))[0] for number in (a, b))
    return None if (x ^ y) >> 63 else abs(x - y)


def in_ulps(steps: int) -> str:
    return counted(steps, "ULP")


def measure_distance(
    dtype: str, size_bytes: int, pieces: Iterable[tuple[Data, Data]]
) -> Distance | None:
    """Return the distance of two leaves of that length; None when `dtype` is not numeric.

    `pieces`: the bytes of both, a piece at a time; each but the last holds whole items. Equal
    pieces are passed over at the speed of memory.
    """
    form = FORMATS.get(dtype)
    if form is None or size_bytes % struct.calcsize(form.code):
        return None
    with_numpy = _measure_with_numpy(dtype, form)
    measure = with_numpy or _measure_without_numpy(form)
    itemsize = struct.calcsize(form.code)
    of = looked_at = size_bytes // itemsize
    budget = MOST_VALUES if with_numpy is None else of
    found = [_PieceDistance(0)]
    seen = 0
    for a, b in pieces:
        if a != b and budget <= 0:
            looked_at = seen // itemsize
            break
        if a != b:
            found.append(measure(memoryview(a), memoryview(b)))
            budget -= len(a) // itemsize
        seen += len(a)
    differing, largest, steps, signs, in_a, in_b = zip(*found, strict=True)
    return Distance(
        sum(differing),
        of,
        _largest(largest),
        _largest(steps),
        sum(signs),
        sum(in_a),
        sum(in_b),
        looked_at,
    )


def _largest(found: Iterable[Any]) -> Any:
    return max((each for each in found if each is not None), default=None)


class _PieceDistance(NamedTuple):
    """The fields of `Distance` for one piece."""

    differing: int
    largest: float | None = None
    ulps: int | None = None
    signs: int = 0
    nan_in_a: int = 0
    nan_in_b: int = 0


_Measure = Callable[[memoryview, memoryview], _PieceDistance]


def _measure_without_numpy(form: _FloatFormat) -> _Measure:
    top = 1 << (8 * struct.calcsize(form.code) - 1)

    def piece(a: memoryview, b: memoryview) -> _PieceDistance:
        differing, largest, steps, signs = 0, -1.0, -1, 0
        nans = [0, 0]
        for x, y in zip(a.cast(form.code), b.cast(form.code), strict=True):
            if x == y:
                continue
            differing += 1
            if form.decode is None:
                largest = max(largest, float(abs(x - y)))
                continue
            p, q = form.decode(x), form.decode(y)
            if math.isnan(p) or math.isnan(q):  # a NaN has no distance from anything
                nans[math.isnan(q)] += math.isnan(p) != math.isnan(q)
                continue
            largest = max(largest, abs(p - q))
            if (x ^ y) & top:
                signs += 1
            else:
                steps = max(steps, abs(x - y))
        return _PieceDistance(
            differing, None if largest < 0 else largest, None if steps < 0 else steps, signs, *nans
        )

    return piece


def _measure_with_numpy(dtype: str, form: _FloatFormat) -> _Measure | None:
    try:
        import numpy as np
    except ImportError:
        return None
    bits = np.dtype(f"<{form.code}")
    top = 1 << (8 * bits.itemsize - 1)
    table = None
    if bits.itemsize == 1 and form.decode is not None:
        table = np.array([form.decode(number) for number in range(256)])

    def numbers(of: Any) -> Any:
        if table is not None:
            return table[of]
        if dtype in ("bfloat16", "bcomplex32"):
            return (of.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return of.view(f"<f{bits.itemsize}").astype(np.float64)

    def piece(a: memoryview, b: memoryview) -> _PieceDistance:
        x, y = np.frombuffer(a, bits), np.frombuffer(b, bits)
        unequal = x != y
        x, y = x[unequal], y[unequal]
        # modulo 2**64: never too large
        steps = np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)
        if form.decode is None:
            return _PieceDistance(len(x), float(int(steps.max())))
        with np.errstate(all="ignore"):
            p, q = numbers(x), numbers(y)
            far = np.abs(p - q)
        in_a, in_b = np.isnan(p), np.isnan(q)
        known = ~(in_a | in_b)
        alike = known & ((x ^ y) & top == 0)
        largest = float(far[known].max()) if known.any() else None
        most = int(steps[alike].max()) if alike.any() else None
        signs = int(known.sum() - alike.sum())
        return _PieceDistance(
            len(x), largest, most, signs, int((in_a & ~in_b).sum()), int((in_b & ~in_a).sum())
        )

    return piece
