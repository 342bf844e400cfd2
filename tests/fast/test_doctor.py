"""Doctor: each check, on a file system or a scheduler that is well and on one that is not. It leaves nothing behind."""

import errno
import json
import os
import re
import time
from importlib import metadata
from pathlib import Path

import pytest

from holdfast import disk, journal
from holdfast.doctor import files
from holdfast.store.store import Store
from stores import invoke
from subjects import asked_of

CONFIG = """Configuration data as of 2026-11-21T16:00:00
JobRequeue              = {requeue}
KillWait                = {kill_wait} sec
PreemptMode             = REQUEUE
SLURM_VERSION           = 22.05.8
SlurmctldParameters     = {parameters}

Slurmctld(primary) at host is UP
"""
PARTITIONS = """PartitionName=long
   AllowGroups=ALL Default=YES QoS=N/A
   DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   PreemptMode=OFF

PartitionName=preempt
   AllowGroups=ALL Default=NO QoS=N/A
   DefaultTime=NONE GraceTime=30 Hidden=NO
   PreemptMode=REQUEUE

PartitionName=pcancel
   Default=NO
   GraceTime=10
   PreemptMode=CANCEL

"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder on a machine without a scheduler."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def program(place, name, body):
    path = place.parent / "bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def slurm(place, kill_wait=30, requeue=1, parameters="(null)"):
    """A scontrol that answers as Slurm 22.05 does."""
    text = CONFIG.format(kill_wait=kill_wait, requeue=requeue, parameters=parameters)
    (place.parent / "config").write_text(text)
    (place.parent / "partitions").write_text(PARTITIONS)
    program(place, "scontrol", f'exec /bin/cat {place.parent}/"${{2}}"$( [ "$2" = partition ] && echo s)')


def asked(*words):
    """{name: (level, what, what to do)}, and the exit code."""
    result = invoke("doctor", *words, "--json")
    checks = json.loads(result.stdout)["checks"]
    return {check["name"]: (check["level"], check["what"], check["todo"]) for check in checks}, result.exit_code


def run_that_saved(place, save_s, lead=None, partition=None):
    """A run with a checkpoint and a journal, and a batch script when `lead` is given."""
    store = Store(place / "runs/x")
    store.save({"a": 1}, step=3)
    store.save({"a": 1}, step=7)
    store.attempt.record("saved", step=7, save_s=save_s, stall_s=0.0)
    store.close()
    if lead is not None:
        chosen = f"#SBATCH --partition={partition}\n" if partition else ""
        text = f"#!/bin/bash\n{chosen}#SBATCH --signal=B:USR1@{lead}\nexec holdfast run -- python train.py\n"
        (place / "runs/x/job.sh").write_text(text)
    return place / "runs/x"


# File system ----------------------------------------------------------------------------------------------------


def test_a_healthy_folder_has_a_line_for_each_check_and_stays_empty(place):
    """ok, and exit 0."""
    result = invoke("doctor")
    lines = result.stdout.splitlines()
    assert 0 == result.exit_code
    names = [re.findall(r"^(?:ok|warning|problem) +([^:]+): ", line)[0] for line in lines]
    assert ["file system", "fsync", "rename", "hard links", "O_DIRECT", "clock", "space"] == names[:7]
    assert [] == list(place.iterdir())


def refuse(*_args, **_options):
    raise OSError(errno.EPERM, "Operation not permitted")


def full(*_args, **_options):
    raise OSError(errno.ENOSPC, "No space left on device")


def written_late(path, chunks, write=disk.write):
    write(path, chunks)
    os.utime(path, (time.time() - 60, time.time() - 60))


NOT_HERE = "choose another file system"
FAULTS = [  # an operation, what it does instead, and what is said
    ("link", refuse, "hard links", "warning", "Operation not permitted", "written anew"),
    ("rename_new", refuse, "rename", "problem", "Operation not permitted", NOT_HERE),
    ("rename_new", os.replace, "rename", "problem", "replaced an existing directory", NOT_HERE),  # it loses a commit
    ("sync_dir", refuse, "fsync", "problem", "Operation not permitted", NOT_HERE),
    ("write", full, "O_DIRECT", "problem", "No space left on device", "free some space"),
    ("write", full, "clock", "problem", "No space left on device", "free some space"),
    ("open_plain", refuse, "O_DIRECT", "warning", "Operation not permitted", "page cache"),
    ("write", written_late, "clock", "warning", "the file server's is 60 s behind", "tell the site"),
    ("make_dir", refuse, "writing", "problem", ".: Operation not permitted", "choose a directory of your own"),
]


def test_what_a_file_system_does_wrong_is_named_with_what_to_do(place, monkeypatch):
    """Each fault at the disk's own door; nothing is left behind, and nothing is tried where a folder cannot be made."""
    for call, instead, name, level, what, todo in FAULTS:
        with asked_of(call, instead), monkeypatch.context() as patch:
            patch.setattr(disk, call, instead)
            checks, code = asked()
            assert (level, what, level == "problem") == (*checks[name][:2], code)
            assert todo in checks[name][2]
            assert ("rename" in checks) == (call != "make_dir")
            assert [] == list(place.iterdir())


