"""Why a start ended, for real: killed by the kernel for want of memory, a full disk, a crash, the same error twice."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from needed import missing
from supervised import bash, supervised, train, until

EXAMPLE = Path(__file__).parents[2] / "examples/supervisor/causes.py"
EATS = "import os\nkept = []\nwhile True:\n    kept.append(bytearray(os.urandom(1 << 16)) * 64)\n"
FAILS = """
    with new_run(RUN, toy, every=Every(steps=5)) as run:
        for epoch in run.epochs(3):
            for x in run.batches(range(10)):
                if run.step == 12 and not os.path.exists("mended"):
                    raise ValueError(f"no good {time.time()}")
                toy.learn(x)
"""


@pytest.fixture
def small_memory():
    """A memory cgroup of 96 MiB; the files that its processes are written to."""
    root = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup")
    old = root.name == "memory"
    place = root / f"holdfast-test-{os.getpid()}"
    if os.getuid():
        pytest.skip("root is needed to make a cgroup")
    try:
        place.mkdir()
        (place / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(96 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made: {error}")
    yield place / "cgroup.procs"

    def removed():
        with suppress(OSError):
            place.rmdir()
        return not place.exists()

    until(removed, "the cgroup's end")


def cause(it):
    return [event.get("cause", "") for event in it.events("exit")]


def test_the_kernels_kill_for_want_of_memory_is_named(tmp_path, small_memory):
    """The command moves itself into a cgroup of 96 MiB and takes more; killed, it is told from a plain SIGKILL."""
    (tmp_path / "eats.py").write_text(EATS)
    enters = f"[ -e n ] && exit 0; touch n; echo $$ > {small_memory}; exec {sys.executable} eats.py"
    it = supervised(tmp_path, bash(enters), "--retries", 2)
    assert (0, ["out of memory", ""]) == (it.code, cause(it)), it.said
    assert "killed by SIGKILL (out of memory); retry 1 of 2: started again in " in it.said
    assert "done after 2 starts (1 out of memory)" in it.said
    place = tmp_path / "plain"
    place.mkdir()
    it = supervised(place, bash("[ -e n ] && exit 0; touch n; kill -KILL $$"), "--retries", 2)
    assert ["killed by SIGKILL", ""] == cause(it)
    assert "done after 2 starts (1 killed by SIGKILL)" in it.said


def test_a_kill_in_the_supervisors_own_cgroup_is_counted(tmp_path, small_memory):
    """Without the kernel's log, as for most users: the worker is killed, its parent only says so."""
    (tmp_path / "eats.py").write_text(EATS)
    script = f"echo $BASHPID > {small_memory}; {sys.executable} -m holdfast run -- {sys.executable} eats.py"
    ended = subprocess.run(bash(script), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert 8 == ended.returncode, ended.stderr
    assert "eats.py: killed by SIGKILL (out of memory)" in ended.stderr


def test_the_memory_of_a_cgroup_is_what_is_left_of_it(small_memory):
    """Where the job's limit is less than the machine has, it counts."""
    asks = "from holdfast.supervise.evidence import free_and_total_memory; print(*free_and_total_memory())"
    said = subprocess.check_output(
        bash(f"echo $BASHPID > {small_memory}; exec {sys.executable} -c '{asks}'"), text=True
    )
    free, whole = map(int, said.split())
    assert whole == 96 << 20
    assert 30 << 20 < free < whole


def test_a_full_disk_is_named(tmp_path):
    """A real one of 64 KiB; the program says nothing but its exit code."""
    if reason := missing("mount", "umount", root=True):
        pytest.skip(reason)
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", place], check=True)
    try:
        fills = bash("head -c 1M /dev/zero > big 2>/dev/null; exit 4")
        words = [sys.executable, "-m", "holdfast", "run", "--run", tmp_path / "place", "--", *fills]
        ended = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False, timeout=120)
        assert "bash: exit 4 (disk full)" in ended.stderr
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_crash_is_named_and_tried_again_at_once(tmp_path):
    """The first time without a wait."""
    it = supervised(tmp_path, bash("[ -e n ] && exit 0; touch n; kill -SEGV $$"), "--retries", 1)
    assert (0, ["killed by SIGSEGV", ""]) == (it.code, cause(it))
    assert 0 == it.events("next")[0]["wait_s"]
    assert it.events("start")[1]["time"] - it.events("exit")[0]["time"] < 0.75


def test_an_error_that_comes_twice_at_the_same_step_is_not_tried_again(tmp_path):
    """The run's journal says where; its text may differ. Mended, it goes on."""
    it = supervised(tmp_path, train(tmp_path, FAILS), "--retries", 9, "--run", "place")
    assert (8, ["error", "same error twice"]) == (it.code, cause(it)), it.said
    assert "train.py: exit 1: same error twice: another start would end like this one" in it.said
    shown = subprocess.run(
        [sys.executable, "-m", "holdfast", "status", "place"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "same error twice: ValueError: no good" in shown.stdout
    (tmp_path / "mended").touch()
    assert 0 == supervised(tmp_path, train(tmp_path, FAILS), "--run", "place").code


def test_a_program_without_a_run_that_ends_with_the_same_traceback_is_not_tried_again(tmp_path):
    """And one whose last line differs is."""
    it = supervised(tmp_path, [sys.executable, "-c", "int('x')"], "--retries", 9)
    assert (8, ["error", "same error twice"]) == (it.code, cause(it))
    place = tmp_path / "other"
    place.mkdir()
    it = supervised(place, [sys.executable, "-c", "import time; int(str(time.time()))"], "--retries", 2)
    assert ["error", "error", "error"] == cause(it)


def test_the_example_shows_the_causes():
    """What it prints is what the page says."""
    said = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=True, timeout=200).stdout
    for line in (
        "program.py: killed by SIGSEGV; retry 1 of 3: started again\n",
        "program.py: exit 1: same error twice: another start would end like this one",
        "program.py: exit 1 (disk full); retry 1 of 3: started again in ",
        "program.py: exit 1 (out of memory); retry 1 of 3: started again in ",
    ):
        assert line in said
