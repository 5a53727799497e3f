"""The features of the N-way loss: validation, normalisation, and code shared by its forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.numerics.nway.triton_launch import (
    WIDEST_ROW,
    can_fuse,
    fused_unit,
    fused_unit_backward,
)

# What the N-way loss shares: the two kinds of lines, block sizes, noise-safe roots, accumulation
# dtype.

# Calling an autograd Function, with a type.


def apply_function(function: Any, *args: Any) -> Tensor:
    """`function.apply(*args)`; torch leaves it without annotations."""
    out: Tensor = function.apply(*args)
    return out


# How many axes, rows and columns to take at once.

ON_DEVICE = 1 << 27
"""Logits held at once on an accelerator: 512 MiB in float32."""
ON_CPU = 1 << 21


def room(like: Tensor) -> int:
    return ON_CPU if like.device.type == "cpu" else ON_DEVICE


def rows_at_once(like: Tensor, columns: int, depth: int, block: int | None) -> int:
    """`block` if given; else the largest block that keeps block × columns × depth within `room`."""
    if block is not None:
        return block
    fit = room(like) // max(columns * depth, 1)
    # Matrix products are fastest with multiples of 128; smaller sizes are used as they are.
    return max(fit // 128 * 128, min(fit, 128), 16)


def even(step: int, rows: int) -> int:
    """At most `step`, such that the last block is about as large as the others."""
    blocks = -(-rows // step) or 1
    return -(-rows // blocks) or 1


def groups(
    like: Tensor, axes: int, rows: int, columns: int, block: int | None
) -> Iterator[tuple[slice, slice]]:
    """Slices of axes and rows: several whole axes if they fit, else rows of one axis.

    A group of axes needs as many calls as one axis, and calls dominate the time of small batches.
    """
    most = rows_at_once(like, columns, 1, block)
    if block is None and rows <= most:
        step, together = rows, even(max(room(like) // max(rows * columns, 1), 1), axes)
    else:
        step, together = even(most, rows), 1
    for axis in range(0, axes, together):
        for begin in range(0, rows, step):
            yield slice(axis, min(axis + together, axes)), slice(begin, min(begin + step, rows))


# The two kinds of lines. A line varies one index (the columns) and keeps the others (the row).

# Both define how the logits of a block of rows against the columns are computed from tensors that
# belong to the rows and tensors that belong to the columns. Those are computed from the features by
# ordinary autograd, in `scores`.


@dataclass(frozen=True)
class GramLines:
    """One matrix product for each of K axes, together: with x a row of X and y a row of Y

        q = cross ⟨x, y⟩ + x_squares ‖x‖² + y_squares ‖y‖² + row

    and the logit is q, or sign·√q.
    """

    weights: list[float]
    """Weights of the K losses in their sum."""
    X: Tensor
    """(K, rows, D)"""
    Y: Tensor
    """(K, columns, D)"""
    cross: float = 1.0
    x_squares: float = 0.0
    """Needed only for a square root: the softmax cancels what is constant in a row."""
    y_squares: float = 0.0
    unit: bool = False
    """The squares of Y are constant: no gradient of them is needed."""
    sign: int | None = None
    """±1: the logit is ±√q. None: it is q itself."""
    row: Tensor | None = None
    """(K, rows); of a root only, too."""
    own: Tensor | None = None
    """(K, rows), of a root: the logits of the right column, if they are known better.

    Where vectors agree, a Gram form is the difference of nearly equal numbers. Training leads
    there, but only on the diagonal, which is cheap to compute directly.
    """


Pull = Callable[[Tensor], list[Tensor]]
"""Computes the gradients of row and column tensors from that of a tile. Called at most once."""
Tile = Callable[[list[Tensor], list[Tensor]], tuple[Tensor, Pull]]


@dataclass(frozen=True)
class TileLine:
    """Any score: a function from row and column tensors to a (rows, columns) tile and its pull."""

    weight: float
    rows: list[Tensor]
    cols: list[Tensor]
    tile: Tile
    depth: int
    """How many numbers the function needs at once for each logit."""
    own: Tensor | None = None


Line = GramLines | TileLine


# Square roots of differences, which rounding may push below zero. NaN stays NaN.

NOISE = 4
"""How many units of rounding a sum of a few terms may be off by, relative to the terms."""


def root(q: Tensor, size: Tensor | float = 0.0) -> Tensor:
    """√q; 0 with gradient 0 where q is nothing but rounding noise of terms of that `size`."""
    info = torch.finfo(q.dtype)
    noise = q <= NOISE * info.eps * size + info.tiny
    return torch.where(noise, 0.0, torch.where(noise, 1.0, q).sqrt())


def inverse_root(q: Tensor, size: Tensor | float = 0.0) -> Tensor:
    """1/√q; 0 with gradient 0 where q is noise, or so small that powers of 1/√q do not exist."""
    info = torch.finfo(q.dtype)
    noise = q <= NOISE * info.eps * size + info.tiny**0.5
    return torch.where(noise, 0.0, torch.where(noise, 1.0, q).rsqrt())


# The widest floating-point type of a device, for sums and factors.


def widest(device: torch.device) -> torch.dtype:
    """float64, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


