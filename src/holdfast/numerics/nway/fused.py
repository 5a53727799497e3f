"""When and how the kernels are called. Plain torch does the same where they cannot run."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

WIDEST_ROW = 1 << 14
"""Entries of a feature that one program holds at once."""


@cache
def _kernels(device: torch.device) -> Any:
    """The kernels, tried once; None where there is no Triton, or no compiler for it."""
    if device.type != "cuda":
        return None
    try:
        from holdfast.numerics.nway import kernels

        _unit_forward(kernels, torch.ones(2, 3, device=device))
    except Exception:
        # Whatever is missing there (Triton, a C compiler, a cache to write to): plain torch works.
        return None
    return kernels


def can_fuse(like: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels run there. They compute in float32."""
    return dtype == torch.float32 and _kernels(like.device) is not None


def _sizes(width: int) -> dict[str, Any]:
    block = max(1 << (width - 1).bit_length(), 16)
    warps = 1 if block <= 512 else 4 if block <= 4096 else 8
    return {"BLOCK": block, "num_warps": warps, "enable_fp_fusion": False}


def _unit_forward(kernels: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    unit = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    length, largest = torch.empty((2, *x.shape[:-1], 1), dtype=unit.dtype, device=x.device)
    width = x.shape[-1]
    tiny = torch.finfo(torch.float32).tiny
    kernels.unit_forward[(length.numel(),)](
        x, unit, length, largest, width, TINY=tiny, **_sizes(width)
    )
    return unit, length, largest


def fused_unit(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unit rows, the length of a row over its largest entry, and that entry."""
    return _unit_forward(_kernels(x.device), x.contiguous())


def fused_unit_backward(
    grad: Tensor, unit: Tensor, length: Tensor, largest: Tensor, narrow: torch.dtype
) -> Tensor:
    out = torch.empty(grad.shape, dtype=narrow, device=grad.device)
    width = grad.shape[-1]
    _kernels(grad.device).unit_backward[(length.numel(),)](
        grad.contiguous(),
        unit,
        length,
        largest,
        out,
        width,
        MOST=torch.finfo(narrow).max,
        **_sizes(width),
    )
    return out


def fused_softmax(
    q: Tensor,
    out: Tensor,
    *,
    col: Tensor | None,
    row: Tensor | None,
    least: Tensor | None,
    own: Tensor | None,
    scale: Tensor,
    losses: Tensor,
    row_sum: Tensor | None,
    own_grad: Tensor | None,
    slope: Tensor,
    first: int,
    sign: int,
    wanted: bool,
) -> None:
    """From q (axes, rows, columns) to its gradient in `out`, and to the numbers of each row.

    What belongs to the rows is a slice of a larger tensor; all of them have the same strides.
    """
    axes, rows, columns = q.shape
    whole = columns <= WIDEST_ROW
    block = max(1 << (columns - 1).bit_length(), 16) if whole else 4096
    _kernels(q.device).softmax_rows[(rows, axes)](
        q,
        out,
        q if col is None else col,
        q if row is None else row,
        q if least is None else least,
        q if own is None else own,
        scale,
        losses,
        losses if row_sum is None else row_sum,
        losses if own_grad is None else own_grad,
        slope,
        rows,
        columns,
        first,
        0 if col is None else col.stride(0),
        losses.stride(0),
        SIGN=sign,
        HAS_COL=col is not None,
        HAS_OWN=own is not None,
        WANTED=wanted,
        WHOLE=whole,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16) if whole else 8,
        enable_fp_fusion=False,
    )


def fused_rests(
    x: Tensor,
    narrow: torch.dtype,
    *,
    cross: float,
    x_squares: float,
    y_squares: float,
    noise: float,
    floor: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """X and Y of `GramLines` from x (N, B, D), unit rows made on the way; and, (5, N, B), the
    squares of Y, those of X, the least root, the length and the largest entry of each row.
    """
    n, batch, width = x.shape
    X, Y = torch.empty((2, n, batch, width), dtype=narrow, device=x.device)
    numbers = torch.empty((5, n, batch), dtype=torch.float32, device=x.device)
    tiny = torch.finfo(torch.float32).tiny
    _kernels(x.device).rests_forward[(batch,)](
        x,
        X,
        Y,
        *numbers,
        n,
        batch,
        width,
        cross,
        x_squares,
        y_squares,
        noise,
        tiny,
        floor,
        TINY=tiny,
        **_sizes(width),
    )
    return X, Y, numbers


def fused_rests_backward(
    x: Tensor,
    gX: Tensor,
    gY: Tensor,
    row_sum: Tensor | None,
    length: Tensor,
    largest: Tensor,
    factor: Tensor,
    *,
    cross: float,
    x_squares: float,
) -> Tensor:
    """The gradient of x, in its type; `factor` (N,) belongs to all."""
    n, batch, width = x.shape
    out = torch.empty_like(x)
    _kernels(x.device).rests_backward[(batch,)](
        x,
        gX,
        gY,
        length if row_sum is None else row_sum,
        length,
        largest,
        factor,
        out,
        n,
        batch,
        width,
        cross,
        2 * x_squares,
        MOST=torch.finfo(x.dtype).max,
        HAS_ROW=row_sum is not None,
        **_sizes(width),
    )
    return out
