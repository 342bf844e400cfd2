"""Cluster: facts about the job in which a script runs.

loader = DataLoader(dataset, num_workers=cluster.cpus())
"""

from ..job import cpus, job, restart_count, tmpdir

__all__ = ["cpus", "job", "restart_count", "tmpdir"]
