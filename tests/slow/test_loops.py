"""The loops of docs/loops.md: each is a whole script, and each is drilled as it stands there; here a sample of them."""

import re
from pathlib import Path

import pytest

from causes import TORCH, quiet
from holdfast import drill
from holdfast.drill import DrillOptions, report
from samples import sample

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "loops.md").read_text()
CODE = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PREAMBLE, *BLOCKS = CODE.findall(PAGE)
ANSWERS = CODE.findall((DOCS / "questions.md").read_text())[:2]  # the others need libraries that are not installed here
LOOPS = {re.findall(r'"runs/(\w+)"', block)[0]: PREAMBLE + block for block in BLOCKS}
LATE = "gymnasium.envs.classic_control", "sklearn.datasets", "sklearn.linear_model"


def test_every_section_of_the_page_has_one_example():
    """The page has a heading for each example, and no two examples share a directory."""
    headings = re.findall(r"^## .*", PAGE, re.MULTILINE)
    assert len(headings) == len(BLOCKS) == len(LOOPS) == 17


def resumes_exactly(name, zygotes, place, record_property):
    """The preamble and the block are the script; the drill kills it three times and finds every bit the same."""
    script = place / f"{name}.py"
    script.write_text(LOOPS[name])
    found = drill.drill([*zygotes(*TORCH, *LATE), str(script)], DrillOptions(kills=3, seed=1), quiet)
    record_property("table: loops of docs/loops.md", f"{name} | {found.verdict_line}")
    assert found.exit_code == 0, (found.verdict, found.divergence, found.notes)
    assert found.kills_proven == 3


@pytest.mark.parametrize(("number", "steps"), [(0, 15), (1, 18)])
def test_a_script_of_the_page_of_questions_resumes_exactly(number, steps, zygotes, tmp_path):
    """A trainer that calls next(), and a loop in a second function. The first leaves its 16th step by `return`."""
    script = tmp_path / "train.py"
    script.write_text(PREAMBLE + ANSWERS[number])
    found = drill.drill([*zygotes(*TORCH), str(script)], DrillOptions(kills=3, seed=1), quiet)
    assert (found.verdict, found.kills_proven, found.steps) == (report.IDENTICAL, 3, steps), found


@pytest.mark.parametrize("name", sorted({"ahead", *sample([*LOOPS], 1)}))
def test_a_loop_of_the_page_resumes_exactly(name, zygotes, tmp_path, record_property):
    resumes_exactly(name, zygotes, tmp_path, record_property)
