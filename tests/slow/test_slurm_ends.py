"""The test cluster ends with the session of pytest that started it, also when that session is killed."""

import subprocess
import sys
import tempfile
from pathlib import Path

from real_slurm import Slurm, concurrently

CHILD = """
import time
from real_slurm import slurm

def test_child(slurm, tmp_path):
    (tmp_path / "job.sh").write_text("#!/bin/bash\\necho $$ > pid; mv pid started; exec sleep 600\\n")
    slurm.ask("sbatch", "--output=/dev/null", "job.sh", cwd=tmp_path)
    slurm.until((tmp_path / "started").exists)
    time.sleep(100)
"""


def alive(pids):
    """Those that run, by name; a zombie does not."""
    found = {}
    for name, pid in pids.items():
        status = Path(f"/proc/{pid}/status")
        if status.exists() and "State:\tZ" not in status.read_text():
            found[name] = pid
    return found


@concurrently
def test_no_daemon_outlives_a_session_of_pytest_that_is_killed(slurm, place):
    """SIGKILL to the process that shares the cluster among its workers: its daemons and jobs end, and no others."""
    with tempfile.TemporaryDirectory() as short:  # sockets lie in it, whose paths may have 107 bytes
        killed_with_its_cluster(slurm, place, Path(short) / "t")


def killed_with_its_cluster(slurm, place, base):
    (place / "test_child.py").write_text(CHILD)
    clean = {name: value for name, value in slurm.environment.items() if not name.startswith(("PYTEST", "SLURM_CONF"))}
    helpers = str(Path(__file__).parents[1])
    words = ["-q", "-s", "-n1", "-p", "no:cacheprovider", "--rootdir", place, "--basetemp", base, place]
    with (place / "out").open("wb") as out:
        session = subprocess.Popen(
            [sys.executable, "-m", "pytest", *map(str, words)],
            env={**clean, "PYTHONPATH": helpers},
            stdout=out,
            stderr=out,
        )
    job = base / "popen-gw0/test_child0/started"
    try:
        slurm.until(job.exists)
        theirs = {**Slurm(base / "slurm").pids(), "job": int(job.read_text())}
        assert {"slurmctld", "munged", "n1", "n20", "job"} <= alive(theirs).keys()
        ours = {name: slurm.pid(name) for name in ("slurmctld", "munged", "n1", "n2")}
    finally:
        session.kill()
        session.wait()
    slurm.until(lambda: not alive(theirs), limit_s=30)
    assert ours == alive(ours)
