"""Leaves become bytes and come back as they were; what a file says of them is believed only as far as it is sound."""

import json
import sys
from types import SimpleNamespace

import hypothesis.extra.numpy as arrays
import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Run, Store
from holdfast.errors import Damaged, UsageError
from holdfast.state import codec, tree
from holdfast.state.fill import read_whole
from kept import Kept, bits, leaf_round_trip, round_trip
from subjects import asked_of

STRUCTURED = np.dtype({"names": ["a", "b"], "formats": ["<i2", ("<f8", (2,))], "offsets": [4, 16], "itemsize": 40})


NUMPY_DTYPES = st.one_of(
    arrays.scalar_dtypes(),
    arrays.byte_string_dtypes(),
    arrays.unicode_string_dtypes(),
    arrays.complex_number_dtypes(endianness=">"),
    arrays.array_dtypes(),
)


@settings(deadline=None)
@given(st.data())
def test_every_plain_array_comes_back_bit_for_bit(data):
    """Any dtype whose values are bytes, in either byte order, any shape, 0-d and empty too."""
    dtype = data.draw(NUMPY_DTYPES)
    shape = data.draw(arrays.array_shapes(min_dims=0, min_side=0, max_side=4))
    array = np.zeros(shape, dtype)
    if array.nbytes and dtype.kind not in "UVb":  # any bits will do where any bits are a value
        size = array.nbytes
        array.reshape(-1).view(np.uint8)[:] = bytearray(data.draw(st.binary(min_size=size, max_size=size)))
    assert bits(array) == bits(leaf_round_trip(array))


def test_odd_arrays_keep_dtype_order_and_values():
    """Structured, datetime, long double, foreign byte order, Fortran order, strided, read-only."""
    for array in (
        np.zeros(3, STRUCTURED),
        np.array([("x", 1)], [("name", "<U7"), ("inner", [("n", ">i4")])]),
        np.array(["2020-01-01", "NaT"], "<M8[ns]"),
        np.array([1, 2], "<m8[25us]"),
        np.array(["", ""], "<U0"),
        np.zeros((2, 0, 3), "<f4"),
        np.array(1.5, ">f8"),
        np.arange(6, dtype=np.longdouble),
        np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        np.arange(24).reshape(4, 6)[::2, ::-3],
        np.broadcast_to(np.float32(2), (3, 2)),
        np.array([True, False]),
    ):
        assert bits(array) == bits(leaf_round_trip(array))


def test_arrays_that_are_not_plain_bytes_are_refused():
    """Nothing is pickled, and no mask or subclass is dropped in silence."""
    texts = [np.array(["a"], np.dtypes.StringDType())] if hasattr(np.dtypes, "StringDType") else []  # since NumPy 2
    objects = [np.array([None]), np.zeros(2, [("o", object)])]
    for array in (*objects, *texts, np.ma.array([1]), np.zeros(2).view(np.recarray)):
        with pytest.raises(UsageError, match=r'cannot save state\["a"\]'):
            tree.flatten({"a": array})


def test_contiguous_arrays_are_not_copied():
    """The block is a window on the array's own memory."""
    array = np.zeros(8, np.float32)
    block = codec.encode_leaf(array)
    array[3] = 1
    assert bytes(block.data) == array.tobytes()


def test_bytes_are_a_leaf_of_their_own():
    """Kind "bytes", one dimension of uint8."""
    block = codec.encode_leaf(b"abc")
    assert ("bytes", "uint8", (3,)) == (block.kind, block.dtype, block.shape)
    assert leaf_round_trip(b"abc") == b"abc"


# what a manifest says of a leaf, a line each
UNSOUND = """\
{"kind": "os"}
{"kind": "numpy.core"}
{"dtype": "object"}
{"dtype": "O"}
{"attrs": {"dtype": "|O"}}
{"dtype": "f4,f4"}
{"dtype": "nonsense"}
{"shape": [5]}
{"shape": [-4, -1]}
{"shape": [1180591620717411303424, 0]}
{"attrs": {"dtype": {"fields": [["a", "O", 0, null]], "size_bytes": 16}}}
{"attrs": {"dtype": {"fields": 3, "size_bytes": 16}}}
{"attrs": {"dtype": {"fields": [["a", "<f4", 14, null]], "size_bytes": 16}}}
{"attrs": {"dtype": {"item": "<f4", "shape": "x"}}}
{"attrs": {"dtype": {}}}
{"attrs": {"dtype": 3}}
"""


