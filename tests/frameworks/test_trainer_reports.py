"""Public reports of resumes that went wrong, rebuilt in small: the loss that each tells of, and what a run comes to."""

from contextlib import suppress
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.optim.lr_scheduler import LambdaLR, StepLR
from torch.utils.data import DataLoader

from holdfast import Every, Run
from holdfast.lightning import Holdfast
from toy import Cut

SAVED: dict[str, Any] = {"every": Every(steps=1), "background": False}


def test_a_resumed_second_epoch_of_accelerate_has_its_own_order(tmp_path):
    """accelerate takes the first epoch's order: https://github.com/huggingface/accelerate/issues/2016."""

    def fresh():
        one = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
        return one, one.prepare(DataLoader(range(10), 2, shuffle=True, generator=torch.Generator().manual_seed(1)))

    accelerator, loader = fresh()
    first, second = ([batch.tolist() for batch in loader] for _ in range(2))
    accelerator.save_state(str(tmp_path / "own"))
    again, loader = fresh()
    again.load_state(str(tmp_path / "own"))
    assert [batch.tolist() for batch in again.skip_first_batches(loader, 2)] == first[2:] != second[2:]

    steps = 0  # of all attempts
    for cut in (7, None):
        seen: list[Any] = []
        accelerator, loader = fresh()
        with suppress(Cut), Run(tmp_path / "run", {"accelerator": accelerator, "seen": seen}, **SAVED) as run:
            for _ in run.epochs(2):
                for batch in run.batches(loader):
                    if len(seen) == cut:
                        raise Cut
                    seen.append(batch.tolist())
                    steps += 1
    assert (seen, steps) == (first + second, 10)


TRAINED: list[int] = []  # the epochs of all attempts; an attribute would come back


class Loads(pl.LightningModule):
    """Its data are the number of the pair of epochs in which they were loaded."""

    def __init__(self, cut=None):
        super().__init__()
        self.layer, self.cut, self.seen = torch.nn.Linear(1, 1), cut, {}

    def train_dataloader(self):
        return DataLoader(torch.full((1, 1), float(self.trainer.current_epoch // 2)))

    def training_step(self, batch):
        if self.current_epoch == self.cut:
            raise Cut
        TRAINED.append(self.current_epoch)
        self.seen[self.current_epoch] = int(batch)
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


@pytest.mark.filterwarnings("ignore")  # of Lightning: few batches, no workers
def test_a_resumed_fit_of_lightning_loads_its_data_when_they_are_due(tmp_path):
    """Lightning loads them too late: https://github.com/Lightning-AI/pytorch-lightning/issues/21492."""

    def fit(model, epochs, *callbacks, **options):
        quiet: dict[str, Any] = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
        quiet |= {"enable_checkpointing": False, "accelerator": "cpu", "callbacks": [*callbacks]}
        trainer = pl.Trainer(max_epochs=epochs, reload_dataloaders_every_n_epochs=2, **quiet)
        with suppress(Cut):
            trainer.fit(model, **options)
        return trainer, model.seen

    whole = fit(Loads(), 4)[1]
    fit(Loads(), 1)[0].save_checkpoint(tmp_path / "own.ckpt")
    assert fit(Loads(), 4, ckpt_path=tmp_path / "own.ckpt")[1] == {1: 0, 2: 0, 3: 1}
    TRAINED.clear()
    seen = [fit(Loads(cut), 4, Holdfast(tmp_path / "run", **SAVED))[1] for cut in (1, None)]
    assert seen[1] == whole == {0: 0, 1: 0, 2: 1, 3: 1}
    assert TRAINED == [0, 1, 2, 3]


def sgd():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.01)


def rates(place, schedule, cut):
    """The rate of each of four epochs, in a run that is cut before the epoch `cut`."""
    steps = 0  # of all attempts
    for stop in (cut, None):
        seen: list[float] = []
        optimizer = sgd()
        state = {"optimizer": optimizer, "scheduler": (scheduler := schedule(optimizer)), "seen": seen}
        with suppress(Cut), Run(place, state, **SAVED) as run:
            for epoch in run.epochs(4):
                if epoch == stop:
                    raise Cut
                seen.append(scheduler.get_last_lr()[0])
                steps += 1
                optimizer.step()
                scheduler.step()
    assert steps == 4
    return seen


def test_the_first_epoch_after_a_resume_has_its_own_rate(tmp_path):
    """A scheduler that is made after `optimizer.load_state_dict`: https://github.com/ultralytics/yolov5/issues/292."""
    halved = lambda optimizer: LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    own, other = sgd(), sgd()
    scheduler = halved(own)
    for _ in range(2):
        own.step()
        scheduler.step()
    other.load_state_dict(own.state_dict())
    assert other.param_groups[0]["lr"] == 0.0025
    halved(other).last_epoch = 1  # "do not move"
    assert other.param_groups[0]["lr"] == 0.01
    assert rates(tmp_path, halved, 2) == [0.01, 0.005, 0.0025, 0.00125]


def test_a_resumed_training_has_as_many_epochs_as_one_go(tmp_path):
    """torchvision's detection began at epoch 0 once more: https://github.com/pytorch/vision/pull/1628."""
    step = lambda optimizer: StepLR(optimizer, 2, 0.5)
    own, seen, saved = sgd(), [], None
    for epochs in (range(2), range(4)):  # `for epoch in range(args.epochs)`, after --resume
        scheduler = step(own)
        if saved:
            scheduler.load_state_dict(saved)
        for _ in epochs:
            seen.append(own.param_groups[0]["lr"])
            own.step()
            scheduler.step()
        saved = scheduler.state_dict()
    assert len(seen) == 6
    assert rates(tmp_path, step, 2) == [0.01, 0.01, 0.005, 0.005]


def test_a_resumed_log_is_as_long_as_the_epochs_that_are_done(tmp_path):
    """nnU-Net's was shorter than its epoch said: https://github.com/MIC-DKFZ/nnUNet/issues/1529."""

    def dice(log, epoch):  # of nnU-Net's logger: a moving average of the value before
        log.append(log[epoch - 1] * 0.9 + 0.1 * epoch if log else float(epoch))

    own: list[float] = []
    for epoch in range(2):
        dice(own, epoch)
    with suppress(IndexError):
        dice(own[:1], 2)  # the epoch of the checkpoint, with the log before it
        raise AssertionError
    steps = 0  # of all attempts
    for cut in (2, None):
        seen: list[float] = []
        with suppress(Cut), Run(tmp_path, {"seen": seen}, **SAVED) as run:
            for epoch in run.epochs(4):
                if epoch == cut:
                    raise Cut
                dice(seen, epoch)
                steps += 1
    assert (len(seen), steps) == (4, 4)
