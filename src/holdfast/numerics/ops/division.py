"""Division that says what a quotient without a divisor is."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.eps import eps_for
from holdfast.numerics.ops._look import holds, may_look, wide


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

    NaN in either, and infinity in the numerator, is not hidden where the denominator is not zero.
    """
    a, b = _pair(numerator, denominator)
    dtype = torch.result_type(a, b)
    least = eps_for(dtype) if eps is None else eps
    if may_look(a) and may_look(b) and a.dtype == b.dtype == wide(a).dtype:
        smallest = b.detach().abs().amin()
        if holds(smallest >= least):
            quotient = a / b
            low, high = torch.aminmax(quotient.detach())
            largest = torch.maximum(high, -low)
            if holds(largest / smallest <= torch.finfo(dtype).max):
                return quotient
    a, b = torch.broadcast_tensors(a.to(dtype), b.to(dtype))
    result: Tensor = _Divide.apply(wide(a), wide(b), fill, least, torch.finfo(dtype).max)  # type: ignore[no-untyped-call]
    return result.to(dtype)


def _pair(numerator: Tensor | float, denominator: Tensor | float) -> tuple[Tensor, Tensor]:
    """Both as floating-point tensors on the same device."""
    known = numerator if isinstance(numerator, Tensor) else denominator
    if not isinstance(known, Tensor):
        return torch.tensor(float(numerator)), torch.tensor(float(denominator))
    dtype = known.dtype if known.is_floating_point() else torch.get_default_dtype()
    a, b = (
        item if isinstance(item, Tensor) else torch.tensor(item, dtype=dtype, device=known.device)
        for item in (numerator, denominator)
    )
    if not (a.is_floating_point() or b.is_floating_point()):
        a = a.to(dtype)
    return a, b


class _Divide(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, fill: float, eps: float, largest: float) -> Tensor:
        quotient = a / b
        # An infinite numerator is somebody's mistake and stays to be seen.
        saturated = torch.where(a.isinf(), quotient, quotient.clamp(-largest, largest))
        return torch.where(b.abs() < eps, fill, saturated)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        a, b, _, ctx.eps, ctx.largest = inputs
        ctx.save_for_backward(a, b)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        a, b = ctx.saved_tensors
        near = b.abs() < ctx.eps
        safe = torch.where(near, 1.0, b)
        quotient = a / safe
        flat = near | ((quotient.abs() > ctx.largest) & ~a.isinf())
        slope = torch.where(flat, 0.0, quotient) / safe
        most = torch.finfo(slope.dtype).max
        to_a = torch.where(flat, 0.0, gradient / safe)
        return to_a, -gradient * slope.clamp(-most, most), None, None, None
