"""logsumexp, masked_softmax and masked_log_softmax."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from headway.numerics._torch_compat import log_softmax_backward, softmax_backward
from headway.numerics.ops import _kernels
from headway.numerics.ops._kernels import can_fuse, differentiate_plain_form, needs_plain_backward
from headway.numerics.ops._shared import can_read_condition, is_half, is_known_true, wide

# The logarithm of a sum of exponentials.


def logsumexp(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) along a dimension, with a gradient also where every entry is -inf.

    Exact for every row with an entry above -inf. Without one, and for an empty row,
    the exact value is -inf; this function returns the lowest finite number of the dtype, with
    gradient 0 (torch's gradient is NaN). +inf and NaN are kept.
    """
    if can_fuse(x):
        fused: Tensor = _FusedLogSumExp.apply(x, dim, keepdim)  # type: ignore[no-untyped-call]
        return fused
    inside = wide(x)
    if can_read_condition(x):
        plain = torch.logsumexp(inside, dim, keepdim=keepdim)
        if is_known_true((plain.detach() > -torch.inf).all()):
            return plain.to(x.dtype)
    return _safe_logsumexp(x, dim, keepdim)


def _safe_logsumexp(x: Tensor, dim: int, keepdim: bool) -> Tensor:
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
        if needs_plain_backward(gradient):
            plain = partial(_safe_logsumexp, dim=ctx.dim, keepdim=ctx.keepdim)
            return *differentiate_plain_form(plain, gradient, x), None, None
        per_row = gradient.reshape(total.shape)
        if top:
            share = _kernels.top_share(per_row, *top, total).to(x.dtype)
            return _kernels.share_below(x, *top, share), None, None
        return _kernels.full_sum_backward(per_row, x, total), None, None


# Softmax over the entries that count.


def masked_softmax(x: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """Softmax over the entries where the mask is true; the others get 0.

    Exact in every row with an unmasked finite entry. In a row that is fully masked or all -inf,
    torch's softmax is NaN; here the row is 0, and so is its gradient. (It does not sum to one.)
    Without a mask only the rows that are all -inf are special. Masked values reach neither value
    nor gradient, NaN included.
    """
    shares: Tensor
    if _can_fuse(x, _checked(mask)):
        shares = _FusedMaskedSoftmax.apply(x, mask, dim)  # type: ignore[no-untyped-call]
        return shares
    shares = _MaskedSoftmax.apply(wide(x), mask, dim)  # type: ignore[no-untyped-call]
    return shares.to(x.dtype)


def masked_log_softmax(x: Tensor, mask: Tensor | None = None, dim: int = -1) -> Tensor:
    """The logarithm of `masked_softmax`; masked entries get the lowest finite number.

    Exact where the mask is true. Where the exact value is -inf, which gives NaN in a product with
    zero, it is the lowest finite number of the dtype (float32 -3.4e38, float16 -65504), with
    gradient 0. Its exponential is 0, and zero times it is 0.
    """
    lowest = torch.finfo(x.dtype).min
    found: Tensor
    if _can_fuse(x, _checked(mask)):
        found = _FusedMaskedLogSoftmax.apply(x, mask, dim, lowest)  # type: ignore[no-untyped-call]
        return found
    found = _MaskedLogSoftmax.apply(wide(x), mask, dim, lowest)  # type: ignore[no-untyped-call]
    return found.to(x.dtype)


def _checked(mask: Tensor | None) -> Tensor | None:
    if mask is not None and mask.dtype != torch.bool:
        raise TypeError(f"the mask is {mask.dtype}: bool is wanted, true where an entry counts")
    return mask


def _can_fuse(x: Tensor, mask: Tensor | None) -> bool:
    return can_fuse(x) if mask is None else can_fuse(x, mask)


def _filled(x: Tensor, mask: Tensor | None, dim: int) -> tuple[Tensor, Tensor]:
    """The entries, with the lowest finite number where masked; and per row 1 if any counts, else 0.

    As numbers, not as masks: on a CPU a pass over numbers takes a fifth of one over booleans.
    """
    lowest = torch.finfo(x.dtype).min
    filled = x.clamp_min(lowest)
    if mask is not None:
        filled = filled.masked_fill(~mask, lowest)
    return filled, (filled.amax(dim, keepdim=True) != lowest).to(x.dtype)


class _MaskedSoftmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        if x.shape[dim] == 0:
            return x.clone()
        filled, alive = _filled(x, mask, dim)
        return torch.softmax(filled, dim).mul_(alive)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.dim = inputs[2]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (shares,) = ctx.saved_tensors
        return softmax_backward(gradient, shares, ctx.dim), None, None


class _MaskedLogSoftmax(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, mask: Tensor | None, dim: int, lowest: float) -> Tensor:
        if x.shape[dim] == 0:
            return x.clone()
        filled, alive = _filled(x, mask, dim)
        found = torch.log_softmax(filled, dim)
        return found.add_((1 - alive) * torch.finfo(x.dtype).min).clamp_min_(lowest)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, _, ctx.dim, ctx.lowest = inputs
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (found,) = ctx.saved_tensors
        counted: Tensor = torch.ops.aten.threshold_backward(gradient, found, ctx.lowest)
        return log_softmax_backward(counted, found, ctx.dim), None, None, None


def _fused_filled(x: Tensor, mask: Tensor | None) -> Tensor:
    """The entries, with -inf where masked. torch computes half types in float32 as it reads."""
    return x if mask is None else _kernels.filled(x, mask, nothing=-torch.inf)


class _FusedMaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None, dim: int) -> Tensor:
        entries = _fused_filled(x, mask)
        # If the row has an unmasked entry, masked ones have a share of 0; otherwise they are NaN.
        shares: Tensor = _kernels.shares_of(
            torch.softmax(entries, dim), entries, nothing=-torch.inf
        ).to(x.dtype)  # autocast gives float32
        ctx.dim = dim
        ctx.save_for_backward(shares)
        return shares

    backward = staticmethod(_MaskedSoftmax.backward)


class _FusedMaskedLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, mask: Tensor | None, dim: int, lowest: float) -> Tensor:
        entries = _fused_filled(x, mask)
        found: Tensor = _kernels.logs_of(
            torch.log_softmax(entries, dim), entries, nothing=-torch.inf, lowest=lowest
        ).to(x.dtype)
        ctx.dim, ctx.lowest = dim, lowest
        ctx.save_for_backward(found)
        return found

    backward = staticmethod(_MaskedLogSoftmax.backward)
