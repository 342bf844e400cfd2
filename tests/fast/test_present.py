"""Which checkpoints, here and at places, are a run's present: pure functions of journals and of what places tell."""

import pytest

from holdfast import Store
from holdfast.errors import UsageError
from holdfast.journal import Log
from holdfast.mirror.records import Claim, Copy, PlaceState, ResumeOrigin
from holdfast.mirror.run_lineage import RunLineage, resume_origin_of
from holdfast.mirror.sending import manifest_digest
from holdfast.store import claiming
from holdfast.store.claiming import RemoteFacts
from holdfast.store.format import CheckpointName

A, B = ({"host": host, "boot": host, "pid": 1, "pid_started": "1", "pid_space": "p"} for host in "ab")


def at(attempt, *steps):
    return [
        Copy(
            attempt=attempt,
            name=str(CheckpointName(step)),
            digest=f"{attempt}:{step}",
            step=step,
            phase="step",
            epoch=None,
            created=1.0,
            metrics={},
            size_bytes=1,
        )
        for step in steps
    ]


def seen(*claims, copies=()):
    return PlaceState(run="r", claims=[*claims], copies=[*copies])


def claimed(attempt, owner, *origin):
    return Claim(attempt=attempt, owner=owner, origin=ResumeOrigin(*origin) if origin else None)


def steps(present):
    return [found.name.step for found in present.checkpoints_at_places()]


def test_a_ghosts_late_copy_is_in_no_lineage():
    """Attempt 2 went on from attempt 1's step 20; what attempt 1 copies later does not count."""
    place = seen(
        claimed(1, A, None), claimed(2, B, 1, str(CheckpointName(20))), copies=[*at(1, 10, 20, 30), *at(2, 25)]
    )
    present = RunLineage([], [], {0: place})
    assert ([25, 20, 10], 2, False) == (steps(present), present.head, present.began_from_scratch)


def test_who_claims_and_never_begins_changes_nothing():
    """An attempt that died before its restore."""
    place = seen(claimed(1, A, None), claimed(2, B), copies=at(1, 10, 20))
    present = RunLineage([], [], {0: place})
    assert ([20, 10], 1) == (steps(present), present.head)


def test_going_back_beyond_an_earlier_restore_counts_for_all_attempts():
    """Attempt 3 went back to step 10; attempt 2, from which it comes, had gone on from step 20 of attempt 1."""
    claims = [claimed(1, A, None), claimed(2, A, 1, str(CheckpointName(20))), claimed(3, A, 2, str(CheckpointName(10)))]
    present = RunLineage([], [], {0: seen(*claims, copies=[*at(1, 10, 20, 30), *at(2, 40), *at(3, 11)])})
    assert [11, 10] == steps(present)


def test_a_copy_at_several_places_is_fetched_from_the_nearest():
    """Also if another attempt has brought it to one of them: it is known by its manifest."""
    copy = at(1, 20)
    late = [Copy(**{**{name: getattr(copy[0], name) for name in Copy.__struct_fields__}, "attempt": 2})]
    claims = [claimed(1, A, None), claimed(2, A, 1, str(CheckpointName(20)))]
    present = RunLineage([], [], {0: seen(*claims, copies=late), 1: seen(*claims, copies=copy)})
    assert [(CheckpointName(20), {(0, 2), (1, 1)})] == [
        (each.name, {*each.at}) for each in present.checkpoints_at_places()
    ]
    assert {str(CheckpointName(20))} == {*present.copies_at(0)} == {*present.copies_at(1)}


def test_one_number_used_by_two_processes_is_refused():
    """At two places; and in the directory and at a place."""
    with pytest.raises(UsageError, match="attempt 1 was made twice"):
        RunLineage([], [], {0: seen(claimed(1, A, None)), 1: seen(claimed(1, B, None))})
    begun = [{"event": "begin", "owner": A}, {"event": "restored", "step": 0, "checkpoint": None}]
    with pytest.raises(UsageError, match="attempt 1 was made twice"):
        RunLineage([], [Log(1, None, begun)], {0: seen(claimed(1, B, None))})
    with pytest.raises(UsageError, match="attempt 1 went on from"):
        RunLineage([], [], {0: seen(claimed(1, A, None)), 1: seen(claimed(1, A, 0, "step-000000001"))})


def test_the_directory_is_of_the_lineage_unless_the_run_went_on_elsewhere(tmp_path):
    """What it holds up to the common checkpoint stays; what is newer is a stray."""
    store = Store(tmp_path)
    for step in (10, 20, 30):
        store.save({"w": step}, step=step)
    store.close()
    local = store.checkpoints()
    digests = [manifest_digest((each.path / "manifest.json").read_bytes()) for each in local]
    log = Log(1, None, [{"event": "begin", "owner": A}, {"event": "restored", "step": 0, "checkpoint": None}])
    mine = claimed(1, A, None)
    assert [] == RunLineage(local, [log], {0: seen(mine)}).orphaned_checkpoints()
    later = claimed(2, B, 1, str(CheckpointName(20)))
    present = RunLineage(local, [log], {0: seen(mine, later, copies=at(2, 25))})
    assert [str(CheckpointName(30))] == present.orphaned_checkpoints()
    assert [25] == steps(present)
    afresh = RunLineage(local, [log], {0: seen(mine, claimed(2, B, None))})
    assert [str(CheckpointName(step)) for step in (10, 20, 30)] == afresh.orphaned_checkpoints()
    assert afresh.began_from_scratch
    assert 3 == len({*digests})


def test_an_attempts_origin_is_told_by_its_journal():
    """What a run with mirrors has noted; else the attempt before, in this directory; a branch begins afresh."""
    before = Log(3, None, [])
    restored = {"event": "restored", "step": 5, "checkpoint": "step-000000005"}
    assert ResumeOrigin(3, "step-000000005") == resume_origin_of(Log(4, None, [restored]), before)
    noted = {"event": "mirrors", "places": {}, "attempt": 2, "name": "step-000000004"}
    assert ResumeOrigin(2, "step-000000004") == resume_origin_of(Log(4, None, [restored, noted]), before)
    assert ResumeOrigin(None) == resume_origin_of(Log(4, None, [{"event": "branched"}, restored]), before)
    assert ResumeOrigin(None) == resume_origin_of(Log(4, None, [restored]), None)


def test_a_claim_is_above_the_attempts_elsewhere_and_of_the_same_run(tmp_path):
    """A new directory takes the run's id; one of another run is refused, and nothing is claimed there."""
    attempt = claiming.claim(tmp_path / "run", elsewhere=RemoteFacts("the-run", 6))
    assert (7, "the-run") == (attempt.number, attempt.run)
    attempt.close("end", step=0)
    with pytest.raises(UsageError, match="another run's directory"):
        claiming.claim(tmp_path / "run", elsewhere=RemoteFacts("another", 9))
    assert 8 == claiming.claim(tmp_path / "run", elsewhere=RemoteFacts("the-run", 3)).number
