"""FiniteCheck: checks whether the weights in a file are finite, while their bytes are digested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..bulk import Hash
from ..state.finite import is_finite

_NOTHING = memoryview(b"")


class FiniteCheck:
    """Digests a file's pieces, one after another, and checks the numbers of some.

    `dtypes`: of each piece, in order; empty: its numbers are not checked. `hasher` begins a digest.
    """

    def __init__(self, dtypes: Sequence[str], hasher: Callable[..., Hash]) -> None:
        self._dtypes, self._hasher = enumerate(dtypes), hasher
        # of each piece: False if one of its numbers is infinite or NaN
        self.finite: list[bool | msgspec.UnsetType] = [msgspec.UNSET] * len(dtypes)

    def begin_piece(self, data: memoryview = _NOTHING) -> Hash:
        """Return the hash of the next piece of the file, begun with these bytes; it also looks for
        NaN and inf if the piece holds floating-point numbers.
        """
        index, dtype = next(self._dtypes)
        if not dtype:
            return self._hasher(data)
        piece = _CheckedPiece(self.finite, index, dtype, self._hasher())
        piece.update(data)
        return piece


class _CheckedPiece:
    """The digest of one piece. It gets whole numbers at a time."""

    def __init__(
        self, finite: list[bool | msgspec.UnsetType], index: int, dtype: str, digest: Hash
    ) -> None:
        self._digest = digest
        self._finite, self._index, self._dtype = finite, index, dtype

    def update(self, data: memoryview) -> None:
        self._digest.update(data)
        if self._finite[self._index] is not False and not is_finite(data, self._dtype):
            self._finite[self._index] = False

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
