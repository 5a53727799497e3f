"""Which non-finite numbers a tensor holds, read at once."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

NAN, POSITIVE, NEGATIVE = 1, 2, 4
INFINITE = POSITIVE | NEGATIVE
"""Flags: there is a NaN; or there is none, but a +inf, a −inf. Next to a NaN infinities do not
matter: nobody follows them."""

_PLAIN = (Tensor, nn.Parameter)


def plain(tensor: Tensor) -> Tensor | None:
    """The ordinary tensor with the numbers: of a DTensor its local part, of a sparse one its
    values; None for a kind that cannot be looked into."""
    if type(tensor) not in _PLAIN:
        local = getattr(tensor, "_local_tensor", None)
        if isinstance(local, Tensor):
            return plain(local)
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
    if tensor.layout is torch.strided:
        return None if tensor.device.type == "meta" else tensor
    return tensor._values() if tensor.layout is torch.sparse_coo else None


def flags(tensor: Tensor) -> int:
    """What is non-finite in a plain tensor; 0 where nothing is."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return 0
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return 0  # reading would break the capture
    numbers = real(tensor)
    # One bad element makes the sum bad, and no kernel is cheaper; a sum may overflow by itself,
    # though.
    if math.isfinite(_read(numbers.sum())):
        return 0
    low, high = (_read(end) for end in torch.aminmax(numbers))
    if math.isnan(low) or math.isnan(high):
        return NAN
    return (POSITIVE if high == math.inf else 0) | (NEGATIVE if low == -math.inf else 0)


def real(tensor: Tensor) -> Tensor:
    """The same numbers in a dtype that every kernel knows."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def _read(scalar: Any) -> float:
    return float(scalar.item())
