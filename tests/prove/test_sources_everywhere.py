"""Resumes of streams from files, at all cuts: the whole of what tests/fast/test_sources.py samples."""

import random

import pytest

import sources
from holdfast.data import JsonLines, Kept
from sources import CASES


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_cut_goes_on_with_every_number_of_ranks(case, tmp_path, monkeypatch):
    """All pairs of 1 to 4 ranks, all cuts; with workers, 12 combinations that are drawn."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    source = case.make(case.files(tmp_path / "data"))
    sources.goes_on_with_other_numbers(source, sources.combinations(ranks=(1, 2, 3, 4), workers=(0,)))
    sources.goes_on_with_other_numbers(source, sources.combinations(draw=random.Random(5), count=12))


def test_every_cut_of_a_filter_goes_on(tmp_path, monkeypatch):
    """A filter has lengths of its own."""
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    source = Kept(JsonLines(CASES["json"].files(tmp_path / "data")), lambda row: row["text"])
    sources.goes_on_with_other_numbers(source, sources.combinations(ranks=(1, 2, 3, 4), workers=(0,)))
