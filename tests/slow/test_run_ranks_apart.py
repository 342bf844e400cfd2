"""Runs of several ranks that are far apart, or of which one dies: ranks are threads, and time passes."""

import time

import pytest

from holdfast import Every
from holdfast.errors import RanksError, Stopped
from run_ranks import alone, among_threads, noted_saves, stop_at, train
from toy import names


@pytest.fixture
def among(monkeypatch):
    return among_threads(monkeypatch)


@pytest.fixture
def saves(monkeypatch):
    return noted_saves(monkeypatch)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("of", [0, 1])
def test_what_one_rank_hears_stops_all_and_each_goes_on_as_it_was(tmp_path, among, saves, world, of):
    """At one step; the resumed ranks have their own state, and the run ends as one that was never stopped."""
    before = stop_at(5, of)
    stopped = among(world, lambda rank: train(tmp_path, rank, steps=300, before=before(rank), every=None))
    assert [True] * world == [isinstance(each, Stopped) for each in stopped]
    (first, *_) = saves.values()
    assert [first] * world == list(saves.values())
    assert 5 < first[-1][0] < 300
    assert [alone(rank, 300) for rank in range(world)] == among(world, lambda rank: train(tmp_path, rank, steps=300))


def test_saves_by_the_clock_are_those_of_rank_0(tmp_path, among, saves):
    """On the same steps everywhere, however far apart the ranks are."""

    def nap(rank):
        return lambda run: time.sleep(0.3 if (rank, run.step) in {(1, 20), (0, 120)} else 0.003)

    among(2, lambda rank: train(tmp_path, rank, steps=300, every=Every(minutes=0.001), before=nap(rank)))
    assert saves[0] == saves[1]
    assert ["due"] * 2 == [why for _, why in saves[0]][:2]


def test_a_rank_that_dies_in_its_step_is_missed_in_time(tmp_path, among):
    """The others end with an error that names it; what was saved before is there."""

    def before(run):
        if run.step == 6:
            run._session.ranks.leave = lambda why: None  # as SIGKILL would have it
            raise SystemExit

    found = among(2, lambda rank: train(tmp_path, rank, before=before if rank else lambda _: None), timeout_s=1.0)
    assert isinstance(found[0], RanksError)
    assert "rank 1 did not come to 'a save'" in str(found[0])
    assert ["step-000000004"] == names(tmp_path)
    assert [alone(rank) for rank in range(2)] == among(2, lambda rank: train(tmp_path, rank, take_over=True))
