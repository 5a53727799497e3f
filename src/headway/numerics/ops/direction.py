"""Rows of length one."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics.eps import eps_for
from headway.numerics.ops import _kernels
from headway.numerics.ops._fused import again, can_fuse, must_be_plain
from headway.numerics.ops._look import holds, is_half, may_look, wide
from headway.numerics.ops._row_norm import fused_row_norm, row_norm, trusted


def normalize(x: Tensor, dim: int = -1, eps: float | None = None) -> Tensor:
    """Each row divided by its Euclidean norm; a row of zeros stays zero, with gradient 0.

    Exact for every row whose norm is at least eps, by default the smallest normal number of the
    dtype, and fits the dtype: a row of 1e-30 has length one afterwards, and so has a row of 1e30.
    Bent below eps: such a row counts as zero, value and gradient. (`torch.nn.functional.normalize`
    divides by at least 1e-12: shorter rows stay short, and a row of zeros has a gradient of 1e12.)
    A row whose norm is too large for the dtype it is computed in gives 0, with gradient 0. A row
    with NaN or infinity gives NaN.
    """
    least = eps_for(x.dtype) if eps is None else float(eps)
    if can_fuse(x):
        fused: Tensor = _FusedNormalize.apply(x, dim, least)  # type: ignore[no-untyped-call]
        return fused
    inside = wide(x)
    if may_look(x):
        length: Tensor = torch.linalg.vector_norm(inside, dim=dim, keepdim=True)
        known = length.detach()
        if holds((trusted(known) & (known >= least)).all()):
            return (inside / length).to(x.dtype)
    return _without_looking(x, dim, least)


def _without_looking(x: Tensor, dim: int, eps: float) -> Tensor:
    unit, _ = _Normalize.apply(wide(x), dim, eps)  # type: ignore[no-untyped-call]
    result: Tensor = unit.to(x.dtype)
    return result


class _Normalize(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, eps: float) -> tuple[Tensor, Tensor]:
        length = row_norm(x, dim)
        divisor = torch.where(length < eps, torch.inf, length)
        return x / divisor, divisor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, ctx.dim, ctx.eps = inputs
        unit, divisor = output
        ctx.mark_non_differentiable(divisor)
        ctx.save_for_backward(x, unit, divisor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, None, None]:
        x, unit, divisor = ctx.saved_tensors
        if torch.is_grad_enabled():  # the divisor is no input: a second gradient goes through x
            length = torch.linalg.vector_norm(x, dim=ctx.dim, keepdim=True)
            divisor = torch.where(trusted(length) & (length >= ctx.eps), length, divisor)
        along = (gradient * unit).sum(ctx.dim, keepdim=True)
        return torch.addcmul(gradient, unit, along, value=-1) / divisor, None, None


class _FusedNormalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, eps: float) -> Tensor:
        ctx.dim, ctx.eps = dim, eps
        length = fused_row_norm(x, dim, torch.inf)
        unit: Tensor
        if is_half(x):  # divided by float32, and rounded as it is written
            divisor = _kernels.divisor(length, eps=eps, infinite=torch.inf)
            unit = torch.div(x, divisor, out=torch.empty_like(x))
            ctx.save_for_backward(x, length, unit)
        else:
            unit = _kernels.unit(x, length, eps=eps)
            ctx.save_for_backward(x, length)
        return unit

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, length, *unit = ctx.saved_tensors
        if must_be_plain(gradient):
            plain = partial(_without_looking, dim=ctx.dim, eps=ctx.eps)
            return *again(plain, gradient, x), None, None
        if unit:
            parts = gradient * unit[0]
        else:
            parts = _kernels.unit_along(gradient, x, length, eps=ctx.eps)
        along = parts.sum(ctx.dim, keepdim=True, dtype=length.dtype)
        return _kernels.unit_backward(gradient, x, length, along, eps=ctx.eps), None, None
