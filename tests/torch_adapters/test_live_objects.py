"""Objects of some classes: searched for once, then noted as they are made."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from headway.torch_adapters import live_objects
from headway.torch_adapters.live_objects import KnownInstances


def make_schedule() -> LambdaLR:
    return LambdaLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), lambda step: 1.0)


def test_later_objects_are_found_without_a_second_search(monkeypatch: pytest.MonkeyPatch) -> None:
    early, original = make_schedule(), LRScheduler.__init__
    known = KnownInstances(LRScheduler)
    assert any(item is early for item in known.find())
    monkeypatch.setattr(live_objects, "find_instances", lambda *kinds: pytest.fail("searched"))
    late = make_schedule()
    found = known.find()
    assert any(item is early for item in found)
    assert any(item is late for item in found)
    gone = id(late)
    del late, found
    assert not any(id(item) == gone for item in known.find())
    known.close()
    assert LRScheduler.__init__ is original
