"""Commands and code blocks of the documents: each `holdfast` line parses, each Python block compiles."""

import re
import shlex
from pathlib import Path

import click
import pytest

from holdfast.cli import commands

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted((ROOT / "docs").glob("*.md"))
FENCES = re.compile(r"^```([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINE = re.compile(r"^(?: {4}|\$ )(?:exec )?holdfast ((?:[a-z]+) .*?)(?: {2,}.*|#.*)?$", re.MULTILINE)
# `python` runs, given a model and a loader; `python program` is a whole script; `python no-run` needs a harness.
LANGUAGES = {"python", "python program", "python no-run", "console", "toml", "lammps", "text"}


def parsed(words: list[str]) -> click.Context:
    """The context of a command line, without running it."""
    command = commands.get_command(click.Context(commands), words[0])
    assert command is not None, f"there is no command {words[0]}"
    return command.make_context(words[0], words[1:])


def test_every_command_line_of_the_documents_parses():
    """Options exist, and have values of their kind; what stands in for a path is not looked for."""
    lines = [(page, line.strip()) for page in PAGES for line in LINE.findall(page.read_text())]
    assert len(lines) > 30
    for page, line in lines:
        try:
            parsed(shlex.split(line))
        except click.ClickException as error:
            pytest.fail(f"{page.name}: holdfast {line}: {error.format_message()}")


def test_a_wrong_option_is_noticed():
    """The test of the test."""
    with pytest.raises(click.UsageError):
        parsed(["ls", "--nonsense", "runs/x"])


def test_every_block_of_code_is_of_a_known_kind_and_compiles():
    """A Python block that no test can run as it stands is still Python."""
    blocks = [(page, *block) for page in PAGES for block in FENCES.findall(page.read_text())]
    assert len(blocks) > 30
    assert {kind for _, kind, _ in blocks} <= LANGUAGES
    for page, kind, block in blocks:
        if kind.startswith("python"):
            compile(block, str(page), "exec")


def by_name(text: str) -> list[str]:
    """Lines that would take Holdfast itself from an index. An extra by name is of what is installed."""
    return re.findall(r"pip install[^`\n#]*[ \"'](?:holdfast)(?![\[\w/.-])[^`\n]*", text)


def test_no_page_installs_holdfast_from_an_index_before_there_is_a_release():
    """The name belongs to another project there. A page that does so is noticed."""
    assert [] == [f"{page.name}: {line}" for page in PAGES for line in by_name(page.read_text())]
    assert ["pip install holdfast accelerate"] == by_name(
        "`pip install holdfast accelerate`, `pip install holdfast[s3]`"
    )
    readme = (ROOT / "README.md").read_text()
    assert readme.index("pip install . ") < readme.index('pip install ".[torch]"')
