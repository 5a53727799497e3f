"""log, exp, sqrt and divide with finite values and gradients."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._kernels import (
    can_fuse,
    differentiate_plain_form,
    direct_apply,
    needs_plain_backward,
)
from headway.numerics.ops._shared import (
    can_read_condition,
    common_dtype,
    eps_for,
    floating,
    is_known_true,
    wide,
)

# Division with a defined result where the divisor is 0.


def divide(
    numerator: Tensor | float,
    denominator: Tensor | float,
    *,
    fill: float = 0.0,
    eps: float | None = None,
) -> Tensor:
    """numerator / denominator; `fill` with gradient 0 where the denominator is nearly zero.

    Exact, gradient included, wherever the denominator is at least eps from zero, by default the
    smallest normal number of the dtype, and the quotient fits the dtype. Elsewhere:

    - |denominator| < eps: the value is `fill` for every numerator, and both gradients are 0.
    - a quotient too large for the dtype becomes its largest finite number, with its sign and with
      gradient 0; where only the slope to the denominator is too large, that slope is limited to the
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
    if can_read_condition(a) and can_read_condition(b) and a.dtype == b.dtype == wide(a).dtype:
        smallest = b.detach().abs().amin()
        if is_known_true(smallest >= least):
            quotient: Tensor = a / b
            low, high = torch.aminmax(quotient.detach())
            largest = torch.maximum(high, -low)
            if is_known_true(largest / smallest <= torch.finfo(dtype).max):
                return quotient
    return _safe_divide(a.to(dtype), b.to(dtype), fill, least)


def _safe_divide(a: Tensor, b: Tensor, fill: float, eps: float) -> Tensor:
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
        # Where the divisor is infinite both gradients are 0, so no further condition is needed.
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
        if needs_plain_backward(gradient):
            plain = partial(_safe_divide, fill=0.0, eps=ctx.eps)
            return *differentiate_plain_form(plain, gradient, a, b), None, None
        to_a, to_b = _kernels.quotient_backward(gradient, a, b, eps=ctx.eps, largest=ctx.largest)
        return to_a, to_b, None, None


# The exponential, limited to the largest finite number.


def exp(x: Tensor) -> Tensor:
    """The exponential; the largest finite number of the dtype where it would overflow.

    Exact, gradient included, wherever the result fits the dtype: below 709.7 in float64, 88.7 in
    float32 and bfloat16, 11.09 in float16. Above that, the value is the largest finite number and
    the gradient is 0. Such an element no longer trains; a loss that reaches this range should use
    `logsumexp` or `log_softmax` instead. NaN stays NaN.
    """
    x = floating(x)
    if can_fuse(x):
        return _fused_exp(x)
    if can_read_condition(x) and is_known_true(
        x.detach().amax() < math.floor(math.log(torch.finfo(x.dtype).max))
    ):
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
        # One pass that passes the gradient where the value is strictly between the two bounds.
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
        if needs_plain_backward(gradient):
            return _Exp.backward(ctx, gradient)
        (value,) = ctx.saved_tensors
        slope: Tensor = _kernels.exponential_backward(gradient, value, largest=ctx.largest)
        return slope


_fused_exp = direct_apply(_FusedExp)


# The logarithm, with a floor.


def log(x: Tensor, eps: float | None = None) -> Tensor:
    """The natural logarithm of max(x, eps).

    Exact, gradient included, for every x above eps, by default the smallest normal number of the
    dtype. At or below eps, for zero and for negative numbers, the value is log(eps) and the
    gradient 0 (float64 -708.4, float32 and bfloat16 -87.3, float16 -9.7). NaN stays NaN.
    """
    x = floating(x)
    floor = eps_for(x.dtype) if eps is None else float(eps)
    if can_fuse(x):
        return _fused_log(x, floor)
    if can_read_condition(x) and is_known_true(x.detach().amin() > floor):
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
        if needs_plain_backward(gradient):
            return _Log.backward(ctx, gradient)
        (x,) = ctx.saved_tensors
        return _kernels.logarithm_backward(gradient, x, floor=ctx.floor), None


_fused_log = direct_apply(_FusedLog)


# The square root, with a gradient at zero.


def sqrt(x: Tensor) -> Tensor:
    """The square root; 0 with gradient 0 at zero and below.

    Exact, gradient included, for every positive number. At 0, where the slope is infinite, the
    gradient is 0. Negative numbers, mostly rounding noise around zero, count as 0. NaN stays
    NaN. Close to zero the slope is the exact one: up to 1e22 for the smallest float32.
    """
    x = floating(x)
    if can_fuse(x):
        return _fused_sqrt(x)
    if can_read_condition(x) and is_known_true(x.detach().amin() > 0):
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
        if needs_plain_backward(gradient):
            return _Sqrt.backward(ctx, gradient)
        slope: Tensor = _kernels.root_backward(gradient, *ctx.saved_tensors)
        return slope


_fused_sqrt = direct_apply(_FusedSqrt)
