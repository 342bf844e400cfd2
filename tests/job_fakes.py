"""A job of Slurm's, as a run in it sees it, played by small scripts on PATH."""

import json
import os

from fakes import Fakes
from holdfast.cluster import watch


def in_a_job(tmp_path, monkeypatch):
    """A job on a partition whose scheduler has all its answers, and time without a limit."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "HOLDFAST")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(watch, "FIRST_S", 0)
    monkeypatch.setenv("SLURM_JOB_ID", "120")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "spot")
    fakes = Fakes(tmp_path, monkeypatch)
    fakes.job(JobState="COMPLETING", Reason="TimeLimit")
    fakes.say("scontrol requeue")
    fakes.say("scontrol write", "#!/bin/sh\n#SBATCH --signal=B:USR1@120\n")
    fakes.say("scontrol show config", "KillWait                = 30 sec\n")
    fakes.say("scontrol show partition", "PartitionName=spot\n   GraceTime=10 Hidden=NO\n")
    fakes.say("squeue", "UNLIMITED\n")
    return fakes


def earlier(place, array="7"):
    """A supervisor of task 1, on another machine, has begun in `place`/d and said no good-bye."""
    owner = {"host": "n1", "boot": "another", "pid": 12, "user": "ada"}
    owner["job"] = {"id": array, "array_task": "1", "restart_count": 0}
    (place / "d").mkdir()
    line = {"event": "begin", "time": 1.0, "supervisor": "before", "owner": owner}
    (place / "d/supervisor.jsonl").write_text(json.dumps(line) + "\n")
