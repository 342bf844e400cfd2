"""README and docs are in short sentences: at most 30 words each, so that they are understood at the first reading."""

import re
from pathlib import Path

import click
from test_tools import weight

from holdfast.cli import COMMANDS, commands

ROOT = Path(__file__).parents[2]
AT_MOST = 30
FIRST_ADR = 27  # decisions before this one are records, and stay as they were written
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def checked(page: Path) -> bool:
    """Whether `page` is held to the rule: all but the decisions before FIRST_ADR."""
    number = re.match(r"\d{4}(?=-)", page.name)
    return number is None or int(number[0]) >= FIRST_ADR


def too_long(markdown: str) -> list[str]:
    """Sentences with more than AT_MOST words. A directive of mkdocs is none."""
    return [each for each in weight.sentences(markdown) if weight.words(each) > AT_MOST]


def test_no_sentence_is_longer_than_thirty_words():
    """Each page, but for decisions that were written before the rule, keeps to short sentences."""
    pages = [page for page in PAGES if checked(page)]
    assert len(pages) > 10
    assert [f"{page.name}: {each}" for page in pages for each in too_long(page.read_text())] == []


def test_no_sentence_of_the_commands_help_is_longer():
    """The site shows it, too: what each command says of itself and of its options."""
    context = click.Context(commands)
    told = [commands, *filter(None, (commands.get_command(context, name) for name in COMMANDS))]
    assert len(told) == len(COMMANDS) + 1
    texts = [command.help or "" for command in told]
    texts += [each.help or "" for command in told for each in command.params if isinstance(each, click.Option)]
    paragraphs = [" ".join(each.split()) for text in texts for each in text.split("\n\n")]
    assert [each for paragraph in paragraphs for each in too_long(paragraph)] == []


def test_a_long_sentence_is_found_wherever_it_stands():
    """In a paragraph over several lines, in a list item, in a table's cell; not in code, nor in two short ones."""
    long = "A " + " ".join(["word"] * 30) + "."
    broken = long.replace(" word", "\nword", 3)
    halves = "A " + " ".join(["word"] * 29) + ". A " + " ".join(["word"] * 29) + "."
    pages = {
        long: 1,
        f"One.\n\n{broken}": 1,
        f"* item\n* {long}\n\n    {long}": 2,
        f"| a | {long} |": 1,
        f"# Title\n{long} {long}": 2,
        f"See [this]({'x' * 9}) {long} `{long}`": 1,
        f"```python\n{long}\n```\n\n    {long}\n\n    {long}\n\n{halves}": 0,
        f"::: name\n    options: {long}\n": 0,
    }
    for text, expected in pages.items():
        assert len(too_long(text)) == expected, text
