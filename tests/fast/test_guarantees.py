"""docs/guarantees.md names the laws that prove each row: each of them exists."""

import re
from pathlib import Path

import mutant_laws
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


def test_the_laws_that_mutants_are_asked_are_each_defined_once():
    """They are found by their name, in whatever test module or helper it stands."""
    text = Path(mutant_laws.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'\b(?:named|_module_of|_plain|_alone|_patching)\(\s*"(\w+)"', text))
    assert len(names) > 25
    assert dict.fromkeys(names, 1) == {name: len(mutant_laws._defined().get(name, ())) for name in names}


PAGE = """
| what | survives | proved by |
|---|---|---|
| a | b | `test_one.py::test_law`, `make demo` |
| c | d | `make demo` |
"""


def test_rows_are_read_as_they_stand():
    """By their first cell, and a row may name no law."""
    assert rows(PAGE) == {"a": [Law("test_one.py", "test_law")], "c": []}
