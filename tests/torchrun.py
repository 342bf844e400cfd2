"""Scripts under torchrun, as processes of their own; what each rank notes is a file of JSON lines."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from holdfast.children import processes

SCRIPTS = Path(__file__).parent / "rank_scripts"
TIMEOUT_S = 240


class Ended(NamedTuple):
    code: int
    err: str


def launch(python, script, *words, restarts=0, **environment):
    """Torchrun with two ranks, each of which is `python` (a zygote's saves most of its start) with the script."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # docs/torchrun.md
    return begin([*launcher, f"--max-restarts={restarts}", *python, str(SCRIPTS / script), *words], **environment)


def begin(words, within=(), **environment):
    return subprocess.Popen(
        [*within, sys.executable, *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def ended(process):
    try:
        _, err = process.communicate(timeout=TIMEOUT_S)
        return Ended(process.returncode, err)
    finally:
        if process.poll() is None:
            for pid in (
                process.pid,
                *processes.descendants(process.pid),
            ):  # torchrun's workers have sessions of their own
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()


def by_hand(world, script, *words, within=None, **environment):
    """The ranks themselves, without a launcher that would end them all when one dies. `within`: what starts a rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    return [
        begin(
            [str(SCRIPTS / script), *map(str, words)],
            (within or {}).get(rank, ()),
            **place,
            RANK=str(rank),
            **environment,
        )
        for rank in range(world)
    ]


def notes(place, attempt, rank):
    """What a rank has noted in an attempt; nothing when it did not come to it."""
    path = place / f"{attempt}-{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
