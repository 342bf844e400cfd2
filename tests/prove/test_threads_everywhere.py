"""Ctrl-C at every place of every wait for threads."""

import pytest

from strikes import SUBJECTS, struck_all_over


@pytest.mark.parametrize("subject", SUBJECTS)
def test_ctrl_c_anywhere_keeps_nobody_waiting_for_ever(subject):
    """The whole of what tests/slow/test_threads_struck.py asks of each seventh place."""
    assert struck_all_over(subject, 1) > 50
