"""Checkpoints that real libraries write, small, for tests that damage them; and pickles that want to do harm."""

import json
import pickle
import shutil
import warnings
from collections import OrderedDict
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn


def trained():
    """A small model and its optimizer, with a tied and a transposed weight."""
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(first=nn.Linear(3, 4), second=nn.Linear(4, 3, bias=False)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def state():
    model, optimizer = trained()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "global_step": 17}


def torch_zip(folder):
    torch.save(state(), folder / "step17.pt")
    return folder / "step17.pt"


def torch_zip_without_crc(folder):
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state(), folder / "plain.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    return folder / "plain.pt"


def torch_script(folder):
    torch.jit.script(trained()[0]).save(str(folder / "script.pt"))
    return folder / "script.pt"


def one_safetensors(folder):
    safetensors.torch.save_file(trained()[0].state_dict(), folder / "weights.safetensors", {"format": "pt"})
    return folder / "weights.safetensors"


def hugging_face(folder):
    """As Trainer writes: shards with an index, the optimizer, and its own state."""
    made = folder / "checkpoint-17"
    made.mkdir()
    weights, where = trained()[0].state_dict(), {}
    for number, names in enumerate([["first.weight", "first.bias"], ["second.weight"]], 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        safetensors.torch.save_file({name: weights[name] for name in names}, made / file, {"format": "pt"})
        where |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": 96}, "weight_map": where}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    torch.save(state()["optimizer"], made / "optimizer.pt")
    (made / "trainer_state.json").write_text(
        json.dumps({"global_step": 17, "epoch": 3.0, "log_history": [{"loss": 1}]})
    )
    (made / "config.json").write_text("{}")
    return made


def hugging_face_bin(folder):
    made = folder / "old-17"
    made.mkdir()
    torch.save(trained()[0].state_dict(), made / "pytorch_model.bin")
    (made / "config.json").write_text("{}")
    return made


def distributed(folder):
    with warnings.catch_warnings(action="ignore"):  # it says that this is one process
        dcp.save(state(), checkpoint_id=folder / "distributed")
    return folder / "distributed"


WRITERS = {
    each.__name__: each
    for each in (
        torch_zip,
        torch_zip_without_crc,
        torch_script,
        one_safetensors,
        hugging_face,
        hugging_face_bin,
        distributed,
    )
}
PROVEN = {"torch_zip", "torch_script", "hugging_face_bin", "distributed"}  # every tensor has a CRC-32


def written(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    made = folder / name
    made.mkdir()
    return WRITERS[name](made)


def copied(made: Path, target: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(made, target) if made.is_dir() else shutil.copy(made, target))


def files(made: Path):
    return sorted(made.iterdir()) if made.is_dir() else [made]


# Pickles that want to do harm ------------------------------------------------------------------------------------


class Calls:
    """Unpickled, it would call a function."""

    def __init__(self, function, *args):
        self._made = function, args

    def __reduce__(self):
        return self._made


def laughs(depth=60):
    """A billion laughs: each list holds the one before twice, and the memo makes that cheap to write."""
    return b"\x80\x02]q\x00" + b"".join(b"]q\x01(h\x00h\x00eq\x00" for _ in range(depth)) + b"."


def deep(depth=100_000):
    return b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b"."


def itself():
    found = []
    found.append(found)
    return pickle.dumps(found, 2)
