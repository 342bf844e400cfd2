"""torch.distributed.checkpoint through Writer and Reader: what is no tensor, and tensors of unusual kinds."""

import dataclasses
import enum
import io
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from holdfast import Store, register
from holdfast.state import codec
from holdfast.torch import Reader, Writer

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled, unavailable or uninitialized:UserWarning"
)


def save_to(place, step, **state):
    dcp.save(state, storage_writer=Writer(place, step=step))


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Setting:
    rate: float
    color: Color
    mask: torch.Tensor


def test_objects_come_back_in_their_own_types(tmp_path, monkeypatch):
    """dtypes, devices, registered and the user's own types: the values themselves, or an error; no placeholder."""
    monkeypatch.setattr(codec, "REGISTERED", dict(codec.REGISTERED))
    register(io.BytesIO, io.BytesIO.getvalue, io.BytesIO)
    objects: dict[str, Any] = {
        "plain": {"dtype": torch.bfloat16, "device": torch.device("cpu"), "size": torch.Size([2, 3])},
        "long": io.BytesIO(bytes(range(256)) * 8),
        "generator": np.random.default_rng(3),
        "steps": [{"dtypes": {torch.float16}}],
    }
    own = {"color": Color.RED, "setting": Setting(0.5, Color.RED, torch.arange(3))}
    save_to(tmp_path, 1, **objects, **own, w=torch.ones(2))

    def loaded(*names, **options):
        found = dict.fromkeys(names)
        dcp.load(found, storage_reader=Reader(tmp_path, **options))
        return found

    found: dict[str, Any] = {
        "plain": dict.fromkeys(objects["plain"]),
        "long": None,
        "generator": None,
        "steps": [{"dtypes": None}],
    }
    dcp.load(found, storage_reader=Reader(tmp_path))
    assert objects["plain"] == found["plain"]
    assert objects["long"].getvalue() == found["long"].getvalue()
    assert objects["generator"].random() == found["generator"].random()
    assert objects["steps"] == found["steps"]
    with pytest.raises(CheckpointException, match=r"values of .*Color: pass types=\[Color\]"):
        loaded("color")
    mine = loaded("color", "setting", types=[Color, Setting])
    assert mine["color"] is Color.RED
    assert (mine["setting"].rate, mine["setting"].color) == (0.5, Color.RED)
    assert mine["setting"].mask.tolist() == [0, 1, 2]


def test_tensors_that_share_memory_are_read(tmp_path):
    """A run saves them as views of one leaf; DCP reads each whole, and a part of it."""
    base = torch.arange(12.0)
    store = Store(tmp_path)
    store.save({"a": base[2:8].view(2, 3), "b": base[4:10], "t": base.view(3, 4).t()}, step=1)
    store.close()
    found = {"a": torch.zeros(2, 3, dtype=torch.float64), "b": torch.zeros(6), "t": torch.zeros(4, 3)}
    dcp.load(found, storage_reader=Reader(tmp_path))
    assert base[2:8].tolist() == found["a"].flatten().tolist()
    assert base[4:10].tolist() == found["b"].tolist()
    assert torch.equal(base.view(3, 4).t(), found["t"])


def test_what_cannot_be_saved_is_named(tmp_path):
    """The name is in the error; tensors within an object would not be found again."""
    with pytest.raises(CheckpointException, match=r"^[\s\S]*m.s: its layout is torch.sparse_coo"):
        save_to(tmp_path, 1, m={"s": torch.eye(2).to_sparse()})
    apart = DefaultSavePlanner(flatten_state_dict=False)
    for state in ({"m": {"w": torch.ones(1)}}, {"m": {"rate": 0.5}}):
        with pytest.raises(CheckpointException, match="m: with flatten_state_dict=False"):
            dcp.save(state, storage_writer=Writer(tmp_path, step=1), planner=apart)
    dcp.save({"w": torch.ones(1)}, storage_writer=Writer(tmp_path, step=1), planner=apart)
