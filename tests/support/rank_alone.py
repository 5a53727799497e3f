"""Trainings on two ranks in which one of them runs a step again without the other."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway import Guard
from headway.torch_adapters.process_groups.local_collectives import local_collectives
from headway.torch_adapters.process_groups.rank_agreement import leave_note, read_notes


def _rows(rank: int) -> Tensor:
    torch.manual_seed(rank)
    data = torch.randn(32, 6)
    if rank == 1:
        data[11] = 0.0
    return data


def _level_loss(model: nn.Module, x: Tensor) -> Tensor:
    level = x.abs().sum(dim=1).log()  # the origin
    return (model(x)[:, 0] - level).square().mean()


def level_line() -> int:
    return _level_loss.__code__.co_firstlineno + 1


Told = tuple[list[tuple[int, str, int | None, list[str]]], list[float]]
"""(line, op, rank, outcomes of the remedies) of each explanation; and the losses."""


def _told(guard: Guard, losses: list[float]) -> Told:
    found = [
        (one.origin.place.line, one.origin.op, one.rank, [trial.tried for trial in one.trials])
        for one in guard.explanations
        if one.origin is not None and one.origin.place is not None
    ]
    return found, losses


def averaged_by_hand(rank: int) -> Told:
    """No wrapper shows that the ranks train together."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    with Guard(model, optimizer) as guard:
        for x in _rows(rank).split(8):
            loss = _level_loss(model, x)
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            losses.append(float(mean))
    return _told(guard, losses)


def from_a_generator(rank: int) -> Told:
    """Its batches are gone once they were drawn."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    with Guard(model, optimizer) as guard:
        for x in iter(_rows(rank).split(8)):
            loss = _level_loss(model, x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    return _told(guard, losses)


def answered_alone(rank: int) -> list[object]:
    if rank == 1:  # takes part in nothing
        return []
    own = torch.full((3,), 2.0)
    each = [torch.zeros(3), torch.zeros(3)]
    joined, part = torch.zeros(6), torch.zeros(3)
    with local_collectives():
        dist.all_reduce(own)
        dist.all_reduce(own, async_op=True).wait()
        dist.broadcast(own, 0)
        dist.barrier()
        dist.all_gather(each, own)
        dist.all_gather_into_tensor(joined, own)
        dist.reduce_scatter_tensor(part, torch.arange(6.0))
        with pytest.raises(RuntimeError, match="only be run again by all ranks"):
            dist.broadcast(own, 1)
        with pytest.raises(RuntimeError, match="only be run again by all ranks"):
            dist.recv(own, 1)
    return [item.tolist() for item in (own, *each, joined, part)]


def noted(rank: int) -> dict[int, str]:
    if rank == 1:
        leave_note("origin/7", "line 12")
    return read_notes("origin/7", seconds=20.0 if rank == 0 else 0.0)
