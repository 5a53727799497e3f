"""The one small number of this package: below it a divisor counts as zero.

1e-8, the number usually seen, is zero in float16 and cuts off perfectly good values in float32.
`eps_for(dtype)` is the smallest normal number of the dtype: its reciprocal is finite in the same
dtype, and everything smaller has already lost digits.

    float64    2.2e-308
    float32    1.2e-38
    bfloat16   1.2e-38
    float16    6.1e-05
"""

from __future__ import annotations

import torch


def eps_for(dtype: torch.dtype) -> float:
    """The smallest normal number of a floating-point dtype."""
    return float(torch.finfo(dtype).smallest_normal)
