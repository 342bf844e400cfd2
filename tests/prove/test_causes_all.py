"""The drill names the true cause: every planted script, and every right one."""

import pytest

from causes import PLANTED, RIGHT, SCRIPTS, is_named_and_mended, is_not_accused


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.script)
def test_each_omission_is_found_by_its_name_and_mended_by_the_first_line(planted, zygotes, tmp_path, record_property):
    is_named_and_mended(planted, zygotes, tmp_path, record_property)


@pytest.mark.parametrize("name", RIGHT)
def test_no_right_script_is_accused(name, zygotes, tmp_path, record_property):
    is_not_accused(name, zygotes, tmp_path, record_property)


def test_no_planted_script_is_left_out():
    """Those without an omission are drilled in `tests/slow/test_drills.py`."""
    there = {path.stem for path in SCRIPTS.glob("*.py")} - {
        "line",
        "net",
        "right",
        "failing",
        "thirds",
        "behind",
        "saves_itself",
    }
    assert there == {each.script.split()[0] for each in PLANTED}
