"""Why a start ended, and what is done about it: the whole table, without a process."""

import errno
import re
from pathlib import Path

import pytest

from holdfast.cluster.cause import BAD_NODE
from holdfast.inspect import starts
from holdfast.store.refusal import disk_error
from holdfast.supervise import causes
from holdfast.supervise.causes import DISK, MEMORY, REPEATS, UNTRUSTED, EndEvidence, StartError, find_cause
from holdfast.supervise.evidence import is_disk_full, memory_event_files
from holdfast.supervise.judge import CommandAttempt, decide_next_step

ROOT = Path(__file__).parents[2]
WRONG = StartError("ValueError", "train.py:17", 30, "ValueError: no")
CRASH = CommandAttempt("failed", 1, 60.0)


def _ours(code):
    """A save that the disk refused, as the output has it where the journal's last line could not be written."""
    error = disk_error(Path("run"), "save", OSError(code, "", "run/file"))
    kind = f"{type(error).__module__}.{type(error).__name__}"
    return WRONG._replace(kind=kind, text=f"{kind}: {error}")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (EndEvidence(-11), "killed by SIGSEGV"),
        (EndEvidence(-40), "killed by signal 40"),
        (EndEvidence(3), "error"),
        (EndEvidence(-9), "killed by SIGKILL"),
        (EndEvidence(-9, memory_kills=1), MEMORY),
        (EndEvidence(137, memory_kills=1), MEMORY),  # a shell in between
        (EndEvidence(-9, own_kills=1), MEMORY),
        (EndEvidence(1, memory_kills=1), "error"),  # another process of the same cgroup
        (EndEvidence(1, StartError("RuntimeError", text="worker is killed by signal: Killed.")), "error"),
        (
            EndEvidence(1, StartError("RuntimeError", text="worker is killed by signal: Killed."), memory_kills=1),
            MEMORY,
        ),
        (EndEvidence(1, StartError("MemoryError", text="MemoryError: ")), MEMORY),
        (EndEvidence(1, StartError("OutOfMemoryError", text="torch.OutOfMemoryError: CUDA out of memory.")), MEMORY),
        (EndEvidence(1, StartError("OSError", text="OSError: [Errno 28] No space left on device")), DISK),
        (EndEvidence(1, StartError("", text="cp: error writing 'x': No space left on device")), DISK),
        (EndEvidence(-7, disk_is_full=True), DISK),  # a write to a mapped file
        (EndEvidence(-9, disk_is_full=True), "killed by SIGKILL"),
        (EndEvidence(1, WRONG, disk_is_full=True), "error"),  # it says itself what it died of
        (EndEvidence(1, WRONG), "error"),
        (EndEvidence(1, StartError("holdfast.errors.Untrusted")), UNTRUSTED),  # another start would be refused as well
        (EndEvidence(1, WRONG, WRONG), REPEATS),
        (EndEvidence(1, WRONG, WRONG._replace(text="ValueError: other words")), REPEATS),
        (EndEvidence(1, WRONG, WRONG._replace(step=29)), "error"),
        (EndEvidence(1, WRONG, WRONG._replace(place="train.py:18")), "error"),
        (EndEvidence(1, WRONG, WRONG._replace(kind="KeyError")), "error"),
        (EndEvidence(1, WRONG._replace(may_mend=True), WRONG), "error"),  # a checkpoint will be set aside
        (EndEvidence(1, *2 * (WRONG._replace(kind="ConnectionResetError"),)), "error"),
        (EndEvidence(1, *2 * (WRONG._replace(kind="TimeoutError"),)), "error"),
        (EndEvidence(1, *2 * (StartError(""),)), "error"),  # nothing is known
        (EndEvidence(1, *2 * (WRONG._replace(kind="HTTPError"),)), "error"),
        (EndEvidence(1, *2 * (WRONG._replace(kind="torch.distributed.DistBackendError"),)), "error"),
        (
            EndEvidence(1, *2 * (WRONG._replace(kind="OSError", text="OSError: [Errno 116] Stale file handle"),)),
            BAD_NODE,
        ),
        (EndEvidence(1, StartError("OSError", text="OSError: [Errno 5] Input/output error: '/scratch/x'")), BAD_NODE),
        (
            EndEvidence(1, StartError("OSError", text="OSError: [Errno 107] Transport endpoint is not connected: '/'")),
            BAD_NODE,
        ),
        (
            EndEvidence(1, StartError("OSError", text="OSError: [Errno 107] Transport endpoint is not connected")),
            "error",
        ),
        (EndEvidence(1, StartError("", text="ls: cannot access '/m': Transport endpoint is not connected")), BAD_NODE),
        (EndEvidence(1, StartError("", text="cat: /scratch/x: Input/output error")), BAD_NODE),
        (EndEvidence(-9, StartError("", text="cat: /scratch/x: Input/output error")), "killed by SIGKILL"),
        (EndEvidence(1, WRONG, WRONG, gpu_is_broken=True), BAD_NODE),
        (EndEvidence(-6, gpu_is_broken=True), BAD_NODE),
        (EndEvidence(1, StartError("OSError", text="Unreadable: x: [Errno 5] Input/output error")), causes.UNREADABLE),
        (EndEvidence(1, *2 * (WRONG._replace(text="RuntimeError: Connection closed by peer [::1]:4"),)), "error"),
        (EndEvidence(1, *2 * (WRONG._replace(kind="OSError", text="OSError: [Errno 2] No such file"),)), REPEATS),
        (EndEvidence(1, *2 * (_ours(errno.EIO),)), BAD_NODE),
        (EndEvidence(1, *2 * (_ours(errno.ESTALE),)), BAD_NODE),
        (EndEvidence(1, *2 * (_ours(errno.EACCES),)), REPEATS),
        (EndEvidence(1, *2 * (_ours(errno.ENOSPC),)), DISK),
        (EndEvidence(1, *2 * (_ours(errno.EDQUOT),)), DISK),
        (
            EndEvidence(1, StartError("x", text="numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7 PiB")),
            MEMORY,
        ),
        (
            EndEvidence(-6, StartError("", text="terminate called after throwing an instance of 'std::bad_alloc'")),
            MEMORY,
        ),
    ],
)  # fmt: skip
def test_a_cause_has_its_evidence(seen, expected):
    """And nothing is named without it."""
    assert expected == find_cause(seen)


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", True),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", True),
        ("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system", True),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", True),
        ("NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, DBE (double bit error)", True),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python, MMU Fault", False),  # the program's own fault
        ("NVRM: Xid (PCI:0000:3b:00): 13, pid=48, Graphics Exception", False),
        ("| N/A   34C    P0    60W / 400W |   0MiB / 81920MiB | Volatile Uncorr. ECC  0 |", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
    ],
)
def test_a_broken_gpu_is_known_by_its_own_words(line, broken):
    """Anywhere in the end of the output: of several ranks only one says it."""
    assert broken == causes.reports_broken_gpu(f"step 1\n{line}\nother rank: ValueError: no\n")


