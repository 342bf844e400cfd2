"""`tests/typed_api.py`, which mypy checks, uses the whole public API."""

import ast
import importlib
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODULES = ["holdfast", "holdfast.data", "holdfast.torch", "holdfast.cluster", "holdfast.board"]


def used(source: str) -> set[str]:
    """Names that code uses, beyond their import."""
    return {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}


def test_every_public_name_occurs_in_the_typed_file():
    """Each name in `__all__` is used there, with its type asserted or its arguments checked."""
    names = used((ROOT / "tests/typed_api.py").read_text())
    public = {name for module in MODULES for name in importlib.import_module(module).__all__}
    assert len(public) > 20
    assert public - names == set()
    assert "Run" not in used("from holdfast import Run")


SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
STRICT = next(each["module"] for each in SETTINGS["overrides"] if "holdfast.*" in each["module"])


def checked() -> set[Path]:
    """The files that `make types` names to mypy."""
    named = {path for pattern in SETTINGS["files"] for path in ROOT.glob(pattern)}
    return {file for path in named for file in (path.rglob("*.py") if path.is_dir() else [path])}


def test_mypy_checks_the_typed_file():
    """`make types` has it among its files, and asks of it what it asks of the package."""
    assert ROOT / "tests/typed_api.py" in checked()
    assert "typed_api" in STRICT
    assert "tests" in SETTINGS["mypy_path"].split(":")


def test_mypy_checks_the_package_the_tools_and_every_test():
    """Also those of tomorrow. Of the package and the tools it asks for annotations, too."""
    tools = set((ROOT / "tools").glob("*.py"))
    tests = {path for pattern in ("tests/*.py", "tests/*/test_*.py") for path in ROOT.glob(pattern)}
    package = set((ROOT / "src").rglob("*.py"))
    assert len(tests) > 200 < len(package)
    assert set() == (tools | tests | package) - checked()
    assert {path.stem for path in tools} <= set(STRICT)
