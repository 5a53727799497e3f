"""How much of an update 16-bit weights lose: elements that keep their bits despite a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.preflight.observer import Observer

TOPIC = "low-precision-update"
SIGNAL = "update_lost_share"
LOW = (torch.bfloat16, torch.float16)
MOST_ELEMENTS = 1 << 23
"""Of one sample."""
CLOSELY, EVERY = 6, 5
"""The first steps are all measured, then every so many."""
_CARRIES = ("kahan", "compens", "residual", "master", "shift")
"""State of optimizers that keep what rounding took away, and add it later."""


class Rounding(Observer):
    """Compares weights before and after a step, bit by bit."""

    def start(self) -> None:
        self._steps = 0
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self._told = False

    @torch.no_grad()
    def step_begins(self, optimizer: Optimizer) -> None:
        self._steps += 1
        self._kept = []
        if self._steps > CLOSELY and self._steps % EVERY:
            return
        if _carries_the_rest(optimizer):
            return
        elements = 0
        for parameter in _low(optimizer):
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse or parameter.ndim < 2:
                continue
            elements += parameter.numel()
            if elements > MOST_ELEMENTS and self._kept:
                break
            self._kept.append((parameter, parameter.detach().clone(), gradient != 0))

    @torch.no_grad()
    def step_ended(self, optimizer: Optimizer) -> None:
        kept, self._kept = self._kept, []
        lost: dict[str, float] = {}
        meant_total = lost_total = moved_total = 0
        for parameter, before, meant in kept:
            same = (parameter.detach() == before) & meant
            meant_here, lost_here = int(meant.sum()), int(same.sum())
            moved_total += int((parameter.detach() != before).sum())
            meant_total += meant_here
            lost_total += lost_here
            if meant_here:
                lost[self.scene.name_of(parameter) or "a tensor"] = lost_here / meant_here
        if not meant_total:
            return
        share = lost_total / meant_total
        self.evidence.value(SIGNAL, share)
        if not self._told and share > 0.25:
            self._told = True
            worst = sorted(lost, key=lambda name: -lost[name])
            facts: dict[str, Any] = {
                "tensors": worst[:20],
                "tensor_count": len(lost),
                "dtype": str(kept[0][0].dtype).removeprefix("torch."),
                "optimizer": type(optimizer).__name__,
                "moved": moved_total,
            }
            self.evidence.tell(TOPIC, facts)


def _low(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.dtype in LOW]


def _carries_the_rest(optimizer: Optimizer) -> bool:
    for state in list(optimizer.state.values())[:1]:
        if isinstance(state, dict) and any(
            word in str(key).lower() for key in state for word in _CARRIES
        ):
            return True
    return False
