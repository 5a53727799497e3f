"""Ranks of which one runs out of memory: see `tests/ranks/test_on_oom.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from headway import Guard, Policy


class Limited(nn.Module):
    """Runs out of memory for more than so many rows, forward or backward."""

    def __init__(self, forward: int, backward: int, *, norm: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.outer = nn.Linear(8, 3)
        self.limits = (forward, backward)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.inner(x))
        if x.shape[0] > self.limits[0] and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")
        if hidden.requires_grad:
            hidden.register_hook(self._arrive)
        return self.outer(torch.tanh(hidden))

    def _arrive(self, gradient: Tensor) -> None:
        if gradient.shape[0] > self.limits[1]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def train(rank: int, on_oom: str, where: str, norm: bool) -> dict[str, Any]:
    """Four steps; the second and third batch of rank 1 do not fit."""
    torch.manual_seed(0)
    rows = 5 if rank == 1 and where else 10**6
    model = Limited(
        rows if where == "forward" else 10**6, rows if where == "backward" else 10**6, norm=norm
    ).double()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    random = torch.Generator().manual_seed(rank)
    data = [
        (torch.randn(n, 4, generator=random).double(), torch.randint(0, 3, (n,), generator=random))
        for n in (4, 12, 12, 4)
    ]
    guard = Guard(wrapped, optimizer, policy=Policy(on_oom=on_oom))
    moved = []
    for x, y in guard(data):
        before = model.outer.weight.detach().clone()
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        optimizer.step()
        moved.append(not torch.equal(before, model.outer.weight))
    guard.close()
    found = [item.evidence.get("action") for item in guard.findings if item.code == "HD808"]
    return {
        "weights": [p.detach() for p in model.parameters()],
        "moved": moved,
        "found": found,
    }
