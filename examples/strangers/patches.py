"""What Holdfast adds to a script that somebody else wrote: lines to add, and words to replace in a line of theirs.

A patch holds our lines and no line of theirs. It fits one file, which is known by its digest:

    +7|from holdfast import Run                         a new line after line 7
    ~39|enumerate(train => run.enumerate(train          in line 39, which has the left side once
"""

import difflib
import hashlib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent


class Added(NamedTuple):
    """A new line of ours."""

    after: int
    text: str


class Changed(NamedTuple):
    """Other words in one of their lines."""

    line: int
    old: str
    new: str


@dataclass(frozen=True)
class Stranger:
    """One script of somebody else's, what it takes to run it, and what Holdfast adds to it."""

    name: str
    upstream: str
    commit: str
    licence: str
    script: str  # its path in the repository
    sha256: str  # of the file that the patch fits
    folder: str  # where the command is started, in the repository
    command: list[str]  # what follows `python`
    patch: list[Added | Changed]
    prepare: list[str] = field(default_factory=list)  # functions of prepare.py
    options: list[str] = field(default_factory=list)  # of `holdfast drill`
    environment: dict[str, str] = field(default_factory=dict)  # COPY stands for the patched copy
    before: list[list[str]] = field(default_factory=list)  # what `python` runs in the patched copy first

    @property
    def repository(self) -> str:
        """The directory that `git clone` makes."""
        return self.upstream.rpartition("/")[2]

    @property
    def added(self) -> int:
        """Lines that the patch adds."""
        return sum(isinstance(edit, Added) for edit in self.patch)

    @property
    def changed(self) -> int:
        """Lines of theirs in which it replaces words."""
        return len({edit.line for edit in self.patch if isinstance(edit, Changed)})

    @property
    def indented(self) -> int:
        """Lines of theirs that it moves to the right or to the left."""
        return sum(isinstance(edit, Changed) and edit.old[:1].isspace() for edit in self.patch)


def strangers() -> dict[str, Stranger]:
    """Every script there is a patch for, by name."""
    return {path.stem: read(path) for path in sorted(HERE.glob("*.toml"))}


def read(path: Path) -> Stranger:
    """The script that `path` describes."""
    told = tomllib.loads(path.read_text())
    patch = [parse(line) for line in told.pop("patch").splitlines() if line]
    return Stranger(name=path.stem, patch=patch, **told)


def parse(line: str) -> Added | Changed:
    """One line of a patch."""
    head, _, text = line.partition("|")
    if head[:1] == "+":
        return Added(int(head[1:]), text)
    old, arrow, new = text.partition(" => ")
    if head[:1] != "~" or not arrow:
        raise ValueError(f"neither +LINE|text nor ~LINE|old => new: {line}")
    return Changed(int(head[1:]), old, new)


def patched(stranger: Stranger, source: str) -> str:
    """`source` with the patch applied.

    Raises:
        ValueError: `source` is another version of the script than the patch was written for.
    """
    if hashlib.sha256(source.encode()).hexdigest() != stranger.sha256:
        raise ValueError(
            f"{stranger.script} is not as in {stranger.upstream} at commit {stranger.commit}; check that one out"
        )
    return apply(stranger.patch, source)


def row(stranger: Stranger) -> str:
    """What docs/exactness.md says of the patch: the script, its version, and lines added, changed, re-indented."""
    version = f"{stranger.upstream.removeprefix('https://github.com/')} at `{stranger.commit[:7]}`"
    counts = f"{stranger.added} | {stranger.changed} | {stranger.indented}"
    return f"| `{stranger.name}`: {version} | {counts} |"


def apply(patch: list[Added | Changed], source: str) -> str:
    """`source` with its lines changed first, by their old numbers, and new ones added then."""
    lines = source.splitlines(keepends=True)
    after: dict[int, list[str]] = {}
    for edit in patch:
        if isinstance(edit, Added):
            after.setdefault(edit.after, []).append(edit.text + "\n")
            continue
        line = lines[edit.line - 1]
        if line.count(edit.old) != 1:
            raise ValueError(f"line {edit.line} has {edit.old!r} {line.count(edit.old)} times, and not once: {line}")
        lines[edit.line - 1] = line.replace(edit.old, edit.new)
    whole = [after.get(0, [])] + [[line, *after.get(number, [])] for number, line in enumerate(lines, 1)]
    return "".join(line for part in whole for line in part)


def unified(stranger: Stranger, source: str) -> str:
    """The patch as `git apply --unidiff-zero` and `patch` take it, made with the reader's own copy."""
    old, new = source.splitlines(keepends=True), patched(stranger, source).splitlines(keepends=True)
    return "".join(difflib.unified_diff(old, new, f"a/{stranger.script}", f"b/{stranger.script}", n=0))
