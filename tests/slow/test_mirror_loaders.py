"""fsspec's threads and the loader's forks live together: the libraries run in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from servers import s3_server
from toy import events

SCRIPT = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset
from holdfast import Every, Last, Run
from struck import digest

def train(path, mirror):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 8))
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(data, 8, shuffle=True, num_workers=2, multiprocessing_context="fork")
    state = dict(model=model, optimizer=optimizer)
    with Run(path, state, every=Every(steps=2), keep=Last(3), mirror=mirror) as run:
        for epoch in run.epochs(4):
            for (x,) in run.batches(loader):
                loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    return digest({name: value.numpy() for name, value in model.state_dict().items()})

with_mirror = train(sys.argv[1] + "/with", [sys.argv[2]])
assert not {"fsspec", "s3fs", "aiobotocore", "paramiko"} & sys.modules.keys()
assert with_mirror == train(sys.argv[1] + "/without", None)
print("the same bits")
"""


@pytest.fixture
def server():
    with s3_server() as found:
        yield found


def test_forked_loaders_beside_a_mirror_end_and_change_no_bit(tmp_path, server):
    """Eight forks of workers while checkpoints go to S3: the training ends, with the bits of one without a mirror."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, **server.environment, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-W", "ignore", str(script), str(tmp_path), server.url("run")]
    done = subprocess.run(words, env=environment, check=False, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["the same bits"]), done.stderr
    assert len(events(tmp_path / "with", "mirrored")) >= 2
    assert [] == events(tmp_path / "without", "mirrored")
