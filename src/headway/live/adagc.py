"""AdaGC: every tensor is clipped by its own recent norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from headway.live.clip_memory import AdaptiveClip, State, a_count, a_share, positive
from headway.live.probes import Norms


@dataclass(frozen=True)
class AdaGC(AdaptiveClip):
    """Clip each tensor's gradient to `relative` times its own usual norm.

        guard = headway.Guard(model, optimizer, max_norm=headway.AdaGC())

    The usual norm is a running mean of *clipped* norms, so a spike cannot raise it: it grows by
    0.1 % a step at most. For the first `warmup` steps of a tensor all gradients are clipped
    together to `max_norm`, and its usual norm is the smallest it had. Wang et al., "AdaGC:
    Enhancing LLM Pretraining Stability via Adaptive Gradient Clipping", arXiv 2502.11034.
    """

    relative: float = 1.05
    beta: float = 0.98
    """How much of the running mean a step leaves."""
    warmup: int = 100
    max_norm: float = 1.0

    per_tensor: ClassVar[bool] = True
    fresh: ClassVar[Mapping[str, float]] = {"seen": 0.0, "usual": inf}

    def __post_init__(self) -> None:
        self._demand("a positive number", positive, "relative", "max_norm")
        self._demand("at least 0 and less than 1", a_share, "beta")
        self._demand("a number of steps, at least 1", a_count, "warmup")

    def __call__(self, past: State, norms: Norms) -> tuple[Tensor, State]:
        """What to multiply each gradient by, and what is known after this step."""
        seen, usual = past["seen"], past["usual"]
        together = torch.clamp(self.max_norm / (norms.total + 1e-6), max=1.0)
        alone = torch.clamp(self.relative * usual / norms.each, max=1.0)
        starting = seen < self.warmup
        factors = torch.where(starting, together, alone)
        left = norms.each * factors
        mean = self.beta * usual + (1 - self.beta) * left
        return factors, {
            "seen": seen + 1,
            "usual": torch.where(starting, torch.minimum(usual, left), mean),
        }
