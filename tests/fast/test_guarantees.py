"""docs/evidence.md names the laws that prove each row: each of them exists."""

import re
from pathlib import Path

import mutant_laws
import tally
from laws_ran import Law, folders_of, rows

ROOT = Path(__file__).parents[2]
ROWS = rows((ROOT / "docs" / "evidence.md").read_text(encoding="utf-8"))


def test_every_row_names_laws_and_each_is_a_test():
    """No row is without a law, and each law is a test function of exactly one folder."""
    assert len(ROWS) > 40
    assert [row for row, laws in ROWS.items() if not laws] == []
    named = set().union(*ROWS.values())
    assert sorted(law for law in named if len(folders_of(law, ROOT / "tests")) != 1) == []


def test_the_laws_that_mutants_are_asked_are_each_defined_once():
    """They are found by their name, in whatever test module or helper it stands."""
    text = Path(mutant_laws.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'\b(?:named|_module_of|_plain|_alone|_patching)\(\s*"(\w+)"', text))
    assert len(names) > 25
    assert dict.fromkeys(names, 1) == {name: len(mutant_laws._defined().get(name, ())) for name in names}


def test_what_was_counted_stands_in_the_page_and_all_of_it_was_survived():
    """The table is that of the results of `make prove` and `make soak`."""
    page = tally.PAGE.read_text(encoding="utf-8")
    proved, soaked = tally.read(tally.PROVED), tally.read(tally.SOAKED)
    assert tally.BEGIN + tally.table(proved, soaked) + tally.END in page, "tally.write_page() renews it"
    assert [fault for fault, count in tally.sums(proved, soaked).items() if not count.holds] == []
    assert [name for name, law in proved.items() if law["failed"]] == []


PAGE = """
| what | survives | proved by |
|---|---|---|
| a | b | `test_one.py::test_law`, `make demo` |
| c | d | `make demo` |
"""


def test_rows_are_read_as_they_stand():
    """By their first cell, and a row may name no law."""
    assert rows(PAGE) == {"a": [Law("test_one.py", "test_law")], "c": []}


def test_each_guarantee_leads_to_the_laws_that_prove_it():
    """Each row of docs/guarantees.md links to a section of the evidence; each section but the last has such a row."""
    evidence = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
    tables, _, _ = evidence.partition("\n## What was counted")
    sections = {
        heading: rows(text) for heading, _, text in (each.partition("\n") for each in tables.split("\n## ")[1:])
    }
    linked = re.findall(
        r"^\| \[([^]]+)\]\(evidence\.md#", (ROOT / "docs" / "guarantees.md").read_text("utf-8"), re.MULTILINE
    )
    assert linked == list(sections)[:-1]
    assert [heading for heading in sections if not any(sections[heading].values())] == []
