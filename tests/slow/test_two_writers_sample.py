"""A few rounds of two live writers; `make prove` plays hundreds, which sleep longer."""

from test_two_writers import play


def test_a_writer_that_wakes_beside_another_is_superseded():
    """As `test_two_writers` says, at two dozen instants."""
    struck, wrong = play(24, seed=3, pause_s=0.0)
    assert wrong == []
    assert struck > 20
