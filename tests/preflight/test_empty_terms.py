"""A fresh 0 in the place of a term, and zeros that are as they should be."""

from __future__ import annotations

import linecache
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headway.core.findings import Severity
from headway.preflight.observers.loss.empty_terms import EmptyTerms
from headway.preflight.runner import CheckResult, run_check

Loss = Callable[[Tensor, Tensor, int], Tensor]


def train(loss_of: Loss, steps: int = 56) -> CheckResult:
    def work() -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        mixed = torch.randn(6, 4)
        for step in range(steps):
            x = torch.randn(24, 6)
            loss = loss_of(model(x), torch.sin(x @ mixed), step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    checked = run_check(work, max_steps=None, observers=[EmptyTerms])
    assert checked.error is None
    assert not checked.notes
    return checked


def pair_loss(out: Tensor, wanted: bool) -> Tensor:
    pairs = torch.full((len(out),), wanted)
    if not pairs.any():
        return torch.zeros((), device=out.device)
    return (out[0] - out[1]).pow(2).mean()


def by_count(out: Tensor) -> Tensor:
    many = int((out > 1e6).sum())
    if many == 0:
        return out.new_zeros(())
    return out[out > 1e6].mean()


def never(out: Tensor, y: Tensor, step: int) -> Tensor:
    fit = F.mse_loss(out, y)
    pair = pair_loss(out, False)
    return fit + 0.5 * pair


def never_of_three(out: Tensor, y: Tensor, step: int) -> Tensor:
    return F.mse_loss(out, y) + 0.1 * out.abs().mean() + pair_loss(out, False)


def never_first(out: Tensor, y: Tensor, step: int) -> Tensor:
    pair = pair_loss(out, False)
    return pair + F.mse_loss(out, y)


def never_in_a_table(out: Tensor, y: Tensor, step: int) -> Tensor:
    losses = {"fit": F.mse_loss(out, y), "pair": pair_loss(out, False)}
    return sum(losses.values())  # type: ignore[return-value]


def never_stacked(out: Tensor, y: Tensor, step: int) -> Tensor:
    return torch.stack([F.mse_loss(out, y), pair_loss(out, False)]).sum()


def never_many(out: Tensor, y: Tensor, step: int) -> Tensor:
    return F.mse_loss(out, y) + by_count(out)


def a_default(out: Tensor, y: Tensor, step: int) -> Tensor:
    pair = torch.tensor(0.0)
    if len(out) < 3:
        pair = pair_loss(out, True)
    return F.mse_loss(out, y) + pair


@pytest.mark.parametrize(
    "loss_of",
    [
        never,
        never_of_three,
        never_first,
        never_in_a_table,
        never_stacked,
        never_many,
        a_default,
    ],
)
def test_a_term_that_is_never_computed(loss_of: Loss) -> None:
    checked = train(loss_of)
    found = [item for item in checked.report.findings if item.code == "HD106"]
    assert len(found) == 1
    assert "is never computed" in found[0].message
    assert found[0].severity is Severity.ERROR
    assert found[0].where.file == __file__
    made = {a_default: "a_default", never_many: "by_count"}.get(loss_of, "pair_loss")
    assert found[0].where.function == made
    line = linecache.getline(__file__, found[0].where.line or 0)
    assert "zeros(()" in line or "torch.tensor(0.0)" in line


def now_and_then(out: Tensor, y: Tensor, step: int) -> Tensor:
    return F.mse_loss(out, y) + pair_loss(out, step % 20 == 0)


def begins_later(out: Tensor, y: Tensor, step: int) -> Tensor:
    pair = pair_loss(out, True) if step > 200 else torch.zeros(())
    return F.mse_loss(out, y) + pair


def adds_up(out: Tensor, y: Tensor, step: int) -> Tensor:
    total = torch.zeros(())
    for row in (out - y).split(8):
        total = total + row.pow(2).mean()
    return total


def adds_up_in_place(out: Tensor, y: Tensor, step: int) -> Tensor:
    total = torch.zeros(1)
    total += F.mse_loss(out, y)
    total += 0.1 * out.abs().mean()
    return total.sum()


def adds_up_backwards(out: Tensor, y: Tensor, step: int) -> Tensor:
    loss = torch.tensor(0.0)
    for row in (out - y).split(8):
        loss = row.pow(2).mean() + loss
    return loss


def small_number(out: Tensor, y: Tensor, step: int) -> Tensor:
    return F.mse_loss(out, y) + torch.tensor(1e-8)


@pytest.mark.parametrize(
    "loss_of",
    [now_and_then, begins_later, adds_up, adds_up_in_place, adds_up_backwards, small_number],
)
def test_zeros_that_are_as_they_should_be(loss_of: Loss) -> None:
    assert "HD106" not in [item.code for item in train(loss_of).report.findings]


USE_PAIRS = False


def switched_off(out: Tensor, y: Tensor, step: int) -> Tensor:
    pair = torch.zeros(())
    if USE_PAIRS:
        pair = pair_loss(out, True)
    return F.mse_loss(out, y) + 0.1 * pair


def optional(out: Tensor, y: Tensor, step: int, extra: Tensor | None = None) -> Tensor:
    part = extra.mean() if extra is not None else torch.tensor(0.0)
    return F.mse_loss(out, y) + part


def plain_layers(out: Tensor, y: Tensor, step: int) -> Tensor:
    losses = [out.abs().mean(), out.new_zeros(()), out.pow(2).mean(), out.new_zeros(())]
    total = F.mse_loss(out, y)
    for part in losses:
        total = total + 0.01 * part
    return total


@pytest.mark.parametrize("loss_of", [switched_off, optional, plain_layers])
def test_a_part_that_is_switched_off_is_no_fault(loss_of: Loss) -> None:
    found = [item for item in train(loss_of).report.findings if item.code == "HD106"]
    assert all(item.severity is Severity.INFO for item in found)


def test_a_few_steps_tell_nothing() -> None:
    assert "HD106" not in [item.code for item in train(never, steps=40).report.findings]
