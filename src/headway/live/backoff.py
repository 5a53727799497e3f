"""A learning rate lowered for a while, on top of whatever schedule the user has.

The rate is multiplied only while the optimizer steps: before the hook and after it, the groups hold
the user's own numbers, so that no scheduler ever sees ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer


class RateFactor:
    """What one optimizer's rate is multiplied by."""

    def __init__(self, optimizer: Optimizer, hold: int, rewarm: int) -> None:
        self._optimizer = optimizer
        self._hold = hold
        self._rewarm = rewarm
        self._low = 1.0
        self._since = 0
        self._theirs: list[float | Tensor | None] = []

    @property
    def value(self) -> float:
        """The factor at the coming step: low for a while, then linearly back to 1."""
        into = self._since - self._hold
        if into < 0 or self._low == 1.0:
            return self._low
        return self._low + (1.0 - self._low) * (into + 1) / (self._rewarm + 1)

    def back_off(self, factor: float) -> None:
        """Lower the rate by a factor, from wherever it is now."""
        self._low = self.value * factor
        self._since = 0

    def apply(self) -> None:
        """The optimizer is about to step."""
        factor = self.value
        if factor == 1.0:
            return
        for group in self._optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, Tensor):  # changed in place: a captured graph reads this very one
                self._theirs.append(rate.clone())
                rate.mul_(factor)
            else:
                self._theirs.append(rate)
                if rate is not None:
                    group["lr"] = rate * factor

    def remove(self, *, stepped: bool) -> None:
        """It has stepped, or was held back: the user's own rates again."""
        theirs, self._theirs = self._theirs, []
        for group, rate in zip(self._optimizer.param_groups, theirs, strict=False):
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            elif rate is not None:
                group["lr"] = rate
        if stepped and self._low < 1.0:
            self._since += 1
            if self._since >= self._hold + self._rewarm:
                self._low, self._since = 1.0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"low": self._low, "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._low, self._since = float(state["low"]), int(state["since"])
