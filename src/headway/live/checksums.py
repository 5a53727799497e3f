"""Checksums that ranks compare: of weights that must be equal, of batches that must not be.

Bit for bit and order-blind within a tensor: the bits of the elements as integers, added up. The
last 24 bits are kept, which is what a float32 carries exactly, so a checksum travels among the
other numbers of a step. No device is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from headway.live.scan import tensors_in

WEIGHTS_EVERY = 100
"""Steps between two comparisons of the weights: each is a pass over them."""
MOST_ELEMENTS = 1 << 16
"""Of a batch's tensor, so many elements are looked at: enough to tell two batches apart."""
_BITS = (1 << 24) - 1
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def of_tensors(tensors: Iterable[Tensor], device: torch.device) -> Tensor | None:
    """One number for all of them, a float32 on the device; None when there is nothing to add."""
    sums = [total for tensor in tensors if (total := _bit_sum(tensor)) is not None]
    if not sums:
        return None
    stacked = torch.stack([total.to(device, non_blocking=True) for total in sums])
    # Odd factors, so that two tensors that changed places are noticed.
    factors = torch.arange(1, 2 * len(sums), 2, dtype=torch.int64)
    mixed = (stacked * factors.to(device, non_blocking=True)).sum()
    return torch.bitwise_and(mixed ^ (mixed >> 24), _BITS).to(torch.float32)


def of_batches(batches: Sequence[Any], device: torch.device) -> Tensor | None:
    """One number for the batches of a step; None when they hold no tensor."""
    return of_tensors((_head(tensor) for batch in batches for tensor in tensors_in(batch)), device)


def _head(tensor: Tensor) -> Tensor:
    if tensor.is_sparse or tensor.numel() <= MOST_ELEMENTS or not tensor.is_contiguous():
        return tensor
    return tensor.view(-1)[:MOST_ELEMENTS]


def _bit_sum(tensor: Tensor) -> Tensor | None:
    values = tensor.detach()
    if values.is_sparse:
        values = values.coalesce().values()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype is torch.bool:
        values = values.to(torch.int8)
    integer = _INTEGERS.get(values.element_size())
    if integer is None or values.numel() == 0 or values.layout is not torch.strided:
        return None
    return values.contiguous().view(integer).sum(dtype=torch.int64)
