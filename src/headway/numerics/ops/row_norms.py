"""Norms of rows whose squares may not fit the dtype: norm, normalize, cosine_similarity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._kernels import can_fuse, differentiate_plain_form, needs_plain_backward
from headway.numerics.ops._shared import (
    can_read_condition,
    common_dtype,
    eps_for,
    is_half,
    is_known_true,
    wide,
    wide_dtype,
)

# The Euclidean norm of rows whose squares may not fit the dtype.

_LOW = {torch.float32: 2.0**-50, torch.float64: 2.0**-480}
"""A norm above this has lost nothing to squares that were too small."""


def is_accurate(norm: Tensor) -> Tensor:
    """Where a norm, or a spread, that torch computed directly is accurate."""
    return (norm > _LOW[norm.dtype]) & norm.isfinite()


def all_accurate(found: Tensor, dtype: torch.dtype, zero: Callable[[], Tensor]) -> bool:
    """Whether norms, or spreads, that torch computed directly are accurate.

    `zero` says which of them are truly zero: there torch's own gradient is zero, too. It is called
    only if some may be inaccurate otherwise.
    """
    fits = found <= torch.finfo(dtype).max
    if is_known_true((is_accurate(found) & fits).all()):
        return True
    return is_known_true(((is_accurate(found) | ((found == 0) & zero())) & fits).all())


def row_norm(x: Tensor, dim: int) -> Tensor:
    """The norm along a dimension, which is kept; torch's own bits where those are accurate."""
    plain = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    # Compiled for a GPU, float32 is read and added in float64 in one pass; a CPU is quicker with
    # two plain ones.
    wider = x.dtype == torch.float32 and x.device.type == "cuda"
    careful = in_double(x, dim) if wider else rescaled(x, dim)
    return torch.where(is_accurate(plain), plain, careful)


