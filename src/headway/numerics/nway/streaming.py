"""The cross entropy along lines, block by block of rows, with its gradient in the same pass.

A block holds whole rows, so its softmax is complete: the gradient with respect to its logits is
known as soon as the logits are, and is turned into gradients of the row and column tensors at once.
Nothing of a block is kept and nothing is computed twice. Backward multiplies by a number.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headway.numerics.nway.applied import applied
from headway.numerics.nway.gram import gram_entropy
from headway.numerics.nway.lines import GramLines, Line, TileLine
from headway.numerics.nway.tiles import tile_entropy


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
        return applied(_GramEntropy, line, options, scale, line.X, line.Y, line.row, line.own)
    value = applied(_TileEntropy, line, options, scale, line.own, *line.rows, *line.cols)
    return value * line.weight
