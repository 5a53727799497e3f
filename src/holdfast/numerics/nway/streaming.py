"""The cross entropy along lines, block by block of rows, with its gradient in the same pass.

A block holds whole rows, so its softmax is complete: the gradient with respect to its logits is
known as soon as the logits are, and is turned into gradients of the row and column tensors at once.
Nothing of a block is kept and nothing is computed twice. Backward multiplies by a number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.numerics.nway.applied import applied
from holdfast.numerics.nway.gram import gram_entropy
from holdfast.numerics.nway.lines import GramLine, Line, TileLine
from holdfast.numerics.nway.tiles import tile_entropy


class _GramEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        line: GramLine,
        options: dict[str, Any],
        scale: Tensor,
        *tensors: Tensor | None,
    ) -> Tensor:
        X, Y, col, row, own = tensors
        assert X is not None
        assert Y is not None
        value, grads = gram_entropy(
            GramLine(X, Y, col, row, line.sign, own),
            scale,
            needs=ctx.needs_input_grad[2:],
            **options,
        )
        ctx.save_for_backward(*grads)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        return None, None, *(_times(grad, upstream) for grad in ctx.saved_tensors)


class _TileEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, line: TileLine, options: dict[str, Any], scale: Tensor, *tensors: Any
    ) -> Tensor:
        own, *rest = tensors
        cut = len(line.rows)
        here = TileLine(rest[:cut], rest[cut:], line.tile, line.depth, own)
        options = {name: options[name] for name in ("gain", "offset", "block", "wanted")}
        value, grads = tile_entropy(here, scale, needs=ctx.needs_input_grad[2:], **options)
        ctx.save_for_backward(*grads)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        return None, None, *(_times(grad, upstream) for grad in ctx.saved_tensors)


def _times(grad: Tensor | None, upstream: Tensor) -> Tensor | None:
    return None if grad is None else grad * upstream.to(grad.dtype)


def cross_entropy_along(
    line: Line,
    scale: Tensor,
    *,
    gain: Tensor,
    offset: int = 0,
    block: int | None = None,
    operands: torch.dtype | None = None,
    fuse: bool = False,
) -> Tensor:
    """Σ_i [logsumexp_j(scale·logit_ij) − scale·logit_ii]; row i belongs to column offset + i.

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
    if isinstance(line, GramLine):
        return applied(
            _GramEntropy, line, options, scale, line.X, line.Y, line.col, line.row, line.own
        )
    return applied(_TileEntropy, line, options, scale, line.own, *line.rows, *line.cols)
