"""docs/json.md has the fields that each command prints with --json, and no others."""

import json
import re
import sys
from pathlib import Path

import pytest

from holdfast.drill.fix import repair
from stores import invoke
from toy import launch, script

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
TRAIN = """
    import numpy
    from holdfast import Run
    array = numpy.zeros(3)
    with Run(RUN, dict(array=array)) as run:
        for step in run.steps(3):
            array += 1
            run.log(value=1.0)
            run.save()
"""
# not in what is printed here: a script's findings, a drill that says no more, the fields of other outcomes
OPEN = {"metrics", "document", "position", "vars", "files", "leaves", "tree", "error"}


def documented(section):
    """The fields of the tables in a section; `report` points to `ls` for those of checkpoints."""
    rows = re.findall(r"^\| (`.*?) \|", SECTIONS[section], re.MULTILINE)
    found = {field for row in rows for field in re.findall(r"`([^`]+)`", row)}
    if section != "report":
        return found
    of_ls = {field for field in documented("ls") if field.startswith("checkpoints[].")}
    return found | of_ls - {"checkpoints[].at"}  # which names mirrors


def printed(value, before=""):
    """The names of all fields, those of lists of objects with [], two deep."""
    for name, each in value.items():
        yield before + name
        if not before and isinstance(each, list) and name not in OPEN:
            for item in each:
                if isinstance(item, dict):
                    yield from printed(item, f"{name}[].")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a run of three checkpoints, and a batch script that loses work."""
    place = tmp_path_factory.mktemp("json")
    ended = launch(script(place, TRAIN))
    assert 0 == ended.code, ended
    (place / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=1:00:00\n#SBATCH --signal=B:USR1@120\npython train.py\n")
    return place


COMMANDS = {
    "ls": "ls run",
    "show": "show run",
    "verify": "verify run",
    "diff": "diff run@1 run@2",
    "prune": "prune run --keep last=1 --dry-run",
    "export": "export run --part array -o out.npz",
    "copy": "copy run copy",
    "pin": "pin run@1",
    "hold": "hold run",
    "status": "status run",
    "report": "report run",
    "watch": "watch run",
    "lint": "lint job.sh",
    "doctor": "doctor run",
    "demo": "demo",
}
SHARED = {"pin": "unpin run@1", "hold": "release run"}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_fields_of_a_command_are_those_of_the_page(command, place, monkeypatch):
    """The version first; each field that is printed is documented, and each that is documented is printed."""
    monkeypatch.chdir(place)
    for line in filter(None, (COMMANDS[command], SHARED.get(command))):
        found = json.loads(invoke(*line.split(), "--json").stdout)
        assert 1 == found.pop("version")
        assert documented(command) == {*printed(found)}, line


def test_run_prints_its_fields_in_one_line(place, monkeypatch):
    """When the command has ended."""
    monkeypatch.chdir(place)
    [line] = invoke("run", "--json", "--", sys.executable, "-c", "").stdout.splitlines()
    assert documented("run") | {"version"} == json.loads(line).keys()


def test_the_fields_of_a_repair_and_of_a_submission_are_those_of_the_page():
    """Those of `submit` are compared with what it prints by test_submit.py."""
    assert {*repair.RepairResult.__struct_fields__} == documented("init")
    assert {"job", "script", "output", "directory", "array"} == documented("submit")


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [("ls nowhere", "NotFound", 3), ("show run@99", "NotFound", 3), ("prune run --keep nothing", "UsageError", 2)],
)
def test_an_error_has_its_json(words, kind, code, place, monkeypatch):
    """Kind, exit code, and the line that stands on standard error; and every command that prints JSON has a section."""
    monkeypatch.chdir(place)
    ended = invoke(*words.split(), "--json")
    error = json.loads(ended.stdout)["error"]
    assert (code, kind, code) == (ended.exit_code, error["kind"], error["exit_code"])
    assert f"holdfast: {error['message']}" == ended.stderr.rstrip()
    assert {f"error.{name}" for name in error} == documented("An error")
