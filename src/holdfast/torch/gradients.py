"""GradientWatch: gradients that a loop leaves at a safe point for its next step, as in its own
gradient accumulation.

They are saved if a step was seen to add to the gradients of the step before. Until then they are
saved after a step in which the optimizer did not step, unless such gradients were seen to be thrown
away. A loop that zeroes them before its first backward does not use them, and nothing is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.hooks import unserializable_hook

from .stored import TensorRestore, is_stored_tensor, tensor_differences

READ, DISCARDED = "read", "discarded"
_LOOKS, _THEN_EACH = 8, 16  # steps at which numbers are read that were zero so far


class GradientWatch:
    """Observes whether a loop uses the gradients that earlier steps left to one optimizer, by two
    hooks, until that is known.

    Only the smallest parameter is watched; its last gradient is kept as long as the comparison
    needs it.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.is_read = False
        self._may_be_read = False  # at this safe point
        self._is_lost = False  # whether gradients that no step had used were thrown away
        self._stepped = False  # whether the optimizer has stepped since the last safe point
        # the probe's gradient and its version at the last step
        self._used: tuple[torch.Tensor, int] | None = None
        self._probe: torch.Tensor | None = None
        self._left: torch.Tensor | None = None  # its gradient at the last safe point
        self._version = 0
        self._reads = False  # whether this step has added to it so far
        self._first = False  # whether no backward has come since the safe point
        self._zeros = 0  # steps that began with zeros
        self._steps: Any = optimizer.register_step_post_hook(self._after_step)
        self._hook: Any = None

    @property
    def is_saved(self) -> bool:
        """Return whether the gradients belong to the saved state."""
        return self.is_read or self._may_be_read

    def detect_use(self, optimizer: Optimizer) -> bool:
        """Return whether this step is the first to show that the loop uses gradients of the step
        before.
        """
        if self.is_read:
            return False
        left = self._left
        if self._reads and left is not None and left._version > self._version:  # noqa: SLF001
            self._note_use()
            return True
        if left is not None and self._is_untouched(left):
            return False  # no step since: an epoch's end is like the point after its last batch
        self._watch(optimizer)
        fresh = self._left is not None and not self._is_used(self._left)
        self._may_be_read = fresh and not self._stepped and not self._is_lost
        self._reads = self._stepped = False
        return False

    def _is_untouched(self, left: torch.Tensor) -> bool:
        same = (
            self._probe is not None and self._probe.grad is left and left._version == self._version  # noqa: SLF001
        )
        return same and not self._stepped

    @property
    def observed_use(self) -> str | None:
        """Return what the loop does with gradients that no step has used: it "read" or "discarded"
        them.
        """
        return READ if self.is_read else DISCARDED if self._is_lost else None

    def resume(self, optimizer: Optimizer, are: str | None, *, pending: bool) -> None:
        """Take over the observations of the resumed run.
        `pending`: its gradients have been restored.
        """
        self._reads = self._stepped = False
        if are == READ or self.is_read:
            self._note_use()
        else:
            self._is_lost, self._may_be_read = are == DISCARDED, pending
            self._watch(optimizer)

    def _note_use(self) -> None:
        self.is_read = True
        self.remove_hooks()

    def remove_hooks(self) -> None:
        """Remove the hooks."""
        for hook in (self._steps, self._hook):
            if hook is not None:
                hook.remove()
        self._steps = self._hook = self._probe = self._left = self._used = None

    def _watch(self, optimizer: Optimizer) -> None:
        if self._probe is None or self._probe.grad is None:
            found = _with_gradients(optimizer)
            if found and found[0] is not self._probe:
                if self._hook is not None:
                    self._hook.remove()
                self._probe, self._used = found[0], None
                self._hook = found[0].register_hook(self._before_backward)  # type: ignore[no-untyped-call]
        self._left = None if self._probe is None else self._probe.grad
        # before the probe was known
        if self._left is not None and self._stepped and self._used is None:
            self._used = self._left, self._left._version  # noqa: SLF001
        if self._left is not None:
            self._first, self._version = True, self._left._version  # noqa: SLF001

    def _is_used(self, gradient: torch.Tensor) -> bool:
        used = self._used
        return used is not None and used[0] is gradient and used[1] == gradient._version  # noqa: SLF001

    def _after_step(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._stepped = True
        if self._probe is not None and self._probe.grad is not None:
            self._used = self._probe.grad, self._probe.grad._version  # noqa: SLF001

    @unserializable_hook  # type: ignore[untyped-decorator]  # a parameter that goes to another process has no run there
    def _before_backward(self, _: torch.Tensor) -> None:
        """Observe a gradient just before a backward pass adds to it."""
        left, first = self._left, self._first
        if torch.compiler.is_compiling() or left is None or self._probe is None:
            return
        self._first = False
        if self._probe.grad is not left or (first and left._version != self._version):  # noqa: SLF001
            self._is_lost = self._is_lost or (first and self._may_be_read)
            self._reads = False
        elif first:
            self._reads = self._is_filled(left)
        elif self._reads:
            self._reads = bool(left.any())

    def _is_filled(self, left: torch.Tensor) -> bool:
        """Return whether the gradient has numbers other than zeros. After many steps with zeros the
        numbers are not read any more.
        """
        if self._zeros >= _LOOKS and self._zeros % _THEN_EACH:
            self._zeros += 1
            return False
        filled = bool(left.any())
        self._zeros += not filled
        return filled


def capture(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Return the gradients by the numbers of their parameters, by reference; none if all
    are zero.
    """
    found = gradients_of(parameters(optimizer))
    return found if any(bool(each.any()) for each in found.values()) else {}


def gradients_of(those: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the gradients of these parameters by their numbers: wrappers change names."""
    found = ((number, each.grad) for number, each in enumerate(those))
    return {
        str(number): each
        for number, each in found
        if each is not None and each.layout == torch.strided
    }


def differences(optimizer: Optimizer, stored: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each stored gradient that no parameter here can have."""
    here = {str(number): each for number, each in enumerate(parameters(optimizer))}
    for number, each in stored.items():
        if number in here:
            yield from tensor_differences(f"gradients/{number}", each, here[number])
        else:
            yield f"gradients/{number}: only in the checkpoint"


def set_gradients(those: Iterable[torch.Tensor], stored: Mapping[str, Any]) -> None:
    """Set the stored gradients on these parameters; clear the gradients of the others."""
    filling = TensorRestore()
    for number, parameter in enumerate(those):
        each = stored.get(str(number))
        if is_stored_tensor(each):
            parameter.grad = filling.read_new(each, parameter.device, parameter)
        else:
            parameter.grad = None if each is None else each.to(parameter.device)
    filling.read_all()


def parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """Yield the optimizer's parameters, in the order of their numbers."""
    return (each for group in optimizer.param_groups for each in group["params"])


def _with_gradients(optimizer: Optimizer) -> list[torch.Tensor]:
    """Return the parameters that have gradients, the smallest first."""
    those = [each for each in parameters(optimizer) if each.requires_grad and each.is_leaf]
    return sorted((each for each in those if gradients_of([each])), key=torch.Tensor.numel)
