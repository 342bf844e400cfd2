"""README and docs are in short sentences: at most 30 words each, so that they are understood at the first reading."""

import re
from collections.abc import Iterator
from pathlib import Path

import click

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
FENCE = re.compile(r" *```")
INDENTED = re.compile(r"(    |\t)")
HEADING = re.compile(r" *#+ ")
NEW_BLOCK = re.compile(r"^ *(#+ |[*+-] |\d+\. |> ?|!!! |\?\?\? |\|)")
END = re.compile(r"(?<=[.!?])[)\"'*_]*\s+(?=[\"'(*_`\[]*[A-Z0-9`_@|])")
ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|vs|etc|cf)\.|\b[A-Z]\.)$")


def checked(page: Path) -> bool:
    """Whether `page` is held to the rule: all but the decisions before FIRST_ADR."""
    number = re.match(r"\d{4}(?=-)", page.name)
    return number is None or int(number[0]) >= FIRST_ADR


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items, headings and table cells of Markdown, each with its line; code is left out."""
    block, start, fenced, blank, item, directive = "", 0, False, True, False, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if FENCE.match(line):
            fenced = not fenced
        directive = line.startswith(":::") or (directive and bool(INDENTED.match(line)))  # of mkdocs
        code = fenced or directive or FENCE.match(line) or (blank and not item and INDENTED.match(line))
        if (code or not line.strip() or NEW_BLOCK.match(line)) and block:
            yield start, block
            block = ""
        if line.strip():
            item = bool(re.match(r" *([*+-]|\d+\.) ", line)) or (item and (not blank or line.startswith(" ")))
        blank = not line.strip() or (blank and bool(code))
        if code or blank:
            continue
        if line.lstrip().startswith("|"):
            yield from ((number, cell) for cell in re.split(r"(?<!\\)\|", line) if cell.strip(" -:"))
            continue
        start = start if block else number
        block = f"{block} {NEW_BLOCK.sub('', line, count=1).strip()}".strip()
        if HEADING.match(line):
            yield start, block
            block = ""


def words(sentence: str) -> int:
    """How many words a reader reads: a piece of code is one, a link its text, a dash none."""
    plain = re.sub(r"`+[^`]*`+", "code", sentence)
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    return sum(bool(re.search(r"\w", word)) for word in plain.split())


def sentences(block: str) -> Iterator[str]:
    """The sentences of a block. A colon or a semicolon ends none."""
    start = 0
    hidden = re.sub(r"`+[^`]*`+", lambda code: "`" + "x" * (len(code[0]) - 2) + "`", block)
    for end in END.finditer(hidden):
        if not ABBREVIATION.search(hidden[start : end.start()]):
            yield block[start : end.start()]
            start = end.end()
    yield block[start:]


def long_sentences(page: Path) -> list[str]:
    """Sentences of `page` with more than AT_MOST words: line, number of words, text."""
    return [
        f"{page.relative_to(ROOT)}:{line}: {words(sentence)} words: {sentence}"
        for line, block in prose(page.read_text())
        for sentence in sentences(block)
        if words(sentence) > AT_MOST
    ]


def test_no_sentence_is_longer_than_thirty_words():
    """Each page, but for decisions that were written before the rule, keeps to short sentences."""
    pages = [page for page in PAGES if checked(page)]
    assert len(pages) > 10
    found = [sentence for page in pages for sentence in long_sentences(page)]
    assert not found, "\n".join(found)


def test_no_sentence_of_the_commands_help_is_longer():
    """The site shows it, too: what each command says of itself and of its options."""
    context = click.Context(commands)
    told = [commands, *filter(None, (commands.get_command(context, name) for name in COMMANDS))]
    assert len(told) == len(COMMANDS) + 1
    texts = [command.help or "" for command in told]
    texts += [each.help or "" for command in told for each in command.params if isinstance(each, click.Option)]
    blocks = [" ".join(block.split()) for text in texts for block in text.split("\n\n")]
    assert [each for block in blocks for each in sentences(block) if words(each) > AT_MOST] == []


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
    }
    for text, expected in pages.items():
        found = [s for _, block in prose(text) for s in sentences(block) if words(s) > AT_MOST]
        assert len(found) == expected, text
