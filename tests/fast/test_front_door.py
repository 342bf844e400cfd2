"""The front door: light, small, and as it says."""

import importlib.metadata
import re
import subprocess
import sys
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
    """At most 15 names, each once, in order, and each with a docstring."""
    assert sorted(set(holdfast.__all__)) == list(holdfast.__all__)
    assert 1 < len(holdfast.__all__) <= 15
    assert [name for name in holdfast.__all__ if not (getattr(holdfast, name).__doc__ or "").strip()] == []


def test_nothing_unlisted_is_public():
    """What `dir` shows beyond `__all__` is a submodule or begins with an underscore."""
    unlisted = {name for name in vars(holdfast) if not name.startswith("_")} - set(holdfast.__all__)
    assert [] == sorted(name for name in unlisted if f"holdfast.{name}" not in sys.modules and name != "annotations")


def test_the_package_is_typed_and_has_a_version():
    """Type checkers read our types; the installed version is the one that is told."""
    assert (Path(holdfast.__file__).parent / "py.typed").exists()
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", importlib.metadata.version("holdfast"))
