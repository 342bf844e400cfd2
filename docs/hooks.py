"""Hooks of mkdocs: check links out of docs/ and write them as paths; see that the API page has every public name."""

import importlib
import logging
import re
from pathlib import Path
from typing import Any

import griffe  # part of mkdocstrings: reads the source, and needs no framework

LOG = logging.getLogger("mkdocs.hooks.holdfast")  # a warning fails a strict build
ROOT = Path(__file__).parents[1]
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
        name = path.relative_to(ROOT)
        return f"`{name}`" if text.strip("`") == str(name) else f"{text} (`{name}` in the repository)"

    if page.file.src_uri == "adr/README.md":
        markdown += "\n\n" + "\n".join(f"* [{titled(each)}]({each.name})" for each in sorted(here.glob("0*.md")))
    return OUTWARD.sub(spelled, MARKED.sub("```python", markdown))


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """A fence that Markdown did not understand is an error, too."""
    if "```" in html:
        LOG.warning("%s shows a fence as text", page.file.src_uri)
    return html


def titled(page: Path) -> str:
    """The first heading of `page`."""
    return page.read_text().partition("\n")[0].removeprefix("# ")


def on_pre_build(**_: Any) -> None:
    """Warn of each public name that the API page lacks, and of each that has no docstring."""
    directives = re.findall(r"^::: (\S+)\n((?: {4}.*\n)*)", (ROOT / "docs/api.md").read_text(), re.MULTILINE)
    listed = {place.rpartition(".")[2] for place, _ in directives}
    for module in PUBLIC:
        for name in importlib.import_module(module).__all__:
            if name not in listed:
                LOG.warning("%s.%s is public, and docs/api.md does not have it", module, name)
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
