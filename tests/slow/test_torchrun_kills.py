"""One rank is killed at a seeded instant: of a step, of any phase of a save, of a restore.

A few here; `python tests/rank_kills.py 100` strikes every kind of instant there is.
"""

from collections import Counter

import pytest

from rank_kills import Aim, Reference, aims, ask, reference

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run of two launches that nobody disturbs, and what instants its ranks came to."""
    return reference(tmp_path_factory.mktemp("kills") / "run")


def nth_of(found: Reference, kind: str, rank: int, launch: int = 0) -> Aim:
    """The middle one of the instants of that kind."""
    count = found.seen[launch, rank].count(kind)
    assert count, (kind, sorted(Counter(found.seen[launch, rank])))
    return Aim(launch, rank, kind, count // 2)


@pytest.mark.parametrize(
    ("kind", "rank", "launch"),
    [
        ("step", 1, 0),
        ("write attempts/rank-#-model.safetensors", 2, 0),  # torn
        ("word commit of step-#", 1, 0),  # its shards are durable, and nobody knows
        ("create attempts/manifest.json", 0, 0),  # all shards are, and there is no manifest
        ("rename checkpoints/step-#", 0, 0),  # the commit itself
        ("word commit of step-#", 0, 0),  # committed, and nobody knows
        ("unlink attempts/manifest.json", 0, 0),  # an old checkpoint is half removed
        ("read checkpoints/rank-#-optimizer.safetensors", 2, 1),  # in the restore
        ("rename history/attempt-#.jsonl", 0, 1),  # an old attempt is half fenced
    ],
)
def test_a_rank_that_is_killed_takes_nothing_with_it(undisturbed, tmp_path, kind, rank, launch):
    """The others are gone within the deadline; every checkpoint is read by every rank; the same bits in the end."""
    came = ask(undisturbed, tmp_path / "run", nth_of(undisturbed, kind, rank, launch))
    assert "came to no such instant" != came


def test_every_kind_of_instant_is_struck_before_any_is_struck_twice(undisturbed):
    """A seed decides where; another seed, elsewhere."""
    kinds = {kind for seen in undisturbed.seen.values() for kind in seen}
    chosen = [*aims(undisturbed, len(kinds))]
    assert kinds == {aim.kind for aim in chosen}
    assert chosen == [*aims(undisturbed, len(kinds))] != [*aims(undisturbed, len(kinds), seed=1)]
