"""A look at the bytes of floating numbers finds each infinity and each NaN, and nothing else."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.state import finite
from holdfast.state.codec import ITEMSIZE
from holdfast.state.finite import is_finite, is_floating

BLOCK = 4096
FLOATS = sorted(
    name
    for name in ITEMSIZE
    if is_floating(name) and name != "complex32" and (hasattr(ml_dtypes, name) or hasattr(np, name))
)
SMALL = [name for name in FLOATS if ITEMSIZE[name] <= 2]


def kind_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or getattr(np, name))


@pytest.mark.parametrize("name", SMALL)
def test_every_number_of_a_small_format_is_judged_as_its_library_does(name):
    """All bit patterns of 8 and 16 bits, one by one."""
    kind = kind_of(name)
    every = np.arange(256**kind.itemsize, dtype=f"u{kind.itemsize}")
    expected = np.isfinite(every.view(kind).astype("f4"))
    assert list(expected) == [is_finite(memoryview(one.tobytes()), name) for one in every]
    assert not expected.all()


@given(st.sampled_from(FLOATS), st.integers(1, 40), st.data())
def test_any_bits_are_judged_as_numpy_does(name, count, data):
    """Of every width, also of numbers with two parts."""
    raw = data.draw(st.binary(min_size=count * ITEMSIZE[name], max_size=count * ITEMSIZE[name]))
    with np.errstate(all="ignore"):
        expected = np.isfinite(np.frombuffer(raw, kind_of(name)).astype("c16")).all()
    assert expected == is_finite(memoryview(raw), name)


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("place", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_one_number_in_many_is_found(name, place, monkeypatch):
    """Wherever it is, whatever the sign of the others; and without it nothing is."""
    monkeypatch.setattr(finite, "BLOCK_BYTES", BLOCK)
    kind = kind_of(name)
    many = np.linspace(-3, 3, 2 * BLOCK + 7).astype(kind)
    assert is_finite(memoryview(many.view("u1")), name)
    many[place] = np.nan
    assert not is_finite(memoryview(many.tobytes()), name)


def test_what_has_no_infinity_is_no_floating_number():
    """Integers, booleans and packed formats are never looked at."""
    assert not any(map(is_floating, ("bool", "int8", "uint8", "int64", "float4_e2m1fn_x2", "float6_e2m3fn", "")))
    assert is_finite(memoryview(b""), "float32")
    assert is_finite(memoryview(b""), "float8_e4m3fnuz")
