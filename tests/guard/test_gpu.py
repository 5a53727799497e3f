"""The guard on a CUDA device: no host wait, nothing moves, nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import nn

from headway import Guard

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

STEPS, BAD = 45, 30
FAULTS = {"nan": float("nan"), "inf": float("inf"), "spike": 1e6}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, fused=True),
    "Adam fused amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True, fused=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
    "SGD fused without momentum": lambda p: torch.optim.SGD(p, lr=1e-2, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}


def cuda_batches(count: int) -> list[Any]:
    return [(x.cuda(), y.cuda()) for x, y in batches(count)]


def step(model: nn.Module, optimizer: Any, batch: Any, factor: float | None) -> torch.Tensor:
    loss = squared_error(model, batch)
    if factor is not None:
        loss = loss * factor
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_bad_step_leaves_no_trace(name: str, fault: str) -> None:
    model, clean = make_net().cuda(), make_net().cuda()
    optimizer, clean_optimizer = (OPTIMIZERS[name](m.parameters()) for m in (model, clean))
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(cuda_batches(STEPS))):
            before = state_of(model, optimizer)
            step(model, optimizer, batch, FAULTS[fault] if number == BAD else None)
            if number == BAD:
                assert_same(before, state_of(model, optimizer), f"{name} after the {fault}")
            else:
                step(clean, clean_optimizer, batch, None)
            assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer), f"@{number}")
        assert [action.step for action in guard.actions] == [BAD]


@pytest.mark.parametrize("max_norm", [None, 0.5])
def test_a_fused_step_never_waits_for_the_device(max_norm: float | None, tmp_path: Any) -> None:
    model = make_net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    data = cuda_batches(60)
    guard = Guard(model, optimizer, max_norm=max_norm, run_dir=tmp_path / "run")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in guard(data):
            step(model, optimizer, batch, None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    guard.close()
    assert not [f for f in guard.findings if f.code != "HD802"]


@pytest.mark.parametrize("max_norm", [0.5, 1e9])
def test_clipping_inside_the_kernel_equals_clip_grad_norm(max_norm: float) -> None:
    model, other = make_net().cuda(), make_net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, fused=True)
    plain = torch.optim.SGD(other.parameters(), lr=1e-2, fused=True)
    with Guard(model, optimizer, max_norm=max_norm) as guard:
        for batch in guard(cuda_batches(30)):
            step(model, optimizer, batch, None)
            squared_error(other, batch).backward()
            torch.nn.utils.clip_grad_norm_(other.parameters(), max_norm)
            plain.step()
            plain.zero_grad()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


def fp16_run(fused: bool, guarded: bool, bad: int | None = None) -> tuple[list[float], Any, Any]:
    model = make_net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)  # a few first skips are certain
    guard = Guard(model, optimizer, scaler=scaler) if guarded else None
    losses = []
    data = cuda_batches(60)
    for number, (x, y) in enumerate(guard(data) if guard else data):
        if number == bad and not guarded:
            continue
        with torch.autocast("cuda", torch.float16):
            loss = ((model(x) - y) ** 2).mean()
        if number == bad:
            loss = loss * float("nan")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    actions = guard.actions if guard else []
    if guard:
        guard.close()
    return losses, state_of(model, optimizer), actions


@pytest.mark.parametrize("fused", [True, False])
def test_a_healthy_fp16_run_is_the_same_with_and_without(fused: bool) -> None:
    plain, plain_state, _ = fp16_run(fused, guarded=False)
    watched, state, actions = fp16_run(fused, guarded=True)
    assert plain == watched
    assert_same(plain_state, state)
    assert actions == []


def test_fuse_makes_a_plain_adamw_fused() -> None:
    def net() -> nn.Module:
        # Without BatchNorm: the bias before it has a gradient of pure rounding noise.
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).cuda()

    model, clean = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    fused = torch.optim.AdamW(clean.parameters(), lr=1e-3, fused=True)
    step(model, optimizer, cuda_batches(1)[0], None)  # so that there is state to move
    step(clean, fused, cuda_batches(1)[0], None)
    with Guard(model, optimizer, fuse=True) as guard:
        for batch in guard(cuda_batches(4)):
            step(model, optimizer, batch, None)
            step(clean, fused, batch, None)
    for one, two in zip(model.parameters(), clean.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)
    assert all(group["fused"] for group in optimizer.param_groups)
    assert all(state["step"].is_cuda for state in optimizer.state.values())


def test_numbers_arrive_two_steps_late_and_all_of_them(tmp_path: Any) -> None:
    import json

    model = make_net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    guard = Guard(model, optimizer, run_dir=tmp_path / "run")
    losses = [float(step(model, optimizer, batch, None)) for batch in guard(cuda_batches(25))]
    guard.close()
    lines = (tmp_path / "run" / "steps.rank0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == list(range(25))
    assert [record["v"]["loss"] for record in records] == losses
    assert "device_allocated_bytes" in records[0]["v"]


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_a_step_that_is_recorded_into_a_cuda_graph(caplog: pytest.LogCaptureFixture) -> None:
    """Replays are not guarded, which is said once; the run stays bit-identical, and a step outside
    the graph is guarded."""
    outcomes = []
    for guarded in (True, False):
        model = make_net().cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, capturable=True)
        guard = Guard(model, optimizer) if guarded else None
        data = cuda_batches(12)
        static = [item.clone() for item in data[0]]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                loss = squared_error(model, tuple(static))
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph):
            squared_error(model, tuple(static)).backward()
            optimizer.step()
        for batch in data[1:]:
            for target, item in zip(static, batch, strict=True):
                target.copy_(item)
            graph.replay()
        outcomes.append(state_of(model, optimizer))
        if guard is not None:
            optimizer.zero_grad(set_to_none=True)
            (squared_error(model, data[0]) * float("nan")).backward()
            optimizer.step()
            assert_same(outcomes[0], state_of(model, optimizer))
            guard.close()
            assert "HD001" not in {finding.code for finding in guard.findings}
    assert_same(*outcomes)
    assert caplog.text.count("recorded into a CUDA graph") == 1


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_optimizer_step(mode: str) -> None:
    """`reduce-overhead` records CUDA graphs inside of compiled code."""
    outcomes = []
    for guarded in (True, False):
        torch._dynamo.reset()
        model = make_net().cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2), capturable=True)
        compiled: Any = torch.compile(optimizer.step, mode=mode)
        guard = Guard(model, optimizer) if guarded else None
        for batch in cuda_batches(8):
            squared_error(model, batch).backward()
            compiled()
            optimizer.zero_grad()
        outcomes.append(state_of(model, optimizer))
        if guard is not None:
            (squared_error(model, cuda_batches(1)[0]) * float("nan")).backward()
            compiled()
            assert_same(outcomes[0], state_of(model, optimizer))
            guard.close()
            assert [action.step for action in guard.actions] == [8]
    assert_same(*outcomes)
