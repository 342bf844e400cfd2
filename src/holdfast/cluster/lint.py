"""Lint: where a Slurm batch script behaves otherwise than its author expects. Pure; nothing is run.

Each rule is one function from the parsed script to faults, in a table with its severity. The facts behind the rules
were observed on Slurm 22.05 (docs/cluster.md); a rule from elsewhere names its source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from . import lint_again, lint_directives, lint_places, lint_signals, lint_traps, lint_work
from .batch import ScriptContext, read
from .lint_fix import Edit, LintFix
from .lint_rule import Rule, Severity

# Such a comment, anywhere in the script, switches rules off.
ALLOWED = re.compile(r"^[^#\n]*#.*?holdfast: allow ([\w, -]+)", re.MULTILINE)
RULES: Sequence[Rule] = (
    *lint_signals.RULES,
    *lint_traps.RULES,
    *lint_work.RULES,
    *lint_again.RULES,
    *lint_places.RULES,
    *lint_directives.RULES,
)


class Finding(NamedTuple):
    """What is wrong at a line, and how to mend it."""

    line: int
    rule: str
    severity: Severity
    what: str
    fix: str
    edits: tuple[Edit, ...]  # the repair; None if the script has to be restructured


def lint(text: str, around: ScriptContext = ScriptContext()) -> list[Finding]:  # noqa: B008  a frozen value
    """Return the script's faults, sorted by line."""
    script = read(text, around)
    allowed = {name.strip() for match in ALLOWED.finditer(text) for name in match[1].split(",")}
    found: set[Finding] = set()
    for rule in RULES:
        if rule.name not in allowed:
            faults = list(rule.check(script))
            found |= {_finding(rule, *fault) for fault in (faults[:1] if rule.once else faults)}
    return sorted(found)


def _finding(rule: Rule, line: int, what: str, fix: LintFix) -> Finding:
    return Finding(line, rule.name, rule.severity, what, fix.text, fix.edits)
