"""One more run of the failing step, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

Purpose = Literal["trace", "again", "trial"]
ELSEWHERE = "it could not be completed on another rank"
"""The error of a pass that ended here because it ended there."""


@dataclass(slots=True)
class Outcome:
    """Filled in by whoever runs the pass."""

    losses: list[float] = field(default_factory=list)
    """One for each backward, unscaled."""
    components: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    """Gradient norms by parameter, unscaled and before any clipping."""
    made: float = 0.0
    """With several ranks, the norm of the gradient that this one made alone."""
    error: str | None = None
    """The pass could not be completed: the exception, in one line."""

    @property
    def norm(self) -> float:
        return math.sqrt(sum(norm * norm for norm in self.norms.values()))

    @property
    def complete(self) -> bool:
        return self.error is None and bool(self.losses or self.norms)

    @property
    def finite(self) -> bool:
        return self.complete and all(map(math.isfinite, (*self.losses, *self.norms.values())))

    def cured(self, limit: float | None = None) -> bool:
        """Whether the step would have been taken."""
        return self.finite and (limit is None or self.norm <= limit)


@dataclass(slots=True)
class Pass:
    """Run the step over these batches with these in force, and fill in the outcome."""

    purpose: Purpose
    batches: Sequence[Any]
    within: Sequence[AbstractContextManager[Any]] = ()
    observer: PassObserver | None = None
    outcome: Outcome = field(default_factory=Outcome)


class PassObserver:
    """Hears of the two moments of a pass that only its runner sees."""

    def backward_begins(self, roots: Sequence[Tensor], components: Mapping[str, Tensor]) -> None:
        """The forward is over; these are the losses (scaled, if a scaler is used)."""

    def gradients_ready(self, parameters: Sequence[Tensor]) -> None:
        """Just before the optimizer would step (and before any clipping)."""
