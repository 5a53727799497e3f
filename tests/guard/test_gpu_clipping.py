"""The user's own clipping on a CUDA device: seen without a wait, and undone by nobody."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import column_by_name, headers_of, steps_of
from support.trainings import Net, assert_same, batches, make_net, squared_error, state_of
from torch.nn.utils import clip_grad_norm_

from headway import Guard

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

MAX_NORM = 0.5


def in_order(net: Net) -> None:
    clip_grad_norm_(net.parameters(), MAX_NORM)


def backwards(net: Net) -> None:
    clip_grad_norm_(list(net.parameters())[::-1], MAX_NORM)


def in_two(net: Net) -> None:
    clip_grad_norm_(net.inner.parameters(), MAX_NORM)
    clip_grad_norm_([*net.norm.parameters(), *net.head.parameters()], MAX_NORM)


WAYS: dict[str, Callable[[Net], None]] = {
    way.__name__: way for way in (in_order, backwards, in_two)
}


def cuda_batches(count: int) -> list[Any]:
    return [(x.cuda(), y.cuda()) for x, y in batches(count)]


def optimizer_for(net: Net, fused: bool) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-2, fused=fused)


def norm_of(net: Net) -> float:
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    return torch.cat([g.flatten() for g in gradients]).norm().item()


@pytest.mark.parametrize("way", WAYS)
def test_a_fused_step_with_clipping_never_waits_for_the_device(way: str) -> None:
    net = make_net().cuda()
    optimizer = optimizer_for(net, fused=True)
    data = cuda_batches(30)
    guard = Guard(net, optimizer)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in guard(data):
            squared_error(net, batch).backward()
            WAYS[way](net)
            optimizer.step()
            optimizer.zero_grad()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    guard.close()
    assert guard.actions == []


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_the_norm_before_clipping_is_on_record(way: str, fused: bool, tmp_path: Path) -> None:
    net, alone = make_net().cuda(), make_net().cuda()
    optimizer, other = optimizer_for(net, fused), optimizer_for(alone, fused)
    expected = []
    with Guard(net, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(cuda_batches(12)):
            squared_error(net, batch).backward()
            expected.append(norm_of(net))
            WAYS[way](net)
            optimizer.step()
            optimizer.zero_grad()
            squared_error(alone, batch).backward()
            WAYS[way](alone)
            other.step()
            other.zero_grad()
    assert_same(state_of(alone, other), state_of(net, optimizer))
    found = [step.values["grad_norm"] for step in steps_of(tmp_path)]
    assert found == pytest.approx(expected, rel=1e-4)
    assert all(0 < step.values["clip_coef"] <= 1 for step in steps_of(tmp_path))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_nan_keeps_its_owner_and_is_held(way: str, fused: bool, tmp_path: Path) -> None:
    net = make_net().cuda()
    optimizer = optimizer_for(net, fused)
    with Guard(net, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(cuda_batches(12))):
            before = state_of(net, optimizer)
            squared_error(net, batch).backward()
            if number == 7:
                assert net.norm.bias.grad is not None
                net.norm.bias.grad[3] = math.nan
            WAYS[way](net)
            optimizer.step()
            optimizer.zero_grad()
            if number == 7:
                assert_same(before, state_of(net, optimizer))
        assert [action.step for action in guard.actions] == [7]
    column = column_by_name(steps_of(tmp_path)[7], "param/grad_norm", headers_of(tmp_path)[-1])
    assert [name for name, norm in column.items() if not math.isfinite(norm)] == ["norm.bias"]


@pytest.mark.parametrize("fused", [True, False])
def test_a_limit_that_is_itself_nan_is_held(fused: bool) -> None:
    net = make_net().cuda()
    optimizer = optimizer_for(net, fused)
    with Guard(net, optimizer) as guard:
        for number, batch in enumerate(guard(cuda_batches(12))):
            before = state_of(net, optimizer)
            squared_error(net, batch).backward()
            clip_grad_norm_(net.parameters(), math.nan if number == 7 else MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
            if number == 7:
                assert_same(before, state_of(net, optimizer))
        assert [action.step for action in guard.actions] == [7]


@pytest.mark.parametrize("fused", [True, False])
def test_clipping_and_max_norm_do_not_clip_twice(fused: bool) -> None:
    net, alone = make_net().cuda(), make_net().cuda()
    optimizers = [torch.optim.SGD(m.parameters(), lr=1e-2, fused=fused) for m in (net, alone)]
    with Guard(net, optimizers[0], max_norm=MAX_NORM) as guard:
        for batch in guard(cuda_batches(12)):
            for each, optimizer in zip((net, alone), optimizers, strict=True):
                squared_error(each, batch).backward()
                in_order(each)
                optimizer.step()
                optimizer.zero_grad()
    for one, other in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fused", [True, False])
def test_unscaled_and_clipped_under_a_scaler(fused: bool, tmp_path: Path) -> None:
    net = make_net().cuda()
    optimizer = optimizer_for(net, fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    expected = []
    with Guard(net, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(cuda_batches(12)):
            scaler.scale(squared_error(net, batch)).backward()
            scaler.unscale_(optimizer)
            expected.append(norm_of(net))
            in_order(net)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert guard.actions == []
    found = [step.values["grad_norm"] for step in steps_of(tmp_path)]
    assert found == pytest.approx(expected, rel=1e-4)
