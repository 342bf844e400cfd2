"""One rank is killed in a step, in the commit of a save, in a restore; tests/prove has every phase."""

import pytest

from rank_kills import INSTANTS, aims, ask, nth_of, undisturbed_run  # noqa: F401  a fixture


@pytest.mark.parametrize(("kind", "rank", "launch"), INSTANTS[:3])
def test_a_rank_that_is_killed_takes_nothing_with_it(undisturbed, tmp_path, kind, rank, launch):
    """The others end by themselves; every checkpoint is read by every rank; the same bits in the end."""
    assert ask(undisturbed, tmp_path / "run", nth_of(undisturbed, kind, rank, launch))


def test_every_kind_of_instant_is_struck_before_any_is_struck_twice(undisturbed):
    """A seed decides where; another seed, elsewhere."""
    kinds = {kind for seen in undisturbed.seen.values() for kind in seen}
    assert kinds >= {kind for kind, *_ in INSTANTS}
    chosen = [*aims(undisturbed, len(kinds))]
    assert kinds == {aim.kind for aim in chosen}
    assert chosen == [*aims(undisturbed, len(kinds))] != [*aims(undisturbed, len(kinds), seed=1)]
