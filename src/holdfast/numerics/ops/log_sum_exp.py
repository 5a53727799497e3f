"""The logarithm of a sum of exponentials."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.ops._look import holds, may_look, wide


def logsumexp(x: Tensor, dim: int = -1, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) along a dimension, with a gradient also where every entry is -inf.

    Exact for every row with an entry above -inf. Bent where there is none, the empty row included:
    the sum is empty and its logarithm -inf; here it is the lowest finite number of the dtype, with
    gradient 0 (torch's gradient is NaN). +inf and NaN stay.
    """
    inside = wide(x)
    if may_look(x):
        plain = torch.logsumexp(inside, dim, keepdim=keepdim)
        if holds((plain.detach() > -torch.inf).all()):
            return plain.to(x.dtype)
    total: Tensor = _LogSumExp.apply(inside, dim, torch.finfo(x.dtype).min)  # type: ignore[no-untyped-call]
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
