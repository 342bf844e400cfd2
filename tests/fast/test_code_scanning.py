"""Findings where code is tested: SARIF, GitHub's annotations and job summary, the action, pre-commit's hook."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from holdfast.cli import code_scanning, lint
from holdfast.drill.report import DIFFERENT, IDENTICAL, NOT_PROVEN, Divergence, DrillReport, Loss

ROOT = Path(__file__).parents[2]
SCRIPT = "#!/bin/bash\n#SBATCH --requeue\n#SBATCH --signal=TERM@120\nsrun python train.py\n"


def divergence(**changed):
    facts = {"step": 7, "phase": "step", "attempt": 2, "resumed_from": 3, "what": "w differs", "cause": "variable"}
    return Divergence(**(facts | {"advice": "Keep run.vars.w"} | changed))


def report(**changed):
    return DrillReport(
        **({"verdict": DIFFERENT, "command": ["python", "train.py"], "seed": 0, "kills_asked": 3} | changed)
    )


def test_findings_of_lint_are_sarif_and_annotations_on_their_lines(tmp_path, monkeypatch):
    """The text output stays as it is; code scanning gets rule, level, file and line of each finding."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    Path("job.sh").write_text(SCRIPT)
    plain = CliRunner().invoke(lint.command, ["job.sh", "--json"])
    found = json.loads(plain.output)["findings"]
    assert found
    ended = CliRunner().invoke(lint.command, ["job.sh", "--sarif", "lint.sarif", "--github"])
    assert (ended.exit_code, plain.exit_code) == (plain.exit_code, ended.exit_code)
    (run,) = json.loads(Path("lint.sarif").read_text())["runs"]
    told = [(each["ruleId"], each["locations"][0]["physicalLocation"]) for each in run["results"]]
    assert told == [
        (each["rule"], {"artifactLocation": {"uri": "job.sh"}, "region": {"startLine": each["line"]}}) for each in found
    ]
    rules = [each["id"] for each in run["tool"]["driver"]["rules"]]
    assert [rules[each["ruleIndex"]] for each in run["results"]] == [each["rule"] for each in found]
    lines = [line for line in ended.output.splitlines() if line.startswith("::")]
    assert len(lines) == len(found)
    assert f"file=job.sh,line={found[0]['line']},title=holdfast {found[0]['rule']}::" in lines[0]
    assert found[0]["what"] in Path("summary.md").read_text()


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (report(verdict=IDENTICAL), []),
        (report(divergence=divergence()), [("drill/variable", "error", 4)]),
        (report(verdict=NOT_PROVEN, notes=["too few places"]), [("drill/not-proven", "warning", 4)]),
        (
            report(losses=[Loss("optimizer", "began without"), Loss("batches twice", "trained again")]),
            [("resume/optimizer", "error", 4), ("resume/batches-twice", "error", 4)],
        ),
    ],
)
def test_a_drill_points_at_the_line_that_opens_the_run(found, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "import torch\nfrom holdfast import Run\n\nwith Run('x') as run:\n    torch.load('y')\n"
    )
    scanned = code_scanning.drill_findings(found)
    assert [(each.rule, each.level, each.line) for each in scanned] == told
    assert {each.file for each in scanned} <= {"train.py"}


