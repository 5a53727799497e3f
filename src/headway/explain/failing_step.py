"""The step that failed (models, optimizers, batches), one more pass over it, and the outcome of
that pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

# One more run of the failing step, and what came of it.

Purpose = Literal["trace", "again", "trial"]
FAILED_ON_OTHER_RANK = "it could not be completed on another rank"
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
class StepPass:
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


# The step that went bad: what it trains, its batches, and how to run it again.

SampleNames = Callable[[int, Sequence[int]], Sequence[Any]]
"""(which batch, rows) → what the data set calls them; nothing where it is not known."""


@dataclass(slots=True)
class FailingStep:
    """Everything an investigation may look at. Whoever runs the passes puts state back itself:
    random numbers, buffers, scaler, schedules and gradients are, before every pass, as they were
    before the step; the optimizers never move a weight."""

    models: Sequence[nn.Module]
    optimizers: Sequence[Optimizer]
    batches: Sequence[Any]
    """What the loader gave for this step: one, or several under accumulation."""
    names: Mapping[int, str]
    """Paths of the parameters in the model, by identity (`id`)."""
    step: int = 0
    symptom: Literal["nonfinite", "spike"] = "nonfinite"
    scaler: GradScaler | None = None
    limit: float | None = None
    """For a spike: the gradient norm that was allowed."""
    usual: Mapping[str, float] = field(default_factory=dict)
    """What was normal before, where somebody knows: `loss`, `loss/<component>`, and
    `grad_norm/<parameter>`."""
    data: Mapping[str, Tensor] = field(default_factory=dict)
    """What a loop that makes its own batches makes them of, by the user's names."""
    sample_names: SampleNames | None = None
    inexact: str = ""
    """Why a pass may not be quite the step that failed; empty: it is. A pass that goes well then
    tells nothing."""
    gentle: bool = False
    """A pass that raises would end the training: only what cannot raise may be tried."""
