"""DTensors: each rank saves its piece with its place in the whole, and any other division of the same whole is filled
from it.

Ranks are made one after another in this process, by a process group that talks to nobody.
"""

import itertools
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import holdfast
from holdfast import Store
from holdfast.collective.store import CollectiveStore
from holdfast.errors import UsageError
from holdfast.state import codec, tree
from holdfast.torch import live, pieces, stored
from holdfast.torch.stored import TensorRestore, tensor_differences
from rank_threads import ranks

MESHES = {
    "1": ((1,), (Shard(0),)),
    "2": ((2,), (Shard(0),)),
    "3 by columns": ((3,), (Shard(1),)),
    "4": ((4,), (Shard(0),)),
    "8, more than there are rows": ((8,), (Shard(0),)),
    "replicas": ((3,), (Replicate(),)),
    "2 x 2": ((2, 2), (Shard(0), Shard(1))),
    "2 replicas of 3": ((2, 3), (Replicate(), Shard(0))),
    "rows twice": ((2, 2), (_StridedShard(0, split_factor=2), Shard(0))),
}
WHOLE = torch.arange(8 * 5, dtype=torch.float32).reshape(8, 5)


@contextmanager
def process(rank, world):
    """This process as one of so many ranks that do not talk."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()  # it holds meshes, which know which rank this process was


def divided(whole, shape, placements):
    """What this rank has of `whole`, cut by torch's own chunk()."""
    mesh = init_device_mesh("cpu", shape)
    at, part = mesh.get_coordinate(), whole
    assert at is not None
    if any(isinstance(each, _StridedShard) for each in placements):  # the second mesh dimension cuts first
        part = part.chunk(shape[1])[at[1]].chunk(shape[0])[at[0]]
    else:
        for size, number, placement in zip(shape, at, placements, strict=True):
            if isinstance(placement, Shard):
                chunks = part.chunk(size, placement.dim)
                part = chunks[number] if number < len(chunks) else part.narrow(placement.dim, 0, 0)
    return DTensor.from_local(part.clone(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def each_rank(shape):
    world = torch.Size(shape).numel()
    for rank in range(world):
        with process(rank, world):
            yield rank


def saved(path, make, shape):
    """A checkpoint of `make(rank)`, written by all ranks."""
    conversations = ranks(torch.Size(shape).numel())
    stores = [CollectiveStore(path, ranks=each) for each in conversations]
    staged = [stores[rank].stage(make(rank)) for rank in each_rank(shape)]
    with ThreadPoolExecutor(len(stores)) as pool:
        outcomes = list(pool.map(lambda store, each: store.commit(each, step=1), stores, staged))
    for store in stores:
        store.close()
    return outcomes[0]


@pytest.mark.parametrize("name", MESHES)
def test_a_piece_says_where_it_lies_and_every_item_is_written_once(name):
    """For any division the items of the local tensor are those of the whole at the box that is told.

    Over all ranks, the pieces that are no other rank's spare tile the whole; what all have whole is no piece.
    """
    shape, placements = MESHES[name]
    seen = torch.zeros(WHOLE.shape, dtype=torch.int32)
    for rank in each_rank(shape):
        tensor = divided(WHOLE, shape, placements)
        box = pieces.local_box(tensor)
        slices = tuple(slice(at, at + extent) for at, extent in zip(box.at, box.shape, strict=True))
        assert torch.equal(WHOLE[slices], pieces.local_tensor(tensor))
        block = tree.flatten({"w": tensor}).leaves["w"]
        if "of" not in block.attrs:
            assert bytes(block.data) == WHOLE.numpy().tobytes()
            seen += rank == 0
        elif "spare" not in block.attrs:
            place = zip(block.attrs["at"], block.shape, strict=True)
            seen[tuple(slice(at, at + extent) for at, extent in place)] += 1
    assert (seen == 1).all()


PAIRS = list(itertools.product(MESHES, MESHES))


def fills(one, other, place):
    """Save under one mesh and read as each rank of another: the same items, though the checkpoint is read in pieces."""
    shape, placements = MESHES[one]
    checkpoint = saved(place, lambda _: {"w": divided(WHOLE, shape, placements)}, shape)
    assert torch.equal(WHOLE, checkpoint.load()["w"])
    shape, placements = MESHES[other]
    for rank in each_rank(shape):
        tensor = divided(torch.zeros_like(WHOLE), shape, placements)
        handle = checkpoint.as_rank(rank).handles()["w"]
        assert tensor_differences("w", handle, tensor) == []
        filling = TensorRestore()
        filling.read_into(tensor, handle)
        filling.read_all()
        assert torch.equal(pieces.local_tensor(divided(WHOLE, shape, placements)), pieces.local_tensor(tensor)), (
            one,
            other,
            rank,
        )


def test_any_division_is_filled_from_any_other(tmp_path):
    """Each mesh into and from three others; `make prove` asks all pairs."""
    for number, (one, other) in enumerate(PAIRS[::4]):
        fills(one, other, tmp_path / str(number))


def test_a_rank_of_the_same_division_reads_its_own_piece_only(tmp_path, monkeypatch):
    """At an unchanged world size nobody reads, or even looks up, what others wrote."""
    shape, placements = MESHES["4"]
    checkpoint = saved(tmp_path, lambda _: {"w": divided(WHOLE, shape, placements)}, shape)
    for rank in each_rank(shape):
        tensor = divided(torch.zeros_like(WHOLE), shape, placements)
        (cut,) = pieces.stored_slices(tensor, checkpoint.as_rank(rank).handles()["w"])
        assert pieces.is_whole_leaf(cut)
        assert cut.live.data_ptr() == pieces.local_tensor(tensor).data_ptr()
        assert cut.stored.size_bytes == pieces.local_tensor(tensor).nbytes


def test_tied_dtensors_are_stored_once():
    """Two names for one DTensor are one block, and two of different layout in one memory are refused."""
    with process(1, 4):
        tensor = divided(WHOLE, *MESHES["4"])
        flat = tree.flatten({"a": tensor, "b": tensor.detach()})
        assert list(flat.leaves) == ["a"]
        with pytest.raises(UsageError, match="clone"):
            tree.flatten({"a": tensor, "b": pieces.local_tensor(tensor)[:, 1:]})


def test_partial_sums_and_what_is_no_box_are_refused():
    """A DTensor whose local tensor is a summand, or every other row, cannot be put together again from boxes."""
    with process(1, 4):
        mesh = init_device_mesh("cpu", (4,))
        summand = DTensor.from_local(WHOLE, mesh, (Partial(),), run_check=False)
        with pytest.raises(UsageError, match="partial sums"):
            tree.flatten({"w": summand})
        mesh = init_device_mesh("cpu", (2, 2))
        placements = (Shard(0), _StridedShard(0, split_factor=2))
        comb = DTensor.from_local(
            WHOLE[:2], mesh, placements, run_check=False, shape=WHOLE.shape, stride=WHOLE.stride()
        )
        with pytest.raises(UsageError, match="no box"):
            tree.flatten({"w": comb})


def parallel(model, shape, placements):
    """`model` with every parameter divided as `placements` say, where it has such a dimension."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            fit = tuple(
                Replicate() if isinstance(each, Shard) and each.dim >= parameter.dim() else each for each in placements
            )
            tensor = divided(parameter.detach(), shape, fit)
            setattr(module, name, nn.Parameter(tensor))
    return model


def trained(seed=0):
    """A model and its optimizer after a step, in one process."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def pieced(shape, placements, seed=0):
    """The same, divided: parameters and moments."""
    model, optimizer = trained(seed)
    olds = list(model.parameters())
    parallel(model, shape, placements)
    twin = torch.optim.AdamW(model.parameters(), lr=0.1)
    for old, new in zip(olds, model.parameters(), strict=True):
        twin.state[new] = {
            key: divided(value, shape, new.placements) if value.dim() else value
            for key, value in optimizer.state[old].items()
        }
    return model, twin


@pytest.mark.parametrize("other", ["4", "2 replicas of 3", "rows twice"])
def test_models_and_moments_go_from_one_process_into_pieces_and_back(other, tmp_path):
    """A fresh optimizer's moments become DTensors like their parameter, its step stays a plain number."""
    shape, placements = MESHES[other]
    model, optimizer = trained()
    plain = Store(tmp_path / "plain").save({"model": live.capture(model), "optimizer": live.capture(optimizer)}, step=1)
    for rank in each_rank(shape):
        expected_model, expected = pieced(shape, placements)
        twin = parallel(trained(1)[0], shape, placements)
        fresh = torch.optim.AdamW(twin.parameters(), lr=0.5)
        handles = plain.as_rank(rank).handles()
        assert live.differences(twin, handles["model"]) + live.differences(fresh, handles["optimizer"]) == []
        live.restore(twin, handles["model"])
        live.restore(fresh, handles["optimizer"])
        for a, b in zip(expected_model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(pieces.local_tensor(a), pieces.local_tensor(b))
            assert a.placements == b.placements
            for key, moment in expected.state[a].items():
                assert type(moment) is type(fresh.state[b][key])
                assert torch.equal(pieces.local_tensor(moment), pieces.local_tensor(fresh.state[b][key]))

    def state(_):
        model, optimizer = pieced(shape, placements)
        return {"model": live.capture(model), "optimizer": live.capture(optimizer)}

    there = saved(tmp_path / "pieces", state, shape)
    assert there.manifest.tree == plain.manifest.tree
    twin, fresh = trained(1)
    live.restore(twin, there.handles("model"))
    live.restore(fresh, there.handles("optimizer"))
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
        assert all(torch.equal(optimizer.state[a][key], fresh.state[b][key]) for key in fresh.state[b])


def test_another_shape_of_the_whole_is_a_mismatch():
    """Shapes that are compared are those of the whole, on every rank alike."""
    for _ in each_rank((4,)):
        tensor = divided(WHOLE, *MESHES["4"])
        lines = tensor_differences("w", live.capture(torch.Generator())["state"], tensor)
        assert lines != []
        assert tensor_differences("w", divided(WHOLE, *MESHES["4"]), tensor) == []


def test_a_module_with_hooks_of_its_own_gets_dtensors():
    """What goes through load_state_dict is cut for each rank, since whole tensors do not mix with pieces."""
    for _ in each_rank((4,)):
        model = parallel(trained()[0], *MESHES["4"])
        model.register_load_state_dict_post_hook(lambda *_: None)
        whole = {name: value.clone() for name, value in trained(2)[0].state_dict().items()}
        live.restore(model, whole)
        for name, parameter in model.named_parameters():
            assert torch.equal(
                pieces.local_tensor(parameter), pieces.local_tensor(pieces.divided_like(parameter, whole[name]))
            )


def test_weights_alone_are_read_into_pieces(tmp_path):
    """`load_into` a divided model from one process's checkpoint, and into a whole model from pieces."""
    model, _ = trained()
    Store(tmp_path / "plain").save({"model": live.capture(model)}, step=1)
    for _ in each_rank((4,)):
        twin = parallel(trained(1)[0], *MESHES["4"])
        holdfast.load_into(twin, tmp_path / "plain")
        for name, parameter in twin.named_parameters():
            assert torch.equal(
                pieces.local_tensor(parameter),
                pieces.local_tensor(pieces.divided_like(parameter, model.get_parameter(name))),
            )
    saved(tmp_path / "pieces", lambda _: {"model": live.capture(parallel(trained()[0], *MESHES["4"]))}, (4,))
    whole = trained(1)[0]
    holdfast.load_into(whole, tmp_path / "pieces")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
        lambda parameters: torch.optim.Adam(parameters, 0.1, amsgrad=True, foreach=True),
        lambda parameters: torch.optim.AdamW(parameters, 0.1, fused=True),
        lambda parameters: torch.optim.Adagrad(parameters, 0.1),
        lambda parameters: torch.optim.NAdam(parameters, 0.1),
    ],
)
def test_a_fresh_optimizer_gets_moments_of_the_kind_that_torch_makes(make, tmp_path):
    """DTensors where torch has DTensors, plain tensors where it has these; a first step of its own would give the
    same.
    """

    def stepped(seed):
        model = parallel(nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 4)), *MESHES["2"])
        optimizer = make(model.parameters())
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = divided(torch.randn(parameter.shape), (2,), parameter.placements)
        optimizer.step()
        return model, optimizer

    def state(_):
        return {"optimizer": live.capture(stepped(3)[1])}

    checkpoint = saved(tmp_path, state, (2,))
    for rank in each_rank((2,)):
        model, expected = stepped(3)
        fresh = make(model.parameters())
        live.restore(fresh, checkpoint.as_rank(rank).handles("optimizer"))
        for parameter in model.parameters():
            assert fresh.state[parameter].keys() == expected.state[parameter].keys()
            for key, there in expected.state[parameter].items():
                here = fresh.state[parameter][key]
                assert type(here) is type(there)
                if isinstance(there, torch.Tensor):
                    assert (here.dtype, here.shape) == (there.dtype, there.shape)
                    assert torch.equal(pieces.local_tensor(here), pieces.local_tensor(there))


def test_what_is_read_around_its_place_is_little_at_a_time(tmp_path, monkeypatch):
    """Leaves of which only a part is wanted exist twice for as long as it takes, and few of them at once."""
    wholes = {f"w{number}": WHOLE + number for number in range(5)}
    checkpoint = Store(tmp_path).save(wholes, step=1)
    read, real = [], codec.read_into_memory
    monkeypatch.setattr(stored, "AROUND_BYTES", 2 * WHOLE.nbytes)
    monkeypatch.setattr(stored, "read_into_memory", lambda wanted: (read.append(len(wanted)), real(wanted)))
    for _ in each_rank((2,)):
        read.clear()
        tensors = {name: divided(torch.zeros_like(WHOLE), *MESHES["2"]) for name in wholes}
        filling = TensorRestore()
        for name, tensor in tensors.items():
            filling.read_into(tensor, checkpoint.handles()[name])
        filling.read_all()
        assert [count for count in read if count] == [2, 2, 1]
        for name, tensor in tensors.items():
            assert torch.equal(pieces.local_tensor(divided(wholes[name], *MESHES["2"])), pieces.local_tensor(tensor))
