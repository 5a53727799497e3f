"""The plain numbers behind a tensor: its local part, its storage address, and which non-finite
values it holds.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from headway.torch_adapters.private_parts import private_attribute

# Which non-finite numbers a tensor holds, read at once.

NAN, POSITIVE, NEGATIVE = 1, 2, 4
INFINITE = POSITIVE | NEGATIVE
"""Flags: there is a NaN; or there is none, but a +inf, a −inf. Next to a NaN infinities do not
matter: they are not followed."""

_PLAIN = (Tensor, nn.Parameter)


def plain_tensor(tensor: Tensor) -> Tensor | None:
    """The ordinary tensor with the numbers: of a DTensor its local part, of a sparse one its
    values; None for a kind that cannot be looked into."""
    if type(tensor) not in _PLAIN:
        local = getattr(tensor, "_local_tensor", None)
        if isinstance(local, Tensor):
            return plain_tensor(local)
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
    if tensor.layout is torch.strided:
        return None if tensor.device.type == "meta" else tensor
    return sparse_values(tensor) if tensor.layout is torch.sparse_coo else None


def sparse_values(tensor: Tensor) -> Tensor:
    """The values of a sparse tensor as they are stored, duplicates included."""
    if tensor.layout is not torch.sparse_coo:
        return tensor.values()
    stored: Tensor = tensor._values() if hasattr(tensor, "_values") else tensor.coalesce().values()
    return stored


def nonfinite_flags(tensor: Tensor) -> int:
    """What is non-finite in a plain tensor; 0 where nothing is."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
        return 0
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        return 0  # reading would break the capture
    numbers = as_real(tensor)
    # One bad element makes the sum bad, and no kernel is cheaper; a sum may overflow by itself,
    # though.
    if math.isfinite(_read(numbers.sum())):
        return 0
    low, high = (_read(end) for end in torch.aminmax(numbers))
    if math.isnan(low) or math.isnan(high):
        return NAN
    return (POSITIVE if high == math.inf else 0) | (NEGATIVE if low == -math.inf else 0)


_FLOATS = frozenset((torch.float32, torch.float64, torch.float16, torch.bfloat16))


def sums_to_finite(tensor: Tensor) -> bool:
    """Whether the sum is finite, and so every element. Huge values may overflow: False proves
    nothing."""
    if tensor.dtype not in _FLOATS or type(tensor) not in _PLAIN or not tensor.is_cpu:
        numbers = plain_tensor(tensor)
        return numbers is None or nonfinite_flags(numbers) == 0
    if tensor.layout is not torch.strided:
        return nonfinite_flags(sparse_values(tensor)) == 0
    return math.isfinite(tensor.sum(dtype=torch.float32).item())


def as_real(tensor: Tensor) -> Tensor:
    """The same numbers in a dtype that every kernel knows."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


def _read(scalar: Any) -> float:
    return float(scalar.item())


_storage_identity = private_attribute(
    "torch.UntypedStorage._cdata",
    lambda storage: storage.data_ptr(),
    without="storages are distinguished by their address: two that are empty count as one",
)


def storage_address(tensor: Tensor) -> int:
    """What tensors that share memory have in common."""
    return int(_storage_identity(tensor.untyped_storage()))


def storage_span(tensor: Tensor) -> tuple[int, int]:
    """The range of bytes of its storage that a tensor spans."""
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = sum((length - 1) * step for length, step in steps if length > 0)
    return first, first + (int(reach) + 1) * size


def fills_its_span(tensor: Tensor) -> bool:
    """Whether a tensor leaves no gaps in what it spans."""
    first, last = storage_span(tensor)
    return tensor.numel() * tensor.element_size() >= last - first
