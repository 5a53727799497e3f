"""When and how the Triton kernels are launched.

Plain torch computes the same where they cannot run.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

WIDEST_ROW = 1 << 14
"""Entries of a feature that one program holds at once."""
WIDEST_LINE = 1 << 14
"""Logits of a row that one program holds at once; longer ones it reads twice, in pieces."""
PIECE = 4096


@cache
def _kernels(device: torch.device) -> Any:
    """The kernels for rows and logits, or None. Tested once, because compiling them may fail (no
    Triton, no C compiler, no writable cache), and plain torch always works.
    """
    if device.type != "cuda":
        return None
    try:
        from headway.numerics.nway import triton_kernels

        return triton_kernels if softmax_is_right(triton_kernels, device) else None
    except Exception:  # whatever a compiler raises: plain torch does the same work
        return None


@cache
def _rests_kernels(device: torch.device) -> Any:
    """The same for the kernels from features to operands and back."""
    kernels = _kernels(device)
    try:
        return kernels if kernels is not None and rests_are_right(kernels, device) else None
    except Exception:  # as above
        return None


def softmax_is_right(kernels: Any, device: torch.device) -> bool:
    """Both ways through the kernel: a whole row of products, and a root in pieces."""
    x = torch.tensor([[3.0, 4.0]], device=device)
    q = _unit_forward(kernels, x)[0][None]
    one, G, root_G = x.new_ones(()), torch.empty_like(q), torch.empty_like(q)
    number, slope, row_sum, own_grad = x.new_zeros(4, 1, 1)
    _softmax(kernels, q, G, scale=one, losses=number, slope=slope)
    _softmax(
        kernels,
        q,
        root_G,
        scale=one,
        losses=number,
        slope=slope,
        col=torch.tensor([[0.4, 0.2]], device=device),
        row=x.new_zeros(1, 1),
        least=x.new_full((1, 1), 0.1),
        own=x.new_full((1, 1), -0.5),
        row_sum=row_sum,
        own_grad=own_grad,
        sign=-1,
        widest=1,
    )
    found = torch.cat([G.flatten(), root_G.flatten(), row_sum.flatten(), own_grad.flatten()])
    p = 0.377541
    right = torch.tensor([-0.549834, 0.549834, 0.0, p, p, -p], device=device)
    return torch.allclose(found, right, atol=1e-5)


def rests_are_right(kernels: Any, device: torch.device) -> bool:
    x = torch.tensor([[[3.0, 4.0]], [[0.0, 2.0]]], device=device)
    form = {"cross": 2.0, "x_squares": 1.0}
    operands, numbers = _rests(kernels, x, x.dtype, **form, y_squares=1.0, noise=1e-7, floor=0.0)
    X, Y = operands
    one = torch.ones(2, 1, device=device)
    given = (X.flip(-1), Y, numbers, one, one[0, 0], one[0, 0])
    grad = _rests_backward(kernels, x, *given, **form, weights=[1.0, 1.0])
    expected = torch.tensor([[[0.0, 2.0]], [[1.2, 1.6]]], device=device)
    right = torch.tensor([[[0.1792, -0.1344]], [[2.0, 0.0]]], device=device)
    return torch.allclose(X, expected, atol=1e-5) and torch.allclose(grad, right, atol=1e-5)


def can_fuse(like: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels run there. They compute in float32."""
    return dtype == torch.float32 and _kernels(like.device) is not None


def can_fuse_rests(like: Tensor, dtype: torch.dtype) -> bool:
    return dtype == torch.float32 and _rests_kernels(like.device) is not None


def _power(size: int) -> int:
    """The power of two that holds it, 16 at least."""
    return max(1 << (size - 1).bit_length(), 16)


def _sizes(width: int) -> dict[str, Any]:
    block = _power(width)
    warps = 2 if block <= 512 else 4 if block <= 4096 else 8
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


