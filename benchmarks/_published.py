"""Published rules against bad steps, with the defects they have as published.

Our own implementations, written from the papers and from reading the code at the given addresses,
with the defaults found there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class ZClip:
    """arXiv 2504.02507 and github.com/bluorion-com/ZClip, with its default cap of 1.0.

    Waits for the device at every step; one NaN in the running mean stays there permanently.
    """

    def __init__(self, alpha: float = 0.97, z: float = 2.5, warmup: int = 25, cap: float = 1.0):
        self.alpha, self.z, self.warmup, self.cap = alpha, z, warmup, cap
        self.first: list[float] = []
        self.mean = self.variance = 0.0

    def clip(self, parameters: Iterable[Tensor]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients).item()
        limit = norm
        if len(self.first) < self.warmup:
            self.first.append(norm)
            self.mean = sum(self.first) / len(self.first)
            self.variance = sum((x - self.mean) ** 2 for x in self.first) / len(self.first)
        else:
            deviation = self.variance**0.5
            score = (norm - self.mean) / (deviation + 1e-6)
            if score > self.z:
                limit = self.mean + self.z * deviation / (score / self.z)
            self.mean = self.alpha * self.mean + (1 - self.alpha) * limit
            self.variance = self.alpha * self.variance + (1 - self.alpha) * (limit - self.mean) ** 2
        limit = min(limit, self.cap)
        if norm > limit:
            torch._foreach_mul_(gradients, limit / (norm + 1e-6))


class AdaGC:
    """arXiv 2502.11034: a limit for every tensor, after 100 steps of clipping to 1.0 together."""

    def __init__(
        self, relative: float = 1.05, beta: float = 0.98, warmup: int = 100, start: float = 1.0
    ):
        self.relative, self.beta, self.warmup, self.start = relative, beta, warmup, start
        self.steps = 0
        self.usual: Tensor | None = None

    def clip(self, parameters: Iterable[Tensor]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms = torch.stack(list(torch._foreach_norm(gradients)))
        if self.steps < self.warmup:
            factors = (self.start / (norms.norm() + 1e-8)).clamp(max=1.0).expand_as(norms)
            clipped = norms * factors
            self.usual = clipped if self.usual is None else torch.minimum(self.usual, clipped)
        else:
            assert self.usual is not None
            factors = (self.relative * self.usual / norms).clamp(max=1.0)
            self.usual = self.beta * self.usual + (1 - self.beta) * norms * factors
        self.steps += 1
        torch._foreach_mul_(gradients, list(factors.unbind()))


class SkipStepAdamW(torch.optim.Optimizer):
    """OLMo-core's `SkipStepAdamW` (github.com/allenai/OLMo-core, src/olmo_core/optim).

    A step whose loss or gradient norm is more than 6 standard deviations above the mean of the last
    128 is multiplied by 0. A NaN times 0 is NaN, and stays in the window for 128 steps. Nothing is
    skipped before 64 steps.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float],
        weight_decay: float = 1e-2,
        window: int = 128,
        sigmas: float = 6.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.sigmas = sigmas
        self.losses: deque[Tensor] = deque(maxlen=window + 1)
        self.norms: deque[Tensor] = deque(maxlen=window + 1)
        self.skipped = 0

    def saw(self, loss: Tensor, norm: Tensor) -> None:
        """Called by the trainer before each step, with the loss and the norm before clipping."""
        self.losses.append(loss.detach())
        self.norms.append(norm.detach())

    def factor(self) -> Tensor:
        """1: go ahead; 0: skip."""
        if len(self.losses) < max(20, (self.losses.maxlen or 0) // 2):
            return torch.tensor(1.0)
        usual = True
        for values in (self.losses, self.norms):
            deviation, mean = torch.std_mean(torch.stack(list(values)[:-1]))
            usual = usual and bool(values[-1] - mean <= self.sigmas * deviation)
        return torch.tensor(float(usual))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        factor = self.factor()
        self.skipped += int(factor == 0)
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                gradient, state = parameter.grad, self.state[parameter]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["mean"] = torch.zeros_like(parameter)
                    state["square"] = torch.zeros_like(parameter)
                state["step"] += factor
                parameter.mul_(1 - factor * group["lr"] * group["weight_decay"])
                state["mean"].lerp_(gradient, factor * (1 - beta1))
                state["square"].mul_(1 - factor * (1 - beta2))
                state["square"].add_(factor * gradient * gradient, alpha=1 - beta2)
                root = (state["square"] / (1 - beta2 ** state["step"])).sqrt() + 1e-8
                rate = group["lr"] / (1 - beta1 ** state["step"])
                parameter.add_(-rate * state["mean"] / root * factor)
