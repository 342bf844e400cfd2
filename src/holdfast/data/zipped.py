"""Several loaders, as one loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class Zip:
    """Takes one batch of each loader at a time, like zip(); ends with the shortest of them.

        for (x, y), (noise,) in run.batches(Zip(images, noises)):

    A plain zip() is an iterator without a position: a resume reads it again from its beginning.
    Each loader of a Zip continues where it was.
    """

    def __init__(self, *loaders: Any) -> None:
        self.loaders = loaders

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return zip(*self.loaders, strict=False)

    def __len__(self) -> int:
        return min((len(loader) for loader in self.loaders), default=0)
