"""What the shell completes behind `holdfast`."""

import pytest
from click.shell_completion import ShellComplete

from holdfast import Store
from holdfast.cli import commands


def completed(*words):
    """The completions of the last word."""
    shell = ShellComplete(commands, {}, "holdfast", "_HOLDFAST_COMPLETE")
    return [item.value for item in shell.get_completions([*words[:-1]], words[-1])]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store("run")
    for step in (1, 20):
        store.save({"x": [step]}, step=step)
    store.close()
    return "run"


def test_steps_are_completed_behind_the_run_and_the_option(run):
    """Newest first, with best and latest; of what is no run only these."""
    names = ["step-000000020", "step-000000001"]
    for command in ("show", "export", "verify", "pin", "unpin"):
        assert [f"run@{name}" for name in ["best", "latest", *names]] == completed(command, "run@")
        assert names == completed(command, "run", "--step", "step")
    assert ["best"] == completed("show", "run", "--step", "b")
    assert ["none@best", "none@latest"] == completed("show", "none@")


def test_commands_and_options_are_completed():
    """By click."""
    assert ["prune"] == completed("pr")
    assert ["--keep"] == completed("prune", "--k")
