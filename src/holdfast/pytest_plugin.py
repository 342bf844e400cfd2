"""A pytest fixture that kills a command on purpose, and requires that it resumes exactly.

    def test_resume(drill):
        drill("python", "train.py", "--steps", "40").identical()

Such tests run with `pytest --holdfast-drill`, and are skipped without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    """What one drill found."""

    def __init__(self, report: DrillReport, lines: list[str], keep: Path) -> None:
        self._report, self._lines, self._keep = report, lines, keep
        self.is_read = False

    @property
    def report(self) -> DrillReport:
        """All of what was found. Of a test that never reads it, `identical` is required."""
        self.is_read = True
        return self._report

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
def drill(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Drilled]]:
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
    made = list[Drilled]()

    def run(*command: str, **options: Any) -> Drilled:
        keep = tmp_path / f"drill-{len(made) + 1}"
        chosen = {**(marked.kwargs if marked else {}), **options, "keep": keep}
        report = drills.drill(command, drills.DrillOptions(**chosen), print)
        found = Drilled(report, [*report_lines(report), *write_page(report)], keep)
        made.append(found)
        request.node.user_properties += [
            ("holdfast_verdict", report.verdict),
            ("holdfast_cause", found.cause),
            ("holdfast_resumed", report.kills_proven),
        ]
        found.is_read = False  # by the test
        return found

    yield run
    for each in made:
        if not each.is_read:
            each.identical()
