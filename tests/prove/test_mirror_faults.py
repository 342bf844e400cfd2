"""A thousand faults of real servers, networks and disks, beside a training that copies each of its checkpoints."""

import pytest

from fault_plans import counts
from mirror_story import KINDS, Batch, sites, train
from servers import needs_sshd

BATCHES = {
    "S3": Batch(1, {"s3": 200, "worker": 10}),
    "S3 again": Batch(2, {"s3": 200, "worker": 10}),
    "in parts": Batch(3, {"s3 in parts": 100, "folder": 100}),
    "SFTP": Batch(4, {"sftp": 100, "folder": 80}),
    "all": Batch(5, {"s3": 100, "sftp": 50, "folder": 40, "worker": 10}),
}


@needs_sshd
@pytest.mark.parametrize("batch", BATCHES.values(), ids=[*BATCHES])
def test_no_fault_of_a_place_stops_training_or_costs_a_checkpoint(tmp_path, monkeypatch, tally, batch):
    """No wait of the loop above the bound, every copy that is due there and right, and at no moment a manifest whose
    files are not all there and right. Each fault is counted where it is made."""
    monkeypatch.setenv("S3_UPLOAD_PART_MIN_SIZE", "1")
    plans = batch.plans(tmp_path)
    survived = False
    try:
        with sites(plans, tmp_path) as places:
            told = train(plans, places, tmp_path)
        told.require()
        assert [] == [str(fault) for plan in plans.values() for fault in plan.left()], "faults that never happened"
        survived = True
    finally:
        for fault, tried, struck in counts(plans):
            tally(fault, tried=tried, observed=struck, survived=struck * survived)


def test_they_are_a_thousand():
    each = [(kind, count) for batch in BATCHES.values() for kind, count in batch.counts.items()]
    assert sum(count for _, count in each) == 1000
    assert {kind for kind, _ in each} == KINDS.keys()
