"""nnU-Net v2's own trainer, step by step: kill it whenever you like.

    pip install nnunetv2    # and nnUNet_raw, nnUNet_preprocessed, nnUNet_results as it asks for them
    nnUNet_n_proc_DA=0 python train.py Dataset001_Name 2d 0

With `nnUNet_n_proc_DA=0` the augmentation draws from this process's generators, and a resume is exact. With workers of
nnU-Net's own, whose order nobody knows, it is another valid training.
"""

import random
import sys
from pathlib import Path

import numpy as np
import torch
from batchgenerators.utilities.file_and_folder_operations import load_json
from batchgeneratorsv2.transforms.noise.gaussian_blur import GaussianBlurTransform
from nnunetv2.paths import nnUNet_preprocessed
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.default_n_proc_DA import get_allowed_n_proc_DA

from holdfast import Every, Last, Run

DATASET, CONFIGURATION, FOLD = sys.argv[1:]


def without_timing(transform):
    """The blur would otherwise choose by a stopwatch how it computes."""
    if isinstance(transform, GaussianBlurTransform):
        transform.benchmark = False
    for each in [*getattr(transform, "transforms", []), getattr(transform, "transform", None)]:
        if each is not None:
            without_timing(each)


random.seed(0)
np.random.seed(0)  # noqa: NPY002  the generator that nnU-Net draws from
torch.manual_seed(0)
prepared = Path(nnUNet_preprocessed, DATASET)
plans = load_json(prepared / "nnUNetPlans.json") | {"continue_training": False}
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
trainer = nnUNetTrainer(plans, CONFIGURATION, int(FOLD), load_json(prepared / "dataset.json"), device=device)
trainer.on_train_start()
if get_allowed_n_proc_DA() == 0:
    without_timing(trainer.dataloader_train.data_loader.transforms)

outputs = []
state = {
    "network": trainer.network,
    "optimizer": trainer.optimizer,
    "scheduler": trainer.lr_scheduler,
    "outputs": outputs,
    "log": trainer.logger.local_logger.my_fantastic_logging,
}
if trainer.grad_scaler is not None:
    state["scaler"] = trainer.grad_scaler
with Run("runs/nnunet", state, vars={"best": None}, keep=Last(3), every=Every(minutes=10)) as run:
    for epoch in run.epochs(trainer.num_epochs):
        trainer.current_epoch, trainer._best_ema = epoch, run.vars.best  # noqa: SLF001  nnU-Net has no public name
        trainer.on_epoch_start()
        trainer.on_train_epoch_start()
        for _ in run.batches(range(trainer.num_iterations_per_epoch)):
            outputs.append(trainer.train_step(next(trainer.dataloader_train)))
            run.log(loss=float(outputs[-1]["loss"]))
        trainer.on_train_epoch_end(outputs)
        with torch.no_grad():
            trainer.on_validation_epoch_start()
            batches = (next(trainer.dataloader_val) for _ in range(trainer.num_val_iterations_per_epoch))
            trainer.on_validation_epoch_end([trainer.validation_step(batch) for batch in batches])
        trainer.on_epoch_end()
        outputs.clear()
        run.vars.best = float(trainer._best_ema)  # noqa: SLF001
trainer.current_epoch = trainer.num_epochs  # also when it had been finished before
trainer.on_train_end()
