"""Rendezvous: the ranks of one start find each other in a store that may still hold messages of an
earlier start.

torchrun may restart its workers at the same rendezvous (torch 2.13, dynamic_rendezvous.py: the
agent shares its store, and so does every restart). Messages of an earlier start must not be read.
"""

from __future__ import annotations

import time
import uuid

from ..channel import Channel, sleep_between_polls
from ..errors import RanksError


def agree_on_prefix(channel: Channel, rank: int, world: int, timeout_s: float) -> str:
    """Return a prefix for keys that all ranks of this start know, and that no earlier start had.

    Rank 0 stores a random text. Each other rank replies with that text and a random text of its
    own. When rank 0 repeats the reply, each of the two is certain that the other's message is not
    of an earlier start.

    Raises:
        RanksError: a rank did not reply in time.
    """
    mine = uuid.uuid4().hex
    return (
        _meet_as_rank_0(channel, mine, world, timeout_s)
        if rank == 0
        else _meet_rank_0(channel, mine, rank, world, timeout_s)
    )


def _meet_as_rank_0(channel: Channel, mine: str, world: int, timeout_s: float) -> str:
    until = time.monotonic() + timeout_s
    channel.put("call", mine.encode())
    answers, refusal = dict[int, str](), ""
    for rank in range(1, world):
        for _ in sleep_between_polls(until, world):
            if (answer := _text(channel, f"answer/{rank}")).startswith(f"{mine}/"):
                answers[rank] = answer
                break
        else:
            refusal = refusal or _missing_rank_text(rank, 0, timeout_s)
    for rank, answer in answers.items():
        channel.put(f"go/{rank}", f"{answer}/{refusal}".encode())
    if refusal:
        raise RanksError(refusal)
    return mine


def _meet_rank_0(channel: Channel, mine: str, rank: int, world: int, timeout_s: float) -> str:
    heard = ""
    # rank 0 waits less, so that it can tell the others which rank did not answer
    for _ in sleep_between_polls(time.monotonic() + 1.1 * timeout_s, world):
        call = _text(channel, "call")
        if call and call != heard:  # a message of an earlier start may be found first
            heard = call
            channel.put(f"answer/{rank}", f"{heard}/{mine}".encode())
        said = _text(channel, f"go/{rank}")
        if said.startswith(f"{heard}/{mine}/"):
            name, _, refusal = said.split("/", 2)
            if refusal:
                raise RanksError(refusal)
            return name
    raise RanksError(_missing_rank_text(0, rank, timeout_s))


def _text(channel: Channel, key: str) -> str:
    return (channel.get(key) or b"").decode()


def _missing_rank_text(rank: int, here: int, timeout_s: float) -> str:
    return (
        f"rank {rank} did not come to its Run within {timeout_s:.3g} "
        f"s (rank {here} waited): it has died, hangs, or "
        "went another way. HOLDFAST_RANKS_TIMEOUT_S sets the longest wait"
    )
