"""A bad step leaves no trace: for every torch optimizer, fused and not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.grids import every_nth
from support.trainings import assert_same, batches, make_net, squared_error, state_of
from torch import nn

from headway import Guard

STEPS = 40
BAD = 30
"""After the grace period of the spike rule."""

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adadelta foreach": lambda p: torch.optim.Adadelta(p, lr=0.5, foreach=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, weight_decay=0.01),
    "Adagrad fused": lambda p: torch.optim.Adagrad(p, lr=1e-2, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=1e-2, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, fused=True),
    "AdamW capturable-free foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4),
    "LBFGS wolfe": lambda p: torch.optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
    "SGD": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, weight_decay=0.01),
    "SGD nesterov foreach": lambda p: torch.optim.SGD(
        p, lr=1e-2, momentum=0.9, nesterov=True, foreach=True
    ),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9, fused=True),
}

FAULTS: dict[str, float] = {"nan": float("nan"), "inf": float("inf"), "spike": 1e6}


def test_every_optimizer_of_torch_is_here() -> None:
    known = {name.split()[0] for name in OPTIMIZERS} | {"SparseAdam", "Muon", "Optimizer"}
    assert {name for name in dir(torch.optim) if name[0].isupper()} <= known


@pytest.mark.parametrize(
    ("name", "fault"),
    every_nth([(name, fault) for name in OPTIMIZERS for fault in FAULTS], 2),
)
def test_a_bad_step_leaves_no_trace(name: str, fault: str) -> None:
    model, optimizer = make_net(), None
    optimizer = OPTIMIZERS[name](model.parameters())
    clean, clean_optimizer = make_net(), None
    clean_optimizer = OPTIMIZERS[name](clean.parameters())
    data = batches(STEPS)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(data)):
            before = state_of(model, optimizer)
            spoiled = FAULTS[fault] if number == BAD else None
            take_step(model, optimizer, batch, spoiled)
            if spoiled is not None:
                assert_same(before, state_of(model, optimizer), f"{name} after the {fault}")
            else:
                take_step(clean, clean_optimizer, batch, None)
            assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer), f"@{number}")
        assert [action.step for action in guard.actions] == [BAD]


def take_step(model: nn.Module, optimizer: Any, batch: Any, spoiled: float | None) -> None:
    """One step, with the loss multiplied by `spoiled`."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = squared_error(model, batch)
        if spoiled is not None:
            loss = loss * spoiled
        loss.backward()
        return loss

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


@pytest.mark.parametrize("fault", FAULTS)
def test_sparse_gradients(fault: str) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Embedding(20, 4, sparse=True)
        return model, torch.optim.SparseAdam(model.parameters(), lr=1e-2)

    (model, optimizer), (clean, clean_optimizer) = make(), make()
    generator = torch.Generator().manual_seed(1)
    data = [torch.randint(0, 20, (6,), generator=generator) for _ in range(STEPS)]

    def step(net: nn.Module, opt: torch.optim.Optimizer, ids: torch.Tensor, factor: float) -> None:
        opt.zero_grad()
        (net(ids).pow(2).sum() * factor).backward()
        opt.step()

    with Guard(model, optimizer) as guard:
        for number, ids in enumerate(guard(data)):
            before = state_of(model, optimizer)
            step(model, optimizer, ids, FAULTS[fault] if number == BAD else 1.0)
            if number == BAD:
                assert_same(before, state_of(model, optimizer))
            else:
                step(clean, clean_optimizer, ids, 1.0)
            assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [BAD]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("fault", FAULTS)
def test_muon(fault: str) -> None:
    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
        return model, torch.optim.Muon(model.parameters(), lr=1e-2)

    (model, optimizer), (clean, clean_optimizer) = make(), make()
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            before = state_of(model, optimizer)
            optimizer.zero_grad(), clean_optimizer.zero_grad()
            take_step(model, optimizer, batch, FAULTS[fault] if number == BAD else None)
            if number == BAD:
                assert_same(before, state_of(model, optimizer))
            else:
                take_step(clean, clean_optimizer, batch, None)
            assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer))
        assert [action.step for action in guard.actions] == [BAD]
