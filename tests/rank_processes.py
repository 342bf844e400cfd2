"""Ranks that are real processes in a gloo process group of torch's."""

import gc
import os
import signal
import socket
import traceback
from multiprocessing import Pipe, get_context
from typing import Any, NamedTuple

import torch.distributed as dist

HANGS_S = 240  # a rank that takes so long never ends: it is made to say where it stands


class Outcome(NamedTuple):
    """What became of one rank. One that ended without an answer has no value; its error is "Gone" or "Hung", and
    why.
    """

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
    listening = None if hosted else socket.create_server(("127.0.0.1", 0), backlog=world)
    port = _free_port() if listening is None else listening.getsockname()[1]
    inherited = listening if method == "fork" else None
    running = []
    for rank in range(world):
        hear, say = Pipe(duplex=False)
        process = context.Process(target=_rank, args=(rank, world, port, inherited, hosted, timeout_s, work, say))
        process.start()
        say.close()
        running.append((process, hear))
    store = _store(listening) if listening is not None else None  # as long as they live
    outcomes = [_outcome(process, hear) for process, hear in running]
    del store
    return outcomes


def _store(listening):
    """Begun when all are forked: its thread asks for names of hosts, and a rank forked meanwhile has glibc's lock
    for that taken.
    """
    port, descriptor = listening.getsockname()[1], listening.detach()
    return dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)


def _free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _rank(rank, world, port, inherited, hosted, timeout_s, work, say):
    gc.freeze()  # garbage of the process that forked us: the end of a store would wait for a thread that is not here
    if inherited is not None:
        inherited.close()  # else who asks a store that is gone would wait for its answer
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
    hangs = not hear.poll(HANGS_S)
    if hangs:
        os.kill(process.pid, signal.SIGABRT)  # which faulthandler hears, where pytest has turned it on
    try:
        value, error = hear.recv()
    except EOFError:
        value, error = None, None
    process.join()
    if error is None:
        error = f"Hung: no answer within {HANGS_S} s" if hangs else f"Gone: exit code {process.exitcode}"
    return Outcome(value, error, process.exitcode)
