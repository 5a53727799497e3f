"""The step that went bad: what it trains, its batches, and how to run it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

SampleNames = Callable[[int, Sequence[int]], Sequence[Any]]
"""(which batch, rows) → what the data set calls them; nothing where it is not known."""


@dataclass(slots=True)
class Scene:
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
