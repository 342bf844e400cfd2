"""Loaders whose replay nobody promises, on several ranks: what one rank cannot restore, none does."""

import pytest

from holdfast import Every, Last, Run
from holdfast.errors import HoldfastError, Stopped
from run_ranks import Part, among_threads
from toy import events, names


class Shifted:
    """Other numbers on rank 1 in another process."""

    def __init__(self, rank, shift):
        self._shift = shift if rank else 0

    count = 6

    def __iter__(self):
        return iter([number + self._shift for number in range(self.count)])


class Long(Shifted):
    """So many that a stop, which rank 0 announces ahead, comes before their end."""

    count = 60


@pytest.fixture
def among(monkeypatch):
    return among_threads(monkeypatch)


def walk(path, rank, shift=0, cut=None, save=True, kind=Shifted, stop=None, **options):
    seen, part = [], Part(rank)
    with Run(path, {"part": part}, **{"every": None, "keep": Last(99), "background": False, **options}) as run:
        for _ in run.epochs(2):
            for number in run.batches(kind(rank, shift)):
                if len(seen) + 1 == cut:
                    raise RuntimeError("cut")
                seen.append(number)
                part.learn()
                if save:
                    run.save()
                if stop is not None and run.step == stop and rank == 0:
                    run._session.stop.receive_from_rank("SIGTERM")
    return seen


def test_all_ranks_skip_alike_what_one_of_them_cannot_restore(tmp_path, among):
    """Rank 0 could; it begins a new pass, too. It is journalled once, and refused without a word of the caller's."""
    assert all("cut" in str(each) for each in among(2, lambda rank: walk(tmp_path, rank, cut=9)))
    refused = among(2, lambda rank: walk(tmp_path, rank, shift=100))
    assert all(isinstance(each, HoldfastError) for each in refused)
    found = among(2, lambda rank: walk(tmp_path, rank, shift=100, accept={"data"}))
    assert [*found] == [[2, 3, 4, 5], [102, 103, 104, 105]]
    assert [event["skipped"] for event in events(tmp_path, "inexact")] == [2]


def test_all_ranks_wait_alike_for_an_epochs_end(tmp_path, among):
    """With an interval in steps, and one by rank 0's clock; also when the loader is unknown on one rank alone."""
    for number, every in enumerate((Every(steps=1), Every(minutes=0.000001))):
        for kinds in ((Shifted, Shifted), (lambda *_: [*range(6)], Shifted)):
            path = tmp_path / f"{number}-{len({*kinds})}"
            found = among(
                2,
                lambda rank, path=path, kinds=kinds, every=every: walk(
                    path, rank, save=False, kind=kinds[rank], every=every
                ),
            )
            assert [*found] == [[*range(6)] * 2] * 2
            if number == 0:
                assert all(name.endswith("-end") for name in names(path))


def test_all_ranks_stop_unsaved_alike(tmp_path, among):
    """Inside an epoch of such a loader."""
    stopped = among(2, lambda rank: walk(tmp_path, rank, save=False, stop=2, kind=Long, every=Every(steps=1)))
    assert all(isinstance(each, Stopped) for each in stopped)
    assert names(tmp_path) == []
    assert [*among(2, lambda rank: walk(tmp_path, rank, kind=Long, save=False))] == [[*range(60)] * 2] * 2
