"""The features of all ranks, with gradients.

Each rank keeps its own rows and sees everybody's columns, so the work is shared out. The value
every rank returns is that of the whole batch. The gradient each rank computes is such that their
*mean* over ranks, which is what DistributedDataParallel takes, is the gradient of that value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from headway.numerics.nway.applied import applied

Group = Any
"""A process group; True for the default one."""


@dataclass(frozen=True)
class Ranks:
    """Who takes part, and where this rank's rows lie among all."""

    group: Group
    size: int
    counts: list[int]
    offset: int

    @property
    def total(self) -> int:
        return sum(self.counts)


def ranks_of(gather: Group, rows: int, device: torch.device) -> Ranks | None:
    """None where there is nothing to gather: one process, or none asked for."""
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
    return Ranks(group, size, counts, sum(counts[: dist.get_rank(group)]))


class _Gather(torch.autograd.Function):
    """(rows, …) of every rank, one after the other. Batches may differ in size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        most = max(ranks.counts)
        padded = x.new_zeros(most, *x.shape[1:])
        padded[: x.shape[0]] = x
        each = [torch.empty_like(padded) for _ in range(ranks.size)]
        dist.all_gather(each, padded, group=ranks.group)
        return torch.cat([part[:count] for part, count in zip(each, ranks.counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ranks: Ranks = ctx.ranks
        whole = grad.contiguous().clone()
        dist.all_reduce(whole, group=ranks.group)
        mine = ranks.counts[dist.get_rank(ranks.group)]
        return whole[ranks.offset : ranks.offset + mine], None


def gathered(features: Tensor, ranks: Ranks) -> Tensor:
    """(N, B, D) of every rank; all modalities travel in one message."""
    rows_first = features.transpose(0, 1).contiguous()
    return applied(_Gather, rows_first, ranks).transpose(0, 1)


def largest_of(value: Tensor, ranks: Ranks) -> Tensor:
    dist.all_reduce(value, op=dist.ReduceOp.MAX, group=ranks.group)
    return value


def shared_value(part: Tensor, ranks: Ranks) -> Tensor:
    """The sum of all parts, with this rank's gradient times the number of ranks."""
    whole = part.detach().clone()
    dist.all_reduce(whole, group=ranks.group)
    part = part * ranks.size
    return part + (whole - part.detach())
