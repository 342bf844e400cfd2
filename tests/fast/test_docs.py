"""What the documents say is so: the files they name exist, their tables are those of the code.

`tests/slow/test_docs_code.py` runs their code.
"""

import json
import re
from pathlib import Path

from test_architecture import LAYERS, modules

import soak
from framework_runs import pinned
from holdfast import errors
from holdfast.cli.lint import LOSES_WORK

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def missing(document):
    """The files that it names and that are not there."""
    text = document.read_text()
    named = re.findall(r"`((?:tests|src|docs|examples)/[\w./*-]+)`", text)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)  # code calls what it indexes
    linked = [link for link in re.findall(r"\]\(([\w./-]+)\)", prose) if not link.startswith("http")]
    laws = re.findall(r"\b(test_\w+\.py)\b", text)
    yield from (name for name in named if not list(ROOT.glob(name.rstrip("/"))))
    yield from (name for name in laws if not list((ROOT / "tests").glob(f"*/{name}")))
    yield from (link for link in linked if not (document.parent / link).exists())


def test_files_named_in_the_documents_exist(tmp_path):
    """A document that names a test, a module or another document is right about it; one that is wrong is noticed."""
    assert [] == [f"{document.name}: {name}" for document in DOCUMENTS for name in missing(document)]
    assert len(DOCUMENTS) > 10
    wrong = tmp_path / "wrong.md"
    wrong.write_text("`src/none.py` and test_none.py, see [there](none.md), not `tests/conftest.py`")
    assert ["src/none.py", "test_none.py", "none.md"] == list(missing(wrong))


def test_the_page_of_the_architecture_has_every_room_in_its_layer():
    """A row for each layer to which imports are held, with its rooms."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    there = {module.room for module in modules()} - {"__init__", "__main__"}
    floors = page.partition("## Floors")[2].partition("| effect |")[0]
    rows = re.findall(r"^\| (`.*?) \|", floors, re.MULTILINE)
    assert [rooms & there for rooms in LAYERS if rooms & there] == [{*re.findall(r"\w+", row)} for row in rows]


def test_exit_codes_in_the_documents_are_those_of_the_errors():
    """Every exit code that an error or lint can give stands in the table of docs/commands.md, and no other."""
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")]
    assert table == {0, 75, LOSES_WORK} | {kind.exit_code for kind in kinds}


def test_commands_of_make_that_the_documents_name_are_targets():
    """And the README names the newcomer's."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        each for page in DOCUMENTS for each in re.findall(r"(?:`|^    )make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }
    assert {"demo", "test"} <= named
    assert named - targets == set()


def test_the_page_of_the_frameworks_has_the_lowest_and_the_highest_versions_that_are_tested():
    """Its table is the two locks', and has each package that lowest.in holds back."""
    rows = re.findall(r"^\| (\S+) \| ([\d.]+) \| ([\d.]+) \|$", (ROOT / "docs/frameworks.md").read_text(), re.MULTILINE)
    held, lowest, highest = pinned("lowest.in"), pinned("lowest.lock"), pinned("requirements.lock")
    assert held == {name: low for name, low, _ in rows}
    assert held.items() <= lowest.items()
    assert {name: highest[name] for name in held} == {name: high for name, _, high in rows}
    assert lowest["torch"] == highest["torch"]


def test_the_page_says_what_the_last_soak_has_found():
    """The line of docs/evidence.md is made from docs/soak.json, whose every kind has an answer."""
    found = json.loads((ROOT / "docs/soak.json").read_text())
    assert found["kinds"]
    assert all(kind["cases"] or kind["untried"] or kind["failed"] for kind in found["kinds"].values())
    assert f"<!-- soak -->\n{soak.line(found)}\n" in (ROOT / "docs/evidence.md").read_text()


def test_every_variable_of_the_environment_stands_on_its_page():
    """Each HOLDFAST_ variable that the source names, and no other."""
    text = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    page = (ROOT / "docs/environment.md").read_text()
    assert {*re.findall(r"_?HOLDFAST_[A-Z_]+[A-Z]", text)} == {*re.findall(r"_?HOLDFAST_[A-Z_]+[A-Z]", page)}
