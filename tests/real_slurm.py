"""A real Slurm on this machine for tests: one cluster of 23 nodes for all of them.

`tests/cluster/slurm-cluster` starts it as root within seconds. Workers of pytest share it. The process that began the
session ends it; should that be killed, `tests/cluster/keep_slurm.py` ends the cluster within seconds. Stories that
mostly wait begin together: see `concurrently`. Who needs a node alone takes one of n5 to n16 or n20 to n23, that no
other test names; all other jobs run on the rest, which is the default partition `shared`.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback
import zlib
from functools import cached_property
from pathlib import Path

import pytest

from needed import missing

SCRIPT = Path(__file__).parent / "cluster" / "slurm-cluster"
KEEP = SCRIPT.with_name("keep_slurm.py")
KNOBS = {"SC_NODES": "23", "SC_KILLWAIT": "10", "SC_GRACE": "10", "SC_PREEMPT_SIGNAL": "1"}
SHARED = "PartitionName=shared Nodes=n[1-4,17-19] Default=YES MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF"
JOB = f"""#!/bin/bash
#SBATCH --requeue --open-mode=append --output=out.txt
exec {sys.executable} -u train.py
"""


_KEEPERS: list[subprocess.Popen[bytes]] = []  # they outlive this process on purpose


class Slurm:
    """A running cluster."""

    def __init__(self, directory: Path, **knobs: str) -> None:
        self.directory = directory
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        self.environment = {**clean, "SLURM_CONF": str(directory / "etc" / "slurm.conf")}
        port = 20000 + 30 * (zlib.crc32(bytes(directory)) % 400)  # two that look for a free one together find the same
        self._knobs = {**KNOBS, "SC_PORT": str(port), **knobs}

    def begin(self) -> None:
        """Start it; it ends with the process that began the session of pytest, also when that is killed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        session = os.pidfd_open(os.getppid() if os.environ.get("PYTEST_XDIST_WORKER") else os.getpid())
        clean = {name: value for name, value in self.environment.items() if name != "SLURM_CONF"}
        with (self.directory / "keep.log").open("ab") as log:
            keeper = subprocess.Popen(
                [sys.executable, KEEP, self.directory, str(session)],
                env={**clean, **self._knobs},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for pytest
                pass_fds=[session],
            )
        os.close(session)
        _KEEPERS.append(keeper)
        with keeper.stdout as said:
            assert said.readline() == b"up\n", (self.directory / "keep.log").read_text()

    def tend(self, *words: str) -> None:
        """up, down, kill-node NODE, start-node NODE."""
        done = subprocess.run(
            ["bash", str(SCRIPT), *words, str(self.directory)],
            env={**self.environment, **self._knobs},
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr

    def pids(self) -> dict[str, int]:
        """Of every daemon that has been started, by its name."""
        return {path.stem: self.pid(path.stem) for path in (self.directory / "run").glob("*.id")}

    def pid(self, daemon: str) -> int:
        """Of slurmctld, or of a node's slurmd."""
        return int((self.directory / "run" / f"{daemon}.id").read_text().split()[0])

    def ask(self, *words: str, cwd: Path | None = None) -> str:
        end = time.monotonic() + 30
        while True:
            done = subprocess.run(
                words, check=False, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=60
            )
            if "Resource temporarily unavailable" not in done.stderr or time.monotonic() > end:
                break
            time.sleep(0.2)  # the job is between its end and the queue
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def sbatch(self, place: Path, *options: str, script: str = JOB) -> str:
        """Submit a batch script that lies, and whose job works, in `place`."""
        (place / "job.sh").write_text(script)
        alone = ("-p", "long") if "-w" in options and "-p" not in options else ()
        return self.ask("sbatch", "--parsable", *alone, *options, "job.sh", cwd=place)

    def show(self, job: str) -> dict[str, str]:
        """What scontrol shows of it."""
        return dict(re.findall(r"(?<!\S)(\w+)=(\S*)", self.ask("scontrol", "--oneliner", "show", "job", job)))

    def wait(self, job: str, *states: str, limit_s: float = 120) -> dict[str, str]:
        """What it is like, once it is in one of the states."""
        return self.until(lambda: (now := self.show(job))["JobState"] in states and now, limit_s)

    def until(self, condition, limit_s: float = 120):
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if found := condition():
                return found
            time.sleep(0.2)
        raise AssertionError(f"not within {limit_s} s; {self.ask('squeue')}")

    def endings(self, job: str) -> list[str]:
        """How each of its starts ended, in order, by Slurm's own record (jobcomp). PENDING: put back into the queue."""
        lines = (self.directory / "log" / "jobcomp.txt").read_text().splitlines()
        found = (re.match(rf"JobId={job} .*?JobState=(\w+) ", line) for line in lines)
        return [match[1] for match in found if match]

    @cached_property
    def version(self) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", self.ask("sbatch", "--version"))))

    def log(self) -> str:
        return (self.directory / "log" / "slurmctld.log").read_text()


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """The cluster that all tests share."""
    if reason := missing("slurmctld", "slurmd", "sbatch", "munged", root=True):
        pytest.skip(reason)
    base = tmp_path_factory.getbasetemp()
    cluster = Slurm((base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "slurm")
    extra = cluster.directory / "etc" / "extra.conf"
    extra.parent.mkdir(parents=True, exist_ok=True)
    extra.write_text(SHARED + "\n")
    cluster.begin()
    return cluster


def pytest_sessionfinish(session):
    """In the process that began: end the cluster, whichever worker started it."""
    factory = getattr(session.config, "_tmp_path_factory", None)
    if factory is None or os.environ.get("PYTEST_XDIST_WORKER") or factory._basetemp is None:
        return
    directory = factory._basetemp / "slurm"
    if directory.is_dir():
        Slurm(directory).tend("down")


def concurrently(story):
    """Make a test of a story, which takes the cluster and a place of its own, and may return lines to print.

    All stories that pytest was asked for begin together, each in a thread: mostly they wait for Slurm.
    """

    def test(begun):
        print(*begun(_name(story)), sep="\n")

    test.__name__, test.__doc__, vars(test)["story"] = story.__name__, story.__doc__, story
    return test


@pytest.fixture(scope="session")
def begun(request, slurm, tmp_path_factory):
    """Waits for the end of a story. The first worker here begins them all; others read how each has ended."""
    stories = [item.function.story for item in request.session.items if hasattr(item.function, "story")]
    endings = slurm.directory / "stories"
    endings.mkdir(exist_ok=True)
    try:
        (endings / "worker").symlink_to(str(os.getpid()))
    except FileExistsError:
        worker = int((endings / "worker").readlink().name)
        yield lambda name: _ending(endings / name, worker)
        return
    threads = []
    for story in stories:
        place = tmp_path_factory.mktemp(story.__name__.removeprefix("test_")[:40])
        threads.append(threading.Thread(target=_tell, args=(endings, story, slurm, place), daemon=True))
        threads[-1].start()
    yield lambda name: _ending(endings / name, os.getpid())
    for thread in threads:
        thread.join()  # tests of other workers may wait for it


def _tell(endings, story, slurm, place):
    """Run the story; leave its lines, or the traceback of what failed."""
    began = time.monotonic()
    try:
        lines = [*map(str, story(slurm, place) or ())]
        ending: dict[str, object] = {"lines": [*lines, f"this story took {time.monotonic() - began:.0f} s"]}
    except pytest.skip.Exception as reason:
        ending = {"skipped": str(reason)}
    except BaseException:
        ending = {"error": traceback.format_exc()}
    draft = endings / f"{_name(story)}.draft"
    draft.write_text(json.dumps(ending))
    draft.rename(endings / _name(story))


def _name(story):
    return f"{story.__module__}.{story.__name__}"


def _ending(path, worker):
    """The lines of a story that ended well."""
    while not path.exists():
        assert Path(f"/proc/{worker}").exists(), "the worker that ran the stories has died"
        time.sleep(0.2)
    ending = json.loads(path.read_text())
    if "skipped" in ending:
        pytest.skip(ending["skipped"])
    assert "error" not in ending, ending["error"]
    return ending["lines"]
