"""The framework under either of its names, `lightning` or `pytorch_lightning`, and the checks of
its trainers.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ..data.promise import UnprovenCode
from ..errors import UsageError
from ..terminal import say
from ..trainers.known import NAMES
from ..trainers.names import require
from ..trainers.training import ignores_own_checkpoint

# the same code under two names, with separate classes
PACKAGES = ("lightning.pytorch", "pytorch_lightning")


_LOST = {
    "DeepSpeedStrategy": ", whose optimizer keeps master weights and moments in flat partitions,"
    " with a loss scaler that only DeepSpeed saves: a resume would lack them",
    "FSDPStrategy": ", which is FSDP1: call fully_shard() in configure_model() instead",
}


def callback_kinds() -> tuple[type, ...]:
    """Return the class `Callback` of each package that is imported; if none is, of one that is
    installed.

    Raises:
        UsageError: none is installed.
    """
    found = [at for at, name in enumerate(PACKAGES) if name in sys.modules]
    found = (
        found
        or [
            at for at, name in enumerate(PACKAGES) if find_spec(name.partition(".")[0]) is not None
        ][:1]
    )
    if not found:
        raise UsageError("holdfast.lightning wants Lightning: pip install lightning")
    return tuple(import_module(PACKAGES[at]).Callback for at in found)


def package_of(trainer: Any) -> str:
    return next(name for name in PACKAGES if type(trainer).__module__.startswith(name + "."))


def module_of(trainer: Any, module: str) -> Any:
    """Return a module of the package that `trainer` is from."""
    # the trainer has imported all that it uses
    return sys.modules[f"{package_of(trainer)}.{module}"]


def is_a(callback: Any, kind: str) -> bool:
    """Return whether a class of that name is among the classes of `callback`."""
    return any(each.__name__ == kind for each in type(callback).__mro__)


def require_known(trainer: Any) -> UnprovenCode | None:
    """Check the names of the package that `trainer` is from, as `names.require` does."""
    package = package_of(trainer)
    fabric = "lightning_fabric" if package == PACKAGES[1] else "lightning.fabric"
    paths = (
        name.path.replace("lightning.fabric", fabric).replace(PACKAGES[0], package)
        for name in NAMES["lightning"]
    )
    return require(
        "lightning",
        [name._replace(path=path) for name, path in zip(NAMES["lightning"], paths, strict=True)],
    )


def require_alone(trainer: Any) -> None:
    """Require that Lightning itself restores nothing.

    Raises:
        UsageError: Lightning has loaded a checkpoint of its own.
    """
    if trainer.ckpt_path is not None:
        raise UsageError(
            f"Lightning has loaded {trainer.ckpt_path} beside "
            "holdfast.lightning.Holdfast, which restores the run by "
            "itself: leave ckpt_path out, or remove that file (under "
            "Slurm Lightning takes a hpc_ckpt file by itself); "
            "Holdfast(path, start_from=...) begins a new run from weights"
        )


def let_run_restore(trainer: Any, path: str | os.PathLike[str]) -> None:
    """Let the fit that begins load no checkpoint of Lightning's own if an earlier attempt has begun
    the run.
    """
    connector = trainer._checkpoint_connector

    def resume_start(checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> None:
        del connector.resume_start
        if checkpoint_path and ignores_own_checkpoint(
            path, f"ckpt_path={os.fspath(checkpoint_path)!r}"
        ):
            checkpoint_path = None
        connector.resume_start(checkpoint_path, *args, **kwargs)

    connector.resume_start = resume_start


def require_possible(trainer: Any) -> None:
    """Require a Trainer whose state can be saved.

    Raises:
        UsageError: the trainer trains in a way whose state is out of reach.
    """
    kind, strategy = type(trainer.strategy).__name__, trainer.strategy
    if kind not in ("SingleDeviceStrategy", "DDPStrategy", "ModelParallelStrategy"):
        raise UsageError(
            "holdfast.lightning.Holdfast knows one device, DDP, and FSDP2 by ModelParallelStrategy;"
            f" this Trainer has a {kind}{_LOST.get(kind, '')}"
        )
    if getattr(strategy, "_tensor_parallel_size", 1) != 1:
        raise UsageError(
            "tensor parallelism was not tried with Lightning:"
            " ModelParallelStrategy(data_parallel_size=..., tensor_parallel_size=1) is known"
        )
    launcher = type(trainer.strategy.launcher).__name__
    if launcher not in ("NoneType", "_SubprocessScriptLauncher"):
        raise UsageError(
            f"{launcher}: processes that share a script are wanted, as of Trainer(strategy='ddp')"
        )
    if trainer.limit_train_batches == 0:
        raise UsageError(
            "limit_train_batches=0 trains nothing, "
            "and the run would be finished: call trainer.validate()"
        )
    for callback in trainer.callbacks:
        if is_a(callback, "BaseFinetuning"):
            raise UsageError(
                f"{type(callback).__name__} adds parameter groups "
                "during the training, which a resume cannot restore: "
                "give the optimizer all parameters, "
                "and freeze them with requires_grad_(False) until they train"
            )
    signature = module_of(trainer, "utilities.signature_utils")
    if signature.is_param_in_hook_signature(
        trainer.lightning_module.training_step, "dataloader_iter", explicit=True
    ):
        raise UsageError(
            "training_step(dataloader_iter) takes batches "
            "that nobody counts: write training_step(batch)"
        )


def without_hyperparameters(trainer: Any) -> tuple[Any, str, Any]:
    """Return the function that logs hyperparameters, as owner and name, and a replacement that
    omits those of this trainer.
    """
    owner, name = module_of(trainer, "trainer.trainer"), "_log_hyperparams"
    plain = getattr(owner, name)
    return owner, name, lambda each: None if each is trainer else plain(each)


def warn_of_ignored_options(trainer: Any) -> None:
    environment = trainer._accelerator_connector.cluster_environment
    if getattr(environment, "auto_requeue", False):
        say(
            "Lightning's own requeueing stands back: "
            "Holdfast saves and stops; `holdfast submit` requeues the job"
        )
    if getattr(trainer, "_val_check_time_interval", None) is not None:  # since 2.6
        say(
            "val_check_interval is a time: when validation comes "
            "depends on the clock, and a resume cannot repeat that"
        )
