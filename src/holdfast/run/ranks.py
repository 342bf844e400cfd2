"""Ranks of a run: which processes belong to it, what must be equal on all of them, outcomes that
all share, and windows of safe points.

Every rank counts its safe points, and the counts agree. Some safe points are edges of windows. At
an edge all ranks do what rank 0 announced at the edge before, so ranks need not wait at each safe
point. A rank waits only for one that is more than a window behind.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec

from .. import legible
from ..errors import Damaged, NotFound, RanksError, StoreError, Unreadable, Untrusted, UsageError
from ..ranks import ALONE, Ranks, capture_outcome, differing_ranks
from ..settings import ranks_timeout_s
from ..state import tree
from ..stateful.objects import adapter_for, weight_leaves
from ..stateful.tracked import Tracked, framework_modules
from ..store import format
from ..store.parts import own_key
from ..terminal import warn
from ..threads import Worker


class _WorkOutcome(msgspec.Struct, array_like=True):
    """The outcome of one rank's work: its error's type ("" if it succeeded) and text."""

    kind: str = ""
    text: str = ""
    files: list[tuple[str, str]] = []


_WORDS = msgspec.json.Decoder(_WorkOutcome)  # made here for the reason that `format` has
T = TypeVar("T")
GOOD_BYE_S = 20.0  # how long rank 0 waits after a stop until the other ranks have learned of it
CONFESSION_S = 1.0  # how long rank 0 waits, when it fails, for a rank that failed before it
_GOES_ON = b"\0goes on"
# an error whose type name begins so follows another rank's error
_AFTERWARDS = ("RuntimeError", "RanksError", "Dist")
MOST_LINES, MOST_RANKS = 4, 8  # most lines and ranks that a message shows


def current_ranks() -> Ranks:
    """Return the ranks of this process's group; without a group, this process alone.

    Raises:
        UsageError: several processes were started, but there is no process group.
    """
    for module in framework_modules():
        found: Ranks | None = module.ranks(ranks_timeout_s())
        if found is not None:
            return found
    size = os.environ.get("WORLD_SIZE", "1")
    if size != "1":
        raise UsageError(
            f"WORLD_SIZE is {size}, and there is no process group: "
            "call torch.distributed.init_process_group() before "
            "Run. For a run of its own in each process, start them without WORLD_SIZE"
        )
    return ALONE


def facts_that_must_agree(options: Any, tracked: Tracked, drilled: object) -> dict[str, str]:
    """Return as text the options and tracked objects that must be equal on every rank."""
    alike = (
        "path keep every whole background start_from branch_from "
        "go_back overrides allow_fresh seed private mirroring "
        "stop_on_nan"
    )
    found = {name: str(getattr(options, name)) for name in alike.split()}
    found["signed"] = "no" if options.signer is None else options.signer.key.fingerprint
    found |= {
        "accept": str(sorted(options.accept)),
        "probe": "none" if options.probe is None else "given",
    }
    found |= {"vars": str(sorted(tracked.variables.state_dict())), "drilled": str(drilled)}
    for name, target in tracked.objects.items():
        found[f"state[{name!r}]"] = f"{type(target).__module__}.{type(target).__qualname__}"
    cut = tracked.cut_states()
    for name, target in tracked.self_restoring_objects().items():
        adapter = adapter_for(target)
        if name.partition("/")[0] in cut:
            continue  # each rank holds other names
        if adapter is not None and adapter.parameter_count(target) is not None:
            for key, block in tree.flatten({name: adapter.capture(target)}).leaves.items():
                found[key] = f"{block.dtype} {tuple(block.attrs.get('of', block.shape))}"
    return found


def require_equal_arguments(ranks: Ranks, mine: Mapping[str, str]) -> None:
    """Require the same arguments on all ranks.

    Raises:
        UsageError: on every rank, if one differs from rank 0; the message names the ranks and the
            differences.
    """
    data = legible.json_bytes(dict(mine))
    said = ranks.agree("arguments", format.digest(data).encode())
    odd = differing_ranks(said)
    if not odd:
        return
    first = msgspec.json.decode(ranks.announce("arguments of rank 0", data), type=dict[str, str])
    lines = ranks.agree("differences", legible.json_bytes(_differing_lines(first, mine)))
    shown = [
        f"rank {rank}: {'; '.join(msgspec.json.decode(lines[rank], type=list[str]))}"
        for rank in odd[:MOST_RANKS]
    ]
    more = f"\n  ... and {len(odd) - MOST_RANKS} more ranks" if len(odd) > MOST_RANKS else ""
    raise UsageError(
        "every rank must give Run the same arguments and the same objects; nothing was written."
        + "".join(f"\n  {line}" for line in shown)
        + more
    )


def collect_names(ranks: Ranks, tracked: Tracked) -> None:
    """Tell rank 0 which names of models that are cut over ranks some rank holds, so that it can
    tell which names of a checkpoint no rank restores.
    """
    for name, target in tracked.cut_states().items():
        mine = msgspec.json.encode(target.live_names())
        said = [mine] if ranks.alone else ranks.gather(f"the names of {name}", mine)
        if ranks.leads:
            held = (msgspec.json.decode(each, type=list[str]) for each in said)
            tracked.names_everywhere[name] = frozenset(chain.from_iterable(held))


def require_equal_replicas(ranks: Ranks, tracked: Tracked) -> None:
    """Require that ranks which hold the same parameter of a cut model hold it equal, and its
    moments. Other ranks' copies of it would be lost. So with models beside it: on another cut they
    would come back to other stages.

    Raises:
        UsageError: on every rank; it names the parameter and the ranks.
    """
    cut = tracked.cut_states()
    replicated = {name: dict(target.replicated()) for name, target in cut.items()}
    for path, model in tracked.self_restoring_objects().items() if cut else ():
        adapter = adapter_for(model)
        if path.partition("/")[0] in cut or adapter is None:
            continue
        if adapter.parameter_count(model) is not None:
            found = weight_leaves([(model, adapter.capture(model))])
            replicated[path] = {f"parameter-{place}": each for place, each in enumerate(found)}
    for name, values in replicated.items():
        leaves = tree.flatten(values).leaves
        whole = {key: block for key, block in leaves.items() if "of" not in block.attrs}
        mine = {key: format.digest(block.data) for key, block in whole.items()}
        ranks.run_on_all(
            f"the replicas in {name}",
            partial(msgspec.json.encode, mine),
            partial(_require_equal, name),
            (UsageError,),
        )


def _require_equal(name: str, said: Sequence[bytes]) -> bytes:
    first: dict[str, tuple[int, str]] = {}
    for rank, each in enumerate(said):
        for key, digest in msgspec.json.decode(each, type=dict[str, str]).items():
            other, known = first.setdefault(key, (rank, digest))
            if digest != known:
                raise UsageError(
                    f"state[{name!r}]: ranks {other} and {rank} hold {key!r} with other numbers: "
                    "replicas of one parameter must be equal, and two parameters need two names, "
                    "which ModelParts gives them. "
                    "Nothing was saved"
                )
    return b""


def _differing_lines(first: Mapping[str, str], mine: Mapping[str, str]) -> list[str]:
    keys = [key for key in {**first, **mine} if first.get(key) != mine.get(key)]
    more = [f"and {len(keys) - MOST_LINES} more"] if len(keys) > MOST_LINES else []
    return [
        f"{key} is {mine.get(key, 'nothing')}, on rank 0 {first.get(key, 'nothing')}"
        for key in keys[:MOST_LINES]
    ] + more


def run_on_all_ranks(ranks: Ranks, topic: str, work: Callable[[], T]) -> T:
    """Return the result of `work` once it has succeeded on every rank.

    Raises:
        Untrusted, Damaged, Unreadable, NotFound: the same on every rank: one of them could not use
            the checkpoint.
        HoldfastError: another error of any rank; it takes precedence over those above.
    """
    results: list[T] = []

    def try_work() -> bytes:
        word = _WorkOutcome()
        try:
            results.append(work())
        except (Damaged, NotFound, Unreadable) as error:
            if ranks.alone:
                raise
            files = error.files if isinstance(error, Unreadable) else []
            word = _WorkOutcome(type(error).__name__, str(error), files)
        return legible.json_bytes(word)

    ranks.run_on_all(topic, try_work, _raise_failure)
    return results[0]


def _raise_failure(words: Sequence[bytes]) -> bytes:
    """Raise an error if one rank failed. `words`: each rank's outcome."""
    found = [_WORDS.decode(each) for each in words]
    texts = [
        each.text if rank == 0 else f"rank {rank}: {each.text}" for rank, each in enumerate(found)
    ]
    # of the first rank
    texts_of = dict(reversed([(each.kind, text) for each, text in zip(found, texts, strict=True)]))
    for kind in (Untrusted, Damaged):
        if kind.__name__ in texts_of:
            raise kind(texts_of[kind.__name__])
    if Unreadable.__name__ in texts_of:
        raise Unreadable(
            texts_of[Unreadable.__name__], [file for every in found for file in every.files]
        )
    if found[0].kind:
        raise NotFound(found[0].text)
    for rank, each in enumerate(found):
        if each.kind:
            raise StoreError(f"rank {rank} does not see what rank 0 sees: {each.text}")
    return b""


