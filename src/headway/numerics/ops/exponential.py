"""The exponential, with a ceiling."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._fused import applied, can_fuse, must_be_plain
from headway.numerics.ops._look import floating, holds, may_look


def exp(x: Tensor) -> Tensor:
    """The exponential; the largest finite number of the dtype where it would overflow.

    Exact, gradient included, wherever the result fits the dtype: below 709.7 in float64, 88.7 in
    float32 and bfloat16, 11.09 in float16. Bent above: the value stays at the largest finite number
    and the gradient is 0. An element up there no longer pulls; a loss that gets there should be
    written with `logsumexp` or `log_softmax` instead. NaN stays NaN.
    """
    x = floating(x)
    if can_fuse(x):
        return _fused_exp(x)
    if may_look(x) and holds(x.detach().amax() < math.floor(math.log(torch.finfo(x.dtype).max))):
        return torch.exp(x)
    result: Tensor = _Exp.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Exp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.exp().clamp_max_(torch.finfo(x.dtype).max)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (value,) = ctx.saved_tensors
        # One pass that lets through where the value lies strictly between the two bounds.
        below = torch.ops.aten.hardtanh_backward(
            gradient, value, -1.0, torch.finfo(value.dtype).max
        )
        slope: Tensor = below * value
        return slope


class _FusedExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.largest = torch.finfo(x.dtype).max
        value: Tensor = _kernels.exponential(x, largest=ctx.largest)
        ctx.save_for_backward(value)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if must_be_plain(gradient):
            return _Exp.backward(ctx, gradient)
        (value,) = ctx.saved_tensors
        slope: Tensor = _kernels.exponential_backward(gradient, value, largest=ctx.largest)
        return slope


_fused_exp = applied(_FusedExp)
