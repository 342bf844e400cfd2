"""What a loop changes and nobody tracks is told once, with the line to write; right scripts stay silent."""

import pytest
import torch
from torch.optim import optimizer as of_optimizers

from forgotten_scripts import FORGETFUL, RIGHT, loaders_generator, plain, scheduler_of_epochs, validation_of_epochs
from holdfast.script import visible
from toy import events

pytestmark = pytest.mark.filterwarnings("ignore:.*lr_scheduler.*", "ignore:.*epoch parameter.*")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def told(path):
    return [(event["kind"], event["name"]) for event in events(path, "told") if "kind" in event]


@pytest.mark.parametrize("script", RIGHT[::3], ids=lambda script: script.__name__)
def test_a_right_script_is_told_nothing(tmp_path, script):
    """Whatever it does with optimizers, models and generators of its own, as long as a resume loses nothing.

    tests/prove has all of them.
    """
    is_told_nothing(tmp_path, script)


def is_told_nothing(tmp_path, script):
    script(tmp_path)
    assert [] == told(tmp_path)
    assert not of_optimizers._global_optimizer_post_hooks


@pytest.mark.parametrize(("script", "kind", "name"), FORGETFUL, ids=[script.__name__ for script, _, _ in FORGETFUL])
def test_what_is_forgotten_is_told_once_with_the_line_to_write(tmp_path, capsys, script, kind, name):
    """An optimizer, a parameter, a scheduler, a scaler, an average, a generator."""
    script(tmp_path)
    assert [(kind, name)] == told(tmp_path)
    said = capsys.readouterr().err
    assert 1 == said.count("a resume ")
    assert "dict(" in said
    assert not of_optimizers._global_optimizer_post_hooks


@pytest.mark.parametrize(("script", "walks"), [(plain, 1), (loaders_generator, 3)])
def test_the_variables_are_searched_at_few_safe_points(tmp_path, monkeypatch, script, walks):
    """At the first step and at two ends of epochs: later, only what was found is looked at."""
    seen, find = [], visible.find_variables
    monkeypatch.setattr(
        "holdfast.run.script_checks.find_variables", lambda *given: seen.append(find(*given)) or seen[-1]
    )
    script(tmp_path)
    assert walks == len(seen)
    assert all(each.variables for each in seen)


def test_what_changes_once_an_epoch_is_told_although_each_attempt_sees_one_end(tmp_path, capsys):
    """The journals of the attempts before tell what they have seen change."""
    for die in (15, 25):
        for script in (scheduler_of_epochs, validation_of_epochs):
            with pytest.raises(OSError):
                script(tmp_path / script.__name__, die)
        assert [("forgotten", "scheduler")] * (die == 25) == told(tmp_path / "scheduler_of_epochs")
    assert [] == told(tmp_path / "validation_of_epochs")
    assert "scheduler (LambdaLR) changes from epoch to epoch" in capsys.readouterr().err
