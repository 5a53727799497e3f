"""fp16 weights that the optimizer does not hold: copies of fp32 masters, and what reaches those.

Such weights train in fp32, but their gradients are born in fp16. Without a scaled loss the small
ones are flushed to zero before anybody copies them to the masters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from headway.preflight.observer import Observer

TOPIC = "half-copies"
CLOSELY, EVERY, MOST = 5, 10, 12
"""The first steps are all looked at, then every so many, and so many in all."""


class HalfCopies(Observer):
    """Counts, in the gradients of fp16 copies, the elements that are exactly 0."""

    def start(self) -> None:
        self._scaled = False
        self._looks = 0

    def scaled(self, scaler: GradScaler, loss: Tensor, result: Tensor) -> None:
        self._scaled = self._scaled or scaler.is_enabled()

    @torch.no_grad()
    def backward_ended(self, roots: Sequence[Tensor]) -> None:
        step = self.scene.step
        if self._looks >= MOST or (step >= CLOSELY and step % EVERY):
            return
        copies = list(self._copies())
        if not copies:
            return
        self._looks += 1
        zero = [float((gradient == 0).float().mean()) for _, gradient in copies]
        nonzero = max(float(gradient.abs().max()) for _, gradient in copies)
        self.evidence.tell(
            TOPIC,
            {
                "names": [name for name, _ in copies][:64],
                "count": len(copies),
                "zero_share": median(zero),
                "largest": nonzero,
                "loss": max((float(root.detach().abs().max()) for root in roots), default=0.0),
                "scaler": self._scaled,
            },
        )

    def _copies(self) -> Iterator[tuple[str, Tensor]]:
        held = {
            id(p)
            for optimizer in self.scene.optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        }
        for model in self.scene.models:
            for name, parameter in model.named_parameters():
                gradient = parameter.grad
                if parameter.dtype is not torch.float16 or id(parameter) in held:
                    continue
                if gradient is not None and parameter.ndim > 1 and not gradient.is_sparse:
                    yield name, gradient