def require_same_loop(ranks: Ranks, kind: str, total: int) -> None:
    """Require the same loop on all ranks.

    Raises:
        UsageError: on every rank, if one is about to run another loop than rank 0, or a longer one.
    """
    if differences := _describe_differences(ranks, "a loop", f"wants {total} {kind}"):
        raise UsageError(f"{differences}: every rank must run the same loop, to the same end")


def require_same_step(ranks: Ranks, name: format.CheckpointName, epoch: int | None) -> None:
    """Require that all ranks save at the same step.

    Raises:
        RanksError: on every rank, if one has reached the save at another step than rank 0.
    """
    if differences := _describe_differences(ranks, "a save", f"saves at {name}, epoch {epoch}"):
        raise RanksError(
            f"{differences}: every rank must make the same steps, and ask for the same saves"
        )


def _describe_differences(ranks: Ranks, topic: str, mine: str) -> str:
    """Return the value of rank 0 and the first ranks whose value differs;
    empty if all are equal.
    """
    said = ranks.agree(topic, legible.legible(mine).encode())
    odd = differing_ranks(said)[:MOST_RANKS]
    return "; ".join(f"rank {rank} {said[rank].decode()}" for rank in [0, *odd]) if odd else ""


def root_cause(ranks: Ranks, error: BaseException, mine: str) -> str:
    """Return the cause of `error` (described as `mine`) for the journal: another rank's own error,
    if that came first.

    A framework reports a lost rank by a RuntimeError. Errors of ranks that only noticed the loss
    are not causes.
    """
    if ranks.alone or not isinstance(error, RuntimeError | RanksError):
        return mine
    until = time.monotonic() + (CONFESSION_S if isinstance(error, RuntimeError) else 0.0)
    while True:
        found = ranks.reported_errors()
        causes = [each for each in found if not each.kind.startswith(_AFTERWARDS)]
        if causes or len(found) == ranks.world - 1 or time.monotonic() >= until:
            break
        time.sleep(0.02)
    shown = [
        f"rank {each.rank}: {each.kind}: {each.text}" for each in (causes or found)[:MOST_LINES]
    ]
    return "; ".join(shown if causes else [mine, *shown])


