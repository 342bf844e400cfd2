"""Hooks of mkdocs: check links out of docs/, require every public name on the API pages, fill pages from the source."""

import ast
import importlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe  # part of mkdocstrings: reads the source, and needs no framework

LOG = logging.getLogger("mkdocs.hooks.holdfast")  # a warning fails a strict build
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"
OUTWARD = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(?:#[^)]*)?\)")
MARKED = re.compile(r"^```python (?:program|no-run)$", re.MULTILINE)  # the words are for the tests
PUBLIC = ["holdfast", "holdfast.data", "holdfast.torch", "holdfast.cluster", "holdfast.board"]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to files of the repository that are no pages become their paths; the page of decisions lists them."""
    here = (ROOT / "docs" / page.file.src_uri).parent

    def spelled(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = here.joinpath(target).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return link[0]
        if not path.exists():
            LOG.warning("%s links to %s, which does not exist", page.file.src_uri, target)
        if path.parent == RESULTS and page.file.src_uri == "speed.md":
            return f"[{text}](speed-tables.md#{path.stem})"
        name = path.relative_to(ROOT)
        return f"`{name}`" if text.strip("`") == str(name) else f"{text} (`{name}` in the repository)"

    if page.file.src_uri.startswith("adr/0"):
        page.meta["search"] = {"exclude": True}  # decisions are for those who change the code
    if page.file.src_uri == "messages.md":
        markdown += messages()
    if page.file.src_uri == "speed-tables.md":
        markdown += speed_tables()
    if page.file.src_uri == "adr/README.md":
        markdown += "\n\n" + "\n".join(f"* [{titled(each)}]({each.name})" for each in sorted(here.glob("0*.md")))
    return OUTWARD.sub(spelled, MARKED.sub("```python", markdown))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """A fence that Markdown did not understand is an error, too."""
    if "```" in html:
        LOG.warning("%s shows a fence as text", page.file.src_uri)
    return html


MEANINGS = {
    "UsageError": "An option, an argument or the script cannot be meant so. Nothing was changed.",
    "NotFound": "There is no such checkpoint, run or file.",
    "Damaged": "Bytes on the disk differ from what was committed. An older checkpoint is taken.",
    "Untrusted": "The bytes are whole, and not signed by the key that was asked for, or of another run.",
    "Mismatch": "The checkpoint and the live objects do not fit. Nothing was changed; the old code goes on.",
    "StoreError": "A save, a copy or a removal failed. What was committed before is there.",
    "DiskError": "The operating system refused. What was committed before is there.",
    "Unreadable": "A file cannot be read now; nothing says that it is damaged. Try again, or on another node.",
    "NoSpace": "Space, or a quota, is used up. The store is as it was before.",
    "Superseded": "A later attempt owns the run. This process writes nothing more.",
    "ClusterError": "The scheduler refused, or did not answer.",
    "RanksError": "The processes of one run disagree, or one did not come in time.",
    "NotFinite": "Weights are infinite or NaN, and `stop_on_nan` was asked for.",
    "ChildError": "The drilled or supervised program failed for good.",
}


def messages() -> str:
    """A section for each kind of error, with its exit code, and the messages that the source raises."""
    errors = importlib.import_module("holdfast.errors")
    found: dict[str, set[str]] = {kind: set() for kind in MEANINGS}
    for path in sorted((ROOT / "src/holdfast").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                kind = getattr(node.func, "id", getattr(node.func, "attr", ""))
                text = re.sub(r"[… ]*…[… ]*…", "…", " ".join("".join(_text(node.args[0])).split()))
                if kind in found and len(re.findall(r"\w{3,}", text)) > 0:
                    found[kind].add(text.replace("`", "'"))
    sections = [
        f"## {kind} (exit code {getattr(errors, kind).exit_code}) {{ #{kind.lower()} }}\n\n{meaning}\n\n"
        + "\n".join(f"* `{text}`" for text in sorted(found[kind], key=lambda text: text.lstrip("…: ").lower()))
        for kind, meaning in MEANINGS.items()
        if found[kind] or LOG.warning("messages.md: no message of %s was found", kind)
    ]
    return "\n\n".join(sections) + "\n"


def _text(node: ast.expr) -> Iterator[str]:
    """The constant parts of a string, with … for each of the others."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        for each in node.values:
            yield from _text(each)
    elif isinstance(node, ast.BinOp):
        yield from _text(node.left)
        yield from _text(node.right)
    elif isinstance(node, ast.IfExp):
        yield from _text(node.body)
    else:
        yield "…"


def speed_tables() -> str:
    """The tables of the last `make bench`, under the questions of docs/speed.md, in its order."""
    asked = re.findall(r"^\| (\[.*\.md\)) \| (.*) \|$", (ROOT / "docs/speed.md").read_text(), re.MULTILINE)
    questions = {name: words for links, words in asked for name in re.findall(r"results/(\w+)\.md", links)}
    for path in RESULTS.glob("*.md"):
        if path.stem not in questions:
            LOG.warning("speed.md has no row for %s", path.name)
    return "".join(
        f"\n## {name.capitalize()} {{ #{name} }}\n\n{words[0].upper()}{words[1:]}.{_machine(name)}\n\n"
        + (RESULTS / f"{name}.md").read_text()
        for name, words in questions.items()
    )


def _machine(table: str) -> str:
    """When and where the table was measured; nothing of one that sums up others."""
    path = RESULTS / f"{table}.jsonl"
    if not path.exists():
        return ""
    facts = json.loads(path.read_text().partition("\n")[0])
    return " {date}: {cpu}, {cores} cores, {memory_gib} GiB, {file_system}, Python {python}.".format(**facts)


def titled(page: Path) -> str:
    """The first heading of `page`."""
    return page.read_text().partition("\n")[0].removeprefix("# ")


def on_pre_build(**_: Any) -> None:
    """Warn of each public name that the API pages lack, and of each that has no docstring."""
    pages = "".join(page.read_text() for page in sorted((ROOT / "docs/api").glob("*.md")))
    directives = re.findall(r"^::: (\S+)\n((?: {4}.*\n)*)", pages, re.MULTILINE)
    listed = {place.rpartition(".")[2] for place, _ in directives}
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            if name not in listed:
                LOG.warning("%s.%s is public, and docs/api does not have it", module, name)
    source = griffe.GriffeLoader(search_paths=[ROOT / "src"])
    package = source.load("holdfast")
    source.resolve_aliases(external=False)
    for place, options in directives:
        for name in undocumented(package[place.removeprefix("holdfast.")], options):
            LOG.warning("%s is public and has no docstring", name)


def undocumented(found: griffe.Object | griffe.Alias, options: str) -> list[str]:
    """The name of `found`, and of those of its methods and properties that the page shows, without a docstring."""
    shown = re.search(r"^ +members: (.*)", options, re.MULTILINE)
    members = list(found.members.values()) if found.is_class and shown is None else []
    if found.is_class and shown and shown[1] != "false":
        members = [found.all_members[name] for name in re.findall(r"\w+", shown[1])]
    spoken = [
        each for each in members if not each.name.startswith("_") and ("property" in each.labels or each.is_function)
    ]
    return [each.path for each in [found, *spoken] if not each.has_docstring]


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """The page of options has a heading for each command, by its name."""
    if page.file.src_uri == "cli.md":
        for name in importlib.import_module("holdfast.cli").COMMANDS:
            if f'id="holdfast-{name}"' not in output:
                LOG.warning("cli.md has no heading for holdfast %s", name)
    return output
