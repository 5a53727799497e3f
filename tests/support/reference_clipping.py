"""AdaGC and ZClip once more, in plain Python and double precision, to compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pvariance

from headway import AdaGC, ZClip

EPS = 1e-6
"""What `clip_grad_norm_` adds to a norm."""


class PlainAdaGC:
    """The algorithm of arXiv 2502.11034, a tensor at a time; a norm of 0 teaches nothing."""

    def __init__(self, rule: AdaGC, tensors: int) -> None:
        self.rule = rule
        self.seen = [0] * tensors
        self.usual = [math.inf] * tensors

    def step(self, norms: Sequence[float], bad: bool = False) -> list[float]:
        """The factor of each gradient, given its norm."""
        total = math.hypot(*norms)
        if bad or not math.isfinite(total):
            return [1.0] * len(norms)
        factors = []
        for at, norm in enumerate(norms):
            starting = self.seen[at] < self.rule.warmup
            limit = self.rule.max_norm if starting else self.rule.relative * self.usual[at]
            size = total + EPS if starting else norm
            factors.append(min(1.0, limit / size) if size else 1.0)
            if norm:
                self.seen[at] += 1
                left = norm * factors[-1]
                if starting:
                    self.usual[at] = min(self.usual[at], left)
                else:
                    beta = self.rule.beta
                    self.usual[at] = beta * self.usual[at] + (1 - beta) * left
        return factors


class PlainZClip:
    """The algorithm of arXiv 2504.02507, "adaptive scaling"; a norm of 0 teaches nothing."""

    def __init__(self, rule: ZClip) -> None:
        self.rule = rule
        self.first: list[float] = []
        self.mean = 0.0
        self.variance = 0.0

    def step(self, norms: Sequence[float], bad: bool = False) -> list[float]:
        """The factor of each gradient, the same for all, given their norms."""
        norm = math.hypot(*norms)
        if bad or not math.isfinite(norm):
            return [1.0] * len(norms)
        rule, usual = self.rule, norm
        if norm and len(self.first) < rule.warmup:
            self.first.append(norm)
            self.mean, self.variance = fmean(self.first), pvariance(self.first)
        elif norm:
            deviation = math.sqrt(self.variance)
            if norm - self.mean > rule.z * deviation:
                score = (norm - self.mean) / deviation if deviation else math.inf
                usual = self.mean + rule.z**2 * deviation / score
            self.mean = rule.alpha * self.mean + (1 - rule.alpha) * usual
            self.variance = rule.alpha * self.variance + (1 - rule.alpha) * (usual - self.mean) ** 2
        factor = usual / norm if norm else 1.0
        if rule.max_norm is not None and norm:
            factor = min(factor, rule.max_norm / (norm + EPS))
        return [factor] * len(norms)


Plain = PlainAdaGC | PlainZClip


def plain(rule: AdaGC | ZClip, tensors: int) -> Plain:
    return PlainAdaGC(rule, tensors) if isinstance(rule, AdaGC) else PlainZClip(rule)
