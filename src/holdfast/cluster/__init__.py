"""Cluster: what a script may ask about the job it runs in.

loader = DataLoader(dataset, num_workers=cluster.cpus())
"""

from ..job import cpus, job, restart_count, tmpdir

__all__ = ["cpus", "job", "restart_count", "tmpdir"]
