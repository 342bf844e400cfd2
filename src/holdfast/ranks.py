"""Ranks: the processes that make one attempt of a run together, and the messages between them.

No collective of a framework is used here. Messages go through a store of keys and values, such as
torch's. Another thread needs ranks of its own: `for_thread`. Every wait has a deadline, and its
error names the missing rank.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from . import errors
from .channel import Channel, NoChannel, RankMessage, discard, receive, send, sleep_between_polls
from .errors import RanksError
from .legible import legible

TIMEOUT_S = 600.0  # how long to wait for a rank; a save of another rank may take that long
LATE_S = 0.01  # a rank that rank 0 waits for so long came after those before it
LEFT_S = 0.2  # between two checks whether a rank has left
_WISH, _LEFT, _FAILED = "wish", "left", "failed"  # keys that belong to no conversation


class Failure(msgspec.Struct, frozen=True):
    """The error of a rank: its kind and its message."""

    rank: int
    kind: str
    text: str


class _Result(msgspec.Struct, frozen=True, array_like=True):
    """The result of some work on a rank."""

    value: bytes = b""
    failure: Failure | None = None


_FAILURES, _RESULTS = (
    msgspec.msgpack.Decoder(Failure),
    msgspec.msgpack.Decoder(_Result),
)  # made here for the reason that `format` has


class _Outcome(NamedTuple):
    result: _Result
    error: Exception | None = None  # raised on this rank


class Ranks:
    """All ranks call the same methods in the same order. If one does not, all get an error that
    says where each is.

    ranks.announce("checkpoint", name)      # from rank 0 to all
    ranks.gather("digests", mine)           # from all to rank 0
    ranks.agree("arguments", mine)          # from all to all
    with ranks.together("restore"): ...     # an error on one rank is raised on all
    ranks.run_on_all("save", write, publish) # all ranks work; then rank 0 works with their results
    """

    def __init__(
        self,
        rank: int = 0,
        world: int = 1,
        channel: Channel | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        under: str = "",
        place: Callable[[], str] = str,
    ) -> None:
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        # a prefix of all keys of this conversation
        self._channel, self._under = channel or NoChannel(), under
        self.place = place  # returns where this rank's program is, for messages; empty: unknown
        self._sent, self._twins = 0, Counter[str]()
        self._old: list[str] = []  # rank 0's announcements; droppable after the next `gather`
        # on rank 0: which rank came last to the last `gather`, and how long rank 0 waited for all
        self.late = 0, 0.0

    @property
    def alone(self) -> bool:
        return self.world == 1

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides, journals and prints for all."""
        return self.rank == 0

    def for_thread(self, name: str) -> Ranks:
        """Return the same ranks in a new conversation, for another thread; each call makes a new
        one.
        """
        self._twins[name] += 1
        return self._new_conversation(f"{name}-{self._twins[name]}", self._channel.reconnect())

    def separate_conversation(self, name: str) -> Ranks:
        """Return the same ranks in a separate conversation, in the same thread."""
        return self._new_conversation(name, self._channel)

    def _new_conversation(self, name: str, channel: Channel) -> Ranks:
        if self.alone:
            return self
        under = f"{self._under}{name}/"
        return Ranks(
            self.rank, self.world, channel, timeout_s=self.timeout_s, under=under, place=self.place
        )

    def leave_request(self, text: str) -> None:
        """Leave a text for rank 0, which calls `pending_request`. It replaces the text of any rank
        before.
        """
        self._channel.put(_WISH, legible(text).encode())

    def pending_request(self) -> str | None:
        """Return the text of the last `leave_request` of any rank, without waiting."""
        found = self._channel.get(_WISH)
        return None if found is None else found.decode()

    def mark(self, what: str) -> None:
        """Record that this rank has done something; `all_marked` checks for it."""
        self._channel.put(f"{self._under}{what}/{self.rank}", b"")

    def all_marked(self, what: str) -> bool:
        """Return whether all ranks but 0 have called `mark` with that text by now."""
        keys = (f"{self._under}{what}/{rank}" for rank in range(1, self.world))
        return all(self._channel.get(key) is not None for key in keys)

    def report_error(self, error: BaseException) -> None:
        """Record, before this rank ends with `error`, its kind and first line for
        `reported_errors`.
        """
        failure = _failure(self.rank, error)
        short = msgspec.structs.replace(failure, text=failure.text.partition("\n")[0][:500])
        with suppress(RanksError):
            self._channel.put(f"{_FAILED}/{self.rank}", msgspec.msgpack.encode(short))

    def reported_errors(self) -> list[Failure]:
        """Return the errors that other ranks have recorded with `report_error`, without waiting."""
        found = []
        with suppress(RanksError):
            for rank in range(self.world):
                data = self._channel.get(f"{_FAILED}/{rank}") if rank != self.rank else None
                if data is not None:
                    found.append(_FAILURES.decode(data))
        return found

    def leave(self, why: str) -> None:
        """End the waits of the other ranks, in every conversation: this rank sends no more
        messages.
        """
        self._announce_departure(f"rank {self.rank} {why}")

    def _announce_departure(self, why: str) -> RanksError:
        with suppress(RanksError):  # the rendezvous may be gone, too
            if self._channel.get(_LEFT) is None:
                self._channel.put(_LEFT, legible(why).encode())
        return RanksError(why)

    def sweep(self) -> None:
        """Drop rank 0's announcements. The caller must be sure that all ranks have read them."""
        while self._old:
            discard(self._channel, self._old.pop())

    def announce(self, topic: str, value: bytes = b"") -> bytes:
        """Return rank 0's `value` on every rank.

        Raises:
            RanksError: rank 0 did not send it in time, or sent something else.
        """
        if self.alone:
            return value
        key = self._next_key()
        if self.rank:
            return self._received_from(key, topic, 0, time.monotonic())
        send(self._channel, key, RankMessage(topic, value, self.place()))
        self._old.append(key)
        return value

    def gather(
        self, topic: str, value: bytes = b"", patience_s: float = float("inf")
    ) -> list[bytes]:
        """Return every rank's `value` on rank 0, by rank; elsewhere nothing.

        Raises:
            RanksError: a rank did not send it in time (nor within `patience_s`, if less), or sent
                another topic.
        """
        key = self._next_key()
        if self.rank:
            send(self._channel, f"{key}/{self.rank}", RankMessage(topic, value, self.place()))
            return []
        began = came_s = time.monotonic()
        found, last = [value], 0
        for rank in range(1, self.world):
            found.append(self._received_from(f"{key}/{rank}", topic, rank, began, patience_s))
            if (now_s := time.monotonic()) - came_s > LATE_S:
                last = rank
            discard(self._channel, f"{key}/{rank}")
            came_s = time.monotonic()
        self.late = last, now_s - began if last else 0.0
        self.sweep()
        return found

    def agree(self, topic: str, value: bytes = b"") -> list[bytes]:
        """Return every rank's `value` on every rank, by rank."""
        found = self.gather(topic, value)
        return msgspec.msgpack.decode(
            self.announce(topic, msgspec.msgpack.encode(found)), type=list[bytes]
        )

    @contextmanager
    def together(self, topic: str, known: Sequence[type[Exception]] = ()) -> Iterator[None]:
        """Raise, at the end of the block, an error of one rank on all: elsewhere as an error of the
        same kind.

        `known`: kinds that are passed on besides our own errors. Exits that are not errors (Ctrl-C,
        a stop) are not passed on, so the other ranks keep waiting.
        """
        failure = None
        try:
            yield
        except Exception as error:
            failure = error
        self.report(topic, failure, known)

    def report(
        self, topic: str, error: Exception | None = None, known: Sequence[type[Exception]] = ()
    ) -> None:
        """Return when every rank has reached this call without an error.

        Raises:
            Exception: this rank's own error; another rank's of a `known` kind.
            HoldfastError: another rank's, of its own kind if that is one of ours.
        """
        self.run_on_all(topic, returning(error=error), known=known)

    def run_on_rank_0(
        self, topic: str, work: Callable[[], bytes], known: Sequence[type[Exception]] = ()
    ) -> bytes:
        """Do `work` on rank 0 alone. Return its result, or raise its error, on every rank."""
        if self.alone:
            return work()
        return self._share_outcome(topic, None if self.rank else _outcome_of(0, work), known)

    def run_on_all(
        self,
        topic: str,
        work: Callable[[], bytes],
        then: Callable[[list[bytes]], bytes] = lambda _: b"",
        known: Sequence[type[Exception]] = (),
    ) -> bytes:
        """Do `work` on every rank, then `then` on rank 0 with all results, by rank; return its
        result on every rank.

        An error of one rank, or of `then`, is raised on all: its own error there, elsewhere one of
        the same kind. Of several errors the first counts. Each rank sends one message and receives
        one.
        """
        if self.alone:
            return then([work()])
        mine, verdict = _outcome_of(self.rank, work), None
        try:
            messages = self.gather(topic, msgspec.msgpack.encode(mine.result))
        except RanksError as error:  # its cause may be our own error
            verdict = (
                mine if mine.error is not None else _outcome_of(self.rank, returning(error=error))
            )
        else:
            if self.rank == 0:
                results = [_RESULTS.decode(message) for message in messages]
                failures = [each for each in results if each.failure is not None]
                if failures:
                    verdict = _Outcome(failures[0], mine.error)
                else:
                    verdict = _outcome_of(0, lambda: then([each.value for each in results]))
        try:
            return self._share_outcome(topic, verdict, known)
        except Exception as told:
            if mine.error is None:
                raise
            if type(told) not in {type(mine.error), RanksError}:  # all ranks must react alike
                raise told from mine.error
        raise mine.error  # here, so that its own cause stays its cause

    def _share_outcome(
        self, topic: str, mine: _Outcome | None, known: Sequence[type[Exception]]
    ) -> bytes:
        """Return or raise rank 0's outcome on every rank. `mine`: rank 0's, or an outcome that
        replaces it here.
        """
        answer = self.announce(
            topic, msgspec.msgpack.encode(_Result() if mine is None else mine.result)
        )
        if mine is not None and mine.error is not None:
            raise mine.error
        result = _RESULTS.decode(answer)
        if result.failure is not None:
            raise _error_of(result.failure, known)
        return result.value

    def _next_key(self) -> str:
        self._sent += 1
        return f"{self._under}{self._sent}"

    def _received_from(
        self, key: str, topic: str, rank: int, began: float, most_s: float = float("inf")
    ) -> bytes:
        timeout_s = min(self.timeout_s, most_s)
        # rank 0 waits less, so that it can tell the others which rank did not answer
        patience_s = timeout_s * (1.1 if self.rank else 1.0)
        message = self._await_message(key, topic, began + patience_s)
        if message is None:
            raise self._announce_departure(
                f"rank {rank} did not come to {topic!r} within {timeout_s:.3g} s "
                f"(rank {self.rank} waited, of {self.world}{_at(self.place(), ', at {}')}): "
                "it has died, hangs, or went another way. "
                "HOLDFAST_RANKS_TIMEOUT_S sets the longest wait"
            )
        if message.topic != topic:
            raise self._announce_departure(
                f"rank {rank} is at {message.topic!r}{_at(message.place)} "
                f"and rank {self.rank} at {topic!r}"
                f"{_at(self.place())}: every rank must run the same loop and the same saves"
            )
        return message.value

    def _await_message(self, key: str, topic: str, until: float) -> RankMessage | None:
        """Return the message under `key` as soon as it is there; None after the time limit.

        Raises:
            RanksError: a rank has left.
        """
        asked_s, left = 0.0, None
        for waited_s in sleep_between_polls(until, self.world):
            if waited_s - asked_s >= LEFT_S:
                asked_s, left = waited_s, self._channel.get(_LEFT)
            # after checking who left: a rank may leave right after its last message
            first = self._channel.get(key)
            if first is not None:
                return receive(self._channel, key, first)
            if left is not None:
                raise RanksError(f"{left.decode()}; rank {self.rank} was at {topic!r}")
        return None


