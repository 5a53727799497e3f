"""HD5 under the real guard: a bad sample is named, an infinity that is meant is not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.guarded_trainings import loud, loud_codes, the, watched
from support.trainings import batches, make_net, squared_error
from torch import Tensor
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

from headway import Guard, Severity

BAD = 20


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=["NaN", "Inf", "-Inf"])
def test_hd501_one_bad_value_in_one_sample(value: float) -> None:
    data = batches(40)
    data[BAD][0][3, 2] = value
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), data)
    found = the(guard, "HD501")
    assert (found.step, found.severity) == (BAD, Severity.ERROR)
    assert found.where.sample == 3
    assert (found.evidence["rows"], found.evidence["features"]) == ([3], [2])
    assert found.evidence["nan"] + found.evidence["inf"] == 1
    assert "batch[0]" in found.message
    assert "in sample 3, at feature 2" in found.message
    assert loud_codes(guard) == {"HD101", "HD201", "HD501"}
    assert [action.step for action in guard.actions] == [BAD]


def test_hd501_bad_targets_are_told_from_bad_inputs() -> None:
    data = batches(40)
    data[BAD][1][5:7] = math.nan
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), data)
    found = the(guard, "HD501")
    assert found.evidence["tensor"] == "batch[1]"
    assert found.evidence["rows"] == [5, 6]


def as_dict(data: list[Any]) -> list[dict[str, Any]]:
    return [{"image": x, "meta": {"target": y, "id": "a"}} for x, y in data]


def dict_error(model: Any, batch: dict[str, Any]) -> Tensor:
    return squared_error(model, (batch["image"], batch["meta"]["target"]))


def test_hd501_names_the_tensor_within_a_nested_batch() -> None:
    data = as_dict(batches(40))
    data[BAD]["meta"]["target"][1] = math.inf
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), data, dict_error)
    assert the(guard, "HD501").evidence["tensor"] == "batch['meta']['target']"


def test_hd501_through_a_data_loader_at_every_epoch_is_one_finding() -> None:
    x, y = (torch.cat(parts) for parts in zip(*batches(20), strict=True))
    x[37, 4] = math.nan
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), [b for _ in range(3) for b in loader])
    found = the(guard, "HD501")
    assert (found.step, found.where.sample) == (37 // 8, 37 % 8)
    assert found.evidence["count"] == 3
    assert [action.step for action in guard.actions] == [4, 24, 44]


def test_hd501_the_bad_batch_among_accumulated_ones_is_named() -> None:
    data = batches(40)
    data[BAD + 1][0][6, 0] = math.nan
    model = make_net()
    optimizer = Adam(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(data)):
            (squared_error(model, batch) / 4).backward()
            if number % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()
    found = the(guard, "HD501")
    assert (found.step, found.where.sample) == (BAD // 4, 6)


def test_hd501_a_mask_of_infinities_beside_the_bad_tensor_is_not_blamed() -> None:
    additive = torch.zeros(8)
    additive[2] = -math.inf
    data = [(x, y, additive) for x, y in batches(40)]
    data[BAD][0][3, 2] = math.nan

    def loss_of(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, y, mask = batch
        return (torch.softmax(mask, dim=0)[:, None] * (model(x) - y).square()).sum()

    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), data, loss_of)
    assert the(guard, "HD501").evidence["tensor"] == "batch[0]"


def in_float16(guard: Guard, model: Any, optimizer: Any, scaler: Any, batch: Any) -> None:
    with torch.autocast("cpu", dtype=torch.float16):
        loss = squared_error(model, batch)
    guard.backward(loss)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


def test_hd501_sample_is_named_when_a_scaler_skips_the_step_as_well() -> None:
    data = batches(40)
    data[BAD][0][3, 2] = math.nan
    model = make_net()
    optimizer = SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with Guard(model, optimizer, scaler=scaler) as guard:
        for batch in guard(data):
            in_float16(guard, model, optimizer, scaler, batch)
    found = the(guard, "HD501")
    assert (found.step, found.where.sample) == (BAD, 3)
    assert [action.step for action in guard.actions] == [BAD]


def test_hd501_quiet_on_infinities_and_unknowns_that_the_loss_leaves_out() -> None:
    """An additive mask in the batch, and NaN for targets nobody knows."""
    mask = torch.zeros(8, 1)
    mask[0] = -math.inf
    data = [
        (x, torch.where(torch.arange(8)[:, None] == 5, math.nan, y), mask) for x, y in batches(60)
    ]

    def loss_of(model: Any, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        x, y, additive = batch
        known = ~torch.isnan(y)
        weights = torch.softmax(additive[known], dim=0)
        return (weights * (model(x)[known] - y[known]).square()).sum()

    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), data, loss_of)
    assert loud(guard) == []
    assert guard.actions == []