def test_what_follows_from_a_cause():
    """Again: at once, then 1, 2, 4 s. Back off: 5, 10, 20 s. Leave: not at all, whatever --retries says."""

    def waits(why):
        return [decide_next_step([CRASH._replace(cause=why)] * n, 99, 99).wait_s for n in range(1, 5)]

    assert [0, 1, 2, 4] == waits("error") == waits("killed by SIGSEGV")
    assert [5, 10, 20, 40] == waits(MEMORY) == waits(DISK)
    twice = decide_next_step([CRASH, CRASH._replace(cause=REPEATS)], 99)
    assert ("fail", f"{REPEATS}: another start would end like this one") == twice[:2]


def test_the_last_lines_of_a_python_program_are_read():
    """The exception and its place; other output is none."""
    frames = '  File "a.py", line 3, in <module>\n    f()\n  File "b.py", line 9, in f\n'
    tail = f"x\nTraceback (most recent call last):\n{frames}"
    found = causes.parse_error(tail + "ValueError: no\n")
    assert ("ValueError", "b.py:9: ValueError: no", None) == found[:3]
    assert "a.b.Odd" == causes.parse_error(tail + "a.b.Odd\n").kind
    assert "" == causes.parse_error("ValueError: no\n").kind == causes.parse_error(tail + "and goes on 1\n").kind
    assert causes.parse_error(tail + "ValueError: no\n").would_repeat(found)
    assert not causes.parse_error(tail + "ValueError: 2\n").would_repeat(found)


