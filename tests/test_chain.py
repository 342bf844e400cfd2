"""A chain: the task that finishes the work ends the rest; what cannot be cancelled ends by itself."""

import subprocess
import sys
from pathlib import Path

import pytest

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

    def run(array, number, *command, options=("--run", "d"), **more):
        environment = {
            "PATH": f"{programs}:/usr/bin:/bin",
            "SEEN": str(tmp_path / "seen"),
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
    assert 0 == task(7, 1, "true").returncode
    assert ["--state=PENDING 7"] == cancelled(tmp_path)


def test_a_task_that_stops_or_fails_cancels_nothing(task, tmp_path):
    """The next one goes on."""
    told = 'kill -TERM "$(cut -d" " -f4 /proc/$PPID/stat)"; sleep 0.5; exit 75'  # the supervisor, past its warden
    assert 75 == task(7, 1, "sh", "-c", told).returncode
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