def test_a_description_that_is_not_sound_is_damage():
    """Unknown kinds, object dtypes, shapes that do not fit the bytes: no other exception, and nothing is imported."""
    codec.import_adapter("numpy")
    before = set(sys.modules)
    assert UNSOUND
    for changes in UNSOUND.splitlines():
        with pytest.raises(Damaged):
            pytest.fail(f"{changes} makes {leaf_round_trip(np.zeros(4, np.float32), **json.loads(changes))}")
    assert set(sys.modules) <= before | {"os"}


def test_arrays_of_every_dtype_of_ml_dtypes_come_back(tmp_path):
    """Also in fields, as scalars and out of C order; in place, too. None is taken for one of NumPy's of that kind."""
    kinds = [each for each in vars(ml_dtypes).values() if isinstance(each, type) and issubclass(each, np.generic)]
    assert {"bfloat16", "float8_e5m2", "float8_e4m3fn", "int4", "uint4"} <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        with asked_of(kind.__name__):
            drawn = np.random.default_rng(1).integers(0, 256, (4, 6 * np.dtype(kind).itemsize), np.uint8)
            array = drawn.view(kind)
            fields = np.zeros(3, [("a", kind), ("b", np.int32)])
            fields["a"] = array[0, :3]
            state = {"c": array, "f": array.T, "fields": fields, "one": array[0, 1], "none": array[:0]}
            store = Store(tmp_path / kind.__name__)
            store.save(state, step=1)
            found = store.load()
            for name, live in state.items():
                assert (live.dtype, live.shape) == (found[name].dtype, found[name].shape), name
                assert live.tobytes() == found[name].tobytes(), name
            live = np.zeros_like(array)
            with Run(tmp_path / f"{kind.__name__}-run", {"array": array}) as run:
                run.save()
            with Run(tmp_path / f"{kind.__name__}-run", {"array": live}):
                assert live.tobytes() == array.tobytes()


def test_the_safetensors_library_reads_every_code_we_use():
    """A shard is a valid safetensors file whatever lies in it."""
    for name, code in codec.SAFETENSORS.items():
        size = 2 * codec.ITEMSIZE[name]
        header = json.dumps({"x": {"dtype": code, "shape": [2], "data_offsets": [0, size]}}).encode()
        ((_, read),) = safetensors.deserialize(len(header).to_bytes(8, "little") + header + bytes(size))
        assert code == read["dtype"]


class Celsius:
    def __init__(self, degrees):
        self.degrees = degrees


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    monkeypatch.setattr(codec, "REGISTERED", {})


def test_registered_types_travel_as_what_their_function_makes_of_them():
    """Leaves inside are leaves, and the decode function gets what the encode function gave."""
    codec.register(Celsius, lambda value: {"degrees": value.degrees}, lambda content: Celsius(**content))
    back = round_trip([Celsius(np.arange(3)), Celsius(3)])
    assert [Celsius, Celsius] == [type(value) for value in back]
    assert [0, 1, 2] == back[0].degrees.tolist()


def test_a_file_cannot_reach_a_type_that_is_not_registered():
    """The name is looked up; the message says which pair of functions is missing."""
    node = {"custom": [f"{__name__}.Celsius", 3]}
    with pytest.raises(UsageError, match=r"holdfast\.register\(Celsius, encode, decode\)"):
        tree.unflatten(node, {}.get)
    with pytest.raises(UsageError, match="register"):
        tree.unflatten(node, {}.get, types=[Celsius])


def test_a_failing_decode_function_is_named():
    """It is the caller's function, not the file, that the message is about."""
    codec.register(Celsius, lambda value: value.degrees, lambda _: Celsius(1 / 0))
    with pytest.raises(UsageError, match=r"decode function registered for .*Celsius failed"):
        round_trip(Celsius(3))


def test_register_takes_types_only():
    """A name in its place is told at once, not at the first save."""
    with pytest.raises(UsageError, match="takes a type"):
        codec.register("Celsius", str, str)


def test_every_handle_in_a_tree_is_replaced_by_its_leaf():
    """Handles in lists, tuples and dicts become what they stand for; the rest is untouched."""
    handle = Kept("x", codec.encode_leaf(b"abc"))
    assert {"a": [b"abc", (b"abc", 1)]} == read_whole({"a": [handle, (handle, 1)]})
    plain = SimpleNamespace()
    assert read_whole(plain) is plain


def test_what_lies_between_fields_comes_back_in_either_order():
    """No byte of a restored array is whatever the memory held before."""
    kind = np.dtype({"names": ["a", "b"], "formats": ["<f4", "i1"], "offsets": [0, 6], "itemsize": 13})
    held = np.frombuffer(bytes(range(6 * 13)), kind).reshape(2, 3)
    for array in (held, held.T):
        found = leaf_round_trip(array)
        assert array.flags.f_contiguous == found.flags.f_contiguous
        assert array.view("V13").tobytes() == found.view("V13").tobytes()
