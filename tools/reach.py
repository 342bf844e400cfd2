"""Find which test runs which line, how long each test takes, and the branch coverage of each room.

    python tools/reach.py run ROOT WORK [--select MARKS] [--tests FILES...]     runs pytest under coverage.py
    python tools/reach.py report ROOT WORK     writes WORK/reach.json and WORK/coverage.json

`run` starts one pytest process for every few test files, so that it can be stopped and started again: a group whose
result exists is not run a second time. The environment needs coverage.py beside the packages of the tests. Only this
process and its threads are measured. Lines that run while a module is imported belong to no test.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parent
IN_PROCESS = "not gpu"
GROUP = 8
GROUP_S = 1500


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def new_coverage(source: Path, data: Path) -> Any:
    """A measurement of the lines and branches of `source`, kept in the file `data`."""
    try:
        import coverage
    except ModuleNotFoundError:
        sys.exit("reach.py needs coverage.py: python -m pip install coverage")
    return coverage.Coverage(data_file=str(data), branch=True, source=[str(source)], config_file=False, messages=False)


class Recorder:
    """A pytest plugin: one coverage context and one line of facts for each test."""

    def __init__(self, source: str, data: str, facts: str) -> None:
        self.coverage = new_coverage(Path(source), Path(data))
        self.coverage.start()
        self.trace = sys.gettrace()
        self.facts = Path(facts)
        self.failed: set[str] = set()
        self.passed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if sys.gettrace() is not self.trace:
            sys.settrace(self.trace)  # a test that traced on its own account took ours away
        self.coverage.switch_context(item.nodeid)
        wall, cpu = time.perf_counter(), cpu_s()
        try:
            return (yield)
        finally:
            facts = {
                "test": item.nodeid,
                "wall_s": round(time.perf_counter() - wall, 4),
                "cpu_s": round(cpu_s() - cpu, 4),
                "outcome": self._outcome(item.nodeid),
            }
            with self.facts.open("a") as out:
                print(json.dumps(facts), file=out)
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)

    def _outcome(self, test: str) -> str:
        if test in self.failed:
            return "failed"
        return "passed" if test in self.passed else "skipped"


def run_group(arguments: list[str]) -> int:
    """Run one group of tests in this process."""
    source, data, facts, marks, *files = arguments
    recorder = Recorder(source, data, facts)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=quick", "-m", marks]
    code = int(pytest.main([*options, *files], plugins=[recorder]))
    recorder.coverage.stop()
    recorder.coverage.save()
    return code


def environment(root: Path) -> dict[str, str]:
    """The environment of a test run of the tree at `root`: its own package, the same examples every time."""
    return {**os.environ, "PYTHONPATH": str(root / "src"), "CI": "1", "OMP_NUM_THREADS": "1"}


def run(root: Path, work: Path, marks: str, files: list[str]) -> None:
    """Run the tests of `root` in groups; print one line for each group."""
    work.mkdir(parents=True, exist_ok=True)
    files = files or sorted(str(each.relative_to(root)) for each in (root / "tests").rglob("test_*.py"))
    prefix = "slow" if "slow" in marks.replace("not slow", "").split() else "quick"
    for start in range(0, len(files), GROUP):
        data = work / f"{prefix}-{Path(files[start]).stem}.coverage"
        if data.exists():
            continue
        facts, log = data.with_suffix(".jsonl"), data.with_suffix(".log")
        facts.unlink(missing_ok=True)
        partial = data.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        words = [str(root / "src" / "holdfast"), str(partial), str(facts), marks, *files[start : start + GROUP]]
        with log.open("w") as out:
            command = [sys.executable, str(TOOLS / "reach.py"), "group", *words]
            begun = time.monotonic()
            code = subprocess.run(
                command, cwd=root, env=environment(root), stdout=out, stderr=out, timeout=GROUP_S, check=False
            ).returncode
        if code in {0, 1, 5}:  # passed, some failed, none selected
            partial.rename(data)
        print(f"{data.stem}: exit {code}, {time.monotonic() - begun:.0f} s", flush=True)


def room(file: str) -> str:
    """The top-level package or module of a source file: `run/loops.py` -> `run`, `disk.py` -> `disk`."""
    first = Path(file).parts[0]
    return first.removesuffix(".py")


def report(root: Path, work: Path) -> None:
    """Combine what the groups wrote."""
    source = root / "src" / "holdfast"
    tests: dict[str, dict[str, Any]] = {}
    for each in sorted(work.glob("*.jsonl")):
        if each.with_suffix(".coverage").exists():
            tests |= {facts["test"]: facts for facts in map(json.loads, each.read_text().splitlines())}
    names = list(tests)
    number = {name: index for index, name in enumerate(names)}
    lines: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    parts = sorted(str(each) for each in work.glob("*.coverage"))
    for part in parts:
        measured = new_coverage(source, Path(part))
        measured.load()
        data = measured.get_data()
        for file in data.measured_files():
            relative = Path(file).relative_to(source).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                lines[relative][line] |= {number.get(each, -1) for each in contexts}  # -1: while a module is imported
    reach = {
        "tests": list(tests.values()),
        "lines": {file: {line: sorted(who) for line, who in each.items() if line > 0} for file, each in lines.items()},
    }
    (work / "reach.json").write_text(json.dumps(reach))
    (work / "coverage.json").write_text(json.dumps(branches(source, work, parts), indent=1) + "\n")


def branches(source: Path, work: Path, parts: list[str]) -> dict[str, dict[str, int]]:
    """Statements and branches of each room, and how many of them ran."""
    whole = new_coverage(source, work / "whole")
    whole.combine(parts, keep=True)
    out = work / "files.json"
    whole.json_report(outfile=str(out), ignore_errors=True)
    rooms: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for file, facts in json.loads(out.read_text())["files"].items():
        relative = Path(file).resolve().relative_to(source).as_posix()
        for key in ("num_statements", "covered_lines", "num_branches", "covered_branches"):
            rooms[room(relative)][key] += facts["summary"][key]
    return {name: dict(rooms[name]) for name in sorted(rooms)}


def main() -> int:
    if sys.argv[1:2] == ["group"]:
        return run_group(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("run", "report"))
    parser.add_argument("root", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--select", default=IN_PROCESS, help="which tests run (pytest -m)")
    parser.add_argument("--tests", nargs="*", default=[], help="test files below root; all when left out")
    asked = parser.parse_args()
    root = asked.root.resolve()
    if asked.action == "run":
        run(root, asked.work.resolve(), asked.select, asked.tests)
    else:
        report(root, asked.work.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