def test_a_script_that_is_not_there_or_no_python_has_line_1(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("odd.py").write_text("def (\n")
    for words in (["python", "gone.py"], ["python", "odd.py"], ["./train"]):
        (found,) = code_scanning.drill_findings(report(command=words, divergence=divergence()))
        assert (found.line, found.file) == (1, words[-1])


def test_an_annotation_is_one_line_whatever_it_says(capsys):
    """GitHub takes each line as a command, and a percent sign, colon or comma as part of it."""
    finding = code_scanning.ScanFinding("a:b,c", "error", "50% of\nthe lines\r: gone", "a,b.py", 3)
    code_scanning.publish([finding], [], sarif=None, github=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert line == "::error file=a%2Cb.py,line=3,title=holdfast a%3Ab%2Cc::50%25 of%0Athe lines%0D: gone"


# The action ------------------------------------------------------------------------------------------------------


def run_action(place, **inputs):
    """Run the action's steps as GitHub does: `bash -eo pipefail` for each, its inputs put in; return the codes."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    given = {name: each.get("default", "") for name, each in action["inputs"].items()} | inputs
    assert {name for name, each in action["inputs"].items() if each.get("required")} <= given.keys()

    def filled(text):
        for name, value in given.items():
            text = text.replace(f"${{{{ inputs.{name} }}}}", value)
        assert "${{" not in text
        return text

    codes = []
    for step in action["runs"]["steps"]:
        if step.get("if") == "inputs.install == 'true'" and given["install"] != "true":
            continue
        assert "${{" not in step["run"], "an input in a script's text could be executed"
        around = {name: filled(value) for name, value in step.get("env", {}).items()}
        python = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        files = {"GITHUB_STEP_SUMMARY": str(place / "summary.md"), "GITHUB_ACTION_PATH": str(ROOT)}
        ended = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", step["run"]],
            cwd=place / filled(step.get("working-directory", ".")),
            env=os.environ | around | python | files,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        codes.append((ended.returncode, ended.stdout + ended.stderr))
    return codes


LEFT_OUT = """
import random
import numpy as np
from holdfast import Every, Run
random.seed(1)
x, total = np.zeros(3), 0.0
with Run("run", {"x": x}, every=Every(steps=3)) as run:
    for step in run.steps(12):
        x += random.random()
        total += float(x.sum())
        run.log(total=total)
"""
KEPT = (
    LEFT_OUT.replace("x, total = np.zeros(3), 0.0", "x = np.zeros(3)")
    .replace("steps=3))", 'steps=3), vars={"total": 0.0})')
    .replace("total +=", "run.vars.total +=")
    .replace("total=total", "total=run.vars.total")
)


@pytest.mark.skipif(shutil.which("bash") is None, reason="the action's steps are scripts of bash")
def test_the_actions_steps_write_the_verdict_and_the_cause_into_the_jobs_summary(tmp_path):
    """A forgotten sum is an annotation on the script's line, and a failed step; kept, the step passes."""
    (tmp_path / "train.py").write_text(LEFT_OUT)
    ((code, said),) = run_action(tmp_path, command="python train.py", kills="2", sarif="d.sarif", install="false")
    assert code == 1, said
    assert "::error file=train.py,line=7,title=holdfast drill/" in said
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("### ❌ holdfast drill: different")
    assert "run.vars.total" in text
    (result,) = json.loads((tmp_path / "d.sarif").read_text())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 7}
    (tmp_path / "train.py").write_text(KEPT)
    (tmp_path / "summary.md").unlink()
    ((code, said),) = run_action(tmp_path, command="python 'train.py'", kills="2", install="false")
    assert code == 0, said
    assert "::" not in said
    assert (tmp_path / "summary.md").read_text().startswith("### ✅ holdfast drill: identical")


def test_the_hook_of_pre_commit_names_a_command_that_there_is():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["entry"], hook["language"]) == ("holdfast lint", "python")
    assert CliRunner().invoke(lint.command, ["--help"]).exit_code == 0


def test_an_annotation_names_the_file_below_the_checkout(tmp_path, monkeypatch, capsys):
    """Whatever the step's working directory is; outside of the checkout the path stays as it is."""
    (tmp_path / "sub dir").mkdir()
    monkeypatch.chdir(tmp_path / "sub dir")
    found = [code_scanning.ScanFinding("a/rule", "error", "text", name, 3) for name in ("train.py", "../../x.py")]
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    code_scanning.publish(found, [], sarif=tmp_path / "it.sarif", github=True)
    said = capsys.readouterr().out
    assert "file=sub dir/train.py,line=3" in said
    assert "file=../../x.py,line=3" in said
    assert "sub%20dir/train.py" in (tmp_path / "it.sarif").read_text()
