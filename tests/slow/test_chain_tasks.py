"""A chain of real processes beside a fake Slurm: the task that finishes the work ends the rest."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes import record
from holdfast import journal
from holdfast.supervise.place import JOURNAL
from job_fakes import earlier

HOLDFAST = Path(sys.executable).parent / "holdfast"


@pytest.fixture
def task(tmp_path):
    """Runs a command as a task of an array, beside a scancel that notes its words and gives a code."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "scancel").write_text(
        '#!/bin/sh\necho "$@" >> "$SEEN"\n[ -z "$CODE" ] || echo no >&2\nexit ${CODE:-0}\n'
    )
    (programs / "scancel").chmod(0o755)
    (programs / "scontrol").write_text('#!/bin/sh\n. "$SCONTROL"\n')
    (programs / "scontrol").chmod(0o755)

    def run(array, number, *command, options=("--run", "d"), **more):
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "SEEN": str(tmp_path / "seen"),
            "SCONTROL": str(tmp_path / "scontrol"),
            "SLURM_JOB_ID": str(100 + number),
            "SLURM_ARRAY_JOB_ID": str(array),
            "SLURM_ARRAY_TASK_ID": str(number),
            **more,
        }
        words = [HOLDFAST, "run", "--chain", "--no-requeue", *options, "--", *command]
        return subprocess.run(words, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def cancelled(tmp_path):
    path = tmp_path / "seen"
    return path.read_text().splitlines() if path.exists() else []


def test_the_task_that_finishes_cancels_those_that_wait(task, tmp_path):
    """And itself is not among them."""
    done = task(7, 1, "true")
    assert 0 == done.returncode
    assert ["--state=PENDING 7"] == cancelled(tmp_path)
    said = "task 1 of the chain has finished the work; the tasks that wait are cancelled on purpose\n"
    assert done.stderr.endswith(f"holdfast: true: done after 1 start\nholdfast: {said}")


def test_a_task_that_stops_or_fails_cancels_nothing(task, tmp_path):
    """The next one goes on."""
    told = 'kill -TERM "$(cut -d" " -f4 /proc/$PPID/stat)"; sleep 0.5; exit 75'  # the supervisor, past its warden
    stopped = task(7, 1, "sh", "-c", told)
    assert 0 == stopped.returncode  # 75 would be a failed job, and a mail
    assert stopped.stderr.endswith("holdfast: job 7_1: the next task of the array goes on\n")
    last = task(7, 1, "sh", "-c", told, SLURM_ARRAY_TASK_MAX="1")
    assert last.stderr.endswith("job 7_1: it was the last task of the array; to go on, submit it again\n")
    assert 8 == task(7, 2, "false").returncode
    assert [] == cancelled(tmp_path)


def test_a_task_that_starts_after_the_end_does_nothing(task, tmp_path):
    """But one of another array does: the same work, asked for anew."""
    task(7, 1, "true")
    late = task(7, 2, "touch", "begun")
    assert (0, False) == (late.returncode, (tmp_path / "begun").exists())
    assert "an earlier task of this array has finished the work" in late.stderr
    assert 0 == task(8, 1, "touch", "begun").returncode
    assert (tmp_path / "begun").exists()


def test_what_cannot_be_cancelled_is_told_and_the_work_is_done_all_the_same(task, tmp_path):
    """Exit 0; the rest sees the mark."""
    done = task(7, 1, "true", CODE="1")
    assert 0 == done.returncode
    assert "tasks of this array that are left may start in vain: scancel --state=PENDING: no" in done.stderr
    assert "finished the work" in task(7, 2, "true").stderr


def test_a_directory_that_is_gone_at_the_end_is_told(task, tmp_path):
    """The rest is cancelled all the same."""
    done = task(7, 1, "mv", "d", "gone")
    assert 0 == done.returncode
    assert "may start in vain" in done.stderr
    assert "done-7: No such file or directory" in done.stderr
    assert ["--state=PENDING 7"] == cancelled(tmp_path)


def test_a_chain_needs_a_directory_that_its_tasks_share(task):
    """Without one each would begin anew: one line, exit 2."""
    done = task(7, 1, "true", options=())
    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "--chain needs --run DIR" in done.stderr


def slurm_says(tmp_path, *states, kill_wait=10, **facts):
    """Of task 1, one after another; the last one from then on."""
    for number, state in enumerate(states):
        (tmp_path / f"state-{number}").write_text(record(JobState=state, **facts))
    rest = f"""case "$*" in
"show config") echo "KillWait = {kill_wait} sec";;
"show job 7_1") f={tmp_path}; n=$(cat $f/n 2>/dev/null || echo 0); cat $f/state-$n
    [ -e $f/state-$((n+1)) ] && echo $((n+1)) > $f/n; exit 0;;
*) echo "unexpected: $*" >&2; exit 1;; esac
"""
    (tmp_path / "scontrol").write_text(rest)


BEFORE = {
    # what the task before is: (its states, one after another, other facts, how often the next one says that it waits)
    "still ending": (["COMPLETING", "COMPLETING", "TIMEOUT"], {}, 1),
    "killed on a node that is no more": (["NODE_FAIL"], {}, 0),
    "an earlier start of a task that waits again, its node being lost": (["PENDING"], {"Restarts": 1}, 0),
}


@pytest.mark.parametrize("what", BEFORE)
def test_a_task_waits_for_the_one_before_until_slurm_calls_it_over(task, tmp_path, what):
    """Slurm starts it as soon as the one before has been told; it says once that it waits, and then goes on."""
    states, facts, waits = BEFORE[what]
    earlier(tmp_path)
    slurm_says(tmp_path, *states, **facts)
    began = time.monotonic()
    done = task(7, 2, "touch", "begun")
    assert (0, True) == (done.returncode, (tmp_path / "begun").exists())
    told = "holdfast: d: task 1 of this array is still ending (pid 12 on n1, user ada, job 7); waits up to 70 s for it"
    assert waits == done.stderr.splitlines().count(told) == done.stderr.count("waits")
    assert not waits or time.monotonic() - began > 1
    said = [line for line in journal.read(tmp_path / "d" / JOURNAL) if line.get("supervisor") == "before"]
    assert [None, "its task is over, as Slurm says"] == [line.get("why") for line in said]


def test_a_task_finished_while_another_waited_for_it_leaves_nothing_to_do(task, tmp_path):
    """The mark is looked for after the wait."""
    earlier(tmp_path)
    slurm_says(tmp_path, "COMPLETING", "COMPLETED")
    (tmp_path / "d/done-7").touch()
    done = task(7, 2, "touch", "begun")
    assert (0, False) == (done.returncode, (tmp_path / "begun").exists())
    assert "finished the work" in done.stderr


def test_who_is_of_another_array_is_not_waited_for(task, tmp_path):
    """It may run for days: wrong use, at once."""
    earlier(tmp_path, array="6")
    slurm_says(tmp_path, "COMPLETING")
    done = task(7, 2, "true")
    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert "another `holdfast run` may still be running there" in done.stderr