ALONE = Ranks()


def _at(place: str, shape: str = " ({})") -> str:
    return shape.format(place) if place else ""


def returning(value: bytes = b"", error: Exception | None = None) -> Callable[[], bytes]:
    """Return a function that raises `error`, if there is one, and else returns `value`."""

    def give() -> bytes:
        if error is not None:
            raise error
        return value

    return give


def capture_outcome(work: Callable[[], bytes]) -> Callable[[], bytes]:
    """Call `work` now. Return a function that returns its result, or raises its error."""
    outcome = _outcome_of(0, work)
    return returning(outcome.result.value, outcome.error)


def _outcome_of(rank: int, work: Callable[[], bytes]) -> _Outcome:
    try:
        return _Outcome(_Result(work()))
    except Exception as error:
        return _Outcome(_Result(failure=_failure(rank, error)), error)


def _failure(rank: int, error: BaseException) -> Failure:
    return Failure(rank, type(error).__name__, legible(str(error)) or type(error).__name__)


def _error_of(failure: Failure, known: Sequence[type[Exception]]) -> Exception:
    where, kinds = f"rank {failure.rank}: ", {each.__name__: each for each in known}
    kind: Any = kinds.get(failure.kind, getattr(errors, failure.kind, None))
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(where + failure.text)
    return RanksError(f"{where}{failure.kind}: {failure.text}")


def differing_ranks(said: Sequence[bytes]) -> list[int]:
    """Return the ranks whose value differs from rank 0's."""
    return [rank for rank, each in enumerate(said) if each != said[0]]