def lead_long_work(ranks: Ranks, topic: str, work: Callable[[], bytes], *, beside: bool) -> bytes:
    """Do rank 0's work as `Ranks.lead` does, when it may last longer than other ranks wait for a
    message.

    With `beside`, which counts on rank 0 alone, a thread does the work. Rank 0 meanwhile tells the
    other ranks that it continues.
    """
    if beside and ranks.leads and not ranks.alone:
        work = _start_in_thread(work, ranks.timeout_s / 4)
    while (word := ranks.run_on_rank_0(topic, work)) == _GOES_ON:
        pass
    return word


def _start_in_thread(work: Callable[[], bytes], pause_s: float) -> Callable[[], bytes]:
    """Start `work` in a thread. Return a function that waits briefly for it.

    That function returns the result, or `_GOES_ON`.
    """
    outcome: list[Callable[[], bytes]] = []
    worker = Worker(lambda: outcome.append(capture_outcome(work)), "holdfast at length")
    worker.start()

    def wait_briefly() -> bytes:
        worker.ended.wait(pause_s)
        return outcome[0]() if worker.ended.is_set() else _GOES_ON

    return wait_briefly


@contextmanager
def reporting_errors(ranks: Ranks) -> Iterator[None]:
    """Report an exception that leaves this block to the other ranks,
    so that they stop waiting for this rank.
    """
    try:
        yield
    except BaseException as error:
        ranks.leave(f"has left with {type(error).__name__}: {error}")
        raise


