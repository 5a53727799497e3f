"""The square root, with a gradient at zero."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._fused import applied, can_fuse, must_be_plain
from headway.numerics.ops._look import floating, holds, may_look


def sqrt(x: Tensor) -> Tensor:
    """The square root; 0 with gradient 0 at zero and below.

    Exact, gradient included, for every positive number. Bent at 0, where the slope is infinite: the
    gradient is 0 there. Negative numbers, mostly rounding noise around zero, count as 0. NaN stays
    NaN. Close to zero the slope is as steep as it truly is: up to 1e22 for the smallest float32.
    """
    x = floating(x)
    if can_fuse(x):
        return _fused_sqrt(x)
    if may_look(x) and holds(x.detach().amin() > 0):
        return torch.sqrt(x)
    result: Tensor = _Sqrt.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Sqrt(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clamp_min(0).sqrt_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (root,) = ctx.saved_tensors
        # Half the gradient over the root in one pass; then zero wherever the root is zero.
        steep = torch.addcdiv(root.new_zeros(()), gradient, root, value=0.5)
        kept: Tensor = torch.ops.aten.threshold_backward(steep, root, 0)
        return kept


class _FusedSqrt(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        root: Tensor = _kernels.root(x)
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if must_be_plain(gradient):
            return _Sqrt.backward(ctx, gradient)
        slope: Tensor = _kernels.root_backward(gradient, *ctx.saved_tensors)
        return slope


_fused_sqrt = applied(_FusedSqrt)
