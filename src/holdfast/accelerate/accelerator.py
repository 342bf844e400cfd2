"""An Accelerator as members of the state: the objects that it has prepared, and the rest.

That is what `accelerator.save_state` saves, but without pickle and each object by its own adapter;
besides, pending gradients, and what its prepared loaders count. `prepare` may add to it until the
run is entered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from ..errors import UsageError
from ..state.captured import AttributeSet
from ..trainers.attributes import restored_gradient
from .live import unwrap

_TRIED = {DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU}
_COUNTED = ("iteration", "end_of_dataloader", "remainder")  # by a prepared loader


def members(target: object) -> AttributeSet | None:
    """Return the parts of `target` that are saved one by one, if it is an Accelerator.

    Raises:
        UsageError: it has prepared nothing, or trains in a way that Holdfast does not know.
    """
    if not isinstance(target, Accelerator):
        return None
    if target.distributed_type not in _TRIED:
        raise UsageError(
            f"an Accelerator with {target.distributed_type.value} "
            "was not tried with Holdfast: its processes do not "
            "have the whole model; it knows one process, and several with DDP"
        )
    own: Any = target
    if not any(
        (own._models, own._optimizers, own._schedulers, own._custom_objects, own._dataloaders)  # noqa: SLF001
    ):
        raise UsageError(
            "the Accelerator has prepared nothing yet: "
            "enter the run behind accelerator.prepare(...)"
        )
    return AcceleratorMembers(target)


class AcceleratorMembers(AttributeSet):
    """The objects of an Accelerator, which restore themselves, and its accumulation state."""

    keeps_gradients = True

    def __init__(self, accelerator: Any) -> None:
        super().__init__(
            accelerator, ("models", "optimizers", "schedulers", "scalers", "objects", "rest")
        )
        self._rest = AccumulationState(accelerator)

    def values(self) -> dict[str, Any]:
        own: Any = self.target
        return {
            "models": list(own._models),  # noqa: SLF001  what save_state reads
            "optimizers": [unwrap(each) for each in own._optimizers],  # noqa: SLF001
            "schedulers": [unwrap(each) for each in own._schedulers],  # noqa: SLF001
            "scalers": [own.scaler] if own.scaler is not None else [],
            "objects": list(own._custom_objects),  # noqa: SLF001
            "rest": self._rest,
        }

    def set_attribute(self, name: str, value: Any) -> None:
        """Refuse every value that the checkpoint would set.

        Raises:
            UsageError: always; the members restore themselves.
        """
        del value
        raise UsageError(f"the Accelerator's {name} in the checkpoint do not fit those here")


class AccumulationState:
    """The accumulation state of an Accelerator: its position in a group of accumulated batches, and
    the gradients.

    Gradients that a loop leaves until its next `zero_grad` look like pending ones, and are saved
    with them.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, and the gradients by reference."""
        own = self._accelerator
        return {
            "step": own.step,
            "sync_gradients": own.gradient_state.sync_gradients,
            "skipped": [bool(each.step_was_skipped) for each in own._optimizers],  # noqa: SLF001
            "gradients": [_gradients(model) for model in own._models],  # noqa: SLF001
            "loaders": [_loader_counts(loader) for loader in own._dataloaders],  # noqa: SLF001
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts and the gradients. Loaders that the checkpoint lacks stay as
        they are.
        """
        own = self._accelerator
        own.step = state["step"]
        own.gradient_state.sync_gradients = state["sync_gradients"]
        for optimizer, skipped in zip(own._optimizers, state["skipped"], strict=False):  # noqa: SLF001
            optimizer._is_overflow = skipped  # noqa: SLF001
        for model, gradients in zip(own._models, state["gradients"], strict=False):  # noqa: SLF001
            for number, parameter in enumerate(model.parameters()):
                stored = gradients.get(str(number))
                parameter.grad = None if stored is None else restored_gradient(parameter, stored)
        for loader, counts in zip(own._dataloaders, state["loaders"], strict=False):  # noqa: SLF001
            _restore_counts(loader, counts)


def _gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the gradients by the number of the parameter: wrappers change names."""
    return {
        str(number): each.grad
        for number, each in enumerate(model.parameters())
        if each.grad is not None
    }


def _loader_counts(loader: Any) -> dict[str, Any]:
    generator = getattr(loader, "synchronized_generator", None)
    state = {} if generator is None else {"generator": generator.get_state()}
    return {name: getattr(loader, name) for name in _COUNTED if hasattr(loader, name)} | state


def _restore_counts(loader: Any, counts: Mapping[str, Any]) -> None:
    for name, value in counts.items():
        if name != "generator":
            setattr(loader, name, value)
        elif getattr(loader, "synchronized_generator", None) is not None:
            loader.synchronized_generator.set_state(value)