@contextmanager
def exit_barrier(ranks: Ranks, patience_s: float = GOOD_BYE_S) -> Iterator[None]:
    """Let each rank exit when no other rank needs it: rank 0 last, because it may host the
    rendezvous.

    It waits at most `patience_s`. The journal's last line is written before, so a lost rank changes
    nothing.
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
    certain = ranks.leads and failure is None
    try:
        ranks.run_on_rank_0("the good-bye", done)
        certain = True
        ranks.gather("the good-bye", patience_s=patience_s)
    except RanksError as error:
        if not certain:
            raise
        warn(f"all is saved and said, and rank {ranks.rank} leaves; but {error}")
    done()


def merge_digests(ranks: Ranks, digests: Mapping[str, str]) -> dict[str, str]:
    """Return on rank 0 the digests of all ranks. Where another rank has a different one, it
    gets a key of its own.
    """
    found = dict(digests)
    for rank, each in enumerate(ranks.gather("digests", msgspec.json.encode(found))):
        theirs = dict.fromkeys(digests, "") | msgspec.json.decode(each, type=dict[str, str])
        found |= {
            own_key(rank, key): digest
            for key, digest in theirs.items()
            if digests.get(key) != digest
        }
    return found


WINDOW_S = 0.1  # duration of a window
# per window: when steps become slower, an order still takes two windows of slow steps
MOST_POINTS = 50
SWEEP = 4096  # edges after which rank 0 deletes announcements that all ranks have read


class RankOrder(msgspec.Struct, frozen=True, array_like=True):
    """What every rank must do at one window edge."""

    points: int = 1  # from this edge to the next
    stop: str = ""  # the reason; empty: continue
    save: bool = False
    land: bool = False  # take the outcome of the save in flight


NOTHING = RankOrder()
_ORDERS = msgspec.msgpack.Decoder(RankOrder)  # made here for the reason that `format` has


class OrderWindows:
    """One run's safe points, on one rank.

    order = windows.arrive()            # at every safe point, on every rank
    if windows.leading: windows.say(...)   # rank 0 at an edge: what happens at the next one
    """

    def __init__(
        self,
        ranks: Ranks,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_points: int = MOST_POINTS,
    ) -> None:
        self._ranks, self._words, self._clock, self._most = (
            ranks,
            ranks.separate_conversation("windows"),
            clock,
            most_points,
        )
        self.point, self._last_edge, self._edge, self._edges = 0, 0, 1, 0
        self._said = NOTHING
        self._began_at, self._began_s, self._point_s = 0, clock(), WINDOW_S
        self.spent: list[Ranks] = []  # channels to delete when all ranks have reached another edge
        self.said_at = 0  # the safe point at which the present order was announced
        self._wished = False  # rank 0 has received the signal that reached this rank
        self.leading = False  # this is rank 0 at an edge, and it has not announced the next one
        if ranks.leads:
            self._send_order(NOTHING)

    def count_safe_point(self) -> RankOrder:
        """Count one safe point; return what to do there.

        Raises:
            RanksError: rank 0 did not reach the edge before this one in time.
        """
        self.point += 1
        if self.point != self._edge:
            return NOTHING
        self._edges += 1
        self.said_at, self._last_edge = self._last_edge, self.point
        order = self._said
        if self._ranks.rank:
            order = _ORDERS.decode(self._words.announce("window"))
        else:
            self.leading = True
            now = self._clock()
            self._point_s = (now - self._began_s) / (self.point - self._began_at)
            self._began_at, self._began_s = self.point, now
        if self._edges % SWEEP == 0:  # a rank that responds has read the announcement of this edge
            self._ranks.gather("windows")
            for each in (self._words, *self.spent):
                each.sweep()
            self.spent.clear()
        self._edge += order.points
        return order

    def report_signal(self, reason: str) -> None:
        """Report to rank 0, once, a signal that this rank received."""
        if not self._wished:
            self._wished = True
            self._ranks.leave_request(reason)

    @property
    def order_delay_s(self) -> float:
        """Seconds, at the current pace, until an order takes effect that rank 0 has not
        announced yet.
        """
        return (self._edge - self.point + self._choose_window_length()) * self._point_s

    def announce_order(self, *, stop: str = "", save: bool = False, land: bool = False) -> None:
        """On rank 0, at an edge: announce what happens at the next one."""
        self._send_order(RankOrder(self._choose_window_length(), stop, save, land))

    def _choose_window_length(self) -> int:
        """Safe points that fit into WINDOW_S: at most twice,
        at least a quarter of the last number.
        """
        wanted, last = int(WINDOW_S / max(self._point_s, 1e-9)), self._said.points
        return max(1, last // 4, min(wanted, 2 * last, self._most))

    def _send_order(self, order: RankOrder) -> None:
        self._words.announce("window", msgspec.msgpack.encode(order))
        self._said, self.leading = order, False
