"""Tensors come back bit for bit, with their layout and their ties, and are not copied on the way out."""

import gc
import re
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Damaged, UsageError
from holdfast.state import codec, tree
from holdfast.torch.stored import DTYPES
from kept import Kept, leaf_round_trip, random_bits, raw, round_trip, stored_of
from subjects import asked_of


def assert_same_tensor(expected, actual):
    assert type(expected) is type(actual)
    facts = [(each.dtype, each.shape, each.requires_grad, raw(each)) for each in (expected, actual)]
    assert facts[0] == facts[1]


def assert_same_tensors(expected, actual):
    for one, other in zip(expected, actual, strict=True):
        assert_same_tensor(one, other)


@pytest.mark.filterwarnings("ignore:ComplexHalf:UserWarning")
def test_every_dtype_comes_back_bit_for_bit():
    """0-d, empty, and each layout: C order, transposed, sliced; NaN payloads are bits like others."""
    shapes = [(), (0,), (2, 0, 3), (1,), (3, 4), (2, 3, 4, 5)]
    for (name, dtype), shape in product(DTYPES.items(), shapes):
        count = int(np.prod(shape))
        tensor = random_bits(dtype, max(1, count)).reshape(-1)[:count].reshape(shape)
        with asked_of(name, shape):
            for layout in (tensor, tensor.mT if tensor.dim() > 1 else tensor, tensor[..., ::2] if shape else tensor):
                assert_same_tensor(layout, leaf_round_trip(layout))


def test_the_table_has_every_dtype_that_torch_has_bytes_for():
    """A dtype that torch adds, and we do not know, turns up here."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    strange = re.compile(r"torch\.(bit|bits(16|1x8|2x4|4x2|8)|qint(8|32)|quint(8|2x4|4x2)|u?int[1-7])")
    names = {str(dtype).removeprefix("torch.") for dtype in dtypes if not strange.fullmatch(str(dtype))}
    assert names == set(DTYPES)
    assert all(codec.ITEMSIZE[name] == dtype.itemsize for name, dtype in DTYPES.items())


def test_dense_layouts_are_kept():
    """channels_last is part of what makes a resumed convolution choose the same kernel."""
    for tensor in [
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d),
        torch.randn(3, 4).t(),
        torch.randn(3, 4, 5).permute(2, 0, 1).to(torch.bfloat16),
        torch.randn(2, 3, dtype=torch.complex128).t(),
        torch.randn(3, 1, 4).transpose(0, 2),
        torch.randn(8, 1, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(8, 4, 1, 1).to(memory_format=torch.channels_last),
    ]:
        back = leaf_round_trip(tensor)
        assert tensor.stride() == back.stride()
        assert_same_tensor(tensor, back)


def test_conjugated_and_negated_tensors_are_stored_as_the_numbers_they_stand_for():
    """The lazy bits are resolved; their plain original is another leaf."""
    z = torch.tensor([1 + 2j, 3 - 4j])
    back = round_trip({"z": z, "conj": z.conj(), "neg": z.conj().imag})
    assert torch.equal(z.conj().resolve_conj(), back["conj"])
    assert torch.equal(z.conj().imag, back["neg"])
    assert torch.equal(z, back["z"])


def test_contiguous_tensors_are_not_copied():
    """The block is a window on the tensor's memory, and keeps it alive."""
    tensor = torch.zeros(1000)
    block = codec.encode_leaf(tensor)
    tensor[1] = 1
    expected = raw(tensor)
    del tensor
    gc.collect()
    assert expected == bytes(block.data)
    assert ("B", 1, 4000) == (block.data.format, block.data.ndim, block.data.nbytes)


def test_decoded_tensors_have_memory_of_their_own():
    """A restore never hands out what something else may change."""
    kept = Kept("x", codec.encode_leaf(torch.zeros(3)))
    first, second = codec.decode_leaf(kept), codec.decode_leaf(kept)
    first += 1
    assert second.tolist() == [0, 0, 0]