def fused_softmax(q: Tensor, out: Tensor, **numbers: Any) -> None:
    """From q (axes, rows, columns) to its gradient in `out`, and to the numbers of each row.

    What belongs to the rows is a slice of a larger tensor; all of them have the same strides.
    """
    _softmax(_kernels(q.device), q, out, **numbers)


def _softmax(
    kernels: Any,
    q: Tensor,
    out: Tensor,
    *,
    scale: Tensor,
    losses: Tensor,
    slope: Tensor | None = None,
    col: Tensor | None = None,
    row: Tensor | None = None,
    least: Tensor | None = None,
    own: Tensor | None = None,
    row_sum: Tensor | None = None,
    own_grad: Tensor | None = None,
    first: int = 0,
    sign: int = 0,
    wanted: bool = True,
    widest: int | None = None,
) -> None:
    axes, rows, columns = q.shape
    whole = columns <= (widest or WIDEST_LINE)
    block = _power(columns) if whole else PIECE
    kernels.softmax_rows[(rows, axes)](
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
        losses if slope is None else slope,
        rows,
        columns,
        first,
        0 if col is None else col.stride(0),
        losses.stride(0),
        float(sign or 1),
        IS_ROOT=sign != 0,
        HAS_COL=col is not None,
        HAS_OWN=own is not None,
        WANTED=wanted,
        WANT_SLOPE=slope is not None,
        WHOLE=whole,
        FULL=columns % block == 0,
        BLOCK=block,
        num_warps=min(max(block // 2048, 1), 8) if whole else 8,
        enable_fp_fusion=False,
    )


def fused_rests(x: Tensor, narrow: torch.dtype, **form: float) -> tuple[Tensor, Tensor]:
    """X and Y of `GramLines` together, (2, N, B, D), from x (N, B, D), unit rows made on the way;
    and, (5, N, B), the squares of Y, those of X, the least root, the length and the largest entry
    of each row.
    """
    return _rests(_rests_kernels(x.device), x, narrow, **form)


def _rests(
    kernels: Any,
    x: Tensor,
    narrow: torch.dtype,
    *,
    cross: float,
    x_squares: float,
    y_squares: float,
    noise: float,
    floor: float,
) -> tuple[Tensor, Tensor]:
    n, batch, width = x.shape
    operands = torch.empty((2, n, batch, width), dtype=narrow, device=x.device)
    numbers = torch.empty((5, n, batch), dtype=torch.float32, device=x.device)
    kernels.rests_forward[(batch,)](
        x,
        operands,
        numbers,
        n,
        batch,
        width,
        n * batch,
        x.numel(),
        cross,
        x_squares,
        y_squares,
        noise,
        floor,
        TINY=torch.finfo(torch.float32).tiny,
        **_sizes(width),
    )
    return operands, numbers


def fused_rests_backward(x: Tensor, *given: Tensor, **form: Any) -> Tensor:
    """The gradient of x, in its type, from those of X and Y, the numbers of the rows, the gradient
    of the squares of X (if they count), the scale, and the gradient from above.
    """
    return _rests_backward(_rests_kernels(x.device), x, *given, **form)


def _rests_backward(
    kernels: Any,
    x: Tensor,
    gX: Tensor,
    gY: Tensor,
    numbers: Tensor,
    row_sum: Tensor | None,
    scale: Tensor,
    upstream: Tensor,
    /,
    *,
    cross: float,
    x_squares: float,
    weights: list[float],
) -> Tensor:
    n, batch, width = x.shape
    out = torch.empty_like(x)
    kernels.rests_backward[(batch,)](
        x,
        gX,
        gY,
        numbers,
        numbers if row_sum is None else row_sum,
        scale,
        upstream,
        out,
        n,
        batch,
        width,
        n * batch,
        cross,
        2 * x_squares,
        weights[0],
        weights[1],
        MOST=torch.finfo(x.dtype).max,
        HAS_ROW=row_sum is not None,
        **_sizes(width),
    )
    return out
