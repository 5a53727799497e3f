"""The Euclidean norm of rows whose squares may not fit the dtype."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from headway.numerics.ops import _kernels
from headway.numerics.ops._look import holds, wide_dtype

_LOW = {torch.float32: 2.0**-50, torch.float64: 2.0**-480}
"""A norm above this has lost nothing to squares that were too small."""


def trusted(norm: Tensor) -> Tensor:
    """Where a norm, or a spread, computed the plain way has lost nothing."""
    return (norm > _LOW[norm.dtype]) & norm.isfinite()


def looks_fine(found: Tensor, dtype: torch.dtype, zero: Callable[[], Tensor]) -> bool:
    """Whether norms, or spreads, computed the plain way can be had as they are.

    `zero` says which of them are truly zero: there torch's own gradient is zero, too. It is asked
    only if some are not to be trusted otherwise.
    """
    fits = found <= torch.finfo(dtype).max
    if holds((trusted(found) & fits).all()):
        return True
    return holds(((trusted(found) | ((found == 0) & zero())) & fits).all())


def row_norm(x: Tensor, dim: int) -> Tensor:
    """The norm along a dimension, which is kept. The plain one's bits wherever that is right."""
    plain = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    # Compiled for a GPU, float32 is read and added in float64 in one pass; a CPU is quicker with
    # two plain ones.
    wider = x.dtype == torch.float32 and x.device.type == "cuda"
    careful = in_double(x, dim) if wider else rescaled(x, dim)
    return torch.where(trusted(plain), plain, careful)


def in_double(x: Tensor, dim: int) -> Tensor:
    """The norm of float32 rows, whose squares all fit float64."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=torch.float64)
    return norm.float()


def fused_row_norm(x: Tensor, dim: int, largest: float) -> Tensor:
    """The same with kernels, for half types in float32; `largest` where it is larger than that."""
    # torch adds half types up in float32 as it reads them: a copy of them would be a pass more.
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
    """Per row, without its sign. Every dtype has it exactly."""
    size: Tensor = torch.linalg.vector_norm(x, torch.inf, dim=dim, keepdim=True)
    return size


def rescaled(x: Tensor, dim: int) -> Tensor:
    """The norm of rows that were brought to the size of one first."""
    scale = power_of_two(x, dim)
    norm: Tensor = torch.linalg.vector_norm(x / scale, dim=dim, keepdim=True)
    return norm * scale


def power_of_two(x: Tensor, dim: int) -> Tensor:
    """Per row a power of two. Divided by it, which loses no bit, its squares fit the dtype."""
    if x.shape[dim] == 0:
        shape = list(x.shape)
        shape[dim] = 1
        return x.new_ones(shape)
    size = torch.maximum(x.amax(dim, keepdim=True), -x.amin(dim, keepdim=True))
    # As in the kernels. Not from the bits of the number: before torch 2.13 vmap cannot view them.
    scale = _kernels.SCALE[x.dtype]
    power = torch.where(size < scale["small"], 1 / scale["up"], torch.ones_like(size))
    return torch.where(size > scale["big"], 1 / scale["down"], power)
