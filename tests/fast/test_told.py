"""What a run tells before it costs somebody a night: slips of the pen, and options that a checkpoint outvotes."""

import warnings

import pytest
import torch
from torch import nn

from holdfast import Best, Every, Run, Store
from holdfast.store.store import ManifestFields
from stores import invoke
from toy import Toy, new_run


def test_a_metric_of_best_that_nobody_logs_is_told_once(tmp_path, capsys):
    """With what was logged instead. One that an earlier checkpoint has is not told, though it comes not every epoch."""
    for metric, count in (("val_ac", 1), ("val_acc", 0)):
        with new_run(tmp_path / metric, Toy(), keep=Best(metric, max)) as run:
            for epoch in run.epochs(3):
                if epoch == 0 or count:
                    run.log(val_acc=0.5)
        told = capsys.readouterr().err
        assert (metric, count) == (metric, told.count("no such metric was logged in this epoch (run.log gave val_acc)"))
        assert (metric, count) == (metric, told.count("no such metric"))


def test_prune_refuses_a_metric_that_no_checkpoint_has(tmp_path):
    """A slip of the pen would remove the best weights."""
    store = Store(tmp_path / "r")
    for step in (1, 2):
        store.save(step, step=step, facts=ManifestFields(metrics={"val_acc": 1.0 / step}))
    store.close()
    for dry in ([], ["--dry-run"]):
        done = invoke("prune", str(tmp_path / "r"), "--keep", "Best('val_ac', max)", *dry)
        assert (done.exit_code, "they have val_acc" in done.stderr) == (2, True)
    assert 2 == len(store.checkpoints())


def trained(path, *, lr=0.1, decay=0.0, steps=2, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=decay)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    with Run(path, state, every=Every(steps=1), **options) as run:
        for _ in run.epochs(steps):
            for x in run.batches([torch.ones(1, 3)]):
                model(x).sum().backward()
                optimizer.step()
            scheduler.step()
    return optimizer


def test_options_that_the_checkpoint_outvotes_are_told(tmp_path, capsys):
    """A changed rate in the script has no effect, and the line says what has; a schedule's own change is no news."""
    trained(tmp_path)
    capsys.readouterr()
    trained(tmp_path, steps=3)
    assert "which is used" not in capsys.readouterr().err
    optimizer = trained(tmp_path, lr=0.5, decay=0.01, steps=4)
    told = capsys.readouterr().err
    changed_by = 'which is used; overrides={"optimizer": {"lr": ...}} changes it'
    assert f"optimizer: lr is 0.5 here and 0.1 in the checkpoint, {changed_by}" in told
    assert "optimizer: weight_decay is 0.01 here and 0.0 in the checkpoint" in told
    assert optimizer.param_groups[0]["weight_decay"] == 0.0
    trained(tmp_path, lr=0.5, steps=5, overrides={"optimizer": {"lr": 0.5}})
    assert "which is used" not in capsys.readouterr().err


def test_a_scheduler_that_steps_first_after_a_resume_is_no_cause_for_a_warning(tmp_path):
    """torch warns when the optimizer has not stepped; the restored one has."""

    def epoch(*, cut):
        model = nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        with Run(tmp_path, {"m": model, "o": optimizer, "s": scheduler}, every=Every(steps=1)) as run:
            for _ in run.epochs(1):
                for x in run.batches([torch.ones(1, 3)]):
                    model(x).sum().backward()
                    optimizer.step()
                if cut:
                    raise KeyboardInterrupt
                scheduler.step()

    with pytest.raises(KeyboardInterrupt):
        epoch(cut=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epoch(cut=False)
