"""Run pytest sessions in forks of this process, on a copy of the package in which one file may be changed."""

import compileall
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pytest

from mutations import Mutant

SLACK_S, SLOWER = 60.0, 30.0  # a test may take a minute more than 30 times what it took before
SET_CHILD_SUBREAPER = 36
# Not Hypothesis: it is a plugin of pytest, which wants to import such modules itself.
HEAVY = ("numpy", "torch", "torch.utils.data", "torch.distributed", "click", "rich", "msgspec")


class Test(NamedTuple):
    """One test that passed on the tree as it is."""

    name: str
    cpu_s: float
    wall_s: float


class Said(NamedTuple):
    """What one pytest session on the copy said."""

    passed: int
    failed: str  # the first test that failed by name, or ""
    reason: str  # of its failure; or why there is no verdict
    verdict: bool  # False: it did not come to its end
    cpu_s: float


class Session:
    """A pytest plugin: the tests of `limits`, in that order, until the first failure or the end of the CPU time."""

    def __init__(self, limits: dict[str, float], cap_s: float, out: TextIO) -> None:
        self.limits, self.cap_s, self.out = limits, cap_s, out

    def say(self, **facts: Any) -> None:
        print(json.dumps(facts), file=self.out, flush=True)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = {name: index for index, name in enumerate(self.limits)}
        items[:] = sorted((each for each in items if each.nodeid in place), key=lambda each: place[each.nodeid])
        for each in items:
            each.add_marker(pytest.mark.timeout(self.limits[each.nodeid], method="thread"), append=False)
        self.say(collected=len(items))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say(begun=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.say(failed=report.nodeid, reason=report.longreprtext[-600:])
        elif report.when == "teardown":
            self.say(done=report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self) -> None:
        if cpu_s() > self.cap_s:
            pytest.exit("the CPU time is used up", returncode=0)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.say(broken=report.nodeid, reason=report.longreprtext[-600:])


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Zygote:
    """Forks a process for each pytest session; the process has all heavy imports, and nothing of holdfast."""

    def __init__(self, root: Path, work: Path, heavy: Sequence[str]) -> None:
        self.root, self.work = root, work
        self.source = work / "copy" / "src"
        self.package = self.source / "holdfast"
        shutil.rmtree(work / "copy", ignore_errors=True)
        shutil.copytree(root / "src", self.source, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self.package, quiet=2)
        os.environ |= {"PYTHONPATH": str(self.source), "CI": "1", "OMP_NUM_THREADS": "1"}
        sys.dont_write_bytecode = True
        for name in heavy:
            import_module(name)
        if any(name.partition(".")[0] == "holdfast" for name in sys.modules):
            raise RuntimeError("holdfast is imported: its forks would not see the mutants")
        ctypes.CDLL(None).prctl(
            SET_CHILD_SUBREAPER, 1, 0, 0, 0
        )  # what a session abandons becomes our child, and is ended

    def mutate(self, mutant: Mutant) -> None:
        """Change the copy; `restore` undoes it."""
        path = self.package / mutant.key.file
        path.write_bytes(mutant.apply((self.root / "src" / "holdfast" / mutant.key.file).read_bytes()))
        self._forget(path)

    def restore(self, mutant: Mutant) -> None:
        path = self.package / mutant.key.file
        shutil.copyfile(self.root / "src" / "holdfast" / mutant.key.file, path)
        self._forget(path)

    def _forget(self, path: Path) -> None:
        for each in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
            each.unlink()

    def ask(self, tests: Sequence[Test], cap_s: float) -> Said:
        """Run the tests on the copy as it is now."""
        limits = {each.name: SLACK_S + SLOWER * each.wall_s for each in tests}
        receive, send = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(receive)
            self._child(limits, cap_s, send)
        os.close(send)
        # A test's own limit comes first; this one is for a process that stands still before or behind its tests.
        until = time.monotonic() + 600 + max(limits.values(), default=0) + 4 * cap_s
        told = b""
        while select.select([receive], [], [], max(until - time.monotonic(), 0))[0]:
            piece = os.read(receive, 1 << 16)
            if not piece:
                break
            told += piece
            if b'{"end"' in told:
                break
        os.close(receive)
        spent = self._end(pid)
        return self._heard(
            [json.loads(line) for line in told.decode().splitlines() if line.endswith("}")], limits, spent
        )

    def _heard(self, told: list[dict[str, Any]], limits: dict[str, float], spent: float) -> Said:
        passed = sum("done" in each for each in told)
        failed = [each for each in told if "failed" in each]
        broken = [each for each in told if "broken" in each]
        ended = [each for each in told if "end" in each]
        if failed and "Timeout" not in failed[0]["reason"]:
            return Said(passed, failed[0]["failed"], failed[0]["reason"], verdict=True, cpu_s=spent)
        if failed or broken:
            first = (failed or broken)[0]
            return Said(
                passed, "", f"{first.get('failed', first.get('broken'))}: {first['reason']}", verdict=False, cpu_s=spent
            )
        begun = [each["begun"] for each in told if "begun" in each]
        if not ended:
            return Said(
                passed,
                "",
                f"the process ended within {begun[-1] if begun else 'the start'}",
                verdict=False,
                cpu_s=spent,
            )
        if ended[0]["package"] != str(self.package):
            return Said(passed, "", f"the tests ran on {ended[0]['package']}", verdict=False, cpu_s=spent)
        return Said(passed, "", "", verdict=passed > 0 or not limits, cpu_s=spent)

    def _child(self, limits: dict[str, float], cap_s: float, send: int) -> None:
        """The forked process: one pytest session, then the end."""
        os.setsid()
        code, place = 1, self.work / "session"
        try:
            log = os.open(self.work / "session.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.chdir(self.root)
            sys.path.insert(0, str(self.source))
            out = os.fdopen(send, "w")
            session = Session(limits, cap_s, out)
            files = list(dict.fromkeys(name.partition("::")[0] for name in limits))
            options = [
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                "-p",
                "no:holdfast",  # a test that needs our plugin starts its own pytest
                "--hypothesis-profile=quick",
                "--tb=short",
            ]
            code = int(pytest.main([*options, f"--basetemp={place}", *files], plugins=[session]))
            package = sys.modules.get("holdfast")
            session.say(end=code, package=str(Path(package.__file__ or "").parent) if package else "none")
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _end(self, pid: int) -> float:
        """End the session's process and all that it left; its CPU seconds."""
        time.sleep(0.05)
        spent = 0.0
        for end, who in [(os.killpg, pid), *((os.kill, each) for each in self._children())]:
            with suppress(ProcessLookupError):  # it leads no group any more
                end(who, signal.SIGKILL)
        while True:
            try:
                usage = os.wait4(-1, 0)[2]
            except ChildProcessError:
                break
            spent += usage.ru_utime + usage.ru_stime
            for who in self._children():
                os.kill(who, signal.SIGKILL)
        shutil.rmtree(self.work / "session", ignore_errors=True)
        return spent

    def _children(self) -> list[int]:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        return [int(each) for each in text.split()]
