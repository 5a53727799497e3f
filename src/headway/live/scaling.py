"""What is known of a GradScaler: which one there is, which losses it scaled, what gradients carry.

Losses are recorded as the user wrote them and gradients are judged unscaled; clipping or judging
scaled gradients would compare numbers that mean something else at every change of the scale.
"""

from __future__ import annotations

import weakref
from contextlib import suppress

from torch import Tensor
from torch.amp.grad_scaler import GradScaler, OptState
from torch.optim import Optimizer

LOSSES_KEPT = 16
"""Scaled losses that are remembered: those of the micro-batches of a step."""


class Scaling:
    """The scaler of a training, given by the user or met on the way."""

    def __init__(self, scaler: GradScaler | None) -> None:
        self._scaler = scaler
        self._scaled: list[tuple[weakref.ref[Tensor], Tensor]] = []

    @property
    def scaler(self) -> GradScaler | None:
        """The scaler, if there is one and it is switched on."""
        return self._scaler if self._scaler is not None and self._scaler.is_enabled() else None

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        """A scaler multiplied a loss."""
        self._scaler = scaler
        self._scaled = [item for item in self._scaled if item[0]() is not None][-LOSSES_KEPT:]
        self._scaled.append((weakref.ref(result), loss.detach()))

    def needed_for(self, loss: Tensor) -> GradScaler | None:
        """The scaler that a loss still needs: switched on, and not applied yet."""
        scaler = self.scaler
        if scaler is None or _was_scaled(loss, scaler):
            return None
        return None if any(item() is loss for item, _ in self._scaled) else scaler

    def unscaled(self, root: Tensor) -> Tensor:
        """The loss behind a tensor that backward was called on."""
        for item, loss in self._scaled:
            if item() is root:
                return loss
        return root.detach()

    def scale(self) -> Tensor | None:
        """The loss scale, on its device."""
        return None if self.scaler is None else self.scaler._scale

    def carried_by(self, optimizer: Optimizer) -> Tensor | None:
        """The scale that the gradients of this optimizer still carry."""
        scaler = self.scaler
        if scaler is None or scaler._scale is None:
            return None
        state = scaler._per_optimizer_states.get(id(optimizer))
        unscaled = state is not None and state["stage"] is not OptState.READY
        return None if unscaled else scaler._scale


def _was_scaled(loss: Tensor, scaler: GradScaler) -> bool:
    """Whether the last thing done to a loss was a multiplication by the scale.

    For a guard that is closed or has switched itself off, and so did not see the user scale it.
    """
    with suppress(RuntimeError):
        factor = getattr(loss.grad_fn, "_saved_other", None)
        if isinstance(factor, Tensor) and scaler._scale is not None:
            return bool(factor.data_ptr() == scaler._scale.data_ptr())
    return False
