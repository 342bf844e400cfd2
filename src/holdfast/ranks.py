"""Ranks: the processes that are one attempt of a run together, and what they say to each other.

Nothing here is a collective of a framework: words go through a store of keys and values (torch's, for one), from any
thread that has a `twin` of its own. Every wait has a deadline, and names the rank that is missing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import msgspec

from . import errors
from .errors import HoldfastError, RanksError
from .legible import legible

TIMEOUT_S = 600.0  # that a rank is waited for; a save of another rank's may take that long
MOST_BYTES = 4 << 20  # of one value; torch's TCPStore refuses more than 8 MiB
LEFT_S = 0.2  # after which it is asked whether anybody has left, and again
_WISH, _LEFT, _FAILED = "wish", "left", "failed"  # keys beside those of all conversations


class Channel(Protocol):
    """Keys and values that every rank sees."""

    def put(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes | None:
        """The value, at once; None: it is not there yet."""
        ...

    def drop(self, key: str) -> None: ...

    def twin(self) -> Channel:
        """The same keys over a connection of its own, for another thread."""
        ...


class Word(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says, and at which point of its program."""

    topic: str
    value: bytes
    place: str = ""  # where in the program, for people


class Failure(msgspec.Struct, frozen=True):
    """What went wrong on a rank."""

    rank: int
    kind: str
    text: str


class _Said(msgspec.Struct, frozen=True, array_like=True):
    """What came of some work on a rank."""

    value: bytes = b""
    failure: Failure | None = None


class _Outcome(NamedTuple):
    said: _Said
    error: Exception | None = None  # this rank's own


