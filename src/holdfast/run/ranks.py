"""Ranks of a run: which processes are in it, what they have to have in common, and outcomes that are the same for all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from .. import legible
from ..errors import Damaged, NotFound, RanksError, StoreError, UsageError
from ..ranks import ALONE, Ranks, differing
from ..state import tree
from ..store import format
from ..store.parts import own_key
from ..terminal import warn
from .settings import ranks_timeout_s
from .tracked import Tracked, adapter_for, framework_modules
from .vars import Vars

T = TypeVar("T")
GOOD_BYE_S = 20.0  # that rank 0, when the run has stopped, waits for the others to hear of it
CONFESSION_S = 1.0  # that rank 0, when it fails, waits for a rank to say that it was the first
_AFTERWARDS = ("RuntimeError", "RanksError", "Dist")  # how kinds begin of errors that come of another rank's
MOST_LINES, MOST_RANKS = 4, 8  # of what differs, that a message shows


def here() -> Ranks:
    """The ranks of which this process is one: as its framework's process group says, else it is alone.

    Raises:
        UsageError: it was started as one of several, and there is no process group.
    """
    for module in framework_modules():
        found: Ranks | None = module.ranks(ranks_timeout_s())
        if found is not None:
            return found
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1":
        raise UsageError(
            f"WORLD_SIZE is {size}, and there is no process group: call torch.distributed.init_process_group() before "
            "Run. Should each of these processes make a run of its own, start them without WORLD_SIZE"
        )
    return ALONE


def facts(options: Any, tracked: Tracked, variables: Vars, drilled: object) -> dict[str, str]:
    """What has to be the same on every rank, in words: the caller's options, and what is tracked."""
    alike = "path keep every whole background start_from branch_from go_back overrides allow_fresh seed"
    found = {name: str(getattr(options, name)) for name in alike.split()}
    found |= {"accept": str(sorted(options.accept)), "probe": "none" if options.probe is None else "given"}
    found |= {"vars": str(sorted(variables.state_dict())), "drilled": str(drilled)}
    for name, target in tracked.objects.items():
        found[f"state[{name!r}]"] = f"{type(target).__module__}.{type(target).__qualname__}"
    for name, target in tracked.inside().items():
        adapter = adapter_for(target)
        if adapter is not None and adapter.parameter_count(target) is not None:
            for key, block in tree.flatten({name: adapter.capture(target)}).leaves.items():
                found[key] = f"{block.dtype} {tuple(block.attrs.get('of', block.shape))}"
    return found


def require_alike(ranks: Ranks, mine: Mapping[str, str]) -> None:
    """
    Raises:
        UsageError: on every rank, when one says something else than rank 0; it names the ranks and what differs.
    """
    data = legible.json_bytes(dict(mine))
    said = ranks.agree("arguments", format.digest(data).encode())
    odd = differing(said)
    if not odd:
        return
    first = msgspec.json.decode(ranks.announce("arguments of rank 0", data), type=dict[str, str])
    lines = ranks.agree("differences", legible.json_bytes(_lines(first, mine)))
    shown = [f"rank {rank}: {'; '.join(msgspec.json.decode(lines[rank], type=list[str]))}" for rank in odd[:MOST_RANKS]]
    more = f"\n  ... and {len(odd) - MOST_RANKS} more ranks" if len(odd) > MOST_RANKS else ""
    raise UsageError(
        "every rank must give Run the same arguments and the same objects; nothing was written."
        + "".join(f"\n  {line}" for line in shown)
        + more
    )


def _lines(first: Mapping[str, str], mine: Mapping[str, str]) -> list[str]:
    def said(facts: Mapping[str, str], key: str) -> str:
        return facts.get(key, "nothing")

    keys = [key for key in {**first, **mine} if first.get(key) != mine.get(key)]
    more = [f"and {len(keys) - MOST_LINES} more"] if len(keys) > MOST_LINES else []
    return [f"{key} is {said(mine, key)}, on rank 0 {said(first, key)}" for key in keys[:MOST_LINES]] + more


def agreed(ranks: Ranks, topic: str, work: Callable[[], T]) -> T:
    """What `work` returns when it has succeeded on every rank.

    Raises:
        Damaged, NotFound: the same one on every rank: what one of them read was no good.
        HoldfastError: another error of this or of any rank, which goes before these.
    """
    if ranks.alone:
        return work()
    result, poor, wrong = None, None, None
    try:
        result = work()
    except (Damaged, NotFound) as error:
        poor = error
    except Exception as error:
        wrong = error
    ranks.report(topic, wrong)
    mine = ("" if poor is None else type(poor).__name__, str(poor))
    found = ranks.agree(topic, legible.json_bytes(mine))
    _require_good([msgspec.json.decode(each, type=tuple[str, str]) for each in found])
    return result  # type: ignore[return-value]


