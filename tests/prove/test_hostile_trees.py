"""Odd checkpoints: a valid manifest changed at any place to anything, with its digest right."""

import random
import shutil

import pytest

import hostile
from hostile_stores import fields_of

CASES, SHARE = 6, 0.02  # of all places and all that is put there, a case tries this share: about 1,200
PATIENCE_S = 60


@pytest.mark.usefixtures("no_syncs")
@pytest.mark.timeout(1800)  # about 500 runs
@pytest.mark.parametrize("seed", range(CASES))
def test_a_resume_refuses_any_odd_manifest_before_it_changes_anything(seed, tmp_path, tally):
    """The run goes on to its end, or is refused by an error of ours, with every live object as it was.

    States of torch's own objects may also raise an error of torch's.
    """
    newest = hostile.grown(tmp_path / "run")
    (older,) = {*newest.parent.glob("step-*")} - {newest}
    shutil.rmtree(older)
    fields = fields_of(newest)
    todo = [each for each in hostile.mutations(fields, seed, SHARE) if each[0][: len(hostile.MINE)] != hostile.MINE]
    random.Random(seed).shuffle(todo)
    failed = []
    for path, number in todo:
        root = tmp_path / "odd"
        shutil.copytree(newest.parents[1], root, symlinks=True)
        hostile.put(root / "checkpoints" / newest.name, path, hostile.value_of(number))
        with hostile.in_time(PATIENCE_S):
            found = hostile.resumed(root)
        of_torch = any(path[: len(each)] == each for each in hostile.TORCHS)
        if not (found.is_torchs if of_torch else found.survived):
            failed.append((path, hostile.value_of(number), found))
        shutil.rmtree(root)
    tally("A manifest is odd at one place", tried=len(todo), survived=len(todo) - len(failed))
    assert not failed, "\n".join(map(str, failed[:20]))
    assert len(todo) > 500
