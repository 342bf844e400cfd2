"""torch.distributed.checkpoint through Writer and Reader: DCP plans, the checkpoint is one of ours, and nothing is
unpickled.
"""

import pickle
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import holdfast.torch
from holdfast import Every, Last, Run, Store, journal
from holdfast.errors import UsageError
from holdfast.torch import Reader, Writer, dcp_writer
from kept import bits
from rank_processes import everywhere
from rank_training import Net, whole, wrapped

# torch tells whoever has no process group that it has noticed
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"
)


def state():
    """Tensors of several kinds, and what is none."""
    return {
        "model": {
            "w": torch.arange(12.0).reshape(3, 4),
            "half": torch.ones(2, dtype=torch.bfloat16),
            "n": torch.tensor(7),
        },
        "steps": [torch.zeros(2), {"lr": 0.5}],
        "note": "as it was",
        "betas": (0.9, 0.999),
        "array": np.arange(5),
    }


def blanks(tree):
    """The same with other values."""
    if isinstance(tree, dict):
        return {key: blanks(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [blanks(value) for value in tree]
    return torch.full_like(tree, 3) if isinstance(tree, torch.Tensor) else None


@pytest.fixture
def no_pickles(monkeypatch):
    """Reading that unpickles anything fails."""

    def refuse(*_, **__):
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)


def test_what_dcp_has_saved_is_a_checkpoint_like_any_other(tmp_path, no_pickles):
    """Nested state with tensors and objects comes back by DCP's own functions, with its default planners.

    The store lists it, verifies it and loads the same.
    """
    writer = Writer(tmp_path, step=3, metrics={"loss": 0.5}, note="by DCP")
    dcp.save(state(), storage_writer=writer)
    found = blanks(state())
    dcp.load(found, storage_reader=Reader(tmp_path))
    (checkpoint,) = Store(tmp_path).checkpoints()
    assert bits(state()) == bits(found) == bits(checkpoint.load())
    assert (checkpoint.step, checkpoint.metrics, checkpoint.head.note) == (3, {"loss": 0.5}, "by DCP")
    assert list(checkpoint.problems(cold=True)) == []
    assert writer.checkpoint.path == checkpoint.path


def test_what_a_run_has_saved_is_read_by_dcp(tmp_path, no_pickles):
    """By the names that DCP gives to what is nested; only what was asked for is read."""
    model = Net()
    with Run(tmp_path, {"model": model}, every=Every(steps=1)) as run:
        for _ in run.steps(1):
            pass
    found = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    dcp.load(found, storage_reader=Reader(tmp_path))
    assert all(torch.equal(value, found["model"][name]) for name, value in model.state_dict().items())


def test_they_are_imported_when_they_are_asked_for():
    """Whoever has a use for neither does without DCP; what is not there is missed as in any module."""
    script = "import sys, holdfast.torch; print('torch.distributed.checkpoint' in sys.modules, 'torch' in sys.modules)"
    assert (
        "False False\n"
        == subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    )
    with pytest.raises(AttributeError, match=r"module 'holdfast.torch' has no attribute 'Wirter'"):
        holdfast.torch.Wirter


def test_each_save_may_have_a_writer_of_its_own(tmp_path):
    """One process writes by one store, however many writers it makes; when it ends it says good-bye."""
    save_to(tmp_path, 1)
    save_to(tmp_path, 2)
    assert [1, 2] == [each.step for each in Store(tmp_path).checkpoints()]
    dcp_writer._release_runs()
    (log,) = journal.logs(tmp_path)
    assert log.closed


# A run ------------------------------------------------------------------------------------------------------------


def save_to(place, step, **state):
    dcp.save(state or {"n": torch.full((2,), step)}, storage_writer=Writer(place, step=step))


def test_a_run_that_is_not_entered_lends_its_directory_and_its_rule(tmp_path):
    """`Writer(run)` saves there, and what the run's `keep` does not keep goes; `Reader(run)` reads the newest."""
    run = Run(tmp_path, {"model": Net()}, keep=Last(2))
    for step in (1, 2, 3):
        save_to(run, step)
    assert [2, 3] == [each.step for each in Store(tmp_path).checkpoints()]
    found = {"n": torch.zeros(2)}
    dcp.load(found, storage_reader=Reader(run))
    assert [3, 3] == found["n"].tolist()


def test_inside_of_its_block_a_run_saves_by_itself(tmp_path):
    """Nothing else writes there, by whatever name: the error says what to do. Another directory is another matter."""
    run = Run(tmp_path / "run", {"model": Net()})
    early = Writer(run, step=1)
    with run:
        for place in (run, tmp_path / "run", Store(tmp_path / "run")):
            with pytest.raises(UsageError, match=r"inside of its run's block.*Run\(path, dict\(.*run.save\(\)"):
                Writer(place, step=1)
        with pytest.raises(CheckpointException, match="inside of its run's block"):
            dcp.save({"n": torch.ones(1)}, storage_writer=early)
        with pytest.raises(UsageError, match=r"inside of its run's block.*Reader\(run.path"):
            Reader(run)
        save_to(tmp_path / "other", 1)
    save_to(run, 7)
    assert 7 == Store(tmp_path / "run").latest().step


def test_each_step_is_named_and_saved_once(tmp_path):
    """By `step`, or by the checkpoint's id; a step that exists is refused, and nothing of it is changed."""
    writer = Writer(tmp_path)
    dcp.save({"n": torch.ones(1)}, checkpoint_id="5", storage_writer=writer)
    dcp.save({"n": torch.ones(2)}, checkpoint_id="6", storage_writer=writer)
    assert [each.step for each in Store(tmp_path).checkpoints()] == [5, 6]
    with pytest.raises(CheckpointException, match="already committed"):
        dcp.save({"n": torch.ones(3)}, checkpoint_id="6", storage_writer=writer)
    with pytest.raises(CheckpointException, match="which step"):
        dcp.save({"n": torch.ones(3)}, storage_writer=Writer(tmp_path))
    assert Store(tmp_path).load()["n"].shape == (2,)


def test_a_reader_of_a_run_reads_the_checkpoint_that_is_asked_for(tmp_path):
    """By `checkpoint_id` as by `step`: a step, a name, or another directory; else the one that is newest by then.

    So a reader may be made before there is anything to read.
    """
    reader = Reader(tmp_path / "run")
    for step in (1, 2):
        save_to(tmp_path / "run", step)
    save_to(tmp_path / "other", 7)

    def loaded(**options):
        found = {"n": torch.zeros(2)}
        dcp.load(found, storage_reader=options.pop("reader", reader), no_dist=True, **options)
        return found["n"][0].item()

    assert loaded() == 2
    assert loaded(checkpoint_id="1") == 1
    assert loaded(checkpoint_id="step-000000002") == 2
    assert loaded(checkpoint_id=tmp_path / "other") == 7
    assert loaded(checkpoint_id=str(tmp_path / "run/checkpoints/step-000000001")) == 1
    assert loaded(reader=Reader(tmp_path / "run"), checkpoint_id="1") == 1
    with pytest.raises(CheckpointException, match="no checkpoint of step 5"):
        loaded(checkpoint_id="5")
    assert loaded() == 2
    one = Reader(Store(tmp_path / "run").checkpoints()[0])
    save_to(tmp_path / "run", 3)
    assert [loaded(), loaded(), reader.checkpoint.step] == [3, 3, 3]
    assert [loaded(reader=one), loaded(reader=one, checkpoint_id=tmp_path / "run"), loaded(reader=one)] == [1, 3, 1]


def test_a_changed_byte_is_not_loaded(tmp_path):
    """Every piece that is read has its digest checked."""
    dcp.save(state(), storage_writer=Writer(tmp_path, step=1))
    (shard,) = (tmp_path / "checkpoints" / "step-000000001").glob("*model*")
    data = bytearray(shard.read_bytes())
    data[-30] ^= 1
    shard.write_bytes(data)
    with pytest.raises(CheckpointException, match="changed since commit"):
        dcp.load(blanks(state()), storage_reader=Reader(tmp_path))


def test_planners_that_want_pickles_are_refused(tmp_path):
    """One whose load_bytes unpickles, or that sends old plans: an error says so, and tensors alone would do."""

    class Unpickles(DefaultLoadPlanner):
        def load_bytes(self, read_item, value):
            raise AssertionError

    dcp.save(state(), storage_writer=Writer(tmp_path, step=1))
    with pytest.raises(CheckpointException, match="wants a pickle"):
        dcp.load(blanks(state()), storage_reader=Reader(tmp_path), planner=Unpickles())
    tensors = {"model": blanks(state())["model"]}
    dcp.load(tensors, storage_reader=Reader(tmp_path), planner=Unpickles())
    assert bits(state()["model"]) == bits(tensors["model"])
    with pytest.raises(UsageError, match="enable_plan_caching"):
        writer = Writer(tmp_path, step=2)
        writer.set_up_storage_writer(True)
        writer.prepare_global_plan([dcp.planner.SavePlan([], usable=False)])
    with pytest.raises(CheckpointException, match="enable_plan_caching"):  # at the first save already
        caching = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(state(), storage_writer=Writer(tmp_path, step=3), planner=caching)


def test_a_planner_of_ones_own_may_change_tensors(tmp_path):
    """What its resolve_data returns is what is saved."""

    class Halves(DefaultSavePlanner):
        def resolve_data(self, write_item):
            found = super().resolve_data(write_item)
            return found.to(torch.float16) if isinstance(found, torch.Tensor) else found

    dcp.save({"w": torch.ones(3)}, storage_writer=Writer(tmp_path, step=1), planner=Halves())
    assert Store(tmp_path).load()["w"].dtype == torch.float16


def test_a_writer_with_a_store_stays_in_its_process(tmp_path):
    """A store writes in one process: torch's process that saves needs the directory instead."""
    with pytest.raises(UsageError, match="give Writer its directory"):
        pickle.dumps(Writer(Store(tmp_path), step=1))


# Several ranks ------------------------------------------------------------------------------------------------


def both(model, optimizer):
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def built(seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = wrapped("fsdp", Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer


def save(rank, path, how="save"):
    model, optimizer = built(1)
    model(torch.randn(4, 5) + rank).sum().backward()
    optimizer.step()
    found = {**both(model, optimizer), f"of rank {rank}": {"objects": [rank, "x"], "tensor": torch.full((2,), rank)}}
    given = how in ("async", "process")
    writer: Any = Writer(Run(path, {"model": model}, keep=Last(1)) if given else path, step=1)
    if how == "fail" and rank == 1:
        writer.write_data = lambda *_: 1 / 0
    try:
        if given:
            kind = AsyncCheckpointerType.PROCESS if how == "process" else AsyncCheckpointerType.THREAD
            dcp.async_save(found, storage_writer=writer, async_checkpointer_type=kind).result()
        else:
            dcp.save(found, storage_writer=writer)
    except CheckpointException as error:  # which is no Exception
        raise RuntimeError(str(error)) from None
    return whole(found["model"]) | {f"optimizer {k}": v for k, v in whole(found["optimizer"])["state"].items()}


def load(rank, path):
    model, optimizer = built(2)
    found = both(model, optimizer)
    dcp.load(found, storage_reader=Reader(path))
    set_state_dict(model, optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    found = both(model, optimizer)
    return whole(found["model"]) | {f"optimizer {k}": v for k, v in whole(found["optimizer"])["state"].items()}


def on(world, work, **options):
    return everywhere(world, partial(work, **options), method="forkserver", timeout_s=60)


def shared(values):
    """Without batch norm's running buffers, which each rank has in its own way."""
    plain = {name: value for name, value in values.items() if "running" not in name}
    return {name: repr(value) if isinstance(value, dict) else value.tobytes() for name, value in plain.items()}


@pytest.mark.parametrize(("how", "world"), [("save", 2), ("async", 4), ("process", 2)])
def test_what_three_ranks_save_two_and_four_load(how, world, tmp_path):
    """FSDP2's state with moments, through DCP's save or async_save: each rank writes its pieces, any number reads
    them.
    """
    saved = on(3, save, path=tmp_path, how=how)
    assert [outcome.error for outcome in saved] == [""] * 3
    checkpoint = Store(tmp_path).latest()
    assert list(checkpoint.problems(cold=True)) == []
    assert [name for name in checkpoint.load() if name.startswith("of rank")] == [
        f"of rank {rank}" for rank in range(3)
    ]
    for rank in range(3):
        own = checkpoint.load(f"of rank {rank}")
        assert own["objects"] == [rank, "x"]
        assert own["tensor"].tolist() == [rank, rank]
    assert checkpoint.load("model")["first.weight"].numpy().tobytes() == saved[0].value["first.weight"].tobytes()
    loaded = on(world, load, path=tmp_path)
    assert [outcome.error for outcome in loaded] == [""] * world
    assert all(shared(outcome.value) == shared(saved[0].value) for outcome in loaded)


def test_a_rank_that_fails_commits_nothing(tmp_path):
    """All ranks get the error, and the run is as it was; the next save finds no trace of it."""
    outcomes = on(2, save, path=tmp_path, how="fail")
    assert all("division by zero" in outcome.error for outcome in outcomes)
    assert Store(tmp_path).checkpoints() == []
    assert [outcome.error for outcome in on(2, save, path=tmp_path)] == ["", ""]
    assert len(Store(tmp_path).checkpoints()) == 1


def chunked(rank, over=2, chunks=5, filled=0.0):
    """A ShardedTensor of `chunks` chunks, dealt to the ranks in turn: most ranks have several."""
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{number % over}/cpu" for number in range(chunks)])
    made = sharded_tensor.full(spec, (13, 3), filled)
    for shard in made.local_shards():
        at = shard.metadata.shard_offsets[0]
        shard.tensor += torch.arange(at, at + len(shard.tensor)).reshape(-1, 1) if filled else 0
    return {"w": made, "whole": torch.full((2,), filled), "note": [rank, "x"]}


def save_chunks(rank, path, coordinator=0, **options):
    from torch.distributed.checkpoint.state_dict_saver import _save_state_dict

    found = chunked(rank, filled=1.0, **options)
    try:
        _save_state_dict(found, Writer(path, step=1), coordinator_rank=coordinator)
    except CheckpointException as error:
        raise RuntimeError(str(error)) from None


def load_chunks(rank, path, coordinator=0, **options):
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

    found = chunked(rank, **options)
    _load_state_dict(found, Reader(path), coordinator_rank=coordinator)
    shards = [(shard.metadata.shard_offsets[0], shard.tensor.tolist()) for shard in found["w"].local_shards()]
    return [*found["whole"].tolist(), found["note"], *shards]


@pytest.mark.parametrize("coordinator", [0, 1])
def test_a_rank_may_have_several_pieces_and_any_rank_may_coordinate(coordinator, tmp_path):
    """Three of five chunks on rank 0: one tensor in the checkpoint, read back in the same and in other chunks."""
    assert [each.error for each in on(2, save_chunks, path=tmp_path, coordinator=coordinator)] == ["", ""]
    checkpoint = Store(tmp_path).latest()
    assert list(checkpoint.problems(cold=True)) == []
    state = checkpoint.load()
    expected = (torch.arange(13.0) + 1).reshape(-1, 1).expand(13, 3)
    assert torch.equal(expected, state["w"])
    for world, chunks in ((2, 5), (2, 2), (3, 7)):
        outcomes = on(world, load_chunks, path=tmp_path, over=world, chunks=chunks, coordinator=coordinator)
        assert [each.error for each in outcomes] == [""] * world
        rows = {}
        for each in outcomes:
            assert [1.0, 1.0, state["note"]] == each.value[:3]
            rows |= dict(each.value[3:])
        assert [row for at in sorted(rows) for row in rows[at]] == expected.tolist()
