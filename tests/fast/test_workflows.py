"""The workflows' shell lines do what they say, and the release's checks refuse what must not be published.

A line that needs no machine of GitHub's is run as it stands. Targets of make are looked up, and lines that install
packages or run tests are read by bash.
"""

import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

import holdfast

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TAG = f"v{holdfast.__version__}"
OURS = "https://project.example/holdfast"


class Step(NamedTuple):
    workflow: str
    job: str
    uses: str
    run: str
    env: dict[str, str]


def steps_of(workflow):
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    for job, each in jobs.items():
        for step in each["steps"]:
            yield Step(workflow.stem, job, step.get("uses", ""), step.get("run", ""), step.get("env", {}))


STEPS = [step for workflow in WORKFLOWS for step in steps_of(workflow)]
LINES = [step for step in STEPS if step.run]


def kind_of(step):
    """How the step is tried: its target is looked up, bash reads it, the index is asked, or it is run."""
    if re.fullmatch(r"make( [a-z-]+)+(( PYTHON=python| CORNERS=.\$CORNER.))*", step.run.strip()):
        return "make"
    if re.search(r"\b(sudo|pytest)\b", step.run):
        return "read"
    return "index" if "INDEX" in step.env else "run"


def shell(script, cwd=ROOT, **environment):
    """What GitHub does with a step's lines; `python` is this one."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "GITHUB_REF_NAME": TAG, "INDEX": "", **environment}
    return subprocess.run(
        ["bash", "-e", "-c", script], cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=120
    )


def ids(step):
    return f"{step.workflow}: {step.run.splitlines()[0]}"


@pytest.fixture
def checkout(tmp_path):
    """A copy of what a release is made of, with an environment."""
    for name in ("src", "tools", "README.md", "LICENSE", "pyproject.toml"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / ".venv/bin/python").chmod(0o755)
    return tmp_path


def named(checkout, **urls):
    """A checkout whose project has these addresses and no others."""
    text = re.sub(r"\n\[project.urls\]\n(?:.+\n)*", "", (checkout / "pyproject.toml").read_text())
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    (checkout / "pyproject.toml").write_text(f"{text}\n[project.urls]\n{table}" if urls else text)
    return checkout


def test_there_are_lines_of_each_kind():
    """Nothing below is empty."""
    assert {"make", "read", "index", "run"} == {kind_of(step) for step in LINES}
    assert {"check", "docs", "prove", "release", "test"} == {step.workflow for step in STEPS}


@pytest.mark.parametrize("step", [step for step in LINES if kind_of(step) == "make"], ids=ids)
def test_a_target_of_make_exists(step):
    """make knows what it would do."""
    assert 0 == shell(f"{step.run.strip()} --dry-run").returncode
    assert 0 != shell("make --dry-run chekc").returncode


@pytest.mark.parametrize("step", [step for step in LINES if kind_of(step) == "read"], ids=ids)
def test_bash_can_read_a_line_that_only_github_runs(step, tmp_path):
    """No quote and no `fi` is missing; a wrong one is noticed."""
    for text, code in ((step.run, 0), (step.run + "\nif", 2)):
        (tmp_path / "script").write_text(text)
        assert code == subprocess.run(["bash", "-n", tmp_path / "script"], check=False).returncode


@pytest.mark.parametrize("step", [step for step in LINES if kind_of(step) == "run"], ids=ids)
def test_a_line_that_needs_no_github_runs(step, checkout):
    """As it stands, in a checkout whose tag is the version."""
    ended = shell(step.run, checkout)
    assert 0 == ended.returncode, ended.stderr


def test_no_shell_line_holds_an_expression_of_github():
    """What comes from outside reaches a line as a variable, and can be no command."""
    assert [] == [ids(step) for step in LINES if "${{" in step.run]


def test_each_action_has_an_exact_version():
    """None is a branch, which may be another program tomorrow."""
    used = [step.uses for step in STEPS if step.uses]
    assert used
    assert [] == [uses for uses in used if not re.fullmatch(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+", uses)]


def test_the_forms_of_github_are_whole():
    """Each question has a name of its own and a label. The citation is of this version, by the package's authors."""
    forms = [each for each in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if each.stem != "config"]
    assert {"defect", "wish"} == {form.stem for form in forms}
    for form in map(yaml.safe_load, (form.read_text() for form in forms)):
        assert form["name"]
        assert form["description"]
        asked = [each for each in form["body"] if each["type"] != "markdown"]
        assert len(asked) == len({each["id"] for each in asked})
        assert all(each["attributes"]["label"] for each in asked)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (holdfast.__version__, PROJECT["license"]) == (cited["version"], cited["license"])
    assert [each["name"] for each in PROJECT["authors"]] == [each["name"] for each in cited["authors"]]
    released = re.findall(r"^## (\S+) \((\S+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert released == (cited["version"], str(cited["date-released"]))


# The release ------------------------------------------------------------------------------------------------------

TAG_STEP = next(step for step in LINES if step.workflow == "release" and "GITHUB_REF_NAME" in step.run)
NAME_STEP = next(step for step in LINES if step.workflow == "release" and "INDEX" in step.env)


@pytest.mark.parametrize(
    "tag", ["", "v", "v9.9.9", holdfast.__version__, f"{TAG} ", f"{TAG}.dev1", f"{TAG}rc1", "main"]
)
def test_a_tag_that_is_not_the_version_is_refused(tag):
    """In one line, which names both."""
    ended = shell(TAG_STEP.run, GITHUB_REF_NAME=tag)
    assert 1 == ended.returncode
    assert f"the tag is {tag!r}, and the version of src/holdfast/__init__.py is {holdfast.__version__}" in ended.stderr
    assert 1 == ended.stderr.count("\n")


@pytest.mark.parametrize("version", ["0.2.0.dev1", "0.2.0rc1", "0.2", "0.2.0+local"])
def test_a_version_of_development_is_refused_with_the_right_tag(version, checkout):
    """A release is three numbers."""
    door = checkout / "src/holdfast/__init__.py"
    door.write_text(door.read_text().replace(f'"{holdfast.__version__}"', f'"{version}"'))
    ended = shell(TAG_STEP.run, checkout, GITHUB_REF_NAME=f"v{version}")
    assert (1, 1) == (ended.returncode, ended.stderr.count("\n"))
    assert f"{version} is no release" in ended.stderr


@contextmanager
def index(projects):
    """A package index on loopback with these projects: name -> the addresses that it tells, or a status."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            told = projects.get(self.path, 404)
            self.send_response(told if isinstance(told, int) else 200)
            self.end_headers()
            self.wfile.write(b"nothing" if isinstance(told, int) else json.dumps({"info": told}).encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


PATH = f"/pypi/{PROJECT['name']}/json"
THEIRS = {"project_urls": {"Source": "https://elsewhere.example/holdfast"}, "home_page": None}


@pytest.mark.parametrize(
    ("told", "code", "line"),
    [
        ({"project_urls": {"Repository": f"{OURS}/"}}, 0, "is ours"),
        ({"project_urls": None, "home_page": OURS}, 0, "is ours"),
        (404, 0, "is free"),
        (THEIRS, 1, "belongs to another project (https://elsewhere.example/holdfast)"),
        ({"project_urls": None}, 1, "belongs to another project (which tells no address)"),
        (503, 1, "does not tell whose"),
    ],
)
def test_the_index_is_asked_whose_the_name_is(told, code, line, checkout):
    """Only a project with one of our addresses is ours. A name that nobody has is free; no answer is no permission."""
    with index({PATH: told}) as address:
        ended = shell(NAME_STEP.run, named(checkout, Repository=OURS), INDEX=f"{address}/")
    assert (code, 1) == (ended.returncode, (ended.stdout + ended.stderr).count("\n"))
    assert line in ended.stdout + ended.stderr


def test_the_name_is_one_setting(checkout):
    """Another name in pyproject.toml is asked for."""
    text = (checkout / "pyproject.toml").read_text()
    (checkout / "pyproject.toml").write_text(text.replace(f'name = "{PROJECT["name"]}"', 'name = "other-name"', 1))
    with index({PATH: THEIRS}) as address:
        ended = shell(NAME_STEP.run, named(checkout, Repository=OURS), INDEX=address)
    assert (0, "other-name is free") == (ended.returncode, ended.stdout.strip())


def test_without_an_address_nothing_is_published(checkout):
    """Neither without the index's, nor without the project's own, nor when the index does not answer."""
    with index({}) as address:
        ended = shell(NAME_STEP.run, named(checkout), INDEX=address)
        assert (1, True) == (ended.returncode, "[project.urls]" in ended.stderr)
    for given, line in (
        ("", "set the variable INDEX"),
        (address, "does not tell"),
        ("file:///etc", "set the variable"),
    ):
        ended = shell(NAME_STEP.run, named(checkout, Repository=OURS), INDEX=given)
        assert (1, 1) == (ended.returncode, ended.stderr.count("\n"))
        assert line in ended.stderr


def test_what_is_published_was_asked_about_first():
    """The job that publishes waits for the one that asks."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert NAME_STEP.job == jobs["publish"]["needs"]
    assert "pypa/gh-action-pypi-publish" in jobs["publish"]["steps"][-1]["uses"]
    assert "${{ vars.INDEX }}" == NAME_STEP.env["INDEX"]


def readme_of(checkout):
    """The README in the package's metadata."""
    ended = shell("python -m hatchling metadata readme", checkout)
    assert 0 == ended.returncode, ended.stderr
    return ended.stdout


def test_links_of_the_readme_lead_somewhere_from_the_index_too(checkout):
    """With the repository's address each link and picture has it, and the version's tag; without it none is changed."""
    text = (ROOT / "README.md").read_text()
    assert text.rstrip() == readme_of(named(checkout)).rstrip()
    found = readme_of(named(checkout, Repository=f"{OURS}/"))
    links = re.findall(r"\]\(([^)]*)\)", found)
    assert len(links) == len(re.findall(r"\]\(([^)]*)\)", text)) > 20
    assert [] == [link for link in links if not re.match(rf"{OURS}/(blob|raw)/{TAG}/|https?:|#", link)]
    assert f"]({OURS}/raw/{TAG}/docs/demo.svg)" in found
    assert f"]({OURS}/blob/{TAG}/docs/drill.md#let-it-add-what-is-missing)" in found
