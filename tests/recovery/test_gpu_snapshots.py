"""Snapshots on CUDA: no wait for the device, and the same states as on the CPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import all_finite
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import nn

from headway import Guard, Snapshots
from headway.guard.recovery.snapshots import take_snapshot
from headway.policy import Rung

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning"),
]


@contextlib.contextmanager
def no_wait() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def train(steps: int, *, fused: bool, spoil_at: int | None = None, **options: Any) -> Any:
    model = make_net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    kept = {}
    with Guard(model, optimizer, **options) as guard:
        for number, (x, y) in enumerate(guard([(x.cuda(), y.cuda()) for x, y in batches(steps)])):
            kept[number] = state_of(model, optimizer)
            if number == spoil_at:
                model.inner.weight.data[0, 0] = math.nan
            squared_error(model, (x, y)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, optimizer, guard, kept


@pytest.mark.parametrize("fused", [True, False])
def test_poisoned_weights_return_to_the_last_good_snapshot(fused: bool) -> None:
    model, optimizer, guard, kept = train(
        40, fused=fused, spoil_at=23, snapshots=Snapshots(every=10)
    )
    assert [action.rung for action in guard.actions].count(Rung.ROLL_BACK) == 1
    assert all_finite(state_of(model, optimizer))
    back = next(at for at in range(24, 40) if all_finite(kept[at]))
    assert_same(kept[20], kept[back])


def test_a_snapshot_waits_for_nobody() -> None:
    model = make_net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    data = [(x.cuda(), y.cuda()) for x, y in batches(60)]
    with Guard(model, optimizer, snapshots=Snapshots(every=5)) as guard:
        with no_wait():
            for batch in guard(data):
                squared_error(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert guard._session.recovery.snapshotter.can_roll_back(60)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_only_what_is_finite_is_good(value: float, dtype: torch.dtype) -> None:
    state = {"a": torch.randn(1000, device="cuda").to(dtype), "b": torch.arange(5, device="cuda")}
    fine = take_snapshot(1, state)
    assert fine.good
    assert_same({name: tensor.cpu() for name, tensor in state.items()}, fine.state)
    state["a"][500] = value
    assert not take_snapshot(1, state).good
    assert fine.good


def test_a_copy_is_of_the_moment_it_was_asked_for() -> None:
    weight = torch.zeros(1 << 24, device="cuda")
    snapshot = take_snapshot(1, {"w": weight})
    for _ in range(50):
        weight += 1.0
    assert snapshot.good
    assert float(snapshot.state["w"].abs().max()) == 0.0


def test_channels_last_comes_back_as_such() -> None:
    conv = nn.Conv2d(4, 8, 3).cuda().to(memory_format=torch.channels_last)
    snapshot = take_snapshot(1, dict(conv.state_dict()))
    assert snapshot.good
    assert snapshot.state["weight"].stride() == conv.weight.stride()
    assert_same(conv.weight.detach().cpu(), snapshot.state["weight"])


def test_resumed_from_disk_onto_the_device(tmp_path: Path) -> None:
    options = {"run_dir": tmp_path, "snapshots": Snapshots(every=10, disk_share=1.0)}
    *_, kept = train(25, fused=True, **options)
    model = make_net(seed=3).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with Guard(model, optimizer, **options) as guard:
        assert guard.resume() == 20
        assert_same(kept[20], state_of(model, optimizer))
