"""What may not grow unseen: weights.toml, import circles, names that mean two things, and the public surface."""

import ast
from pathlib import Path

import pytest
from test_tools import weight, written

from surface import surface

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/golden/surface.txt"
BOUNDS = """[tokens]
src = {}
tests = {}
[packages]
a = {}
[shape]
import_circles = {}
modules_in_the_largest_circle = 2
class_names_repeated = 0
wide_parameters = 0
"""


def test_the_public_surface_is_the_one_that_was_agreed():
    """A new parameter, method or option is seen here: `python tests/surface.py > tests/golden/surface.txt`."""
    found = [*surface()]
    assert found == GOLDEN.read_text().splitlines()
    assert len(found) > 200


@pytest.fixture
def checkout(tmp_path):
    """Two modules that import each other: 19 tokens, and a test of 7."""
    source = {"a__b": "from . import c\nx = 1\n", "a__c": "def f():\n    from .b import x\n    return x\n"}
    written(tmp_path / "src/holdfast", **source)
    written(tmp_path / "tests", test_a="def test_a(): assert 1\n")
    return tmp_path


def test_a_line_for_each_figure_above_its_bound(checkout):
    """Circles are those of all imports: here one is inside a function."""
    (checkout / "weights.toml").write_text(BOUNDS.format(0, 7, 100, 0))
    assert weight.too_heavy(checkout) == [
        "weights.toml: tokens.src is 19, and may be 0",
        "weights.toml: shape.import_circles is 1, and may be 0",
    ]
    written(checkout / "src/holdfast", new="")
    assert "weights.toml has no packages.new: it is 0" in weight.too_heavy(checkout)


def test_a_bound_is_lowered_to_what_is_there(checkout):
    """A package that went is a line that goes; a figure above its bound stays above it."""
    file = checkout / "weights.toml"
    file.write_text("# kept\n" + BOUNDS.format(20, 6, 100, 1) + "gone = 3\n")
    assert weight.lower(checkout) == [
        "weights.toml: tokens.src 20 -> 19",
        "weights.toml: packages.a 100 -> 19",
        "weights.toml: shape.gone 3 -> gone",
    ]
    assert file.read_text() == "# kept\n" + BOUNDS.format(19, 6, 19, 1)
    assert weight.lower(checkout) == []
    assert weight.too_heavy(checkout) == ["weights.toml: tokens.tests is 7, and may be 6"]


def test_a_parameter_is_wide_by_its_attributes_in_the_whole_module():
    """Nine over two functions; `self` does not count, nor does a name that is no parameter."""
    for count, expected in ((4, set()), (5, {"it"})):
        text = "".join(
            f"def f{first}(it): {'; '.join(f'it.a{n}' for n in range(first, last))}\n"
            for first, last in ((0, 4), (4, 4 + count))
        )
        assert weight.wide_parameters(ast.parse(text)) == expected
