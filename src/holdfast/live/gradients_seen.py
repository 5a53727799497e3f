"""Losses and gradients of one step, seen at the end of its backward passes: before any clipping."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from holdfast.replay.passes import Outcome


class GradientsSeen:
    """Hears torch as a guard does, and fills in an outcome."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        """`parameters` by their paths in the model."""
        self.outcome = Outcome()
        self._parameters = parameters
        self._scaled: list[tuple[weakref.ref[Tensor], Tensor, float]] = []

    def backward_begins(self, roots: Sequence[Tensor]) -> None:
        """The gradients come at the end."""

    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        scale = 1.0
        for root in roots:
            loss = root.detach()
            for scaled, unscaled, by in self._scaled:
                if scaled() is root:
                    loss, scale = unscaled, by
            self.outcome.losses.append(float(loss))
        self.look(scale)

    @torch.no_grad()
    def look(self, scale: float = 1.0) -> None:
        """The norms of the gradients as they are now; one that was bad stays so."""
        for name, parameter in self._parameters.items():
            known = self.outcome.norms.get(name, 0.0)
            if parameter.grad is not None and math.isfinite(known):
                self.outcome.norms[name] = _norm(parameter.grad) / scale

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._scaled.append((weakref.ref(result), loss.detach(), scaler.get_scale()))

    def clipping(
        self, parameters: Sequence[Tensor], norms: Sequence[Tensor] | None, total: Tensor
    ) -> None:
        """Seen before."""

    def clipped(self, total: Tensor, max_norm: float) -> None:
        """Seen before."""

    def scaler_steps(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """Whether it steps is nothing to the gradients."""

    def scaler_stepped(self, scaler: GradScaler, optimizer: Optimizer) -> None:
        """Nor that it did."""


def _norm(gradient: Tensor) -> float:
    values = gradient.coalesce().values() if gradient.is_sparse else gradient
    wide = values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
    return float(torch.linalg.vector_norm(wide))
