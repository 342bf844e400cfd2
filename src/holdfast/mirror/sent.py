"""The bytes of a file on their way to a place, and what the backends share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import Damaged
from .place import Pieces


class UploadPieces:
    """Yields the pieces of an upload once, and keeps the error that their source raised."""

    def __init__(self, size_bytes: int, pieces: Pieces) -> None:
        self.error: BaseException | None = None
        self._size, self._pieces = size_bytes, pieces

    def __iter__(self) -> Iterator[bytes]:
        sent = 0
        try:
            for piece in self._pieces():
                sent += len(piece)
                yield piece
            if sent != self._size:
                raise Damaged(f"{sent} bytes came to be sent instead of {self._size}")
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise


class PlaceWithoutChecksums:
    """Base of the backends whose servers compute no checksums.

    Each call to a library is made inside `translating_errors`.
    """

    told: tuple[type[BaseException], ...]  # errors that become a place's own
    own: tuple[type[BaseException], ...]  # among them those that leave it as they are

    def check(self, path: str, size_bytes: int, pieces: Pieces) -> str:  # noqa: ARG002
        return ""

    @contextmanager
    def translating_errors(self, sent: UploadPieces | None = None) -> Iterator[None]:
        """Raise the errors of a storage library as errors of the mirror. An error in reading the
        bytes that are sent is raised unchanged.
        """
        try:
            yield
        except self.own:
            raise
        except self.told as error:
            if sent is not None and error is sent.error:
                raise
            raise self.translate_error(error) from None

    def translate_error(self, error: Any) -> Exception:
        raise NotImplementedError


def has_exclusive_create(create_again: Callable[[], object]) -> bool:
    """Whether the place refuses to create a file again that it has just created: it knows
    exclusive writes.
    """
    try:
        create_again()
    except FileExistsError:
        return True
    return False
