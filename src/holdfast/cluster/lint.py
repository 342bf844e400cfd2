"""Lint: what a Slurm batch script will do otherwise than its author thinks. Pure; nothing is run.

Each rule is one function from the script, as it was read, to findings; `RULES` is their list. The facts behind them were
observed on Slurm 22.05 (docs/cluster.md); those from elsewhere name their source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from . import lint_files, lint_signals, lint_starts
from .batch import Around, Finding, Rule, read

RULES: Sequence[Rule] = (*lint_signals.RULES, *lint_starts.RULES, *lint_files.RULES)
ALLOWED = re.compile(
    r"^[^#\n]*#.*?holdfast: allow ([\w, -]+)", re.MULTILINE
)  # such a comment, anywhere in the script, switches rules off


def lint(text: str, around: Around = Around()) -> list[Finding]:  # noqa: B008  a frozen value
    """What is wrong with the script, by line."""
    script = read(text, around)
    allowed = {name.strip() for match in ALLOWED.finditer(text) for name in match[1].split(",")}
    found = {finding for rule in RULES for finding in rule(script) if finding.rule not in allowed}
    return sorted(found)
