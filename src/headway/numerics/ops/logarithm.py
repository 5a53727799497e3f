"""The logarithm, with a floor."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headway.numerics.eps import eps_for
from headway.numerics.ops import _kernels
from headway.numerics.ops._fused import applied, can_fuse, must_be_plain
from headway.numerics.ops._look import floating, holds, may_look


def log(x: Tensor, eps: float | None = None) -> Tensor:
    """The natural logarithm of max(x, eps).

    Exact, gradient included, for every x above eps, by default the smallest normal number of the
    dtype. Bent from there down, zero and negative numbers included: the value is log(eps) and the
    gradient 0 (float64 -708.4, float32 and bfloat16 -87.3, float16 -9.7). NaN stays NaN.
    """
    x = floating(x)
    floor = eps_for(x.dtype) if eps is None else float(eps)
    if can_fuse(x):
        return _fused_log(x, floor)
    if may_look(x) and holds(x.detach().amin() > floor):
        return torch.log(x)
    result: Tensor = _Log.apply(x, floor)  # type: ignore[no-untyped-call]
    return result


class _Log(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, floor: float) -> Tensor:
        return x.clamp_min(floor).log_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.floor = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        # Below the floor the divisor is infinite, and the gradient zero.
        above = torch.nn.functional.threshold(x, ctx.floor, math.inf)
        return gradient / above, None


class _FusedLog(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, floor: float) -> Tensor:
        ctx.floor = floor
        ctx.save_for_backward(x)
        value: Tensor = _kernels.logarithm(x, floor=floor)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if must_be_plain(gradient):
            return _Log.backward(ctx, gradient)
        (x,) = ctx.saved_tensors
        return _kernels.logarithm_backward(gradient, x, floor=ctx.floor), None


_fused_log = applied(_FusedLog)
