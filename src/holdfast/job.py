"""Reads from the environment to which scheduler's job this process belongs. It runs no commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Job(NamedTuple):
    """One start of a job, or of one task of an array."""

    scheduler: str  # a key of `SCHEDULERS`
    id: str  # as the scheduler's commands accept it: "120", or of an array's task "120_3"
    restart_count: int  # earlier starts of this same job
    array: str | None = None  # the whole array's id
    task: str | None = None  # of the array
    process: int = 0  # number 0 acts for the job
    processes: int = 1
    nodes: int = 1


class _Names(NamedTuple):
    """Names of environment variables; "" where a scheduler has none."""

    id: str
    restart_count: str = ""
    array: str = ""
    task: str = ""
    process: str = ""
    processes: str = ""
    nodes: str = ""
    cpus: tuple[str, ...] = ()
    tmpdir: tuple[str, ...] = ()
    mark: str = ""  # required as well, where the id's own name is a common one
    no_task: tuple[str, ...] = ()  # values of `task` outside an array
    element: str = "{array}_{task}"  # a task's id, as the scheduler's commands accept it


# Sources: sbatch(1), OUTPUT ENVIRONMENT VARIABLES. IBM Spectrum LSF 10.1, "Environment variables
# set for job execution". qsub(1B) of OpenPBS, ENVIRONMENT VARIABLES. submit(1) of Grid Engine,
# ENVIRONMENTAL VARIABLES. flux-environment(7). Kubernetes, "Indexed Job" and "Accessing the
# Kubernetes API from a Pod". If several are set, as by a Flux instance inside a Slurm job, the
# first one here is used: it is the outermost, which can requeue the job.
SCHEDULERS: Mapping[str, _Names] = {
    "slurm": _Names(
        "SLURM_JOB_ID",
        "SLURM_RESTART_COUNT",
        "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_JOB_NUM_NODES",
        ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"),
        ("SLURM_TMPDIR",),
    ),
    "lsf": _Names(
        "LSB_JOBID",
        "LSB_RESTART",  # Y, however often
        "LSB_JOBID",
        "LSB_JOBINDEX",
        processes="LSB_DJOB_NUMPROC",
        cpus=("LSB_MAX_NUM_PROCESSORS",),
        no_task=("0",),
        element="{array}[{task}]",
    ),
    "pbs": _Names(
        "PBS_JOBID",  # of an array's task "120[3].server" already
        task="PBS_ARRAY_INDEX",
        cpus=("NCPUS",),
        tmpdir=("TMPDIR",),
    ),
    "sge": _Names(
        "JOB_ID",
        "RESTARTED",
        "JOB_ID",
        "SGE_TASK_ID",
        nodes="NHOSTS",
        cpus=("NSLOTS",),
        tmpdir=("TMPDIR",),
        mark="SGE_TASK_ID",
        no_task=("undefined",),
        element="{array}.{task}",
    ),
    "flux": _Names(
        "FLUX_JOB_ID",
        process="FLUX_TASK_RANK",
        processes="FLUX_JOB_SIZE",
        nodes="FLUX_JOB_NNODES",
        tmpdir=("FLUX_JOB_TMPDIR",),
    ),
    "kubernetes": _Names(
        "HOSTNAME",  # the pod's name
        task="JOB_COMPLETION_INDEX",
        mark="KUBERNETES_SERVICE_HOST",
    ),
}


def job(environment: Mapping[str, str] = os.environ) -> Job | None:
    """Return the job that this process runs in; None outside any."""
    for scheduler, names in SCHEDULERS.items():
        number = environment.get(names.id)
        if number and (not names.mark or environment.get(names.mark)):
            array, task = environment.get(names.array), environment.get(names.task)
            task = None if task in names.no_task else task
            leader = environment.get("SLURM_HET_JOB_ID") if scheduler == "slurm" else None
            return Job(
                scheduler,
                names.element.format(array=array, task=task)
                if array and task
                else leader or number,
                _count(environment, names.restart_count, 0),
                array if task else None,
                task,
                _count(environment, names.process, 0),
                _count(environment, names.processes, 1),
                _count(environment, names.nodes, 1),
            )
    return None


def cpus() -> int:
    """Return the number of CPUs for this process:
    the job's for one task, else those it may be scheduled on.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    here = job()
    given = (
        [_count(os.environ, name, 0) for name in SCHEDULERS[here.scheduler].cpus] if here else []
    )
    return min([allowed, *filter(None, given)])


def tmpdir() -> Path:
    """Return a folder on this node that belongs to the job;
    the system's temporary one outside a job.
    """
    import tempfile  # which imports every compressor there is

    here = job()
    given = [os.environ.get(name) for name in SCHEDULERS[here.scheduler].tmpdir] if here else []
    return Path(next(filter(None, given), None) or tempfile.gettempdir())


def restart_count() -> int:
    """Return the number of earlier starts of this job; 0 outside any."""
    here = job()
    return here.restart_count if here else 0


def _count(environment: Mapping[str, str], name: str, otherwise: int) -> int:
    text = environment.get(name, "")
    return int(text) if text.isdecimal() else 1 if text == "Y" else otherwise