class Ranks:
    """All ranks call the same methods in the same order; where they do not, every one of them learns who is elsewhere.

    ranks.announce("checkpoint", name)      # rank 0's word to all
    ranks.gather("digests", mine)           # everybody's to rank 0
    ranks.agree("arguments", mine)          # everybody's to everybody
    with ranks.together("restore"): ...     # what fails on one rank fails on all
    ranks.collect("save", write, publish)   # work of all, then rank 0's with what came of it
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
        self._channel, self._under = channel, under  # what the keys of this conversation begin with
        self.place = place  # where this rank's program is, for its words and messages; empty: it need not be said
        self._said, self._twins = 0, Counter[str]()
        self._old: list[str] = []  # rank 0's, which all have read once they have said something else

    @property
    def alone(self) -> bool:
        return self.world == 1

    def twin(self, name: str) -> Ranks:
        """The same ranks in a conversation of their own, which another thread may hold; a further one each time."""
        if self._channel is None:
            return self
        self._twins[name] += 1
        return self._conversation(self._channel.twin(), f"{name}-{self._twins[name]}")

    def beside(self, name: str) -> Ranks:
        """The same ranks in a conversation of their own, in the same thread."""
        return self if self._channel is None else self._conversation(self._channel, name)

    def _conversation(self, channel: Channel, name: str) -> Ranks:
        return Ranks(
            self.rank, self.world, channel, timeout_s=self.timeout_s, under=f"{self._under}{name}/", place=self.place
        )

    def wish(self, text: str) -> None:
        """Tell rank 0 something that it finds when it looks; the last that any rank has told counts."""
        if self._channel is not None:
            self._channel.put(_WISH, legible(text).encode())

    def wished(self) -> str | None:
        """What some rank has told by `wish`, at once."""
        found = self._channel.get(_WISH) if self._channel is not None else None
        return None if found is None else found.decode()

    def mark(self, what: str) -> None:
        """Leave a mark that this rank has done something, for `all_marked`."""
        if self._channel is not None:
            self._channel.put(f"{self._under}{what}/{self.rank}", b"")

    def all_marked(self, what: str) -> bool:
        """Whether all ranks but 0 have left that mark, by now."""
        channel = self._channel
        return channel is None or all(
            channel.get(f"{self._under}{what}/{rank}") is not None for rank in range(1, self.world)
        )

    def confess(self, error: BaseException) -> None:
        """Tell what went wrong on this rank, before it ends with it, for `confessed`."""
        with suppress(RanksError):
            if self._channel is not None:
                self._channel.put(f"{_FAILED}/{self.rank}", msgspec.msgpack.encode(_confession(self.rank, error)))
                self._channel.put(_FAILED, str(self.rank).encode())

    def confessed(self) -> list[Failure]:
        """What other ranks have said that goes wrong there, at once."""
        found = []
        with suppress(RanksError):
            for rank in range(self.world if self._channel is not None else 0):
                data = self._channel.get(f"{_FAILED}/{rank}") if self._channel is not None else None
                if data is not None and rank != self.rank:
                    found.append(msgspec.msgpack.decode(data, type=Failure))
        return found

    def failed(self) -> str:
        """Which rank has confessed last, at once; by one word, however many ranks there are. Empty: none."""
        return (self._channel.get(_FAILED) or b"" if self._channel is not None else b"").decode()

    def leave(self, why: str) -> None:
        """This rank will say no more: who waits, in whichever conversation, need not."""
        self._part(f"rank {self.rank} {why}")

    def _part(self, why: str) -> RanksError:
        with suppress(RanksError):  # should the rendezvous be gone, too
            if self._channel is not None and self._channel.get(_LEFT) is None:
                self._channel.put(_LEFT, legible(why).encode())
        return RanksError(why)

    def sweep(self) -> None:
        """Forget what rank 0 has announced: the caller knows that all have heard it."""
        while self._channel is not None and self._old:
            _drop(self._channel, self._old.pop())

    def announce(self, topic: str, value: bytes = b"") -> bytes:
        """What rank 0 gave as `value`, on every rank.

        Raises:
            RanksError: rank 0 did not say it in time, or said something else.
        """
        channel = self._channel
        if channel is None:
            return value
        key = self._next()
        if self.rank == 0:
            _put(channel, key, Word(topic, value, self.place()))
            self._old.append(key)
            return value
        return self._heard(channel, key, topic, 0, time.monotonic())

    def gather(self, topic: str, value: bytes = b"", patience_s: float = float("inf")) -> list[bytes]:
        """On rank 0 what every rank gave, by rank; elsewhere nothing.

        Raises:
            RanksError: a rank did not say it in time (or within `patience_s`, if that is less), or said something else.
        """
        channel = self._channel
        if channel is None:
            return [value]
        key = self._next()
        if self.rank:
            _put(channel, f"{key}/{self.rank}", Word(topic, value, self.place()))
            return []
        began = time.monotonic()
        found = [value]
        for rank in range(1, self.world):
            found.append(self._heard(channel, f"{key}/{rank}", topic, rank, began, patience_s))
            _drop(channel, f"{key}/{rank}")
        self.sweep()
        return found

    def agree(self, topic: str, value: bytes = b"") -> list[bytes]:
        """What every rank gave, by rank, on every rank."""
        found = self.gather(topic, value)
        return msgspec.msgpack.decode(self.announce(topic, msgspec.msgpack.encode(found)), type=list[bytes])

    @contextmanager
    def together(self, topic: str, known: Sequence[type[Exception]] = ()) -> Iterator[None]:
        """What the block raises on one rank is raised on all, at its end: there as it is, elsewhere as its kind.

        `known`: kinds that are told besides our own errors. Exits that are no errors (Ctrl-C, a stop) pass, and leave
        the others waiting.
        """
        if self.alone:
            yield
            return
        failure = None
        try:
            yield
        except Exception as error:
            failure = error
        self.report(topic, failure, known)

    def report(self, topic: str, error: Exception | None = None, known: Sequence[type[Exception]] = ()) -> None:
        """Return when every rank has come here without an error.

        Raises:
            Exception: this rank's own error; another rank's of a `known` kind.
            HoldfastError: another rank's, of its own kind where that is one of ours.
        """

        def mine() -> bytes:
            if error is not None:
                raise error
            return b""

        self.collect(topic, mine, known=known)

    def lead(self, topic: str, work: Callable[[], bytes], known: Sequence[type[Exception]] = ()) -> bytes:
        """What `work` gives on rank 0, on every rank; what it raises there is raised on all. The others do not do it."""
        if self.alone:
            return work()
        return self._verdict(topic, None if self.rank else _attempted(0, work), known)

    def collect(
        self,
        topic: str,
        work: Callable[[], bytes],
        then: Callable[[list[bytes]], bytes] = lambda _: b"",
        known: Sequence[type[Exception]] = (),
    ) -> bytes:
        """Do `work` on every rank, and on rank 0 `then`, with what it gave by rank; what that gives, on every rank.

        What fails on one rank, or in `then`, is raised on all: there as it is, elsewhere as its kind; of several failures
        the first. One word of each rank's, and one to them.
        """
        if self.alone:
            return then([work()])
        mine = _attempted(self.rank, work)
        verdict: _Outcome | None = None
        try:
            words = self.gather(topic, msgspec.msgpack.encode(mine.said))
        except RanksError as error:  # the reason why somebody is not to be heard may be our own
            verdict = mine if mine.error is not None else _failed(self.rank, error)
        if self.rank == 0 and verdict is None:
            said = [msgspec.msgpack.decode(word, type=_Said) for word in words]
            failure = next((each.failure for each in said if each.failure is not None), None)
            if failure is not None:
                verdict = _Outcome(_Said(failure=failure), mine.error)
            else:
                verdict = _attempted(0, lambda: then([each.value for each in said]))
        try:
            return self._verdict(topic, verdict, known)
        except Exception as told:
            if mine.error is None:
                raise
            if type(told) not in {type(mine.error), RanksError}:  # what all are to do about it is the same
                raise told from mine.error
        raise mine.error  # not in place of another one: what it came from stays its cause

    def _verdict(self, topic: str, mine: _Outcome | None, known: Sequence[type[Exception]]) -> bytes:
        """What rank 0 says came of it, on every rank."""
        word = self.announce(topic, b"" if mine is None else msgspec.msgpack.encode(mine.said))
        said = mine.said if mine is not None else msgspec.msgpack.decode(word, type=_Said)
        if mine is not None and mine.error is not None:
            raise mine.error
        if said.failure is not None:
            raise _raised(said.failure, known)
        return said.value

    def _next(self) -> str:
        self._said += 1
        return f"{self._under}{self._said}"

    def _heard(
        self, channel: Channel, key: str, topic: str, rank: int, began: float, most_s: float = float("inf")
    ) -> bytes:
        timeout_s = min(self.timeout_s, most_s)
        patience_s = timeout_s * (1.1 if self.rank else 1.0)  # rank 0 hears all, and tells who was missing
        word = _wait(channel, key, began + patience_s, self.world)
        if isinstance(word, str):
            raise RanksError(f"{word}; rank {self.rank} was at {topic!r}")
        if word is None:
            raise self._part(
                f"rank {rank} did not come to {topic!r} within {timeout_s:.3g} s "
                f"(rank {self.rank} waited, of {self.world}{_at(self.place(), ', at {}')}): "
                "it has died, hangs, or went another way. HOLDFAST_RANKS_TIMEOUT_S changes how long it is waited for"
            )
        if word.topic != topic:
            raise self._part(
                f"rank {rank} is at {word.topic!r}{_at(word.place)} and rank {self.rank} at {topic!r}{_at(self.place())}: every "
                "rank must run the same loop and "
                "the same saves"
            )
        return word.value


ALONE = Ranks()


def _at(place: str, shape: str = " ({})") -> str:
    return shape.format(place) if place else ""


def _put(channel: Channel, key: str, word: Word) -> None:
    """In pieces; what comes first says how many follow, and comes last."""
    data = msgspec.msgpack.encode(word)
    rest = range(MOST_BYTES, len(data), MOST_BYTES)
    for number, start in enumerate(rest, 1):
        channel.put(f"{key}+{number}", data[start : start + MOST_BYTES])
    channel.put(key, len(rest).to_bytes(4, "little") + data[:MOST_BYTES])


def looks(until: float, world: int = 1) -> Iterator[float]:
    """Sleeps between looks at what another of so many ranks may have said, until the time is up; yields how long it has been.

    A look comes late by a twentieth of the wait at most, and by half a second, or one for each 2,000 ranks. So those who
    wait for what takes long leave the store, which all of them ask, time to answer; and signals are heard, which a wait in
    the store's own client would keep from Python.
    """
    began, nap_s, waited_s = time.monotonic(), 0.0002, 0.0
    yield waited_s
    while (left_s := until - began - waited_s) > 0:
        time.sleep(min(nap_s, left_s))
        waited_s = time.monotonic() - began
        nap_s = min(2 * nap_s, max(0.02, waited_s / 20), max(0.5, world / 2000))
        yield waited_s


def _wait(channel: Channel, key: str, until: float, world: int) -> Word | str | None:
    """The word; or why there will be none; None when the time is up."""
    asked_s = 0.0
    for waited_s in looks(until, world):
        if (first := channel.get(key)) is not None:
            return _whole(channel, key, first)
        if waited_s - asked_s >= LEFT_S:
            asked_s, left = waited_s, channel.get(_LEFT)
            if left is not None:  # after its last word, perhaps
                first = channel.get(key)
                return left.decode() if first is None else _whole(channel, key, first)
    return None


def _whole(channel: Channel, key: str, first: bytes) -> Word:
    more = range(1, int.from_bytes(first[:4], "little") + 1)
    rest = [channel.get(f"{key}+{number}") or b"" for number in more]  # put before the first
    return msgspec.msgpack.decode(b"".join([first[4:], *rest]), type=Word)


def _drop(channel: Channel, key: str) -> None:
    first = channel.get(key)
    for number in range(1, int.from_bytes((first or b"\0\0\0\0")[:4], "little") + 1):
        channel.drop(f"{key}+{number}")
    channel.drop(key)


def _attempted(rank: int, work: Callable[[], bytes]) -> _Outcome:
    try:
        return _Outcome(_Said(work()))
    except Exception as error:
        return _failed(rank, error)


def _failed(rank: int, error: Exception) -> _Outcome:
    return _Outcome(_Said(failure=_failure(rank, error)), error)


def _failure(rank: int, error: BaseException) -> Failure:
    return Failure(rank, type(error).__name__, legible(str(error)) or type(error).__name__)


def _confession(rank: int, error: BaseException) -> Failure:
    """Its first line, as a journal wants it."""
    whole = _failure(rank, error)
    return msgspec.structs.replace(whole, text=whole.text.partition("\n")[0][:500])


def _raised(failure: Failure, known: Sequence[type[Exception]]) -> Exception:
    where = f"rank {failure.rank}: "
    for told in known:
        if told.__name__ == failure.kind:
            return told(where + failure.text)
    kind: Any = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, HoldfastError):
        found: HoldfastError = kind(where + failure.text)
        return found
    return RanksError(f"{where}{failure.kind}: {failure.text}")


def differing(said: Sequence[bytes]) -> list[int]:
    """Ranks that said something else than rank 0."""
    return [rank for rank, each in enumerate(said) if each != said[0]]
