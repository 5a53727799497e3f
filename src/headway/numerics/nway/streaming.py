"""The N-way loss computed densely, or in tiles of bounded memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headway.numerics.nway.features import (
    NOISE,
    GramLines,
    Line,
    TileLine,
    apply_function,
    room,
    widest,
)
from headway.numerics.nway.gram import RowNumbers, gram_entropy, stream, weighted
from headway.numerics.nway.score_tiles import tile_entropy
from headway.numerics.nway.scores import Form, axis_weights, form_of, tuple_scores
from headway.numerics.nway.triton_launch import (
    WIDEST_ROW,
    can_fuse_rests,
    fused_rests,
    fused_rests_backward,
)

# Soft targets and masks: every tuple counts, so all B^N logits are needed.

# The logits are computed in blocks of tuples, and computed again in backward, so that no tensor of
# B^N × D exists. A few tensors of B^N must be in memory; beyond a limit the call raises.

LIMIT = 4 << 30
"""Bytes: 4 GiB."""
HELD = 5
"""Tensors of B^N in memory at once: logits, their gradient, one softmax and its intermediates."""


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
    """The row of each modality in the tuples with these numbers; the last varies fastest."""
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
    """Computes the gradient with respect to the logits as well, one axis after the other."""

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


# The cross entropy along lines, block by block, with its gradient in the same pass; and a shortcut
# for norm and variance on a GPU.

# The cross entropy along lines, block by block of rows, with its gradient in the same pass.

# A block holds whole rows, so its softmax is complete: the gradient with respect to its logits is
# known as soon as the logits are, and is converted to gradients of the row and column tensors at
# once. Nothing of a block is kept and nothing is computed twice. Backward multiplies by a number.


class _GramEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        lines: GramLines,
        options: dict[str, Any],
        scale: Tensor,
        X: Tensor,
        Y: Tensor,
        row: Tensor | None,
        own: Tensor | None,
    ) -> Tensor:
        value, grads, ctx.factors = gram_entropy(
            replace(lines, X=X, Y=Y, row=row, own=own),
            scale,
            needs=ctx.needs_input_grad[2:],
            **options,
        )
        ctx.save_for_backward(*grads)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        grads = []
        for grad, factor in zip(ctx.saved_tensors, ctx.factors, strict=True):
            times = upstream if factor is None else factor * upstream
            grads.append(None if grad is None else grad * times.to(grad.dtype))
        return None, None, *grads


class _TileEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, line: TileLine, options: dict[str, Any], scale: Tensor, *tensors: Any
    ) -> Tensor:
        own, *rest = tensors
        cut = len(line.rows)
        here = replace(line, rows=rest[:cut], cols=rest[cut:], own=own)
        options = {name: options[name] for name in ("gain", "offset", "block", "wanted")}
        value, grads = tile_entropy(here, scale, needs=ctx.needs_input_grad[2:], **options)
        ctx.save_for_backward(*grads)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        return (
            None,
            None,
            *(
                None if grad is None else grad * upstream.to(grad.dtype)
                for grad in ctx.saved_tensors
            ),
        )


def cross_entropy_along(
    line: Line,
    scale: Tensor,
    *,
    gain: Tensor,
    offset: int = 0,
    block: int | None = None,
    operands: torch.dtype | None = None,
    fuse: bool = True,
) -> Tensor:
    """Σ_i [logsumexp_j(scale·logit_ij) − scale·logit_ii], weighted; row i belongs to column
    offset + i.

    Gradients of all but the scale are multiplied by `gain` in its stead.
    """
    options = {
        "gain": gain,
        "offset": offset,
        "block": block,
        "wanted": torch.is_grad_enabled(),
        "operands": operands,
        "fuse": fuse,
    }
    if isinstance(line, GramLines):
        return apply_function(
            _GramEntropy, line, options, scale, line.X, line.Y, line.row, line.own
        )
    value = apply_function(_TileEntropy, line, options, scale, line.own, *line.rows, *line.cols)
    return value * line.weight


# Norm and variance of unit rows on a GPU: from features to their gradients in a handful of calls.

# It is `gram` with what comes before and after it, normalisation included, in a kernel each. For
# small batches the time is that of the calls; in bfloat16 that of reading and writing.


def sums_form(score: str, features: list[Tensor], dtype: torch.dtype) -> Form | None:
    """The form of the score, if the shortcut applies to these features."""
    first = features[0]
    if any(f.dtype != first.dtype for f in features) or not 0 < first.shape[1] <= WIDEST_ROW:
        return None
    return form_of(score, len(features)) if can_fuse_rests(first, dtype) else None


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        form: Form,
        weights: list[float],
        block: int | None,
        narrow: torch.dtype,
        wanted: bool,
        scale: Tensor,
        *features: Tensor,
    ) -> Tensor:
        x = torch.stack(features)
        operands, numbers = fused_rests(
            x,
            narrow,
            cross=form.cross,
            x_squares=form.x_squares,
            y_squares=form.y_squares,
            noise=NOISE * torch.finfo(torch.float32).eps,
            # The inverse of the least root must exist in the type of the matrix products.
            floor=1e-4 if narrow == torch.float16 else 0.0,
        )
        col, row, least = numbers[0], numbers[1], numbers[2]
        wanted = wanted and any(ctx.needs_input_grad)
        losses, row_sum = torch.empty((2, *row.shape), dtype=row.dtype, device=row.device)
        slope = torch.empty_like(losses) if wanted and ctx.needs_input_grad[5] else None
        gX, gY = stream(
            operands[0],
            operands[1],
            col,
            RowNumbers(row, least, None, losses, slope, row_sum, None),
            scale,
            sign=form.sign,
            offset=0,
            block=block,
            wanted=wanted,
            fuse=True,
        )
        if wanted:
            ctx.form, ctx.weights = form, weights
            gscale = None if slope is None else weighted(slope, weights)
            by_row = None if form.sign is None else row_sum
            ctx.save_for_backward(x, gX, gY, numbers, by_row, scale, gscale)
        return weighted(losses, weights).to(row.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        *saved, gscale = ctx.saved_tensors
        grads: list[Tensor | None] = [None] * len(saved[0])
        if any(ctx.needs_input_grad[6:]):
            half = (ctx.form.sign or 2) / 2  # that of a root
            out = fused_rests_backward(
                *saved,
                upstream,
                cross=ctx.form.cross,
                x_squares=ctx.form.x_squares,
                weights=[weight * half for weight in ctx.weights],
            )
            grads = list(out.unbind(0))
        by_scale = None if gscale is None else (gscale * upstream).to(upstream.dtype)
        return None, None, None, None, None, by_scale, *grads


def sums_entropy(
    form: Form,
    features: list[Tensor],
    scale: Tensor,
    *,
    weights: list[float],
    block: int | None,
    operands: torch.dtype | None,
) -> Tensor:
    """The weighted sum of the cross entropies along all axes; `scale` in float32. All weights but
    the second are the same.
    """
    wanted = torch.is_grad_enabled()
    narrow = operands or torch.float32
    return apply_function(_Sums, form, weights, block, narrow, wanted, scale, *features)
