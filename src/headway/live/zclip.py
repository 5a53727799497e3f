"""ZClip: all gradients are clipped together when their norm is an outlier by its z-score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headway.live.clip_memory import AdaptiveClip, State, a_count, a_share, positive
from headway.live.probes import Norms


@dataclass(frozen=True)
class ZClip(AdaptiveClip):
    """Clip the global norm when it is more than `z` standard deviations above its mean.

        guard = headway.Guard(model, optimizer, max_norm=headway.ZClip())

    The further out, the harder: a norm with z-score s is brought down to mean + z² · deviation / s.
    Mean and variance are running ones, of the clipped norms; the first `warmup` steps only measure.
    `max_norm`, if given, is a fixed limit on top, from the first step on. Kumar et al., "ZClip:
    Adaptive Spike Mitigation for LLM Pre-Training", arXiv 2504.02507.
    """

    z: float = 2.5
    alpha: float = 0.97
    """How much of the running mean and variance a step leaves."""
    warmup: int = 25
    max_norm: float | None = None

    per_tensor: ClassVar[bool] = False
    fresh: ClassVar[Mapping[str, float]] = {"seen": 0.0, "mean": 0.0, "variance": 0.0}

    def __post_init__(self) -> None:
        self._demand("a positive number", positive, "z")
        self._demand("at least 0 and less than 1", a_share, "alpha")
        self._demand("a number of steps, at least 1", a_count, "warmup")
        if self.max_norm is not None:
            self._demand("a positive number, or None", positive, "max_norm")

    def __call__(self, past: State, norms: Norms) -> tuple[Tensor, State]:
        """What to multiply all gradients by, and what is known after this step."""
        seen, mean, variance = past["seen"], past["mean"], past["variance"]
        norm, deviation = norms.total, variance.sqrt()
        starting = seen < self.warmup
        score = (norm - mean) / deviation  # without a deviation: infinite, or NaN, which is none
        outlier = (score > self.z) & ~starting
        limit = mean + self.z**2 * deviation / score
        usual = torch.where(outlier, limit, norm)
        factor = torch.where(outlier, limit / norm, 1.0)
        if self.max_norm is not None:
            factor = torch.minimum(factor, self.max_norm / (norm + 1e-6))
        # The plain mean and variance of the first steps, of which each weighs the same.
        weight = torch.where(starting, 1 / (seen + 1), 1 - self.alpha)
        new_mean = mean + weight * (usual - mean)
        about = torch.where(starting, mean, new_mean)
        return factor, {
            "seen": seen + 1,
            "mean": new_mean,
            "variance": variance + weight * ((usual - about) * (usual - new_mean) - variance),
        }
