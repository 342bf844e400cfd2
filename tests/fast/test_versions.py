"""What Holdfast needs is what its users have: floors that were tried, and that change nothing in an environment."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
import versions  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: needs for name, needs in PROJECT["optional-dependencies"].items() if name != "dev"}
NEEDS = {need.name: need for each in [PROJECT["dependencies"], *EXTRAS.values()] for need in map(Requirement, each)}
BESIDE = [line for line in (versions.LOCKS / "beside.txt").read_text().splitlines() if not line.startswith("#")]
LOCKS = (ROOT / "tests/frameworks/lowest.lock", versions.LOCKS / "lowest.lock")  # trackers are in the first alone
PINS = "\n".join(lock.read_text() for lock in LOCKS)
LOWEST = dict(re.findall(r"^([\w.-]+)==(\S+)", PINS, re.MULTILINE))


@pytest.mark.parametrize("line", BESIDE, ids=[each.partition("=")[0] for each in BESIDE])
def test_beside_a_popular_trainer_nothing_is_upgraded(line):
    """What pip chose for it satisfies what we ask for."""
    installed = dict(pin.split("==") for pin in line.partition(": ")[2].split())
    asked = {name: version for name, version in installed.items() if name in NEEDS}
    assert len(asked) >= 2
    refused = {name: version for name, version in asked.items() if not NEEDS[name].specifier.contains(version)}
    assert refused == {}


def test_the_lowest_corner_has_the_floors_themselves():
    """None is higher than what `make test-versions CORNERS=lowest` runs with."""
    floors = {name: str(need.specifier).removeprefix(">=") for name, need in NEEDS.items()}
    torch = floors.pop("torch")
    trackers = {name: floors.pop(name) for name in ("wandb", "mlflow-skinny")}
    assert all(LOWEST[name].startswith(f"{version}.") for name, version in trackers.items())
    padded = {name: version + ".0" * (2 - version.count(".")) for name, version in floors.items()}
    assert len(padded) > 10
    assert {name: LOWEST[name] for name in padded} == padded
    assert versions.CORNERS["lowest"].torch.startswith(f"{torch}.")


def test_the_page_has_a_row_for_each_corner():
    """Its cells are filled by the tool alone; a Python that is called supported is one that passed."""
    rows = dict(re.findall(r"^\| ([\w.]+) \| (.*) \|$", versions.PAGE.read_text().partition("## ")[0], re.MULTILINE))
    assert [*versions.CORNERS] == [name for name in rows if name != "corner"]
    passed = {versions.CORNERS[name].python for name in versions.CORNERS if " passed" in rows[name]}
    named = set(re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"])))
    assert named == {"3.11", *passed}
