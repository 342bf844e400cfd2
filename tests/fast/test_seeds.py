"""docs/seeds.md walks through the four documents: its tests exist, its commands work, and no row is without either."""

import re
import shlex
from pathlib import Path

import pytest
from test_docs_commands import parsed

from holdfast.lint import lint_script
from laws_ran import LAW, Law, folders_of
from stores import invoke

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "seeds.md").read_text(encoding="utf-8")
ROWS = [re.split(r"(?<!\\)\|", line)[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
ADVICE = [row for row in ROWS if row != [" what it advises ", " here ", " shown by "]]
COMMANDS = [shlex.split(words) for words in re.findall(r"`holdfast (\w+ [^`]+)`", PAGE)]


def test_each_piece_of_advice_has_its_way_here_and_its_tests():
    """Only what is left to the script itself has none; each test that is named is a function of exactly one folder."""
    assert len(ADVICE) > 75
    assert [row for row in ADVICE if len(row) != 3 or not all(cell.strip() for cell in row[:2])] == []
    assert [row for row in ADVICE if not LAW.search(row[2]) and row[1] != " Your own code. "] == []
    named = {Law(*each) for each in LAW.findall(PAGE)}
    assert [law for law in named if len(folders_of(law, ROOT / "tests")) != 1] == []


def test_all_four_documents_are_there():
    """Each has a heading and a table of its own."""
    parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:5]
    assert [part.split(":")[0] for part in parts] == ["Mila", "Northeastern", "Northeastern", "StrongCompute"]
    assert len(COMMANDS) > 20
    assert all("\n| what it advises | here | shown by |\n" in part for part in parts)


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] != "submit"], ids=" ".join)
def test_a_command_that_is_named_parses(words):
    """Whatever stands for a path in it."""
    parsed(words)


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] == "submit"], ids=" ".join)
def test_a_submission_that_is_named_is_a_script_without_a_finding(words, tmp_path, monkeypatch):
    """As its reader would try it, before there is a cluster."""
    monkeypatch.chdir(tmp_path)
    result = invoke("submit", "--dry-run", *words[1:])
    assert result.exit_code == 0, result.stderr
    assert "#SBATCH --signal=" in result.stdout
    assert lint_script(result.stdout) == []