def _require_good(found: Sequence[tuple[str, str]]) -> None:
    """`found`: by rank, the kind of what it came to and the message; no kind: all went well."""
    for rank, (kind, text) in enumerate(found):
        if kind == Damaged.__name__:
            raise Damaged(text if rank == 0 else f"rank {rank}: {text}")
    if found[0][0]:
        raise NotFound(found[0][1])
    for rank, (kind, text) in enumerate(found):
        if kind:
            raise StoreError(f"rank {rank} does not see what rank 0 sees: {text}")


def require_one_loop(ranks: Ranks, kind: str, total: int) -> None:
    """
    Raises:
        UsageError: on every rank, when one is to go through another loop than rank 0, or further.
    """
    first, others = _compared(ranks, "a loop", f"{total} {kind}")
    if others:
        shown = ", ".join(f"rank {rank} wants {theirs}" for rank, theirs in others.items())
        raise UsageError(f"{shown}, and rank 0 {first}: every rank must run the same loop, to the same end")


def require_one_place(ranks: Ranks, name: format.Name, epoch: int | None) -> None:
    """
    Raises:
        RanksError: on every rank, when one has come to the save at another step than rank 0.
    """
    first, others = _compared(ranks, "a save", f"{name}, epoch {epoch}")
    if others:
        shown = "; ".join(f"rank {rank} at {theirs}" for rank, theirs in others.items())
        raise RanksError(
            f"rank 0 saves at {first}, and {shown}: every rank must make the same steps, and ask for the same saves"
        )


def _compared(ranks: Ranks, topic: str, mine: str) -> tuple[str, dict[int, str]]:
    """What rank 0 says, and who says something else; no more of these than a message shows."""
    if ranks.alone:
        return mine, {}
    said = ranks.agree(topic, legible.legible(mine).encode())
    return said[0].decode(), {rank: said[rank].decode() for rank in differing(said)[:MOST_RANKS]}


def blamed(ranks: Ranks, error: BaseException, mine: str) -> str:
    """What the journal says of `error`, described as `mine`: when a rank was lost, that rank's own error.

    A framework tells of a lost rank by a RuntimeError. Of others that are lost by the same one, what they say comes after it.
    """
    if ranks.alone or not isinstance(error, RuntimeError | RanksError):
        return mine
    until = time.monotonic() + (CONFESSION_S if isinstance(error, RuntimeError) else 0.0)
    while True:
        found = ranks.confessed()
        causes = [each for each in found if not each.kind.startswith(_AFTERWARDS)]
        if causes or len(found) == ranks.world - 1 or time.monotonic() >= until:
            break
        time.sleep(0.02)
    shown = [f"rank {each.rank}: {each.kind}: {each.text}" for each in (causes or found)[:MOST_LINES]]
    return "; ".join(shown if causes else [mine, *shown])


@contextmanager
def present(ranks: Ranks) -> Iterator[None]:
    """Whatever leaves the block is told to the others: they need not wait for this rank."""
    try:
        yield
    except BaseException as error:
        ranks.leave(f"has left with {type(error).__name__}: {error}")
        raise


@contextmanager
def parting(ranks: Ranks, patience_s: float = GOOD_BYE_S) -> Iterator[None]:
    """The last that a rank does; it leaves when rank 0 has done its, and rank 0 when nobody needs it any more.

    Rank 0 may hold the rendezvous. It waits for so long, and then leaves all the same: when its last line is written a rank
    that is lost changes nothing any more.
    """
    failure = None

    def done() -> bytes:
        if failure is not None:
            raise failure
        return b""

    try:
        yield
    except Exception as error:
        failure = error
    certain = ranks.rank == 0 and failure is None
    try:
        ranks.lead("the good-bye", done)
        certain = True
        ranks.gather("the good-bye", patience_s=patience_s)
    except RanksError as error:
        if not certain:
            raise
        warn(f"all is saved and said, and rank {ranks.rank} leaves; but {error}")
    done()


def merged(ranks: Ranks, digests: Mapping[str, str]) -> dict[str, str]:
    """On rank 0 the digests of all ranks: what another one has otherwise, under a key of its own."""
    if ranks.alone:
        return dict(digests)
    found = dict(digests)
    said = ranks.gather("digests", msgspec.json.encode(dict(digests)))
    for rank, each in enumerate(said):
        theirs = msgspec.json.decode(each, type=dict[str, str])
        found |= {own_key(rank, key): digest for key, digest in theirs.items() if digests.get(key) != digest}
        found |= {own_key(rank, key): "" for key in digests.keys() - theirs.keys()}
    return found
