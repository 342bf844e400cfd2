"""Ranks that are real processes in a gloo process group of torch's."""

import os
import socket
import traceback
from multiprocessing import Pipe, get_context
from typing import Any, NamedTuple

import torch.distributed as dist


class Outcome(NamedTuple):
    """What became of one rank: `exit_code` is negative when a signal ended it, and then there is no value and no error."""

    value: Any
    error: str  # "UsageError: what it says"
    exit_code: int


def everywhere(world, work, *, timeout_s=30.0, method="fork", hosted=False):
    """What `work(rank)` came to on each of so many processes, which are one process group. Their store lives here, as
    torchrun's does in its agent; `hosted`: with rank 0, as it does without a launcher.

    They are forked from this one. If it may have made a backward pass, whose threads no fork survives: from a server
    without any (`method="forkserver"`), and then `work` has to be a function of a module, or a partial of one.
    """
    context = get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["rank_training", "torch._dynamo"])
    store = None if hosted else dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    port = _free_port() if store is None else store.port
    running = []
    for rank in range(world):
        hear, say = Pipe(duplex=False)
        process = context.Process(target=_rank, args=(rank, world, port, hosted, timeout_s, work, say))
        process.start()
        say.close()
        running.append((process, hear))
    return [_outcome(process, hear) for process, hear in running]


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _rank(rank, world, port, hosted, timeout_s, work, say):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "HOLDFAST_RANKS_TIMEOUT_S": str(timeout_s)}
    store = dist.TCPStore("127.0.0.1", port, is_master=hosted and rank == 0, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    try:
        said = (work(rank), "")
    except Exception as error:
        traceback.print_exc()
        said = (None, f"{type(error).__name__}: {error}")
    say.send(said)
    os._exit(0)  # no good-bye to the others, who may wait for words of ours


def _outcome(process, hear):
    try:
        value, error = hear.recv()
    except EOFError:
        value, error = None, ""
    process.join()
    return Outcome(value, error, process.exitcode)
