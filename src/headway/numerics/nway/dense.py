"""Soft targets and masks: every tuple counts, so all B^N logits are needed.

The logits are made in blocks of tuples, and made again in backward, so that no tensor of B^N × D
exists. What must be held is a few tensors of B^N; beyond a limit that is refused, not tried.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headway.numerics.nway._shared import apply_function, room, widest
from headway.numerics.nway.scores import axis_weights, tuple_scores

LIMIT = 4 << 30
"""Bytes: 4 GiB."""
HELD = 5
"""Tensors of B^N held at once: logits, their gradient, one softmax and what making it takes."""


def dense_cross_entropy(
    score: str,
    features: list[Tensor],
    scale: Tensor,
    *,
    shift: Tensor,
    common: Tensor | None,
    targets: Tensor | None,
    mask: Tensor | None,
    axes: str,
    limit: int,
) -> Tensor:
    """The weighted sum over axes of the cross entropy with these targets, over all positions."""
    batch, count = features[0].shape[0], len(features)
    shape = (batch,) * count
    for name, tensor in (("targets", targets), ("mask", mask)):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, not {shape}")
    needed = batch**count * features[0].element_size() * HELD
    if needed > limit:
        raise ValueError(
            f"dense targets or masks for {count} modalities of {batch} samples need all "
            f"{batch}^{count} = {batch**count:,} logits: about {needed:,} bytes "
            f"({needed / 2**30:,.1f} GiB), and the limit is {limit:,} ({limit / 2**30:,.1f} GiB). "
            "Take fewer samples, or one-hot targets (no `targets`, no `mask`), which need "
            f"{batch + count * batch * (batch - 1):,} logits"
        )
    logits = apply_function(_DenseScores, score, common, *features).view(shape) * scale + shift
    if mask is not None:
        if mask.dtype == torch.bool:
            logits = logits.masked_fill(~mask.to(logits.device), -torch.inf)
        else:
            logits = logits * mask.to(logits)
    if targets is None:
        targets = logits.new_zeros(shape)
        index = torch.arange(batch, device=logits.device)
        targets[(index,) * count] = 1.0
    return apply_function(
        _SoftEntropy, logits, targets.detach().to(logits), axis_weights(count, axes)
    )


def _blocks(features: tuple[Tensor, ...]) -> list[slice]:
    batch, count = features[0].shape[0], len(features)
    step = max(room(features[0]) // (features[0].shape[1] * (count + 4)), 16)
    total = batch**count
    return [slice(at, min(at + step, total)) for at in range(0, total, step)]


def _indices(span: slice, batch: int, count: int, device: torch.device) -> list[Tensor]:
    """Which row of each modality the tuples with these numbers take; the last varies fastest."""
    number = torch.arange(span.start, span.stop, device=device)
    return [number // batch ** (count - 1 - k) % batch for k in range(count)]


class _DenseScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score: str, common: Tensor | None, *features: Tensor) -> Tensor:
        ctx.score, ctx.common = score, common
        ctx.save_for_backward(*features)
        batch, count = features[0].shape[0], len(features)
        out = features[0].new_empty(batch**count)
        for span in _blocks(features):
            at = _indices(span, batch, count, out.device)
            out[span] = tuple_scores(score, [f[i] for f, i in zip(features, at, strict=True)])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        features = ctx.saved_tensors
        if ctx.common is not None:
            upstream = upstream / ctx.common  # see features.shrunk
        batch, count = features[0].shape[0], len(features)
        grads = [torch.zeros_like(f) for f in features]
        for span in _blocks(features):
            at = _indices(span, batch, count, upstream.device)
            with torch.enable_grad():
                leaves = [f[i].detach().requires_grad_() for f, i in zip(features, at, strict=True)]
                out = tuple_scores(ctx.score, leaves)
            found = torch.autograd.grad(out, leaves, upstream[span])
            for grad, i, part in zip(grads, at, found, strict=True):
                grad.index_add_(0, i, part)
        return None, None, *grads


class _SoftEntropy(torch.autograd.Function):
    """The gradient with respect to the logits is made on the way, one axis after the other."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, weights: list[float]) -> Tensor:
        sums = widest(logits.device)
        value = torch.zeros((), dtype=sums, device=logits.device)
        grad = torch.zeros_like(logits)
        for axis, weight in enumerate(weights):
            logp = torch.log_softmax(logits, dim=axis)
            # A line without any target has no loss, even if the mask leaves nothing of it.
            mass = targets.sum(axis, keepdim=True)
            wanted = torch.where(targets != 0, targets * logp, 0.0)
            value -= weight * wanted.sum(dtype=sums)
            p = logp.exp_()
            grad += weight * torch.where(mass != 0, p * mass - targets, 0.0)
        ctx.save_for_backward(grad)
        return value.to(logits.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * upstream, None, None
