"""Clips gradients by an adaptive rule, and lowers the learning rate after bad steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.errors import UsageError
from headway.guard.brake.clip_rules import AdaptiveClip, ClipStatistics
from headway.guard.measure.gradient_measure import ClipRecord, GradientNorms, scale_gradients
from headway.output.notices import Notices
from headway.rerun.bad_step import StepContext

# The brake judges, and the record shows as `grad_norm`, the norm before any clipping. A rule learns
# from, and limits, the norm that the user's own clipping has left.


def require_limit(max_norm: Any) -> None:
    """Raise UsageError unless it is a limit."""
    try:
        fits = max_norm is None or isinstance(max_norm, AdaptiveClip) or bool(max_norm > 0)
    except TypeError:
        fits = False
    if not fits:
        raise UsageError(
            "max_norm must be a positive number, or a rule such as headway.AdaGC() or "
            f"headway.ZClip(): got {max_norm!r}"
        )


class AdaptiveClippers:
    """The adaptive clippers of a guard: one per optimizer, or none at all."""

    def __init__(self, rule: AdaptiveClip | None, notices: Notices) -> None:
        self._rule = rule
        self._notices = notices
        self._memories: list[ClipStatistics] = []

    def attach(self, optimizer: Optimizer) -> AdaptiveClipper | None:
        """The clipper of this optimizer; None without a rule."""
        if self._rule is None:
            return None
        self._memories.append(ClipStatistics(self._rule, optimizer))
        return AdaptiveClipper(self._memories[-1])

    def state_dict(self) -> dict[str, Any]:
        """Statistics by the number of the optimizer; empty without a rule."""
        return {str(at): memory.state_dict() for at, memory in enumerate(self._memories)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from there. A rule that has changed starts from scratch, with a notice."""
        for at, memory in enumerate(self._memories):
            if not memory.load_state_dict(state.get(str(at), {})):
                self._notices.once(
                    "clip-afresh",
                    f"{type(memory.rule).__name__} starts from scratch: the saved state is of "
                    "another clipping rule, or of another set of parameters",
                )


class AdaptiveClipper:
    """Clips the gradients of one optimizer by a rule, and adds the numbers to the record."""

    def __init__(self, memory: ClipStatistics) -> None:
        self._memory = memory

    def on_host(
        self,
        note: StepContext,
        gradients: list[Tensor],
        norms: GradientNorms,
        user_clip: ClipRecord | None,
        *,
        uniform: bool,
    ) -> dict[str, Tensor]:
        """Clip the gradients of a step that is applied."""
        factors, numbers = self._judge(note, norms, user_clip, None)
        _multiply(gradients, factors, uniform=uniform)
        return numbers

    def on_device(
        self,
        note: StepContext,
        scale: Tensor | None,
        norms: GradientNorms,
        user_clip: ClipRecord | None,
        *,
        bad: Tensor,
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """The divisor that the kernel applies to all gradients.

        Where each tensor has its own factor, the gradients are multiplied here, and keep the loss
        scale that they may still carry.
        """
        factors, numbers = self._judge(note, norms, user_clip, bad)
        if not self._memory.rule.per_tensor:
            return (1 / factors if scale is None else scale / factors), numbers
        gradients = [p.grad for p in note.parameters if p.grad is not None]
        _multiply(gradients, factors, uniform=True)
        return scale, numbers

    def undo(self) -> None:
        """The step was undone: forget what was learned from it."""
        self._memory.undo()

    def _judge(
        self,
        note: StepContext,
        norms: GradientNorms,
        user_clip: ClipRecord | None,
        bad: Tensor | None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Our factors, and for the record the effect of all clipping."""
        if user_clip is None or user_clip.coefficient is None:
            factors = total = self._memory.factors(note.parameters, norms, bad)
        else:
            already = user_clip.coefficient if user_clip.factors is None else user_clip.factors
            left = GradientNorms(norms.each * already, norms.total * user_clip.coefficient)
            factors = self._memory.factors(note.parameters, left, bad)
            total = factors * (already if self._memory.rule.per_tensor else user_clip.coefficient)
        if not self._memory.rule.per_tensor:
            return factors, {"coef": total}
        after = torch.linalg.vector_norm(norms.each * total)
        numbers = {"coef": torch.where(norms.total > 0, after / norms.total, 1.0)}
        if note.sampled:
            numbers["factors"] = total
        return factors, numbers


def _multiply(gradients: list[Tensor], factors: Tensor, *, uniform: bool) -> None:
    if factors.ndim == 0:
        scale_gradients(gradients, factors, uniform=uniform)
    elif uniform:
        torch._foreach_mul_(gradients, list(factors.unbind()))
    else:
        for gradient, factor in zip(gradients, factors.unbind(), strict=True):
            gradient.mul_(factor.to(gradient.device))


class RateFactor:
    """Lowers the learning rate of one optimizer for a while, on top of the user's schedule.

    The rate is changed only between the two hooks of a step, so that no scheduler sees ours.
    """

    def __init__(self, optimizer: Optimizer, hold: int, rewarm: int) -> None:
        self._optimizer = optimizer
        self._hold = hold
        self._rewarm = rewarm
        self.low = 1.0
        """The factor right after the last back-off; 1: the rate is not lowered."""
        self._since = 0
        self._user_rates: list[float | Tensor | None] = []

    @property
    def value(self) -> float:
        """The factor of the next step: low for a while, then linearly back to 1."""
        into = self._since - self._hold
        if into < 0 or self.low == 1.0:
            return self.low
        return self.low + (1.0 - self.low) * (into + 1) / (self._rewarm + 1)

    def back_off(self, factor: float) -> None:
        """Lower the rate by a factor, from wherever it is now."""
        self.low = self.value * factor
        self._since = 0

    def apply(self) -> None:
        """Lower the rates: the optimizer is about to step."""
        factor = self.value
        if factor == 1.0:
            return
        for group in self._optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, Tensor):  # in place: a captured CUDA graph reads this tensor
                self._user_rates.append(rate.clone())
                rate.mul_(factor)
            else:
                self._user_rates.append(rate)
                if rate is not None:
                    group["lr"] = rate * factor

    def remove(self, *, stepped: bool) -> None:
        """Restore the user's rates: the optimizer has stepped, or its update was skipped."""
        rates, self._user_rates = self._user_rates, []
        for group, rate in zip(self._optimizer.param_groups, rates, strict=False):
            if isinstance(rate, Tensor):
                group["lr"].copy_(rate)
            elif rate is not None:
                group["lr"] = rate
        if stepped and self.low < 1.0:
            self._since += 1
            if self._since >= self._hold + self._rewarm:
                self.low, self._since = 1.0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"low": self.low, "since": self._since}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.low, self._since = float(state["low"]), int(state["since"])
