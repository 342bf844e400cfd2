"""Ranks under one torchrun are killed in each phase of a save, in a step, and in the restore."""

from test_run_ranks_processes import KILLS, Training, ends, see_through


def test_killed_ranks_cost_what_was_not_saved_wherever_they_are(tmp_path_factory, zygotes, tally):
    """The first has no checkpoint to go on from; one launch sees all of it through."""
    place, undisturbed = map(tmp_path_factory.mktemp, ("killed", "undisturbed"))
    see_through(Training(place, zygotes), KILLS, ends(undisturbed))
    tally("One of several ranks is killed in a run", tried=len(KILLS))
