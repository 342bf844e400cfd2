"""The manual pages that docs/man.py writes from the commands."""

import re
import runpy
from pathlib import Path

import yaml

from holdfast.cli import COMMANDS

ROOT = Path(__file__).parents[2]
ORDERS = {".TH", ".SH", ".PP", ".TP", ".B", ".BR", ".nf", ".fi"}
ESCAPED = re.compile(r"\\[-e&]")


def test_every_command_has_a_page_whose_text_gives_no_orders(tmp_path, capsys):
    """Name, synopsis, options, examples and exit codes. A line that begins with a dot is one of ours; each backslash is
    an escape.
    """
    runpy.run_path(str(ROOT / "docs/man.py"))["main"](tmp_path)
    assert {f"holdfast-{name}.1" for name in COMMANDS} | {"holdfast.1"} == {path.name for path in tmp_path.iterdir()}
    assert f"{len(COMMANDS) + 1} pages" in capsys.readouterr().out
    for path in tmp_path.iterdir():
        lines = path.read_text().splitlines()
        sections = [line[4:] for line in lines if line.startswith(".SH")]
        assert ["NAME", "SYNOPSIS", "DESCRIPTION"] == sections[:3]
        assert {"EXIT STATUS", "OPTIONS"} <= {*sections}
        assert path.name == "holdfast.1" or "EXAMPLES" in sections
        assert {line.split()[0] for line in lines if line.startswith((".", "'"))} <= ORDERS
        assert [line for line in lines if "\\" in ESCAPED.sub("", line)] == []


def test_the_pre_commit_hook_calls_a_command_that_there_is():
    """On shell scripts."""
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["entry"].split()[1] in COMMANDS
    assert re.search(hook["files"], "jobs/train.sbatch")
