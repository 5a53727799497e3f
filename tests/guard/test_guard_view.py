"""What a guard shows of itself, and what it says to a policy that is none."""

from __future__ import annotations

import pytest
import torch

import headway
from headway.errors import UsageError


def test_a_guard_prints_its_state() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = headway.Guard(model, optimizer)
    for x in guard([torch.ones(1, 2)] * 3):
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert repr(guard) == "<headway guard: watching, 3 steps, 0 actions>"
    guard.close()
    assert repr(guard) == "<headway guard: closed, 3 steps, 0 actions>"


def test_the_name_of_a_policy_is_no_policy() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match=r"must be a headway\.Policy.*not 'agressive'"):
        headway.Guard(model, optimizer, policy="agressive")  # type: ignore[arg-type]
