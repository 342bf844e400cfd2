"""The loops of docs/loops.md: each is a whole script, and each is drilled as it stands there."""

import re
from pathlib import Path

import pytest

from causes import TORCH, zygote
from holdfast import drill
from holdfast.drill.aim import Options

PAGE = (Path(__file__).parents[2] / "docs/loops.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
PREAMBLE, *LOOPS = BLOCKS
NAMES = [re.search(r'"runs/(\w+)"', loop)[1] for loop in LOOPS]

pytestmark = [pytest.mark.slow, pytest.mark.drill]


def test_every_section_of_the_page_has_one_example():
    """The page has a heading for each example, and no two examples share a directory."""
    headings = re.findall(r"^## .*", PAGE, re.MULTILINE)
    assert len(headings) == len(LOOPS) == len(set(NAMES)) == 16


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    late = "gymnasium.envs.classic_control", "sklearn.datasets", "sklearn.linear_model"
    with zygote(tmp_path_factory.mktemp("zygote"), *TORCH, *late) as command:
        yield command


@pytest.mark.parametrize(("name", "loop"), [*zip(NAMES, LOOPS, strict=True)], ids=NAMES)
def test_a_loop_of_the_page_resumes_exactly(tmp_path, python, name, loop):
    """The preamble and the block are the script; the drill kills it three times and finds every bit the same."""
    script = tmp_path / f"{name}.py"
    script.write_text(PREAMBLE + loop)
    told = []
    found = drill.drill([*python, str(script)], Options(kills=3, seed=1), told.append)
    assert found.exit_code == 0, (found.verdict, found.divergence, found.notes, told)
    assert found.kills_proven == 3
