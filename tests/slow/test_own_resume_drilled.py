"""Whole drills of a trainer that resumes by itself: tests/prove has every loss and every right way."""

import pytest

from own_resumes import is_loss_named, is_right_way_not_accused


@pytest.mark.parametrize("fault", ["optimizer", "skipped", "torn", "half a folder", "dice", "anew"])
def test_what_its_own_resume_lost_is_named(fault, zygotes, tmp_path, record_property):
    is_loss_named(fault, zygotes, tmp_path, record_property)


def test_a_trainer_that_restores_all_is_accused_of_nothing(zygotes, tmp_path, record_property):
    is_right_way_not_accused("right", zygotes, tmp_path, record_property)
