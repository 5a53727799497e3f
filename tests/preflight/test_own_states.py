"""States that a model took of itself, loaded again after training."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from headway.core.findings import Finding
from headway.preflight.runner import run_check


def found(keep: Callable[[nn.Module], Any], load: Callable[[nn.Module, Any], Any]) -> list[Finding]:
    gc.collect()

    def work() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        kept = keep(model)
        for step in range(4):
            loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == 1:
                kept = keep(model)
        load(model, kept)

    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code == "HD709"]


def best(model: nn.Module) -> Any:
    return model.state_dict()


def test_a_state_that_is_not_copied_names_the_line_that_kept_it() -> None:
    findings = found(best, lambda model, kept: model.load_state_dict(kept))
    assert [item.where.function for item in findings] == ["best"]
    assert "of step 2" in findings[0].message


def test_a_shallow_copy_is_no_copy() -> None:
    assert found(lambda m: dict(best(m)), lambda model, kept: model.load_state_dict(kept))


@pytest.mark.parametrize(
    "keep",
    [
        lambda model: copy.deepcopy(model.state_dict()),
        lambda model: {name: value.clone() for name, value in model.state_dict().items()},
        lambda model: copy.deepcopy(model).state_dict(),
    ],
)
def test_copies_are_quiet(keep: Callable[[nn.Module], Any]) -> None:
    assert not found(keep, lambda model, kept: model.load_state_dict(kept))


def test_a_state_that_goes_to_another_module_is_quiet() -> None:
    assert not found(best, lambda model, kept: copy.deepcopy(model).load_state_dict(kept))
