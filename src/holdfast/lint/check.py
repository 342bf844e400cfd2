"""Lint: where a Slurm batch script behaves otherwise than its author expects. Pure; nothing is run.

Each rule is one function from the parsed script to faults, in a table with its severity. The facts
behind the rules were observed on Slurm 22.05 (docs/cluster.md); a rule from elsewhere names its
source.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..batch.script import ScriptContext, parse_script
from . import again, directives, places, signals, traps, work
from .fix import Edit, LintFix
from .rule import Rule, Severity

# Such a comment, anywhere in the script, switches rules off.
ALLOWED = re.compile(r"^[^#\n]*#.*?holdfast: allow ([\w, -]+)", re.MULTILINE)
_MOST_FIXES = 100  # of one script
RULES: Sequence[Rule] = (
    *signals.RULES,
    *traps.RULES,
    *work.RULES,
    *again.RULES,
    *places.RULES,
    *directives.RULES,
)


class Finding(NamedTuple):
    """What is wrong at a line, and how to mend it."""

    line: int
    rule: str
    severity: Severity
    what: str
    fix: str
    edits: tuple[Edit, ...]  # the repair; None if the script has to be restructured


def lint_script(text: str, around: ScriptContext = ScriptContext()) -> list[Finding]:  # noqa: B008  a frozen value
    """Return the script's faults, sorted by line."""
    script = parse_script(text, around)
    allowed = {name.strip() for match in ALLOWED.finditer(text) for name in match[1].split(",")}
    found: set[Finding] = set()
    for rule in RULES:
        if rule.name not in allowed:
            faults = list(rule.check(script))
            found |= {_finding(rule, *fault) for fault in (faults[:1] if rule.once else faults)}
    return sorted(found)


def is_refused(found: Finding) -> bool:
    """Whether sbatch refuses the script for it. Of an option that resembles no known one only
    sbatch can tell.
    """
    return found.rule == "script-refused" and found.fix != directives.NO_SUCH.text


def apply_fixes(text: str, around: ScriptContext = ScriptContext()) -> str:  # noqa: B008  a frozen value
    """Return the script with the edits of its findings made, until no finding has any."""
    for _ in range(_MOST_FIXES):
        edits = next((found.edits for found in lint_script(text, around) if found.edits), ())
        if not edits:
            break
        for edit in sorted(edits, reverse=True):
            text = text[: edit.start] + edit.new + text[edit.end :]
    return text


def _finding(rule: Rule, line: int, what: str, fix: LintFix) -> Finding:
    return Finding(line, rule.name, rule.severity, what, fix.text, fix.edits)
