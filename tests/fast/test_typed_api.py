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


def test_mypy_checks_the_typed_file():
    """`make types` has it among its modules."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert "typed_api" in settings["modules"]
    assert "tests" in settings["mypy_path"].split(":")
