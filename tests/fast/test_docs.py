"""What the documents say is so: their code runs, the files they name exist, their tables are those of the code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_architecture import LAYERS, MODULES

import holdfast
from holdfast import errors

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]

SETTING = """
import torch
from holdfast import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(0, 2, (8,))), batch_size=4, shuffle=True)
loss = torch.zeros(())
def evaluate(model): return 0.5
"""


def blocks(document):
    """The Python code of a document, block by block."""
    return re.findall(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)


APART = """
import os, sys
for number, block in enumerate({blocks!r}):
    child = os.fork()
    if child == 0:
        os.mkdir(str(number))
        os.chdir(str(number))
        exec(block, globals())
        sys.exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"this did not run:\\n{{block}}")
"""


@pytest.mark.slow
def test_code_in_the_documents_runs(tmp_path):
    """Each block, and the example in the package's own docstring, runs as it stands, given the model and the loader
    that a reader has; each in a directory and a process of its own, which has these already.
    """
    example = "\n".join(line[4:] for line in holdfast.__doc__.splitlines() if line.startswith("    "))
    loops = ROOT / "docs/loops.md"  # tests/test_loops.py drills its blocks, each after the page's first one
    written = [block for document in DOCUMENTS if document != loops for block in blocks(document)]
    assert len(written) > 1
    assert "with Run(" in example
    code = SETTING + APART.format(blocks=[*written, example])
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "-c", code],
        check=False,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda d: d.name)
def test_files_named_in_the_documents_exist(document):
    """A document that names a test, a module or another document is right about it."""
    text = document.read_text()
    named = re.findall(r"`((?:tests|src|docs|examples)/[\w./*-]+)`", text)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)  # code calls what it indexes
    linked = [link for link in re.findall(r"\]\(([\w./-]+)\)", prose) if not link.startswith("http")]
    missing = [name for name in named if not list(ROOT.glob(name.rstrip("/")))]
    laws = re.findall(r"\b(test_\w+\.py)\b", text)
    missing += [name for name in laws if not list((ROOT / "tests").glob(f"*/{name}"))]
    missing += [link for link in linked if not (document.parent / link).exists()]
    assert missing == []


def test_the_page_of_the_architecture_has_every_room_in_its_layer():
    """Its layers are those that imports are held to, and each room has a row."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    there = {module.room for module in MODULES} - {"__init__", "__main__"}
    drawn = re.search(r"^Imports point down.*?:\n(.*?)\.\n", page, re.DOTALL | re.MULTILINE)[1]
    layers = [set(re.findall(r"\w+", layer)) for layer in drawn.split("<")]
    assert [rooms & there for rooms in LAYERS if rooms & there] == layers
    rows = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    assert there <= {name for row in rows for name in re.findall(r"`(\w+)/?`", row)}


def test_exit_codes_in_the_documents_are_those_of_the_errors():
    """Every exit code that an error can give stands in the table of docs/commands.md, and no other."""
    table = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs/commands.md").read_text(), re.MULTILINE)}
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")]
    assert table == {0, 75} | {kind.exit_code for kind in kinds}


@pytest.mark.parametrize("command", ["demo", "test"])
def test_the_two_commands_are_targets(command):
    """The README's two commands are in the Makefile."""
    assert f"make {command}" in (ROOT / "README.md").read_text()
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