def test_a_slow_disk_and_little_space_are_named(place, monkeypatch):
    """And space that is less than the run's next saves need is a problem."""
    monkeypatch.setattr(files, "SLOW_S", 0.0)
    monkeypatch.setattr(files, "LITTLE_BYTES", 1 << 60)
    monkeypatch.setattr(files, "LITTLE_FILES", 1 << 60)
    checks, code = asked()
    assert ("warning", "warning", "warning", 0) == (checks["fsync"][0], checks["space"][0], checks["files"][0], code)
    needed = list(files.check_file_system(Path(), needed_bytes=1 << 60))
    assert ["problem"] == [check.level for check in needed if check.name == "space"]


def test_what_a_killed_doctor_left_is_tidied_up_later(place):
    """Its folder, once it is an hour old; a living one's is left alone."""
    for name, age_s in (("old", 4000), ("young", 10)):
        (place / f"{files.NAME}-{name}").mkdir()
        os.utime(place / f"{files.NAME}-{name}", (time.time() - age_s,) * 2)
    asked()
    assert [f"{files.NAME}-young"] == [path.name for path in place.iterdir()]


QUOTA = """Disk quotas for user ada (uid 1000):
 Filesystem blocks   quota   limit   grace   files   quota   limit   grace
      /home {used}    90000000  100000000           1000       0       0
   /scratch  10    0  0           1       0       0
"""


def test_quotas_are_read_as_quota_prints_them(place):
    """A limit that is reached is a problem, one that is near a warning; no limit is no line."""
    program(place, "quota", f"exec /bin/cat {place.parent}/quota.txt")
    for used, level in (("5000", "ok"), ("99500000", "warning"), ("100000000*", "problem")):
        (place.parent / "quota.txt").write_text(QUOTA.format(used=used))
        checks, code = asked()
        assert (used, level, level == "problem") == (used, checks["quota"][0], code)
        assert checks["quota"][1].startswith("/home: ")


# Scheduler ------------------------------------------------------------------------------------------------------


def test_without_a_scheduler_it_says_so(place, monkeypatch):
    """Fine at home; inside a job a reason to look."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "ok" == asked()[0]["scheduler"][0]
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert "warning" == asked()[0]["scheduler"][0]


def test_a_scheduler_that_does_not_answer_is_a_problem(place):
    """With its own words."""
    program(place, "scontrol", 'echo "slurm_load_ctl_conf error: Unable to contact slurm controller" >&2; exit 1')
    checks, code = asked()
    assert code == 1
    assert "Unable to contact slurm controller" in checks["scheduler"][1]


def test_what_slurm_is_set_to_do_is_said_of_the_partition_that_counts(place):
    """KillWait, preemption with its grace, JobRequeue; the default partition unless another is named."""
    slurm(place)
    checks, code = asked()
    assert ("ok", "Slurm 22.05.8 answers") == checks["scheduler"][:2]
    assert ("ok", "30 s from SIGTERM to SIGKILL") == checks["KillWait"][:2]
    assert ("ok", "long: jobs are not preempted") == checks["preemption"][:2]
    assert ("ok", 0) == (checks["JobRequeue"][0], code)
    assert ("ok", "preempt: 30 s of grace, then REQUEUE") == asked("--partition", "preempt")[0]["preemption"][:2]
    assert "warning" == asked("--partition", "pcancel")[0]["preemption"][0]
    known = "there are long, pcancel, preempt"
    assert f"there is no partition nope; {known}" == asked("--partition", "nope")[0]["scheduler"][1]
    slurm(place, kill_wait=5, requeue=0)
    checks, _ = asked()
    assert ("warning", "warning") == (checks["KillWait"][0], checks["JobRequeue"][0])


# A run ----------------------------------------------------------------------------------------------------------


def test_your_save_takes_41_s_and_your_grace_is_30_s(place):
    """What was measured beside what the cluster leaves; the script says which partition."""
    slurm(place)
    run = run_that_saved(place, save_s=41.0, lead=60, partition="preempt")
    checks, code = asked(run)
    level, what, todo = checks["grace"]
    assert ("problem", "your save takes 41 s, your grace is 30 s") == (level, what)
    assert "save more often" in todo
    assert ("problem", "your save takes 41 s, and the notice comes 60 s before the end") == checks["notice"][:2]
    assert "holdfast submit --lead 93" == checks["notice"][2]
    assert code == 1


def test_a_save_that_fits_is_fine(place):
    """Half as much again, and a second to leave."""
    slurm(place)
    checks, code = asked(run_that_saved(place, save_s=15.0, lead=120, partition="preempt"))
    assert ("ok", "your save takes 15 s") == checks["saves"][:2]
    assert ("ok", "ok", "ok", 0) == (checks["grace"][0], checks["notice"][0], checks["checkpoints"][0], code)
    assert "2, the newest of step 7" == checks["checkpoints"][1]


def test_a_notice_at_once_adds_the_partitions_grace(place):
    """Where Slurm sends the job's own signal when it preempts."""
    slurm(place, parameters="preempt_send_user_signal")
    checks, _ = asked(run_that_saved(place, save_s=35.0), "--partition", "preempt")
    assert ("ok", "your grace is 60 s: enough for a save") == checks["grace"][:2]


