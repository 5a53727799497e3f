"""Shared by the ops: eps per dtype, the dtype to compute in, and whether a condition can be read
without waiting.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The eps of this package: a smaller divisor counts as zero.

# The usual 1e-8 is zero in float16, and in float32 it is larger than many valid values.
# `eps_for(dtype)` is the smallest normal number of the dtype: its reciprocal is finite in the same
# dtype, and everything smaller has already lost digits.

#     float64    2.2e-308
#     float32    1.2e-38
#     bfloat16   1.2e-38
#     float16    6.1e-05


def eps_for(dtype: torch.dtype) -> float:
    """The smallest normal number of a floating-point dtype."""
    return float(torch.finfo(dtype).smallest_normal)


# Where inspecting the input costs nothing, the plain op runs if it is safe.

# On a CPU a condition can be read at once. If no element is near the singular point, torch's own
# op runs, with torch's own gradient, so the result is bit-identical. On an accelerator reading
# would make the host wait, and under `torch.compile` and `vmap` there is no value to read yet:
# there the safe form always runs.


def can_read_condition(x: Tensor) -> bool:
    """Whether a condition on this tensor can be read without waiting."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling() and x.numel() > 0


def is_known_true(condition: Tensor) -> bool:
    """Whether a condition, on one element, is known to hold. False where it cannot be read."""
    try:
        return bool(condition)
    except RuntimeError:  # inside vmap: one answer for many
        return False


def wide(x: Tensor) -> Tensor:
    """The tensor in the dtype to compute in: float32 for the half dtypes, else its own."""
    return x.to(wide_dtype(x))


def wide_dtype(x: Tensor) -> torch.dtype:
    return torch.float32 if is_half(x) else x.dtype


def is_half(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


def floating(x: Tensor) -> Tensor:
    """The tensor as it is, or whole numbers in the default dtype, as torch's own ops take them."""
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def common_dtype(a: Tensor, b: Tensor) -> torch.dtype:
    """The dtype of a result: as `torch.result_type` for floating point, and known to the compiler.

    A single number does not widen a tensor.
    """
    if a.dtype == b.dtype:
        return a.dtype
    if a.dim() == 0 < b.dim() and b.is_floating_point():
        return b.dtype
    if b.dim() == 0 < a.dim() and a.is_floating_point():
        return a.dtype
    return torch.promote_types(a.dtype, b.dtype)
