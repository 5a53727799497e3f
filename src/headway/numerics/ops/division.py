"""Division that says what a quotient without a divisor is."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics.eps import eps_for
from headway.numerics.ops import _kernels
from headway.numerics.ops._fused import again, can_fuse, must_be_plain
from headway.numerics.ops._look import common_dtype, holds, may_look, wide


def divide(
    numerator: Tensor | float,
    denominator: Tensor | float,
    *,
    fill: float = 0.0,
    eps: float | None = None,
) -> Tensor:
    """numerator / denominator; `fill` with gradient 0 where the denominator is nearly zero.

    Exact, gradient included, wherever the denominator is at least eps from zero, by default the
    smallest normal number of the dtype, and the quotient fits the dtype. Bent elsewhere:

    - |denominator| < eps: the value is `fill`, whatever the numerator, and both gradients are 0.
    - a quotient too large for the dtype becomes its largest finite number, with its sign and with
      gradient 0; where only the slope to the denominator is too large, that slope is cut to the
      largest finite number.

    NaN stays NaN where the denominator is not nearly zero. An infinite numerator gives the largest
    finite number, too.
    """
    a, b = _pair(numerator, denominator)
    dtype = common_dtype(a, b)
    least = eps_for(dtype) if eps is None else float(eps)
    if can_fuse(a, b):
        fused: Tensor = _FusedDivide.apply(a.to(dtype), b.to(dtype), float(fill), least)  # type: ignore[no-untyped-call]
        return fused
    if may_look(a) and may_look(b) and a.dtype == b.dtype == wide(a).dtype:
        smallest = b.detach().abs().amin()
        if holds(smallest >= least):
            quotient: Tensor = a / b
            low, high = torch.aminmax(quotient.detach())
            largest = torch.maximum(high, -low)
            if holds(largest / smallest <= torch.finfo(dtype).max):
                return quotient
    return _without_looking(a.to(dtype), b.to(dtype), fill, least)


def _without_looking(a: Tensor, b: Tensor, fill: float, eps: float) -> Tensor:
    dtype = a.dtype
    a, b = torch.broadcast_tensors(a, b)
    result, _ = _Divide.apply(wide(a), wide(b), fill, eps, torch.finfo(dtype).max)  # type: ignore[no-untyped-call]
    filled: Tensor = result.to(dtype)
    return filled


def _pair(numerator: Tensor | float, denominator: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both as floating-point tensors on the same device."""
    known = numerator if isinstance(numerator, Tensor) else denominator
    if not isinstance(known, Tensor):
        return torch.tensor(float(numerator)), torch.tensor(float(denominator))
    dtype = known.dtype if known.is_floating_point() else torch.get_default_dtype()
    a, b = (
        # Filled on the device: a copy to it would make the host wait.
        item if isinstance(item, Tensor) else torch.full((), item, dtype=dtype, device=known.device)
        for item in (numerator, denominator)
    )
    if not (a.is_floating_point() or b.is_floating_point()):
        a = a.to(dtype)
    return a, b


class _Divide(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        a: Tensor, b: Tensor, fill: float, eps: float, largest: float
    ) -> tuple[Tensor, Tensor]:
        near = b.abs() < eps
        # Where the divisor is infinite both gradients vanish, and nobody has to ask again.
        divisor = b.masked_fill(near, torch.inf)
        quotient = a / divisor
        divisor = divisor.masked_fill_(quotient.abs() > largest, torch.inf)
        quotient = quotient.clamp(-largest, largest)
        return (quotient.masked_fill_(near, fill), divisor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, b, _, _, ctx.largest = inputs
        quotient, divisor = output
        ctx.mark_non_differentiable(divisor)
        ctx.save_for_backward(b, quotient, divisor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor, Tensor, None, None, None]:
        b, quotient, divisor = ctx.saved_tensors
        if torch.is_grad_enabled():  # the divisor is no input: a second gradient goes through b
            divisor = torch.where(divisor.isinf(), divisor, b)
        slope = (quotient / divisor).clamp(-ctx.largest, ctx.largest)
        return gradient / divisor, -gradient * slope, None, None, None


class _FusedDivide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, fill: float, eps: float) -> Tensor:
        ctx.eps, ctx.largest = eps, torch.finfo(a.dtype).max
        ctx.save_for_backward(a, b)
        value: Tensor = _kernels.quotient(a, b, fill=fill, eps=eps, largest=ctx.largest)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        if must_be_plain(gradient):
            plain = partial(_without_looking, fill=0.0, eps=ctx.eps)
            return *again(plain, gradient, a, b), None, None
        to_a, to_b = _kernels.quotient_backward(gradient, a, b, eps=ctx.eps, largest=ctx.largest)
        return to_a, to_b, None, None