# Checks and prepares features: compute dtype, unit rows, common scale, gathering from all ranks.

# Validates the features, and converts them so that no intermediate result overflows.


def checked(features: Sequence[Tensor]) -> list[Tensor]:
    """The features as a list, or a ValueError that says what is wrong with them."""
    if isinstance(features, Tensor) and features.dim() == 3:
        features = features.unbind(0)
    found = list(features)
    if len(found) < 2:
        raise ValueError(f"a contrastive loss needs at least 2 modalities, not {len(found)}")
    first = found[0]
    for index, feature in enumerate(found):
        if feature.dim() != 2:
            raise ValueError(f"features[{index}] has shape {tuple(feature.shape)}, not (B, D)")
        if feature.shape != first.shape:
            raise ValueError(
                f"features[{index}] has shape {tuple(feature.shape)}, "
                f"features[0] has {tuple(first.shape)}: all must agree"
            )
        if not feature.is_floating_point():
            raise ValueError(f"features[{index}] is {feature.dtype}, not a floating point type")
        if feature.device != first.device:
            raise ValueError(
                f"features[{index}] is on {feature.device}, features[0] on {first.device}"
            )
    return found


class _Widen(torch.autograd.Function):
    """Converts to the compute dtype; the gradient is limited to the range of the narrow dtype.

    A row of tiny numbers has a huge gradient (1/norm). In fp16 that would become inf.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.narrow = x.dtype
        return x.to(dtype, copy=True)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        limit = torch.finfo(ctx.narrow).max
        return grad.clamp(-limit, limit).to(ctx.narrow), None


def compute_dtype(features: Sequence[Tensor]) -> torch.dtype:
    """float64 if any feature is; float32 otherwise, for half precision too."""
    if any(feature.dtype == torch.float64 for feature in features):
        return torch.float64
    return torch.float32


def widened(feature: Tensor, dtype: torch.dtype) -> Tensor:
    return apply_function(_Widen, feature, dtype)


class _Unit(torch.autograd.Function):
    """Rows of length one, in `dtype`. A zero row stays zero, and its gradient is zero."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, fuse: bool) -> Tensor:
        ctx.narrow = x.dtype
        ctx.fuse = fuse and x.shape[-1] <= WIDEST_ROW and can_fuse(x, dtype)
        unit, length, largest = fused_unit(x) if ctx.fuse else _unit(x.to(dtype))
        ctx.save_for_backward(unit, length, largest)
        return unit

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        unit, length, largest = ctx.saved_tensors
        if ctx.fuse:
            return fused_unit_backward(grad, unit, length, largest, ctx.narrow), None, None
        across = torch.addcmul(grad, unit, (grad * unit).sum(-1, keepdim=True), value=-1)
        # Divided twice: the product of the two divisors may overflow where both quotients do not.
        across.div_(length).div_(largest)
        limit = torch.finfo(ctx.narrow).max
        return across.clamp_(-limit, limit).to(ctx.narrow), None, None


