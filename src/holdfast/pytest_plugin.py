"""A pytest fixture that kills a command on purpose, and requires that it resumes exactly.

    def test_resume(drill):
        drill("python", "train.py", "--steps", "40").identical()

Such tests run with `pytest --holdfast-drill`, and are skipped without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .drill import DrillReport

OPTION = "--holdfast-drill"
MARKER = "drill"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast", "drills: a command is killed, and has to resume exactly")
    group.addoption(OPTION, action="store_true", help="run the tests that drill a command")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(kills=5, seed=0, ...): options of the fixture `drill` in this test"
    )


class Drilled:
    """What one drill found. `report` has all of it."""

    def __init__(self, report: DrillReport, lines: list[str], keep: Path) -> None:
        self.report, self._lines, self._keep = report, lines, keep

    @property
    def cause(self) -> str:
        """Why the killed run differs: the name of the usual cause; empty if it does not."""
        if self.report.losses:
            return ", ".join(each.kind for each in self.report.losses)
        return self.report.divergence.cause if self.report.divergence else ""

    def identical(self) -> None:
        """Require that the killed run was identical; the runs are kept if it was not.

        Raises:
            AssertionError: another verdict; its text has what `holdfast drill` prints.
        """
        from . import disk
        from .drill.report import IDENTICAL

        if self.report.verdict != IDENTICAL:
            raise AssertionError("\n".join([*self._lines, f"the runs are kept in {self._keep}"]))
        disk.remove_tree(self._keep)


@pytest.fixture
def drill(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Callable[..., Drilled]:
    """Drill a command: `drill("python", "train.py", kills=3, signals=("KILL",), budget_s=120)`.

    The options are those of `holdfast.drill.DrillOptions`, and those of the marker `drill` where
    the call has none. The verdict, its cause and the places resumed from become JUnit properties.

    Raises:
        UsageError: the command has no run, or the options do not go together.
        ChildError: the command failed without a kill.
    """
    if not request.config.getoption(OPTION):
        pytest.skip(f"a drill: give {OPTION}")
    from . import drill as drills
    from .cli.drill import write_page
    from .drill.table import report_lines

    marked = request.node.get_closest_marker(MARKER)
    count = 0

    def run(*command: str, **options: Any) -> Drilled:
        nonlocal count
        count += 1
        keep = tmp_path / f"drill-{count}"
        chosen = {**(marked.kwargs if marked else {}), **options, "keep": keep}
        report = drills.drill(command, drills.DrillOptions(**chosen), print)
        found = Drilled(report, [*report_lines(report), *write_page(report)], keep)
        record_property("holdfast_verdict", report.verdict)
        record_property("holdfast_cause", found.cause)
        record_property("holdfast_resumed", report.kills_proven)
        return found

    return run
