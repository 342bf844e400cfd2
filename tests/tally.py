"""A pytest plugin that counts faults: how many were tried, how many happened, and how many were survived.

A test asks for the fixture `tally` and calls it once it knows: `tally("The disk is full", tried=90, observed=84)`. The
counts are printed as a table. With `--tally=FILE` they are kept there for each test, with the commit and the date, and
docs/evidence.md gets the sums; a test that did not pass is kept as failed. `make prove` begins the file anew.
"""

import json
import subprocess
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PROVED, SOAKED, PAGE = (ROOT / "docs" / name for name in ("proved.json", "soak.json", "evidence.md"))
BEGIN, END = "<!-- counted -->\n", "<!-- /counted -->\n"
HEAD = "| fault | tried | happened | survived | |\n|---|---:|---:|---:|---|\n"


class Count(NamedTuple):
    """Of one fault: how often it was to happen, how often it did, and how often the law held nevertheless."""

    tried: int = 0
    observed: int = 0
    survived: int = 0

    def __add__(self, other: Any) -> "Count":
        return Count(*(one + more for one, more in zip(self, other, strict=True)))

    @property
    def holds(self) -> bool:
        return self.tried >= self.observed == self.survived > 0


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Any:
    """Count a fault: `tally(fault, tried=, observed=, survived=)`. If not said, all happened, and all were survived."""

    def count(fault: str, *, tried: int, observed: int | None = None, survived: int | None = None) -> None:
        happened = tried if observed is None else observed
        counted = Count(tried, happened, happened if survived is None else survived)
        request.node.user_properties.append(("tally", (fault, *counted)))

    return count


def sums(proved: dict[str, Any], soaked: dict[str, Any]) -> dict[str, Count]:
    """The counts of each fault, over all tests of `make prove` and all series of `make soak`."""
    found: dict[str, Count] = defaultdict(Count)
    for law in proved.values():
        for fault, *counts in law["faults"]:
            found[fault] += Count(*counts)
    for kind, told in soaked.get("kinds", {}).items():
        if not kind.startswith("test_"):  # those are counted where they are tried
            cases, failed = told["cases"], len(told["failed"])
            found[f"soak: {kind}"] += Count(cases + len(told["untried"]), cases, cases - failed)
    return dict(found)


def table(proved: dict[str, Any], soaked: dict[str, Any]) -> str:
    """The sums as docs/evidence.md has them, and when they were counted."""
    rows = [
        f"| {fault} | " + "".join(f"{each:,} | " for each in count) + ("|" if count.holds else "**not all** |")
        for fault, count in sorted(sums(proved, soaked).items())
    ]
    days = sorted(law["date"] for law in proved.values()) or ["never"]
    failed = [name for name, law in proved.items() if law["failed"]]
    told = f"Counted by `make prove` from {days[0]} to {days[-1]}; tests that failed: {', '.join(failed) or 'none'}."
    return HEAD + "\n".join(rows) + f"\n\n{told}\n"


def write_page() -> None:
    """Renew the table in docs/evidence.md from the two files of results."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    PAGE.write_text(before + begin + table(read(PROVED), read(SOAKED)) + end + after, encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tally", metavar="FILE", type=Path, help=__doc__)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker's reports come to the process that started it
        config.pluginmanager.register(_Counted(config.option.tally), "counted faults")


class _Counted:
    """What the reports of this run tell, by test."""

    def __init__(self, kept: Path | None) -> None:
        self._kept = kept
        self._laws: dict[str, dict[str, Any]] = {}
        self._ran: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        counts: list[Any] = [counted for name, counted in report.user_properties if name == "tally"]
        if report.when == "call":
            self._ran.add(report.nodeid)
        if report.failed or (report.when == "call" and counts):
            law = self._laws.setdefault(report.nodeid, {"faults": [], "failed": False})
            law["faults"] = law["faults"] or [list(counted) for counted in counts]
            law["failed"] = law["failed"] or report.failed

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if found := sums(self._laws, {}):
            terminalreporter.section("faults: tried, happened, survived")
            for fault, count in sorted(found.items()):
                terminalreporter.write_line(f"{count.tried:>8,} {count.observed:>8,} {count.survived:>8,}  {fault}")

    def pytest_sessionfinish(self) -> None:
        if self._kept is None or not self._ran:
            return
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, check=True
        )
        when = {"commit": described.stdout.decode().strip(), "date": datetime.now(UTC).date().isoformat()}
        earlier = {name: law for name, law in read(self._kept).items() if name not in self._ran}
        laws = earlier | {name: {**law, **when} for name, law in self._laws.items()}
        self._kept.write_text(json.dumps(dict(sorted(laws.items())), indent=1) + "\n", encoding="utf-8")
        if self._kept.resolve() == PROVED:
            write_page()
