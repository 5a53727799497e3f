"""What updates do to the batch they were made from, and whether one batch agrees with the next.

To first order: the gradient times the change of the weights is what the batch's own loss falls by.
Where gradients of neighbouring batches have nothing in common, what one learns the next forgets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

EVERY = 5
ELEMENTS = 2_000_000
"""Weights that are looked at; the first ones where there are more."""
MOST = 500


class OwnEffect:
    """Measured at every fifth step, and the one after it."""

    def __init__(self) -> None:
        self.steps = 0
        self.falls: list[float] = []
        self.cosines: list[float] = []
        self._before: list[tuple[Tensor, Tensor]] = []
        self._gradients: list[Tensor] | None = None

    @torch.no_grad()
    def step_begins(self, optimizer: Optimizer, *, wanted: bool) -> None:
        """The gradients are there."""
        self.steps += 1
        self._before = []
        earlier, self._gradients = self._gradients, None
        if not wanted or len(self.falls) >= MOST:
            return
        if self.steps % EVERY == 0:
            chosen = list(_chosen(optimizer))
            self._before = [(parameter, parameter.detach().clone()) for parameter in chosen]
            self._gradients = [p.grad.detach().clone() for p in chosen if p.grad is not None]
        elif earlier is not None:
            now = [p.grad.detach() for p in _chosen(optimizer) if p.grad is not None]
            self._compare(earlier, now)

    def _compare(self, earlier: list[Tensor], now: list[Tensor]) -> None:
        if len(earlier) != len(now) or any(
            a.shape != b.shape for a, b in zip(earlier, now, strict=True)
        ):
            return
        pairs = list(zip(earlier, now, strict=True))
        both = sum(float((a.float() * b.float()).sum()) for a, b in pairs)
        sizes = [
            sum(float(item.float().square().sum()) for item in side) for side in (earlier, now)
        ]
        if sizes[0] > 0 and sizes[1] > 0 and math.isfinite(both):
            self.cosines.append(both / math.sqrt(sizes[0] * sizes[1]))

    @torch.no_grad()
    def step_ended(self) -> None:
        """The weights have moved."""
        before, self._before = self._before, []
        fall = 0.0
        for parameter, was in before:
            if parameter.grad is not None and parameter.grad.shape == was.shape:
                moved = (parameter.detach() - was).float()
                fall -= float((parameter.grad.float() * moved).sum())
        if before and math.isfinite(fall):
            self.falls.append(fall)

    def facts(self) -> dict[str, float]:
        """Means; of the agreement, over the later half and over the half before it."""
        found: dict[str, float] = {}
        if self.falls:
            found["own_fall"] = sum(self.falls) / len(self.falls)
        later = self.cosines[len(self.cosines) // 2 :]
        if later:
            found["agreement"] = sum(later) / len(later)
            found["agreement_pairs"] = len(later)
        earlier = self.cosines[: len(self.cosines) // 2]
        if earlier:
            found["early_agreement"] = sum(earlier) / len(earlier)
        return found


def _chosen(optimizer: Optimizer) -> Iterator[Tensor]:
    room = ELEMENTS
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is None or parameter.grad.is_sparse or parameter.numel() > room:
                continue
            room -= parameter.numel()
            yield parameter
