"""Every kind of loss that a program's own resume may have, planted into a small trainer; and right trainers."""

import pytest

from own_resumes import LOSSES, RIGHT, RIGHT_WITHOUT_TORCH, WITHOUT_TORCH, is_loss_named, is_right_way_not_accused


@pytest.mark.parametrize("fault", LOSSES | WITHOUT_TORCH)
def test_a_planted_loss_is_named(fault, zygotes, tmp_path, record_property):
    is_loss_named(fault, zygotes, tmp_path, record_property)


@pytest.mark.parametrize("name", [*RIGHT, RIGHT_WITHOUT_TORCH])
def test_a_right_trainer_is_accused_of_nothing(name, zygotes, tmp_path, record_property):
    is_right_way_not_accused(name, zygotes, tmp_path, record_property)
