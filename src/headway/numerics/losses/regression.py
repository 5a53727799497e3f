"""Regression losses, their scales, and the sum of several losses."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import reduce
from operator import add
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.numerics.ops._shared import wide

# Reductions whose mean over nothing is 0.

Reduction = Literal["mean", "sum", "none"]


def reduce_loss(values: Tensor, reduction: Reduction, mask: Tensor | None = None) -> Tensor:
    """The values under a reduction; those where the mask is false count for nothing."""
    if mask is not None:
        mask = mask.expand_as(values)
        values = torch.where(mask, values, 0.0)
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if reduction == "mean":
        if mask is None:
            return values.mean() if values.numel() else values.sum()
        return values.sum() / mask.sum().clamp_min(1)
    raise ValueError(f"reduction is {reduction!r}: it is one of 'mean', 'sum' and 'none'")


def same_shape(prediction: Tensor, target: Tensor) -> None:
    """Broadcasting (N,) against (N, 1) gives N x N differences and no error: refuse it."""
    if prediction.shape != target.shape:
        raise ValueError(
            f"prediction has shape {tuple(prediction.shape)} and target {tuple(target.shape)}: "
            "they must be the same"
        )


# Several losses combined: names, weights, and which component is not finite.

OnNonFinite = Literal["raise", "leave out", "keep"]


class NonFiniteLoss(ArithmeticError):
    """A component of the loss is NaN or infinite; `names` says which."""

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names


class LossCombiner:
    """The weighted sum of named losses.

        combine = LossCombiner(box=7.5, dfl=1.5)  # others have weight 1
        total = combine(box=l1, dfl=l2)
        guard.backward(total, **combine.last)  # or total.backward()

    `on_nonfinite` sets what happens to a component that is NaN or infinite:

    - "raise" (the default): `NonFiniteLoss`, with the names.
    - "leave out": the total is that of the others, `left_out` counts by name, and the first
      time of each name is a warning. Backward does not run through it. If no component is left, it
      raises. With several ranks, one may leave out what another keeps, and DistributedDataParallel
      then waits for gradients forever: use "keep", and the guard skips the step on all ranks.
    - "keep": it is part of the total; the guard skips the step and names the component. Nothing
      waits for the device. The other two read one small tensor per call.

    `last` holds the values of the last call, unweighted and detached, left-out ones included.
    """

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        *,
        on_nonfinite: OnNonFinite = "raise",
        **more: float,
    ) -> None:
        if on_nonfinite not in ("raise", "leave out", "keep"):
            raise ValueError(
                f"on_nonfinite is {on_nonfinite!r}: it is one of 'raise', 'leave out' and 'keep'"
            )
        self.weights = {**(weights or {}), **more}
        self.on_nonfinite = on_nonfinite
        self.last: dict[str, Tensor] = {}
        self.left_out: Counter[str] = Counter()

    def __call__(self, **components: Tensor) -> Tensor:
        """The total of the components, which are one number each."""
        if not components:
            raise ValueError("no components: nothing to combine")
        for name, value in components.items():
            if value.numel() != 1:
                raise ValueError(
                    f"component {name!r} has shape {tuple(value.shape)}: give its mean or sum"
                )
        self.last = {name: value.detach().reshape(()) for name, value in components.items()}
        used = self._usable(components)
        return reduce(add, (self._weighed(name, value) for name, value in used.items()))

    def gradient_shares(
        self, at: Tensor | Iterable[Tensor], **components: Tensor
    ) -> dict[str, float]:
        """How much of the gradient at some tensors each weighted component makes: 0 to 1.

        `at` are parameters, or an activation all components come from: the output of the trunk is
        cheap and usually enough. Shares are of the sum of the components' gradient norms; they are
        all 0 where no gradient arrives. The graph is kept: call it before `backward`. Costs a
        backward pass to `at` for each component, so ask now and then.
        """
        tensors = [at] if isinstance(at, Tensor) else list(at)
        norms = []
        for name, value in components.items():
            found: tuple[Tensor | None, ...] = (None,)
            if value.requires_grad:
                found = torch.autograd.grad(
                    self._weighed(name, value), tensors, retain_graph=True, allow_unused=True
                )
            parts = [torch.linalg.vector_norm(item.float()) for item in found if item is not None]
            norm = torch.stack(parts).norm() if parts else value.new_zeros((), dtype=torch.float32)
            norms.append(norm)
        shares = torch.stack(norms)
        total = shares.sum()
        return dict(
            zip(components, (shares / torch.where(total == 0, 1.0, total)).tolist(), strict=True)
        )

    def _weighed(self, name: str, value: Tensor) -> Tensor:
        weight = self.weights.get(name, 1.0)
        value = value.reshape(())
        return value if weight == 1.0 else value * weight

    def _usable(self, components: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.on_nonfinite == "keep":
            return components
        flags = torch.stack([value.isfinite() for value in self.last.values()]).tolist()
        bad = [name for name, fine in zip(components, flags, strict=True) if not fine]
        if not bad:
            return components
        values = ", ".join(f"{name} = {self.last[name].item()}" for name in bad)
        if self.on_nonfinite == "raise":
            raise NonFiniteLoss(f"non-finite components: {values}", bad)
        if len(bad) == len(components):
            raise NonFiniteLoss(f"all components are non-finite: {values}", bad)
        new = [name for name in bad if not self.left_out[name]]
        self.left_out.update(bad)
        if new:
            warnings.warn(
                f"non-finite components left out of the loss: {values}; later ones are only "
                "counted in left_out",
                stacklevel=3,
            )
        return {name: value for name, value in components.items() if name not in bad}


# Squared and Huber errors over latents, and the scale of both sides.


class Scales:
    """The scale of predictions and targets of a loss over latents; the loss fills it, you read it.

        scales = Scales()
        loss = mse(prediction, latent, scales=scales)
        scales.read()  # {"prediction": 0.98, "target": 4.1, "error": 3.9, "ratio": 0.24}

    Root mean squares. A ratio far from 1 means that predictions and targets have different scales.
    Fix that where the latents are computed; a loss that normalises them silently optimises
    something else. Filling does not wait for the device; `read` does.
    """

    def __init__(self) -> None:
        self._last: Tensor | None = None

    @torch.no_grad()
    def fill(self, prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> None:
        """Take the sizes of a prediction and its target."""
        sides = (prediction, target, wide(prediction) - wide(target))
        squares = [reduce_loss(wide(side).square(), "mean", mask) for side in sides]
        self._last = torch.stack(squares).sqrt()

    def read(self) -> dict[str, float]:
        """The sizes at the last loss; empty before the first."""
        if self._last is None:
            return {}
        prediction, target, error = self._last.tolist()
        ratio = prediction / target if target else float("inf") if prediction else 1.0
        return {"prediction": prediction, "target": target, "error": error, "ratio": ratio}


def mse(
    prediction: Tensor,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    scales: Scales | None = None,
) -> Tensor:
    """The mean squared error, in float32 for half inputs, over the elements the mask keeps.

    Neither limited nor normalised: an error whose square does not fit float32 (above 1.8e19) gives
    infinity. Shapes must be the same.
    """
    same_shape(prediction, target)
    if scales is not None:
        scales.fill(prediction, target, mask)
    ours, theirs = _kept(prediction, target, mask)
    return reduce_loss(F.mse_loss(ours, theirs, reduction="none"), reduction, mask)


def huber(
    prediction: Tensor,
    target: Tensor,
    *,
    delta: float = 1.0,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
    scales: Scales | None = None,
) -> Tensor:
    """The Huber error: quadratic up to delta, linear beyond; for latents with outliers.

    torch's own, in float32 for half inputs, over the elements the mask keeps. The gradient of an
    element is at most delta. Shapes must be the same.
    """
    same_shape(prediction, target)
    if scales is not None:
        scales.fill(prediction, target, mask)
    ours, theirs = _kept(prediction, target, mask)
    return reduce_loss(F.huber_loss(ours, theirs, reduction="none", delta=delta), reduction, mask)


def _kept(prediction: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Both, with zeros where masked: NaN there must not reach the gradient."""
    ours, theirs = wide(prediction), wide(target)
    if mask is None:
        return ours, theirs
    return torch.where(mask, ours, 0.0), torch.where(mask, theirs, 0.0)
