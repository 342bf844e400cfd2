"""What a killed fit leaves at W&B: one run, with a file for each attempt."""

import json
import time

import pytest

from framework_runs import trained

MODULES = ("struck", "torch", "holdfast.lightning", "holdfast.torch.program", "lightning.pytorch", "wandb")
BLOCK, HEAD, MAGIC = 32768, 7, 7  # of LevelDB's log format, in which W&B writes records; W&B's own first bytes


def records(path):
    """Each whole record of a file of W&B: checksum, length and kind, then bytes; a record may have several pieces."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), MAGIC, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:  # the rest of the block is empty
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        piece = data[at + HEAD : at + HEAD + length]
        if len(piece) < length or kind == 0:
            return  # W&B's process has ended while it wrote
        at += HEAD + length
        whole = piece if kind in (1, 2) else whole + piece  # 1: whole, 2: first, 3: middle, 4: last
        if kind in (1, 4):
            yield Record.FromString(whole)


def ended(path, limit_s=60):
    """All records, once W&B's own process has written the last one."""
    end = time.monotonic() + limit_s
    while not any(record.HasField("exit") for record in records(path)):
        assert time.monotonic() < end, path
        time.sleep(0.05)
    return records(path)


def steps(found):
    """The trainer's steps in the history of a run."""
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in found
        if record.HasField("history")
    ]
    return [row["trainer/global_step"] for row in rows if "loss" in row]


def test_wandb_goes_on_under_its_id(zygotes, tmp_path):
    """Steps of an attempt that saved at its end stand there once; of a killed one W&B has what it had written."""
    pytest.importorskip("wandb")
    strikes = ("batch:5:KILL", "batch:4:TERM")  # with a checkpoint of step 3
    done = trained(zygotes(*MODULES), "lightning_wandb", tmp_path, strikes=strikes)
    run = json.loads(done.result)
    assert "allow" == run["resume"]
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    assert [f"run-{run['id']}.wandb"] * 3 == [path.name for path in files]
    killed, stopped, last = files
    written = steps(records(killed))
    assert [*range(5)][: len(written)] == written
    assert [3, 4, 5, 6] == steps(ended(stopped))
    assert [*range(7, 20)] == steps(ended(last))
    assert 2 == done.said.count(f"W&B goes on with run {run['id']}")
