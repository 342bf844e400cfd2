"""Loaders that Lightning iterates in place of the training loaders: they yield the remaining
batches of this epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..data.facts import known_length
from ..data.zipped import Zip

Batches = Callable[[Any], Iterator[Any]]  # returns a loader's remaining batches in this epoch

_END = object()


def replace_loaders(combined: Any, batches: Batches) -> list[Any]:
    """Return the loaders that take the place of those in Lightning's `combined` loader."""
    loaders = combined.flattened
    if len(loaders) == 1:
        return [SingleLoader(loaders[0], batches)]
    rows = BatchRows(combined._mode, loaders, batches)
    return [LoaderColumn(loader, rows, at) for at, loader in enumerate(loaders)]


class ReplacementLoader:
    """Replaces a loader: all attributes are the loader's, except its iteration and its state."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "state_dict", "load_state_dict") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class SingleLoader(ReplacementLoader):
    """The proxy of the only loader."""

    def __init__(self, loader: Any, batches: Batches) -> None:
        super().__init__(loader)
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return self._batches(self._loader)


class LoaderColumn(ReplacementLoader):
    """The proxy of one of several loaders. Lightning takes from each in turn; the first takes the
    next row of batches.
    """

    def __init__(self, loader: Any, rows: BatchRows, at: int) -> None:
        super().__init__(loader)
        self._rows, self._at = rows, at

    def __iter__(self) -> Iterator[Any]:
        if self._at == 0:
            self._rows.begin()
        return self

    def __next__(self) -> Any:
        if self._at == 0:
            self._rows.advance()
        return self._rows.row[self._at]


class BatchRows:
    """The batches of several loaders, one row of batches at a time."""

    def __init__(self, mode: str, loaders: list[Any], batches: Batches) -> None:
        equal = (
            mode == "min_size" or len({known_length(loader) for loader in loaders} | {None}) == 2
        )
        self._loader = Zip(*loaders) if equal else LongestFirst(mode, loaders)
        self._batches = batches
        self._rows: Iterator[Any] = iter(())
        self.row: Sequence[Any] = ()

    def begin(self) -> None:
        self._rows = self._batches(self._loader)

    def advance(self) -> None:
        self.row = next(self._rows)


class LongestFirst:
    """Loaders of several lengths, iterated to the end of the longest. It has no position: a resume
    reads it again.
    """

    def __init__(self, mode: str, loaders: list[Any]) -> None:
        self._cycle, self._loaders = mode == "max_size_cycle", loaders

    def __iter__(self) -> Iterator[list[Any]]:
        iterators = [iter(loader) for loader in self._loaders]
        ended = [False] * len(iterators)
        while True:
            row: list[Any] = []
            for at, loader in enumerate(self._loaders):
                batch = next(iterators[at], _END)
                if batch is _END:
                    ended[at] = True
                    if all(ended):
                        return
                    if self._cycle:
                        iterators[at] = iter(loader)
                    batch = next(iterators[at], None)
                row.append(batch)
            yield row
