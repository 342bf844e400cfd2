"""Runs of several ranks that are far apart, or of which one dies: ranks are threads, and time passes."""

import time

import pytest

from holdfast import Every
from holdfast.errors import RanksError, Stopped
from run_ranks import alone, among_threads, noted_saves, on, stop_at, training
from toy import names


@pytest.fixture
def trained(monkeypatch):
    return training(among_threads(monkeypatch))


@pytest.fixture
def saves(monkeypatch):
    return noted_saves(monkeypatch)


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("of", [0, 1])
def test_what_one_rank_hears_stops_all_and_each_goes_on_as_it_was(tmp_path, trained, saves, world, of):
    """At one step; the resumed ranks have their own state, and the run ends as one that was never stopped."""
    stopped = trained(tmp_path, world, steps=300, before=stop_at(5, of), every=None)
    assert [True] * world == [isinstance(each, Stopped) for each in stopped]
    (first, *_) = saves.values()
    assert [first] * world == list(saves.values())
    assert 5 < first[-1][0] < 300
    assert alone(300, world) == trained(tmp_path, world, steps=300)


def test_saves_by_the_clock_are_those_of_rank_0(tmp_path, trained, saves):
    """On the same steps everywhere, however far apart the ranks are."""

    def nap(run):
        time.sleep(0.3 if (run._session.ranks.rank, run.step) in {(1, 20), (0, 120)} else 0.003)

    trained(tmp_path, steps=300, every=Every(minutes=0.001), before=nap)
    assert saves[0] == saves[1]
    assert ["due"] * 2 == [why for _, why in saves[0]][:2]


def test_a_rank_that_dies_in_its_step_is_missed_in_time(tmp_path, trained):
    """The others end with an error that names it; what was saved before is there."""

    def die(run):
        run._session.ranks.leave = lambda why: None  # as SIGKILL would have it
        raise SystemExit

    found = trained(tmp_path, before=on(1, 6, die), timeout_s=1.0)
    assert isinstance(found[0], RanksError)
    assert "rank 1 did not come to 'a save'" in str(found[0])
    assert ["step-000000004"] == names(tmp_path)
    assert alone() == trained(tmp_path, take_over=True)
