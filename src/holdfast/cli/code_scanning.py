"""Code scanning: what `lint` and `drill` find as SARIF 2.1.0, and as GitHub's annotations and job
summary.

https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
https://docs.github.com/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import click
import msgspec

from .. import __version__, disk, scan
from ..drill import report as reports
from ..drill.report import DrillReport
from ..errors import UsageError
from .formatting import echo

WORKSPACE = "GITHUB_WORKSPACE"  # the folder of the job's checkout
SUMMARY = "GITHUB_STEP_SUMMARY"  # GitHub sets it to the file that a step appends Markdown to
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_CALLS = ("Run", "load", "load_state_dict", "load_checkpoint", "load_model", "restore")


class ScanFinding(NamedTuple):
    """One finding at a line of a file."""

    rule: str
    level: str  # as in SARIF: "error", "warning" or "note"
    text: str
    file: str
    line: int


def scanning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options `--sarif` and `--github` to a command."""
    function = click.option(
        "--github",
        is_flag=True,
        help="Print annotations for GitHub Actions, and append to the job's summary.",
    )(function)
    return click.option(
        "--sarif",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Write the findings into FILE for code scanning, as SARIF.",
    )(function)


def require_outputs(*, as_json: bool, github: bool, sarif: Path | None) -> None:
    """Require that annotations and JSON are not printed in one stream, and that FILE can be made.

    Raises:
        UsageError: both were asked for, or the folder of FILE is missing.
    """
    if as_json and github:
        raise UsageError("--github prints annotations among the lines: leave out --json")
    if sarif is not None and not scan.is_dir(sarif.parent):
        raise UsageError(f"--sarif {sarif}: there is no folder {sarif.parent}")


def publish(
    found: Sequence[ScanFinding], summary: Sequence[str], *, sarif: Path | None, github: bool
) -> None:
    """Write the SARIF file, print the annotations and append the summary, as far as asked for."""
    found = [each._replace(file=_in_workspace(each.file)) for each in found]
    if sarif is not None:
        disk.replace_with(sarif, [msgspec.json.format(msgspec.json.encode(as_sarif(found)))])
    if not github:
        return
    for each in found:
        level = "notice" if each.level == "note" else each.level
        place = f"file={_escape_property(each.file)},line={each.line}"
        title = _escape_property(f"holdfast {each.rule}")
        echo(f"::{level} {place},title={title}::{_escape(each.text)}", most=None)
    if target := os.environ.get(SUMMARY):
        path = Path(target)
        if not scan.exists(path):
            disk.write(path, [])
        disk.append(path, ("\n".join(summary) + "\n").encode(), sync=False)


def _in_workspace(file: str) -> str:
    """Return the path below the checkout of a job on GitHub, from which its annotations count."""
    path = os.path.relpath(file, os.environ.get(WORKSPACE, "."))
    return file if path.startswith(os.pardir) else path


def as_sarif(found: Sequence[ScanFinding]) -> dict[str, Any]:
    """Return a SARIF log with one run of this tool."""
    rules = sorted({each.rule for each in found})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "holdfast",
                        "version": __version__,
                        "rules": [{"id": rule} for rule in rules],
                    }
                },
                "results": [
                    {
                        "ruleId": each.rule,
                        "ruleIndex": rules.index(each.rule),
                        "level": each.level,
                        "message": {"text": each.text},
                        "locations": [
                            {
                                "physicalLocation": {
                                    "artifactLocation": {"uri": quote(each.file)},
                                    "region": {"startLine": each.line},
                                }
                            }
                        ],
                    }
                    for each in found
                ],
            }
        ],
    }


def drill_findings(report: DrillReport) -> list[ScanFinding]:
    """Return what a drill found, at the line of the script that opens the run or loads the
    checkpoint.
    """
    if report.verdict == reports.IDENTICAL:
        return []
    script = next((word for word in report.command if word.endswith(".py")), report.command[0])
    if Path(script).is_absolute():  # a scanner wants paths within the repository
        script = os.path.relpath(script)
    line = _call_line(Path(script))
    if report.losses:
        return [
            ScanFinding(f"resume/{each.kind.replace(' ', '-')}", "error", each.what, script, line)
            for each in report.losses
        ]
    if report.divergence is None:
        text = " ".join([report.verdict, *report.notes])
        level = "error" if report.verdict == reports.DIFFERENT else "warning"
        return [ScanFinding(f"drill/{report.verdict.replace(' ', '-')}", level, text, script, line)]
    found = report.divergence
    text = f"{report.verdict}: step {found.step}: {found.what}. {found.cause}: {found.advice}"
    return [ScanFinding(f"drill/{found.cause.replace(' ', '-')}", "error", text, script, line)]


def drill_summary(report: DrillReport, lines: Sequence[str]) -> list[str]:
    """Return a drill's report as Markdown."""
    sign = "✅" if report.verdict == reports.IDENTICAL else "❌"
    command = " ".join(report.command)
    return [
        f"### {sign} holdfast drill: {report.verdict_line}",
        "",
        f"`{command}`, killed and resumed {report.kills_proven} of {report.kills_asked} times",
        "",
        "```text",
        *(line.replace("```", "'''") for line in lines),
        "```",
    ]


def _call_line(script: Path) -> int:
    """Return the line of the first call that opens a run or loads a checkpoint; else 1."""
    with suppress(OSError, SyntaxError, ValueError):
        calls = [
            (_CALLS.index(name), node.lineno)
            for node in ast.walk(ast.parse(script.read_bytes()))
            if isinstance(node, ast.Call) and (name := _called(node)) in _CALLS
        ]
        return min(calls, default=(0, 1))[1]
    return 1


def _called(node: ast.Call) -> str:
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")
