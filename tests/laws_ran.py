"""A pytest plugin: a run of a whole folder of tests fails when a law of docs/evidence.md that lies there did not run.

A law is named as `test_file.py::test_name`. It counts as proved when it passed for every parameter. One that was
skipped is printed; where `CI` is set, or with `--every-law`, it fails the run, unless it needs a GPU, DMTCP or CRIU.
"""

import ast
import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from sample import is_asked

FOLDERS = ("fast", "slow", "prove", "frameworks", "vision")
LAW = re.compile(r"`(test_\w+\.py)::(test_\w+)`")
HEADS = {"proved by", "---"}
ROW = re.compile(r"^\|(?P<cells>.*)\|\s*$", re.MULTILINE)
INSIDE: dict[type, str] = {ast.ClassDef: "body", ast.ImportFrom: "names"}
ENDED = 0, 1, 5  # exit statuses of a run that came to its end: all passed, some failed, nothing collected


class Law(NamedTuple):
    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}::{self.name}"


def rows(text: str) -> dict[str, list[Law]]:
    """Each row of the page's tables of laws, by its first cell, with the laws that its last cell names."""
    tables, _, _ = text.partition("\n## What was counted")
    cells = [[cell.strip() for cell in row["cells"].split("|")] for row in ROW.finditer(tables)]
    return {first: [Law(*each) for each in LAW.findall(last)] for first, *_, last in cells if last not in HEADS}


def folders_of(law: Law, tests: Path) -> list[Path]:
    """Where it is defined; in one folder, if all is well."""
    return [tests / name for name in FOLDERS if law.name in _defined(tests / name / law.file)]


@cache
def _defined(path: Path) -> set[str]:
    """Every test function of a file, if there is one: inside classes and imported ones, too."""
    return {
        node.name
        for each in (ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else [])
        for node in getattr(each, INSIDE.get(type(each), ""), [each])
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.alias) and node.name.startswith("test_")
    }


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-law", action="store_true", default=bool(os.environ.get("CI")), help=__doc__)


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or config.option.collectonly:
        return  # a worker of pytest-xdist: its reports come to the process that started it
    page = config.rootpath / "docs" / "evidence.md"
    laws = set().union(*rows(page.read_text(encoding="utf-8")).values()) if page.exists() else set()
    word = config.getoption("sample", None)
    whole = _whole(config)
    found = {
        law: each
        for law in laws
        for each in (folders_of(law, config.rootpath / "tests") if whole else [])
        if each in whole
    }
    if wanted := {law for law, folder in found.items() if not word or is_asked(f"tests/{folder.name}/{law}", word)}:
        config.pluginmanager.register(_Ran(wanted, every=config.option.every_law), "laws that ran")


def pytest_report_header(config: pytest.Config) -> list[str]:
    return ["guarantees: not checked, since only some tests are asked for"] if _selected(config) else []


def _selected(config: pytest.Config) -> bool:
    names = ("keyword", "markexpr", "deselect", "lf", "stepwise")
    return any(getattr(config.option, name, None) for name in names)


def _whole(config: pytest.Config) -> list[Path]:
    """The folders of which all tests are asked for."""
    if _selected(config):
        return []
    asked = {(config.invocation_params.dir / each).resolve() for each in config.args}
    tests = config.rootpath / "tests"
    return [tests / name for name in FOLDERS if asked & {tests / name, tests, config.rootpath}]


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else "expected to fail"


class _Ran:
    """What came of the wanted laws."""

    def __init__(self, wanted: set[Law], *, every: bool) -> None:
        self.wanted, self.every = wanted, every
        self.passed: set[Law] = set()
        self.skipped: dict[Law, str] = {}
        self.excused: set[Law] = set()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that is skipped as a whole skips each of its laws."""
        if report.skipped:
            file = Path(report.nodeid.partition("::")[0]).name
            self.skipped |= {law: _reason(report) for law in self.wanted if law.file == file}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path, *_, name = report.nodeid.partition("[")[0].split("::")
        law = Law(Path(path).name, name)
        if law not in self.wanted:
            return
        if report.skipped:
            self.skipped[law] = _reason(report)
            if "gpu" in report.keywords or re.search("dmtcp|criu", self.skipped[law], re.IGNORECASE):
                self.excused.add(law)
        elif report.passed and report.when == "call":
            self.passed.add(law)

    def unproved(self) -> dict[Law, str]:
        """Laws that did not run, and why."""
        found = dict.fromkeys(self.wanted - self.passed - set(self.skipped), "it did not run")
        return found | self.skipped

    def fails(self) -> bool:
        serious = set(self.unproved()) if self.every else self.wanted - self.passed - set(self.skipped)
        return bool(serious - self.excused)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == 0 and self.fails():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if exitstatus not in ENDED:
            return
        unproved = self.unproved()
        count = f"{len(self.wanted) - len(unproved)} of {len(self.wanted)} laws of docs/evidence.md ran and passed"
        terminalreporter.section(count)
        for law, why in sorted(unproved.items()):
            terminalreporter.write_line(f"NOT PROVED {law}: {why}")