def test_parameters_are_parameters_again():
    """With requires_grad as it was; so are plain tensors."""
    kinds: list[Any] = [torch.nn.Parameter, torch.clone]
    for kind, requires_grad in product(kinds, (True, False)):
        tensor = kind(torch.randn(3)).requires_grad_(requires_grad)
        with asked_of(kind, requires_grad):
            assert_same_tensor(tensor, leaf_round_trip(tensor))


def test_tied_tensors_are_stored_once_and_tied_again():
    """The same object, a Parameter and its .data, or two views that are alike."""
    weight = torch.nn.Parameter(torch.randn(4, 3))
    state = {"data": weight.data, "model": {"a": weight, "b": weight}, "view": weight.detach().view(4, 3)}
    flat = tree.flatten(state)
    back = round_trip(state)
    assert ["data"] == list(flat.leaves)
    assert back["model"]["a"] is back["model"]["b"] is back["data"]
    assert isinstance(back["model"]["a"], torch.nn.Parameter)


def test_overlapping_views_alias_again():
    """One flat leaf, of the bytes that any of them uses; writing through one shows in the others."""
    base = torch.arange(1000.0)
    state = {
        "a": base[10:20],
        "b": base[15:30],
        "t": base[12:16].view(2, 2).t(),
        "far": base[500:502],
        "bits": base[19:20].view(torch.int32),
    }
    flat = tree.flatten(state)
    back = round_trip(state)
    assert {"a@storage": 80, "far": 8} == {key: block.data.nbytes for key, block in flat.leaves.items()}
    assert_same_tensors(state.values(), [back[key] for key in state])
    back["a"].fill_(7)
    assert back["b"].tolist() == [7] * 5 + list(range(20, 30))
    assert back["t"].tolist() == [[7, 7], [7, 7]]
    assert back["bits"].view(torch.float32).item() == 7


def test_views_that_share_no_byte_are_stored_apart():
    """Two halves of a storage: each its own bytes, without a copy."""
    base = torch.arange(10.0)
    flat = tree.flatten([base[:5], base[5:]])
    assert {"0": 20, "1": 20} == {key: block.data.nbytes for key, block in flat.leaves.items()}


def test_views_begin_at_whole_items():
    """A byte view that begins between the items of another view does not bring it out of step."""
    base = torch.arange(6, dtype=torch.float64)
    state = [base.view(torch.uint8)[13:40], base[2:4], base[3:]]
    back = round_trip(state)
    assert_same_tensors(state, back)
    back[1][0] = 0
    assert back[0][3:11].tolist() == [0] * 8


def test_tensors_over_one_numpy_array_alias_again():
    """Two storages, one memory."""
    array = np.arange(8.0)
    back = round_trip([torch.from_numpy(array), torch.from_numpy(array[4:])])
    back[0][5] = 99
    assert back[1][1] == 99


def test_views_of_parameters_keep_what_they_are():
    """Parameter-ness is of the view, not of the memory under it."""
    base = torch.randn(10)
    state = [torch.nn.Parameter(base[:6]), base[4:]]
    back = round_trip(state)
    assert_same_tensors(state, back)
    assert back[0].untyped_storage().data_ptr() == back[1].untyped_storage().data_ptr()


@given(st.data())
def test_any_views_of_one_storage_come_back_with_their_aliasing(data):
    """Whatever is drawn: the values are the same, and bytes are shared afterwards where they were shared before."""
    base = torch.arange(40, dtype=torch.int16)
    views = []
    for _ in range(data.draw(st.integers(1, 4))):
        shape = data.draw(st.sampled_from([(), (1,), (0,), (3,), (2, 3), (2, 2)]))
        stride = [data.draw(st.integers(0, 4)) for _ in shape]
        views.append(base.as_strided(shape, stride, data.draw(st.integers(0, 24))))
    back = round_trip(views)
    assert_same_tensors(views, back)
    places = [set(view.reshape(-1).tolist()) for view in views]  # the numbers of `base` are their places
    for index, view in enumerate(views):
        if view.numel() and any(places[index] & other for each, other in enumerate(places) if each != index):
            back[index].fill_(-1)
            view.fill_(-1)
            assert_same_tensors(views, back)


