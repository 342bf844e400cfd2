"""Channel: messages between the ranks of a run, through a store of keys and values such as
torch's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import msgspec

MOST_BYTES = 4 << 20  # of one value; torch's TCPStore refuses more than 8 MiB


class Channel(Protocol):
    """Keys and values that every rank sees."""

    def put(self, key: str, value: bytes) -> None: ...

    def get(self, key: str) -> bytes | None:
        """Return the value without waiting; None if it is not there yet."""
        ...

    def drop(self, key: str) -> None: ...

    def reconnect(self) -> Channel:
        """Return a channel with the same keys over a connection of its own, for another thread."""
        ...


class RankMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message of a rank, and the point in its program at which it was sent."""

    topic: str
    value: bytes
    place: str = ""  # in the program; shown in error messages


_MESSAGES = msgspec.msgpack.Decoder(RankMessage)  # made here for the reason that `format` has


class NoChannel:
    """The channel of a process without other ranks: it stores nothing."""

    def put(self, key: str, value: bytes) -> None:
        del key, value

    def get(self, key: str) -> None:
        del key

    def drop(self, key: str) -> None:
        del key

    def reconnect(self) -> Channel:
        return self


def send(channel: Channel, key: str, message: RankMessage) -> None:
    """Store `message` under `key` in pieces.

    The first piece holds the number of the others and is written last, so that readers see all or
    nothing.
    """
    data = msgspec.msgpack.encode(message)
    rest = range(MOST_BYTES, len(data), MOST_BYTES)
    for number, start in enumerate(rest, 1):
        channel.put(f"{key}+{number}", data[start : start + MOST_BYTES])
    channel.put(key, len(rest).to_bytes(4, "little") + data[:MOST_BYTES])


def receive(channel: Channel, key: str, first: bytes) -> RankMessage:
    """Return the message under `key`, whose first piece is `first`."""
    more = range(1, int.from_bytes(first[:4], "little") + 1)
    # stored before the first piece
    rest = [channel.get(f"{key}+{number}") or b"" for number in more]
    return _MESSAGES.decode(b"".join([first[4:], *rest]))


def discard(channel: Channel, key: str) -> None:
    """Delete the message under `key` with all its pieces; without one, nothing happens."""
    first = channel.get(key)
    for number in range(1, int.from_bytes((first or b"\0\0\0\0")[:4], "little") + 1):
        channel.drop(f"{key}+{number}")
    channel.drop(key)


def sleep_between_polls(until: float, world: int = 1) -> Iterator[float]:
    """Sleep between polls for a message of another of `world` ranks, until the time limit; yield
    the seconds so far.

    The pause between two polls is at most a twentieth of the wait so far. It is also at most half a
    second, or one second for each 2,000 ranks. So long waits do not overload the store, which all
    ranks query. Signals are handled meanwhile; a wait in the store's own client would block them.
    """
    began, nap_s, waited_s = time.monotonic(), 0.0002, 0.0
    yield waited_s
    while (left_s := until - began - waited_s) > 0:
        time.sleep(min(nap_s, left_s))
        waited_s = time.monotonic() - began
        nap_s = min(2 * nap_s, max(0.02, waited_s / 20), max(0.5, world / 2000))
        yield waited_s
