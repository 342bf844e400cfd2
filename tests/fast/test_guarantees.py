"""docs/guarantees.md names the laws that prove each row: each of them exists."""

from pathlib import Path

from laws_ran import FOLDERS, Law, defined, rows

ROOT = Path(__file__).parents[2]
ROWS = rows((ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8"))


def test_every_row_names_laws_and_each_is_a_test():
    """No row is without a law, and each law is a test function of exactly one folder."""
    assert len(ROWS) > 40
    assert [row for row, laws in ROWS.items() if not laws] == []
    found = [law for name in FOLDERS for law in defined(ROOT / "tests" / name)]
    named = set().union(*ROWS.values())
    assert sorted(law for law in named if found.count(law) != 1) == []


PAGE = """
| what | survives | proved by |
|---|---|---|
| a | b | `test_one.py::test_law`, `make demo` |
| c | d | `make demo` |
"""


def test_rows_are_read_as_they_stand():
    """By their first cell, and a row may name no law."""
    assert rows(PAGE) == {"a": [Law("test_one.py", "test_law")], "c": []}
