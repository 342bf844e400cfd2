"""Some of the faults of tests/prove/test_mirror_faults.py, of all kinds of places at once."""

from fault_plans import counts
from mirror_story import Batch, sites, train
from servers import needs_sshd

SAMPLE = Batch(6, {"s3": 14, "sftp": 8, "folder": 10, "worker": 1})


@needs_sshd
def test_a_sample_of_faults_is_survived(tmp_path, tally):
    plans = SAMPLE.plans(tmp_path)
    with sites(plans, tmp_path) as places:
        told = train(plans, places, tmp_path)
    told.require()
    assert [] == [str(fault) for plan in plans.values() for fault in plan.left()]
    for fault, tried, struck in counts(plans):
        tally(fault, tried=tried, observed=struck)
