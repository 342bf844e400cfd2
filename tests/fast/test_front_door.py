"""The front door: light, small, and as it says."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import holdfast

HEAVY = ["torch", "numpy", "jax", "keras", "tensorflow", "lightning", "transformers", "rich", "click"]


def test_neither_importing_holdfast_nor_touching_its_names_imports_a_framework_or_a_terminal():
    """`import holdfast` costs a script nothing that it does not use; nor does an editor that looks at what is there."""
    script = (
        f"import sys, holdfast; here = lambda: [name for name in {HEAVY} if name in sys.modules]; print(here()); "
        "[getattr(holdfast, name) for name in holdfast.__all__]; print(here())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ["[]", "[]"] == done.stdout.splitlines()


def test_the_names_are_few_and_sorted():
    """At most 16 names, each once, in order, and each with a docstring."""
    assert sorted(set(holdfast.__all__)) == list(holdfast.__all__)
    assert 1 < len(holdfast.__all__) <= 16
    assert [name for name in holdfast.__all__ if not (getattr(holdfast, name).__doc__ or "").strip()] == []


def test_nothing_unlisted_is_public():
    """What `dir` shows beyond `__all__` is a submodule or begins with an underscore; pytest adds names with an @."""
    unlisted = {name for name in vars(holdfast) if not name.startswith(("_", "@"))} - set(holdfast.__all__)
    assert [] == sorted(name for name in unlisted if f"holdfast.{name}" not in sys.modules and name != "annotations")


def test_type_checkers_see_each_name_where_it_is_found():
    """The imports that a type checker reads are those that are made when a name is asked for; there are no others."""
    tree = ast.parse(Path(holdfast.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    seen = {name.name: f"holdfast.{each.module}" for each in imports for name in each.names}
    assert seen == holdfast._HOME
    assert [*seen] == [name for name in seen if name in holdfast.__all__]
    for name, home in seen.items():
        assert getattr(holdfast, name) is getattr(importlib.import_module(home), name)
    assert {*holdfast.__all__} == {*seen} <= {*dir(holdfast)}


def test_a_plain_import_is_enough_for_what_scripts_write_in_full():
    """`import holdfast` leads to names, to the data and the errors; it loads nothing until then."""
    script = (
        "import sys, holdfast; print(sorted(name for name in sys.modules if name.startswith('holdfast'))); "
        "print(holdfast.data.Sampler.__name__, holdfast.errors.Damaged.__name__, holdfast.Run.__name__); "
        "print(hasattr(holdfast, 'Rum'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ["['holdfast']", "Sampler Damaged Run", "False"] == done.stdout.splitlines()


def test_the_package_is_typed_and_has_a_version():
    """Type checkers read our types; the installed version is the one that is told."""
    assert (Path(holdfast.__file__).parent / "py.typed").exists()
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", holdfast.__version__)
    assert holdfast.__version__ == importlib.metadata.version("holdfast")


def test_the_package_is_installed_by_the_name_in_pyproject():
    """The code and the documents say it where they ask for an extra, or for what is installed; each extra exists."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "src/holdfast").rglob("*.py")]
    text = "\n".join(page.read_text() for page in pages)
    asked = re.findall(r"""["' ]([\w-]+)\[([a-z0-9]+)\]["'`]""", text)
    asked = [(name, extra) for name, extra in asked if extra in project["optional-dependencies"]]
    installed = re.findall(r"""(?:metadata\.version\(|\.requires\(|package_name=)["']([\w-]+)["']""", text)
    assert {"s3", "sftp", "signed", "fix", "images", "wandb", "mlflow"} <= {extra for _, extra in asked}
    assert len(installed) == 3
    assert {project["name"]} == {*installed, *(name for name, _ in asked)}