def test_only_an_exception_that_ends_the_output_is_its_error():
    """With all lines of its message: two that end with the same line may be different ones."""
    frames = 'Traceback (most recent call last):\n  File "b.py", line 9, in f\n    g()\n    ^^^\n'
    one, other = (causes.parse_error(f"{frames}{kind}: {word}\nHint: none\n") for kind, word in (("A", 1), ("B", 2)))
    assert ("A", "B") == (one.kind, other.kind)
    assert one.text == "A: 1\nHint: none"
    assert not one.would_repeat(other)
    assert one.would_repeat(one)
    assert not causes.parse_error(f"{frames}ConnectionError: no\nDone: 1\n").would_repeat(
        causes.parse_error(f"{frames}ConnectionError: no\nDone: 1\n")
    )


def test_what_was_printed_long_before_the_end_is_no_evidence():
    tip = "tip: 'No space left on device' means that the scratch is full\n"
    assert DISK == find_cause(
        EndEvidence(1, causes.parse_error("cp: error writing 'x': No space left on device\ny\ny\n"))
    )
    assert "error" == find_cause(EndEvidence(1, causes.parse_error(tip + 20 * "step\n")))


def test_a_file_system_without_blocks_of_its_own_is_not_full():
    """/proc has none; nor have some that are mounted through a network, or an image of a container."""
    assert not is_disk_full(Path("/proc"))
    assert not is_disk_full(Path("/sys"))


V1 = "9:name=systemd:/\n4:memory:/jobs/7\n0::/\n"
V2 = "0::/user.slice/job\n"
MOUNTS = """\
30 24 0:26 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu
31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 24 0:28 /user.slice /sys/fs/cgroup rw - cgroup2 cgroup2 rw
"""


def test_where_the_kernel_counts_its_kills():
    """Both versions of cgroups; a mount that shows another part of the tree has no file for it."""
    assert ["/sys/fs/cgroup/memory/jobs/7/memory.oom_control"] == [*map(str, memory_event_files(V1, MOUNTS))]
    assert ["/sys/fs/cgroup/job/memory.events"] == [*map(str, memory_event_files(V2, MOUNTS))]
    assert [] == memory_event_files("0::/other\n", MOUNTS)


def begin(restart, job="17"):
    return {"host": "n1", "pid": 1, "job": {"id": job, "array_task": None, "restart_count": restart}}


def test_a_start_whose_job_the_scheduler_gave_to_another_node_lost_its_node():
    """Nothing had asked for the requeue; where something had, or in another job, it was killed."""

    def found(*between, after):
        lines = [
            {"event": "begin", "time": 0.0, "supervisor": "a", "owner": begin(0)},
            {"event": "start", "time": 1.0},
            *between,
            {"event": "begin", "time": 9.0, "supervisor": "b", "owner": after},
            {"event": "start", "time": 10.0},
        ]
        return starts.starts_of_command(lines)[0].cause

    asked = {"event": "requeued", "time": 5.0, "job": "17", "restart_count": 0}
    assert starts.NODE_LOST == found(after=begin(1))
    signalled = {"event": "signal", "time": 5.0, "signal": "SIGTERM"}  # preempted, perhaps, and killed too early
    assert "killed" == found(asked, after=begin(1)) == found(after=begin(0, "18")) == found(signalled, after=begin(1))


def test_the_page_has_the_table_of_the_code():
    """docs/supervisor.md."""
    page = (ROOT / "docs/supervisor.md").read_text().splitlines()
    rows = [f"| {cause} | {act}: it {causes.WORDS[act]} | {known} |" for cause, (act, known) in causes.ACTIONS.items()]
    table = ["| cause | what is done | how it is known |", "|---|---|---|", *rows]
    begins = page.index(table[0])
    assert table == page[begins : begins + len(table)]
    assert not [line for line in page if re.search(r"\| (again|back off|leave): ", line) and line not in table]
