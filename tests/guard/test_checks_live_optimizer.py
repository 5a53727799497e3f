"""HD4, the optimizer, under the real guard: each check fires on its fault, not on a healthy twin.

HD414 is beside HD313 in the file on weights: one fault, two checks.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.guarded_trainings import loud, loud_codes, the, until_halted, watched
from support.trainings import batches, make_net, squared_error
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from headway import Guard, Severity
from headway.guard.step_machine import PARAMETER_SCAN_INTERVAL

# HD401: parameters in no optimizer.


class LateHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(6, 12), nn.ReLU())
        self.head: nn.Module = nn.Linear(12, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.trunk(x))


def test_hd401_head_attached_after_the_optimizer_was_built() -> None:
    model = LateHead()
    optimizer = Adam(model.trunk.parameters(), lr=1e-2)
    guard = watched(model, optimizer, batches(30))
    found = the(guard, "HD401")
    assert (found.step, found.severity) == (0, Severity.ERROR)
    assert found.evidence["parameters"] == ["head.weight", "head.bias"]
    assert found.where.module == "head.weight"
    assert loud_codes(guard) == {"HD401"}


def test_hd401_layer_unfrozen_on_the_way_and_never_added() -> None:
    model = LateHead()
    model.trunk.requires_grad_(False)
    optimizer = Adam(model.head.parameters(), lr=1e-2)

    def unfreeze(number: int) -> None:
        if number == 14:
            model.trunk.requires_grad_(True)

    guard = watched(model, optimizer, batches(PARAMETER_SCAN_INTERVAL + 5), each=unfreeze)
    found = the(guard, "HD401")
    assert found.step == PARAMETER_SCAN_INTERVAL, "at the next look at the parameters"
    assert found.evidence["parameters"] == ["trunk.0.weight", "trunk.0.bias"]


def test_hd401_quiet_when_it_is_added_to_the_optimizer() -> None:
    model = LateHead()
    model.trunk.requires_grad_(False)
    optimizer = Adam(model.head.parameters(), lr=1e-2)

    def unfreeze(number: int) -> None:
        if number == 14:
            model.trunk.requires_grad_(True)
            optimizer.add_param_group({"params": list(model.trunk.parameters()), "lr": 1e-3})

    guard = watched(model, optimizer, batches(PARAMETER_SCAN_INTERVAL + 60), each=unfreeze)
    assert loud(guard) == []


# HD408: a poisoned moment.

MOMENTS = {
    "momentum": (lambda p: SGD(p, lr=1e-2, momentum=0.9), "momentum_buffer"),
    "first moment": (lambda p: Adam(p, lr=1e-2), "exp_avg"),
    "second moment": (lambda p: AdamW(p, lr=1e-2), "exp_avg_sq"),
}


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["NaN", "Inf"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_hd408_moment_poisoned_in_the_checkpoint_one_resumes_from(
    moment: str, value: float
) -> None:
    make, name = MOMENTS[moment]
    first, data = make_net(), batches(40)
    before = make(first.parameters())
    for batch in data[:10]:
        before.zero_grad()
        squared_error(first, batch).backward()
        before.step()
    saved = before.state_dict()
    saved["state"][0][name][2, 3] = value

    model = make_net()
    model.load_state_dict(first.state_dict())
    optimizer = make(model.parameters())
    optimizer.load_state_dict(saved)
    guard = Guard(model, optimizer)
    found = the(guard, "HD408")
    assert (found.step, found.severity) == (0, Severity.ERROR)
    assert found.where.module == f"inner.weight.{name}"
    assert found.evidence["nan"] + found.evidence["inf"] == 1
    assert loud_codes(guard) == {"HD408"}, "and it is told before the first step"
    guard.close()


def test_hd408_moment_poisoned_on_the_way_is_found_when_the_weights_follow() -> None:
    model = make_net()
    optimizer = Adam(model.parameters(), lr=1e-2)

    def poison(number: int) -> None:
        if number == 11:
            optimizer.state[model.inner.weight]["exp_avg"][0, 0] = math.nan

    guard = until_halted(model, optimizer, batches(40), because=r"inner\.weight", each=poison)
    assert (the(guard, "HD408").step, the(guard, "HD301").step) == (13, 13)


def test_hd408_quiet_on_a_resume_from_a_clean_checkpoint() -> None:
    first, data = make_net(), batches(60)
    before = Adam(first.parameters(), lr=1e-2)
    watched(first, before, data[:20])
    model = make_net()
    model.load_state_dict(first.state_dict())
    optimizer = Adam(model.parameters(), lr=1e-2)
    optimizer.load_state_dict(before.state_dict())
    guard = watched(model, optimizer, data[20:])
    assert loud(guard) == []


# HD410: nothing left to train.


def freeze(model: nn.Module, keep: Any) -> list[nn.Parameter]:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(keep(name))
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def test_hd410_everything_frozen_but_the_norm_layer() -> None:
    model = make_net()
    left = freeze(model, lambda name: "norm" in name)
    guard = watched(model, SGD(left, lr=1e-2), batches(40))
    found = the(guard, "HD410")
    assert (found.step, found.severity) == (0, Severity.ERROR)
    assert found.evidence["trainable"] == 2
    assert "norm.weight" in found.message
    assert loud_codes(guard) == {"HD410"}


def test_hd410_everything_frozen() -> None:
    model = make_net()
    optimizer = SGD(model.parameters(), lr=1e-2)
    freeze(model, lambda name: False)
    with Guard(model, optimizer) as guard:
        found = the(guard, "HD410")
    assert (found.step, found.severity) == (0, Severity.ERROR)
    assert "all 6 parameters are frozen" in found.message


@pytest.mark.parametrize("kept", ["head", "norm and head", "bias"])
def test_hd410_quiet_when_something_that_can_learn_is_left(kept: str) -> None:
    model = make_net()
    left = freeze(model, lambda name: any(part in name for part in kept.split(" and ")))
    guard = watched(model, SGD(left, lr=1e-2), batches(40))
    assert loud(guard) == []