def test_without_preemption_there_is_no_grace_to_speak_of(place):
    """And without a scheduler neither."""
    run = run_that_saved(place, save_s=41.0)
    assert "grace" not in asked(run)[0]
    slurm(place)
    assert "grace" not in asked(run)[0]


def test_the_supervisors_directory_will_do_as_well(place):
    """It knows where its run is."""
    run = run_that_saved(place, save_s=41.0)
    around = place / ".holdfast/train"
    around.mkdir(parents=True)
    (around / "run-here.json").write_text(json.dumps({"run": str(run)}))
    assert "your save takes 41 s" == asked(around)[0]["saves"][1]


def test_a_run_on_hold_and_what_was_set_aside_are_named(place):
    """With the command that helps."""
    run = run_that_saved(place, save_s=1.0)
    (run / "hold").touch()
    (run / "quarantine" / "step-000000003-damaged").mkdir(parents=True)
    checks, _ = asked(run)
    assert ("warning", f"holdfast release {run}") == (checks["hold"][0], checks["hold"][2])
    assert ("warning", f"holdfast ls {run} says why") == (checks["quarantine"][0], checks["quarantine"][2])


def test_a_damaged_newest_checkpoint_is_a_problem(place):
    """The manifest says it of itself; verify reads every byte."""
    run = run_that_saved(place, save_s=1.0)
    manifest = run / "checkpoints/step-000000007/manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step"', b'"stop"', 1))
    checks, code = asked(run)
    assert ("problem", f"holdfast verify {run}", 1) == (checks["checkpoints"][0], checks["checkpoints"][2], code)


def test_a_run_that_has_not_saved_yet_is_told_to_wait(place):
    """No figure is made up."""
    (place / "new").mkdir()
    checks, code = asked("new")
    assert ("warning", "warning", 0) == (checks["saves"][0], checks["checkpoints"][0], code)


def test_a_run_that_is_not_there_is_one_line_and_exit_3(place):
    """And nothing is made."""
    result = invoke("doctor", "nowhere")
    assert (3, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert [] == list(place.iterdir())


# Versions -------------------------------------------------------------------------------------------------------


def test_versions_are_said_without_importing_anything(place, monkeypatch):
    """One that is older than Holdfast works with is named, with the command that mends it."""
    checks, _ = asked()
    assert f"holdfast {metadata.version('holdfast')}" in checks["versions"][1]
    assert ("torch" in checks, "pytest" in checks) == (True, False)  # what developers need is none of a user's business
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "2.4.1+cpu" if name == "torch" else real(name))
    assert ("warning", "2.4.1+cpu is older than 2.6", "pip install 'torch>=2.6'") == asked()[0]["torch"]
    monkeypatch.setattr(metadata, "version", lambda name: "2.14.0rc1" if name == "torch" else real(name))
    assert ("ok", "2.14.0rc1") == asked()[0]["torch"][:2]


def test_the_journal_that_is_measured_is_the_last_attempts_that_saved(place):
    """A save of long ago, on another file system, says nothing."""
    history = place / "runs/y/history"
    history.mkdir(parents=True)
    for attempt, took in ((1, [99.0]), (2, [3.0, 4.0, 2.0]), (3, [])):
        lines = journal.encode_events(
            [{"event": "saved", "step": 1, "save_s": each} for each in took] or [{"event": "begin"}]
        )
        (history / f"attempt-{attempt}.jsonl").write_bytes(lines)
    assert "your save takes 4 s" == asked("runs/y")[0]["saves"][1]
