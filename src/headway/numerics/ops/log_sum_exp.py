"""The logarithm of a sum of exponentials."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._fused import again, can_fuse, must_be_plain
from headway.numerics.ops._look import holds, is_half, may_look, wide


def logsumexp(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) along a dimension, with a gradient also where every entry is -inf.

    Exact for every row with an entry above -inf. Bent where there is none, the empty row included:
    the sum is empty and its logarithm -inf; here it is the lowest finite number of the dtype, with
    gradient 0 (torch's gradient is NaN). +inf and NaN stay.
    """
    if can_fuse(x):
        fused: Tensor = _FusedLogSumExp.apply(x, dim, keepdim)  # type: ignore[no-untyped-call]
        return fused
    inside = wide(x)
    if may_look(x):
        plain = torch.logsumexp(inside, dim, keepdim=keepdim)
        if holds((plain.detach() > -torch.inf).all()):
            return plain.to(x.dtype)
    return _without_looking(x, dim, keepdim)


def _without_looking(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    total: Tensor = _LogSumExp.apply(wide(x), dim, torch.finfo(x.dtype).min)  # type: ignore[no-untyped-call]
    total = total.to(x.dtype)
    return total if keepdim else total.squeeze(dim)


class _LogSumExp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, lowest: float) -> Tensor:
        total = torch.logsumexp(x, dim, keepdim=True)
        return torch.where(total == -torch.inf, lowest, total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, total = ctx.saved_tensors
        # In a row without entries this is exp(-inf): zero.
        return gradient * (x - total).exp(), None, None


class _FusedLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        ctx.dim, ctx.keepdim = dim, keepdim
        lowest = torch.finfo(x.dtype).min
        if is_half(x):
            top = x.amax(dim, keepdim=True)
            found = _kernels.below(x, wide(top)).sum(dim, keepdim=True)
            total = _kernels.sum_below(found, top, lowest=lowest)
            ctx.save_for_backward(x, total, top)
        else:
            found = torch.logsumexp(x, dim, keepdim=True)
            total = _kernels.full_sum(found, empty=-torch.inf, lowest=lowest)
            ctx.save_for_backward(x, total)
        value: Tensor = total.to(x.dtype)
        return value if keepdim else value.squeeze(dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, total, *top = ctx.saved_tensors
        if must_be_plain(gradient):
            plain = partial(_without_looking, dim=ctx.dim, keepdim=ctx.keepdim)
            return *again(plain, gradient, x), None, None
        per_row = gradient.reshape(total.shape)
        if top:
            share = _kernels.top_share(per_row, *top, total).to(x.dtype)
            return _kernels.share_below(x, *top, share), None, None
        return _kernels.full_sum_backward(per_row, x, total), None, None