def in_double(x: Tensor, dim: int) -> Tensor:
    """The norm of float32 rows, whose squares all fit float64."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=torch.float64)
    return norm.float()


def fused_row_norm(x: Tensor, dim: int, largest: float) -> Tensor:
    """The same with kernels, for half types in float32; `largest` where it is larger than that."""
    # torch sums half types in float32 as it reads them: a copy of them would be one more pass.
    norm = partial(torch.linalg.vector_norm, dim=dim, keepdim=True, dtype=wide_dtype(x))
    length: Tensor
    if x.dtype == torch.float16:  # whose squares all fit float32
        length = norm(x)
        return length if largest == torch.inf else _kernels.capped(length, largest=largest)
    size = largest_entry(x, dim)
    scale = _kernels.SCALE[x.dtype]
    length = norm(_kernels.scaled(x, size, **scale))
    length = _kernels.unscaled(length, size, **scale, largest=largest)
    return length


def largest_entry(x: Tensor, dim: int) -> Tensor:
    """The largest absolute value of each row, which every dtype represents exactly."""
    size: Tensor = torch.linalg.vector_norm(x, torch.inf, dim=dim, keepdim=True)
    return size


def rescaled(x: Tensor, dim: int) -> Tensor:
    """The norm of rows that were scaled to about 1 first."""
    scale = power_of_two(x, dim)
    norm: Tensor = torch.linalg.vector_norm(x / scale, dim=dim, keepdim=True)
    return norm * scale


def power_of_two(x: Tensor, dim: int) -> Tensor:
    """A power of two for each row. Dividing by it is exact, and the squares then fit the dtype."""
    if x.shape[dim] == 0:
        shape = list(x.shape)
        shape[dim] = 1
        return x.new_ones(shape)
    size = torch.maximum(x.amax(dim, keepdim=True), -x.amin(dim, keepdim=True))
    # As in the kernels. Not from the bits of the number: before torch 2.13 vmap cannot view them.
    scale = _kernels.SCALE[x.dtype]
    power = torch.where(size < scale["small"], 1 / scale["up"], torch.ones_like(size))
    return torch.where(size > scale["big"], 1 / scale["down"], power)


# Rows of length one.


def normalize(x: Tensor, dim: int = -1, eps: float | None = None) -> Tensor:
    """Each row divided by its Euclidean norm; a row of zeros stays zero, with gradient 0.

    Exact for every row whose norm is at least eps, by default the smallest normal number of the
    dtype, and fits the dtype: a row of 1e-30 has length one afterwards, and so has a row of 1e30. A
    row with a norm below eps counts as zero, in value and gradient.
    (`torch.nn.functional.normalize` divides by at least 1e-12: shorter rows stay short, and a row
    of zeros has a gradient of 1e12.) A row whose norm is too large for the dtype it is computed in
    gives 0, with gradient 0. A row with NaN or infinity gives NaN.
    """
    least = eps_for(x.dtype) if eps is None else float(eps)
    if can_fuse(x):
        fused: Tensor = _FusedNormalize.apply(x, dim, least)  # type: ignore[no-untyped-call]
        return fused
    inside = wide(x)
    if can_read_condition(x):
        length: Tensor = torch.linalg.vector_norm(inside, dim=dim, keepdim=True)
        known = length.detach()
        if is_known_true((is_accurate(known) & (known >= least)).all()):
            return (inside / length).to(x.dtype)
    return _safe_normalize(x, dim, least)


def _safe_normalize(x: Tensor, dim: int, eps: float) -> Tensor:
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
            divisor = torch.where(is_accurate(length) & (length >= ctx.eps), length, divisor)
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
        if needs_plain_backward(gradient):
            plain = partial(_safe_normalize, dim=ctx.dim, eps=ctx.eps)
            return *differentiate_plain_form(plain, gradient, x), None, None
        if unit:
            parts = gradient * unit[0]
        else:
            parts = _kernels.unit_along(gradient, x, length, eps=ctx.eps)
        along = parts.sum(ctx.dim, keepdim=True, dtype=length.dtype)
        return _kernels.unit_backward(gradient, x, length, along, eps=ctx.eps), None, None


# The cosine of the angle between rows.


def cosine_similarity(a: Tensor, b: Tensor, dim: int = -1, eps: float | None = None) -> Tensor:
    """The dot product of the rows, each normalised; 0 with gradient 0 where one of them is zero.

    Exact for rows of any scale, and never outside [-1, 1] by more than rounding. As in
    `normalize`, a row whose norm is below eps counts as zero. (torch's own function uses at least
    1e-8 as the norm, so two equal rows of 1e-10 are not similar.)
    """
    dtype = common_dtype(a, b)
    least = eps_for(dtype) if eps is None else eps
    product = normalize(wide(a), dim, least) * normalize(wide(b), dim, least)
    return product.sum(dim).to(dtype)


# The Euclidean norm.


def norm(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """The Euclidean norm along a dimension; 0 with gradient 0 for a row of zeros.

    Exact for every row, even if its squares overflow or underflow (1e30, 1e-30). One exception:
    a norm that does not fit the dtype becomes its largest finite number, with gradient 0. NaN and
    infinity are kept.
    """
    if can_fuse(x):
        fused: Tensor = _FusedNorm.apply(x, dim, keepdim)  # type: ignore[no-untyped-call]
        return fused
    inside = wide(x)
    if can_read_condition(x):
        plain: Tensor = torch.linalg.vector_norm(inside, dim=dim, keepdim=keepdim)
        zero = partial(_all_zero, inside.detach(), dim, keepdim)
        if all_accurate(plain.detach(), x.dtype, zero):
            return plain.to(x.dtype)
    return _safe_norm(x, dim, keepdim)


def _safe_norm(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    length: Tensor = _Norm.apply(wide(x), dim, torch.finfo(x.dtype).max)  # type: ignore[no-untyped-call]
    length = length.to(x.dtype)
    return length if keepdim else length.squeeze(dim)


def _all_zero(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    if x.shape[dim] == 0:
        return x.sum(dim, keepdim) == 0
    return (x.amax(dim, keepdim) == 0) & (x.amin(dim, keepdim) == 0)


class _Norm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: int, largest: float) -> Tensor:
        length = row_norm(x, dim)
        if x.shape[dim] == 0:
            return length
        infinite = x.amax(dim, keepdim=True).isinf() | x.amin(dim, keepdim=True).isinf()
        return torch.where(infinite, length, length.clamp_max(largest))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, _, ctx.largest = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        x, length = ctx.saved_tensors
        divisor = torch.where((length == 0) | (length == ctx.largest), torch.inf, length)
        return x / divisor * gradient, None, None


class _FusedNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, keepdim: bool) -> Tensor:
        ctx.dim, ctx.keepdim, ctx.largest = dim, keepdim, torch.finfo(x.dtype).max
        length = fused_row_norm(x, dim, ctx.largest)
        value = length.to(x.dtype)
        # Where its exponents suffice, the half type: beside float32 the gradient would be wide.
        ctx.save_for_backward(x, value if x.dtype == torch.bfloat16 else length)
        return value if keepdim else value.squeeze(dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, length = ctx.saved_tensors
        if needs_plain_backward(gradient):
            plain = partial(_safe_norm, dim=ctx.dim, keepdim=ctx.keepdim)
            return *differentiate_plain_form(plain, gradient, x), None, None
        per_row = gradient.reshape(length.shape)
        if x.dtype == torch.float16:
            slope = _kernels.per_length(per_row, length, largest=ctx.largest)
            return torch.mul(x, slope, out=torch.empty_like(x)), None, None
        return _kernels.norm_backward(per_row, x, length, largest=ctx.largest), None, None