def _unit(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # By the largest entry first: squares of 1e30 overflow in float32, and those of 1e-30 are 0.
    largest = torch.linalg.vector_norm(x, torch.inf, dim=-1, keepdim=True)
    largest.clamp_min_(torch.finfo(x.dtype).tiny)
    unit = x / largest
    length = torch.linalg.vector_norm(unit, dim=-1, keepdim=True)
    # Over an infinite length an empty row is zero, and so is its gradient.
    length.masked_fill_(length == 0, torch.inf)
    unit /= length
    return unit, length, largest


def unit_rows(x: Tensor, dtype: torch.dtype | None = None, *, fuse: bool = False) -> Tensor:
    """Each row divided by its norm, for any scale of its entries; in `dtype`, if given."""
    return apply_function(_Unit, x, dtype or x.dtype, fuse)


def stacked(features: Sequence[Tensor], dtype: torch.dtype, *, unit: bool, fuse: bool) -> Tensor:
    """(N, B, D) in the type we compute in, with unit rows if asked for."""
    if any(feature.dtype != features[0].dtype for feature in features):
        # Each has its own range for gradients.
        features = [widened(feature, dtype) for feature in features]
    together = torch.stack(list(features))
    return unit_rows(together, dtype, fuse=fuse) if unit else widened(together, dtype)


class _Shrink(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, by: Tensor) -> Tensor:
        return x / by

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def shrunk(x: Tensor, by: Tensor) -> Tensor:
    """x / by, whose gradient is *not* divided by it.

    The caller divides the gradient of the score instead, together with the scale that multiplies
    it: each factor alone may overflow where their quotient does not.
    """
    return apply_function(_Shrink, x, by)


def common_scale(features: Tensor) -> Tensor:
    """A power of two near the largest entry: dividing by it is exact, and squares then fit."""
    largest = features.detach().abs().amax()
    exponent = torch.frexp(largest).exponent.clamp(-125, 126)
    scale = torch.ldexp(torch.ones_like(largest), exponent)
    # Zero has no scale. Non-finite values stay, so that they appear in the loss.
    return torch.where((largest > 0) & largest.isfinite(), scale, torch.ones_like(largest))


# The features of all ranks, with gradients.

# Each rank has its own rows and the columns of all ranks, so the work is divided. Every rank
# returns the value of the whole batch. The *mean* over ranks of the gradients, which
# DistributedDataParallel computes, is the gradient of that value.

Group = Any
"""A process group; True for the default one."""


@dataclass(frozen=True)
class GatherRanks:
    """The group, the rows of each rank, and the position of this rank's rows among all."""

    group: Group
    size: int
    counts: list[int]
    offset: int

    @property
    def total(self) -> int:
        return sum(self.counts)


def ranks_of(gather: Group, rows: int, device: torch.device) -> GatherRanks | None:
    """None if there is nothing to gather: a single process, or `gather` is off."""
    if gather is None or gather is False:
        return None
    if not (dist.is_available() and dist.is_initialized()):
        if gather is True:
            return None  # the same script on one process
        raise ValueError("gather was given a process group, but torch.distributed is not set up")
    group = None if gather is True else gather
    size = dist.get_world_size(group)
    if size == 1:
        return None
    mine = torch.tensor([rows], device=device)
    each = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(each, mine, group=group)
    counts = [int(count) for count in torch.cat(each).tolist()]
    return GatherRanks(group, size, counts, sum(counts[: dist.get_rank(group)]))


class _Gather(torch.autograd.Function):
    """(rows, …) of every rank, one after the other. Batches may differ in size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: GatherRanks) -> Tensor:
        ctx.ranks = ranks
        most = max(ranks.counts)
        padded = x.new_zeros(most, *x.shape[1:])
        padded[: x.shape[0]] = x
        each = [torch.empty_like(padded) for _ in range(ranks.size)]
        dist.all_gather(each, padded, group=ranks.group)
        return torch.cat([part[:count] for part, count in zip(each, ranks.counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ranks: GatherRanks = ctx.ranks
        whole = grad.contiguous().clone()
        dist.all_reduce(whole, group=ranks.group)
        mine = ranks.counts[dist.get_rank(ranks.group)]
        return whole[ranks.offset : ranks.offset + mine], None


def gathered(features: Tensor, ranks: GatherRanks) -> Tensor:
    """(N, B, D) of every rank; all modalities are sent in one message."""
    rows_first = features.transpose(0, 1).contiguous()
    return apply_function(_Gather, rows_first, ranks).transpose(0, 1)


def largest_of(value: Tensor, ranks: GatherRanks) -> Tensor:
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=ranks.group)
    return value


def shared_value(part: Tensor, ranks: GatherRanks) -> Tensor:
    """The sum of all parts, with this rank's gradient times the number of ranks."""
    whole = part.detach().clone()
    dist.all_reduce(whole, group=ranks.group)
    part = part * ranks.size
    return part + (whole - part.detach())
