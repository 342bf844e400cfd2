"""Ctrl-C at places of waits for threads; tests/prove/test_threads_everywhere.py strikes every one of them."""

import pytest

from strikes import SUBJECTS, struck_all_over


@pytest.mark.parametrize("subject", SUBJECTS)
def test_ctrl_c_keeps_nobody_waiting_for_ever(subject):
    """Not the threads, not the one who goes on, not the end of the process; and nobody is left who does the old
    work.
    """
    assert struck_all_over(subject, 7) > 50