def freed():
    tensor = torch.ones(2)
    tensor.untyped_storage().resize_(0)
    return tensor


class Mine(torch.Tensor):
    pass


REFUSED = {
    "layout": lambda: torch.eye(2).to_sparse(),
    "layout is torch.sparse_csr": lambda: torch.eye(2).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "meta device": lambda: torch.empty(2, device="meta"),
    "plain tensors": lambda: torch.ones(2).as_subclass(Mine),
    "plain tensors and parameters": torch.nn.UninitializedParameter,
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2)]),
    "plain": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "storage has been freed": freed,
    "state_dict": lambda: torch.nn.Linear(1, 1),
}


@pytest.mark.filterwarnings("ignore:.*(beta|prototype|deprecated).*:UserWarning", "ignore:.*:DeprecationWarning")
def test_tensors_without_plain_bytes_are_refused():
    """The message has the place and the way round."""
    for reason, make in REFUSED.items():
        with pytest.raises(UsageError, match=rf'cannot save state\["m"\]\[0\] \(.*{reason}'):
            tree.flatten({"m": [make()]})


def test_small_torch_values_are_themselves_again():
    """Size, dtype, device and generator, which goes on where it was."""
    generator = torch.Generator().manual_seed(5)
    torch.rand(3, generator=generator)
    state = [torch.Size([2, 3]), torch.bfloat16, torch.float8_e5m2, torch.device("cuda:1"), torch.Size([]), generator]
    back = round_trip(state)
    assert state[:5] == back[:5]
    assert [type(value) for value in state] == [type(value) for value in back]
    assert torch.equal(torch.rand(3, generator=generator), torch.rand(3, generator=back[5]))


def test_handles_of_views_are_decoded_eagerly():
    """A live restore gets handles for whole leaves, and tensors where views share one."""
    base = torch.arange(6.0)
    back = stored_of({"v": [base[:4], base[2:]], "w": torch.ones(2)}, handles=True)
    assert codec.is_stored_leaf(back["w"])
    back["v"][0][3] = 9
    assert back["v"][1][1] == 9


def test_a_description_that_is_not_sound_is_damage():
    """Nothing is allocated for it, and nothing outside its memory is reached."""
    for changes in [
        *({"dtype": dtype} for dtype in ("float33", "Tensor")),
        *({"shape": shape} for shape in ([4], [1] * 100 + [12], [2**62, 0], [-1, -12])),
        *({"attrs": {"stride": stride}} for stride in ([1], [1, 4], [0, 0], [2**61, 1], "x")),
        {"dtype": "int32", "attrs": {"requires_grad": True}},
    ]:
        with asked_of(changes), pytest.raises(Damaged):
            leaf_round_trip(torch.zeros(3, 4), **changes)


VIEW = {"leaf": "a", "dtype": "float32", "shape": [2], "stride": [1], "offset": 8}


def test_a_view_never_reaches_outside_its_leaf():
    """A hostile offset, shape or stride is damage, not somebody else's memory."""
    held = {"a": torch.zeros(16, dtype=torch.uint8), "f": torch.zeros(4), "n": np.zeros(16, np.uint8)}
    assert tree.unflatten({"view": VIEW}, held.__getitem__).tolist() == [0, 0]
    refused: list[dict[str, Any]] = [
        *({"offset": offset} for offset in (12, 2, -4, 2**70, 0.0)),
        *({"shape": shape} for shape in ([3], [-2], [2, 2], 3)),
        *({"stride": stride} for stride in ([-1], [2**40])),
        *({"dtype": dtype} for dtype in ("nonsense", ["float32"])),
        *({"leaf": leaf} for leaf in ("f", "n")),
        {"dtype": "int32", "requires_grad": True},
    ]
    for changes in refused:
        with asked_of(changes), pytest.raises(Damaged):
            tree.unflatten({"view": {**VIEW, **changes}}, held.__getitem__)
