"""AdaGC and ZClip inside a fused step on a CUDA device: no host wait, and the plain formulas."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import steps_of
from support.reference_clipping import plain
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import nn

from headway import AdaGC, Guard, ZClip

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

STEPS, BAD = 40, 30
RULES: dict[str, AdaGC | ZClip] = {
    "AdaGC": AdaGC(warmup=8, relative=2.5, max_norm=9.0),
    "ZClip": ZClip(warmup=8, z=1.0),
}
BOTH = pytest.mark.parametrize("name", RULES)
FUSED = pytest.mark.parametrize("fused", [True, False])


def cuda_batches(count: int, size: int = 8) -> list[Any]:
    return [(x.cuda(), y.cuda()) for x, y in batches(count, size=size)]


def sgd(model: nn.Module, fused: bool = True) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, fused=fused)


def step(model: nn.Module, optimizer: Any, batch: Any, factor: float = 1.0) -> None:
    (squared_error(model, batch) * factor).backward()
    optimizer.step()
    optimizer.zero_grad()


@BOTH
def test_a_fused_step_never_waits_for_the_device(name: str, tmp_path: Path) -> None:
    model = make_net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    data = cuda_batches(60)
    guard = Guard(model, optimizer, max_norm=RULES[name], run_dir=tmp_path)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in guard(data):
            step(model, optimizer, batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    guard.close()
    assert guard.actions == []
    learned = guard._session.clip.state_dict()["0"]
    assert all(value.is_cuda for key, value in learned.items() if key != "rule")


@FUSED
@BOTH
def test_a_training_is_that_of_the_plain_formulas(name: str, fused: bool, tmp_path: Path) -> None:
    model, other = make_net().cuda(), make_net().cuda()
    optimizer, twin = sgd(model, fused), sgd(other, fused)
    reference = plain(RULES[name], 6)
    factors = []
    with Guard(model, optimizer, max_norm=RULES[name], run_dir=tmp_path) as guard:
        for batch in guard(cuda_batches(STEPS)):
            step(model, optimizer, batch)
            squared_error(other, batch).backward()
            gradients = [p.grad for p in other.parameters() if p.grad is not None]
            norms = [gradient.norm().item() for gradient in gradients]
            factors.append(reference.step(norms))
            for gradient, factor in zip(gradients, factors[-1], strict=True):
                gradient.mul_(factor)
            twin.step()
            twin.zero_grad()
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    found = [each.values["clip_coef"] for each in steps_of(tmp_path)]
    assert min(found) < 0.95
    if name == "ZClip":
        assert found == pytest.approx([each[0] for each in factors], rel=1e-2)


@FUSED
@pytest.mark.parametrize("factor", [math.nan, math.inf, 1e6])
@BOTH
def test_a_bad_step_is_as_if_it_had_never_been(name: str, factor: float, fused: bool) -> None:
    models = [make_net().cuda(), make_net().cuda()]
    optimizers = [sgd(model, fused) for model in models]
    guards = [
        Guard(model, optimizer, max_norm=RULES[name])
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    for number, batch in enumerate(cuda_batches(STEPS, size=64)):
        if number == BAD:
            step(models[0], optimizers[0], batch, factor)
        else:
            for model, optimizer in zip(models, optimizers, strict=True):
                step(model, optimizer, batch)
    assert_same(*(guard._session.clip.state_dict() for guard in guards))
    assert_same(*(state_of(m, o) for m, o in zip(models, optimizers, strict=True)))
    assert [action.step for action in guards[0].actions] == [BAD]
    for guard in guards:
        guard.close()


@FUSED
@BOTH
def test_under_a_scaler_everything_is_as_without_one(name: str, fused: bool) -> None:
    models = [make_net().cuda(), make_net().cuda()]
    optimizers = [sgd(model, fused) for model in models]
    guards = [
        Guard(model, optimizer, max_norm=RULES[name])
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
    for number, batch in enumerate(cuda_batches(STEPS)):
        scaler.scale(squared_error(models[0], batch)).backward()
        if number == 20:
            assert models[0].inner.weight.grad is not None
            models[0].inner.weight.grad[0, 0] = math.inf
        scaler.step(optimizers[0])
        scaler.update()
        optimizers[0].zero_grad()
        if number == 20:
            models[1].load_state_dict(models[0].state_dict())  # the forward moved BatchNorm's
        else:
            step(models[1], optimizers[1], batch)
    for one, two in zip(models[0].parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3)
    scaled, plainly = (guard._session.clip.state_dict()["0"] for guard in guards)
    assert torch.equal(scaled["seen"], plainly["seen"])
    for guard in guards:
        guard.close()
