"""Adaptive clipping rules (AdaGC, ZClip) and the statistics they learn."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from headway.errors import UsageError
from headway.guard.measure.gradient_measure import GradientNorms

# One NaN in a running mean stays there permanently, and a norm of 0 gives a limit of 0, which
# blocks all further gradients. So a rule is a pure formula, and its statistics are kept here: only
# applied steps enter them, and they stay on the device of the gradients, without a host wait.

ClipState = dict[str, Tensor]


class AdaptiveClip(ABC):
    """A rule for `Guard(max_norm=…)`: settings and a formula, without state."""

    per_tensor: ClassVar[bool]
    """Whether each tensor has its own limit, or all gradients have one."""
    fresh: ClassVar[Mapping[str, float]]
    """The statistics before the first step; of each tensor, if the rule is per tensor."""

    @abstractmethod
    def __call__(self, past: ClipState, norms: GradientNorms) -> tuple[Tensor, ClipState]:
        """The factors on the gradients, and the statistics after this step."""

    def _demand(self, what: str, fits: Callable[[Any], bool], *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if not fits(value):
                raise UsageError(f"{type(self).__name__}({name}=…) is {what}: got {value!r}")


def is_positive(value: Any) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, (int, float)) and 0 < value < math.inf


def is_share(value: Any) -> bool:
    """Whether it is a number from 0 to less than 1."""
    return isinstance(value, (int, float)) and 0 <= value < 1


def is_count(value: Any) -> bool:
    """Whether it is a whole number above 0."""
    return isinstance(value, int) and value >= 1


class ClipStatistics:
    """The statistics of a rule about the gradients of one optimizer.

    Tensors are replaced, never changed in place, so that a `state_dict` stays valid.
    """

    def __init__(self, rule: AdaptiveClip, optimizer: Optimizer) -> None:
        self.rule = rule
        self._optimizer = optimizer
        self._state: ClipState = {}
        self._before: ClipState = {}
        self._key: tuple[int, ...] = ()
        self._rows: Tensor | None = None

    def factors(
        self, parameters: Sequence[Tensor], norms: GradientNorms, bad: Tensor | None = None
    ) -> Tensor:
        """The factors on the gradients: one number, or one for each of them.

        A step that is bad, or whose norm is non-finite, is not clipped and does not enter the
        statistics. Nor does a norm of 0: a missing gradient (an expert without tokens, a weight
        behind one that starts at zero) does not show how large it will be later.
        """
        good = torch.isfinite(norms.total)
        if bad is not None:
            good = good & ~bad
        device = norms.total.device
        state = self._state_on(device)
        rows = self._rows_of(parameters, device) if self.rule.per_tensor else None
        past = state if rows is None else {name: each[rows] for name, each in state.items()}
        factors, new = self.rule(past, norms)
        learn = good & ((norms.each if self.rule.per_tensor else norms.total) > 0)
        for value in new.values():
            learn = learn & torch.isfinite(value)  # the square of a large norm may overflow
        kept = {name: torch.where(learn, new[name], past[name]) for name in new}
        if rows is not None:
            kept = {name: state[name].index_copy(0, rows, each) for name, each in kept.items()}
        self._before, self._state = state, kept
        return torch.where(good, factors, 1.0)

    def undo(self) -> None:
        """The last step was undone."""
        self._state = self._before

    def state_dict(self) -> dict[str, Any]:
        """The name of the rule, and its statistics as tensors on their device."""
        return {"rule": type(self.rule).__name__, **self._state}

    def load_state_dict(self, state: Mapping[str, Any]) -> bool:
        """Continue from a state; False, and start from scratch, where it does not fit."""
        found = {name: value.clone() for name, value in state.items() if name != "rule"}
        fits = state.get("rule") == type(self.rule).__name__ and (not found or self._fits(found))
        self._state = self._before = found if fits else {}
        return fits

    def _fits(self, found: ClipState) -> bool:
        if found.keys() != self.rule.fresh.keys():
            return False
        shapes = {tuple(value.shape) for value in found.values()}
        if not self.rule.per_tensor:
            return shapes == {()}
        # Fewer rows than parameters: a group was added.
        return len(shapes) == 1 and len(min(shapes)) == 1 and min(shapes)[0] <= self._count()

    def _count(self) -> int:
        return sum(len(group["params"]) for group in self._optimizer.param_groups)

    def _state_on(self, device: torch.device) -> ClipState:
        """The statistics, with a row for every parameter: groups may be added later."""
        state = self._state
        known = next(iter(state.values()), None)
        if known is not None and known.device != device:
            state = {name: value.to(device) for name, value in state.items()}
        if self.rule.per_tensor:
            rows = 0 if known is None else len(known)
            if rows < self._count():
                more = self._new_state(device, (self._count() - rows,))
                state = {n: torch.cat([state[n], more[n]]) if state else more[n] for n in more}
            return state
        return state or self._new_state(device, ())

    def _new_state(self, device: torch.device, shape: tuple[int, ...]) -> ClipState:
        return {
            name: torch.full(shape, value, dtype=torch.float32, device=device)
            for name, value in self.rule.fresh.items()
        }

    def _rows_of(self, parameters: Sequence[Tensor], device: torch.device) -> Tensor | None:
        """The rows of these parameters; None when they are all there are, in order."""
        key = (self._count(), *map(id, parameters))
        if key != self._key:
            groups = self._optimizer.param_groups
            every = [id(parameter) for group in groups for parameter in group["params"]]
            row_of = {each: row for row, each in enumerate(every)}
            rows = [row_of[each] for each in key[1:]]
            in_order = rows == list(range(len(every)))
            self._rows = None if in_order else torch.tensor(rows).to(device, non_blocking=True)
            self._key = key
        return self._rows


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
    """Weight of the past in the running mean."""
    warmup: int = 100
    max_norm: float = 1.0

    per_tensor: ClassVar[bool] = True
    fresh: ClassVar[Mapping[str, float]] = {"seen": 0.0, "usual": inf}

    def __post_init__(self) -> None:
        self._demand("a positive number", is_positive, "relative", "max_norm")
        self._demand("at least 0 and less than 1", is_share, "beta")
        self._demand("a number of steps, at least 1", is_count, "warmup")

    def __call__(self, past: ClipState, norms: GradientNorms) -> tuple[Tensor, ClipState]:
        """The factor on each gradient, and the statistics after this step."""
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


@dataclass(frozen=True)
class ZClip(AdaptiveClip):
    """Clip the global norm when it is more than `z` standard deviations above its mean.

        guard = headway.Guard(model, optimizer, max_norm=headway.ZClip())

    A norm with z-score s is reduced to mean + z² · deviation / s. Mean and variance are running
    statistics of the clipped norms; the first `warmup` steps only measure. `max_norm`, if given, is
    a fixed limit on top, from the first step on. Kumar et al., "ZClip: Adaptive Spike Mitigation
    for LLM Pre-Training", arXiv 2504.02507.
    """

    z: float = 2.5
    alpha: float = 0.97
    """Weight of the past in the running mean and variance."""
    warmup: int = 25
    max_norm: float | None = None

    per_tensor: ClassVar[bool] = False
    fresh: ClassVar[Mapping[str, float]] = {"seen": 0.0, "mean": 0.0, "variance": 0.0}

    def __post_init__(self) -> None:
        self._demand("a positive number", is_positive, "z")
        self._demand("at least 0 and less than 1", is_share, "alpha")
        self._demand("a number of steps, at least 1", is_count, "warmup")
        if self.max_norm is not None:
            self._demand("a positive number, or None", is_positive, "max_norm")

    def __call__(self, past: ClipState, norms: GradientNorms) -> tuple[Tensor, ClipState]:
        """The factor on all gradients, and the statistics after this step."""
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
