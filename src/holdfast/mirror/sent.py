"""The digest of a sent file, and its comparison with the file at the place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import xxhash

from ..errors import Damaged
from .place import READ_BACK, NotKept, Pieces


class Digest(NamedTuple):
    size_bytes: int
    xxh3: str


def digest(pieces: Iterable[bytes]) -> Digest:
    size, state = 0, xxhash.xxh3_128()
    for piece in pieces:
        size += len(piece)
        state.update(piece)
    return Digest(size, state.hexdigest())


class Sent:
    """Walks the pieces once, notes their digest, and remembers the error that their source raised."""

    def __init__(self, size_bytes: int, pieces: Pieces) -> None:
        self.error: BaseException | None = None
        self._size, self._pieces = size_bytes, pieces
        self._sent, self._state = 0, xxhash.xxh3_128()

    def __iter__(self) -> Iterator[bytes]:
        try:
            for piece in self._pieces():
                self._sent += len(piece)
                self._state.update(piece)
                yield piece
            if self._sent != self._size:
                raise Damaged(f"{self._sent} bytes came to be sent instead of {self._size}")
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise

    @property
    def digest(self) -> Digest:
        return Digest(self._sent, self._state.hexdigest())


def walked(size_bytes: int, pieces: Pieces) -> Sent:
    """Walk the pieces without sending them."""
    sent = Sent(size_bytes, pieces)
    for _ in sent:
        pass
    return sent


class ReadingBack:
    """Base of the places that verify a file by reading it back, and of their errors."""

    shown: str
    told: tuple[type[BaseException], ...]  # errors that become a place's own
    own: tuple[type[BaseException], ...]  # among them those that leave it as they are

    def get(self, path: str) -> Iterator[bytes]:
        raise NotImplementedError

    def check(self, path: str, size_bytes: int, pieces: Pieces, *, read_back: bool = False) -> str:  # noqa: ARG002
        return self.verify(path, walked(size_bytes, pieces))

    def verify(self, path: str, sent: Sent) -> str:
        """Read the file back, and compare it with what was sent."""
        compare(f"{self.shown}/{path}", sent.digest, self.get(path))
        return READ_BACK

    @contextmanager
    def edge(self, sent: Sent | None = None) -> Iterator[None]:
        """Turn a library's errors into those of a place. An error of the bytes' source is raised unchanged."""
        try:
            yield
        except self.own:
            raise
        except self.told as error:
            if sent is not None and error is sent.error:
                raise
            raise self.translated(error) from None

    def translated(self, error: Any) -> Exception:
        raise NotImplementedError


def refuses(create_again: Callable[[], object]) -> bool:
    """Whether a place that has just taken an exclusive write refuses the same one: it knows the condition."""
    try:
        create_again()
    except FileExistsError:
        return True
    return False


def compare(name: str, sent: Digest, kept: Iterable[bytes]) -> None:
    """Compare the bytes at the place with those that were sent.

    Raises:
        NotKept: the place holds other bytes than were sent.
    """
    found = digest(kept)
    if found.size_bytes != sent.size_bytes:
        raise NotKept(f"{name}: {found.size_bytes} bytes lie there, and {sent.size_bytes} were sent; send it again")
    if found != sent:
        raise NotKept(f"{name}: the bytes that lie there differ from those that were sent; send it again")
