"""Odd checkpoints: a valid manifest changed at any place to anything, with its digest right."""

import random

import pytest

import hostile
from hostile_stores import fields_of

CASES, SHARE = 6, 0.02  # of all places and all that is put there, a case tries this share: about 1,200


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.timeout(1800)  # about 500 runs
@pytest.mark.parametrize("seed", range(CASES))
def test_a_resume_refuses_any_odd_manifest_before_it_changes_anything(seed, tmp_path, tally):
    """The run goes on to its end, or is refused by an error of ours, with every live object as it was.

    States of torch's own objects may also raise an error of torch's.
    """
    newest = hostile.grown(tmp_path / "run")
    mutated = hostile.mutations(fields_of(newest), seed, SHARE)
    todo = [each for each in mutated if each[0][: len(hostile.MINE)] != hostile.MINE]
    random.Random(seed).shuffle(todo)
    failed = [each for each in hostile.tried(newest, todo) if not each.is_well]
    tally("A manifest is odd at one place", tried=len(todo), survived=len(todo) - len(failed))
    assert not failed, "\n".join(map(str, failed[:20]))
    assert len(todo) > 500
