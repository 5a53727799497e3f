"""HD3, weights and precision, under the real guard: each check fires on its fault, not on twins."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from support.guarded_trainings import loud, loud_codes, the, until_halted, watched
from support.trainings import batches, make_net, skip_or_halt
from torch import Tensor, nn
from torch.optim import SGD, Adam

from headway import Guard, Severity, TrainingHalted

INF, NAN = math.inf, math.nan


def plain_net(width: int = 16) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 1))


# HD301 and HD302: non-finite weights and buffers.


@pytest.mark.parametrize("value", [NAN, INF], ids=["NaN", "Inf"])
def test_hd301_weight_poisoned_before_the_start(value: float) -> None:
    model = make_net()
    with torch.no_grad():
        model.head.weight[0, 3] = value
    guard = Guard(model, Adam(model.parameters(), lr=1e-2))
    found = the(guard, "HD301")
    assert (found.step, found.severity) == (0, Severity.ERROR)
    assert found.where.module == "head.weight"
    assert found.evidence["nan"] + found.evidence["inf"] == 1
    guard.close()


def test_hd301_weight_poisoned_between_two_steps_ends_the_run() -> None:
    model = make_net()
    optimizer = Adam(model.parameters(), lr=1e-2)

    def poison(number: int) -> None:
        if number == 9:
            with torch.no_grad():
                model.head.weight[0, 3] = NAN

    because = r"head\.weight is non-finite"
    guard = until_halted(model, optimizer, batches(30), because=because, each=poison)
    found = the(guard, "HD301")
    assert (found.step, found.where.module) == (10, "head.weight")
    assert [(action.step, action.rung.value) for action in guard.actions] == [(10, "halt")]
    assert bool(torch.isfinite(model.inner.weight).all()), "the others were not infected"


def test_hd301_a_scaler_that_skips_for_ever_does_not_hide_it() -> None:
    model = make_net()
    optimizer = SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    guard = Guard(model, optimizer, scaler=scaler, policy=skip_or_halt())
    taken = 0

    def train() -> None:
        nonlocal taken
        for x, y in batches(40):  # not through guard(loader): the scaler alone must tell
            with torch.autocast("cpu", dtype=torch.float16):
                loss = (model(x) - y).square().mean()
            guard.backward(loss)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            taken += 1
            if taken == 10:
                model.head.weight.data[0, 3] = NAN

    with guard, pytest.raises(TrainingHalted, match=r"head\.weight is non-finite"):
        train()
    assert (taken, the(guard, "HD301").step) == (10, 10)


@pytest.mark.parametrize("buffer", ["running_mean", "running_var"])
@pytest.mark.parametrize("value", [NAN, INF], ids=["NaN", "Inf"])
def test_hd302_batch_norm_statistics_poisoned_before_the_start(buffer: str, value: float) -> None:
    model = make_net()
    getattr(model.norm, buffer)[2] = value
    guard = watched(model, Adam(model.parameters(), lr=1e-2), batches(40))
    found = the(guard, "HD302")
    assert (found.step, found.severity) == (0, Severity.ERROR)
    assert found.where.module == f"norm.{buffer}"
    assert loud_codes(guard) == {"HD302"}
    assert guard.actions == [], "training itself does not use them"


def test_hd302_statistics_poisoned_on_the_way_are_seen_at_the_next_sample() -> None:
    model = make_net()

    def poison(number: int) -> None:
        if number == 14:
            model.norm.running_var[2] = NAN

    guard = watched(model, Adam(model.parameters(), lr=1e-2), batches(40), each=poison)
    found = the(guard, "HD302")
    assert (found.step, found.where.module) == (20, "norm.running_var")


class Masked(nn.Module):
    """Buffers with infinities that somebody meant."""

    def __init__(self) -> None:
        super().__init__()
        self.net = plain_net()
        self.register_buffer("mask", torch.full((6, 6), -INF).triu(1))
        self.register_buffer("best", torch.tensor(INF))

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.softmax(self.mask, dim=-1).diagonal()
        out = self.net(x)
        self.best = torch.minimum(self.best, out.detach().square().mean())
        return out


def test_hd302_quiet_on_infinities_that_are_meant() -> None:
    model = Masked()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), batches(60))
    assert loud(guard) == []


# HD306 to HD308: the size of updates.


class LosesUpdates(SGD):
    """Writes its result to a contiguous copy: lost wherever the weight itself is not contiguous."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data.contiguous().add_(parameter.grad, alpha=-group["lr"])


def test_hd306_update_lost_on_a_weight_that_is_not_contiguous() -> None:
    model = make_net()
    model.inner.weight.data = model.inner.weight.data.t().contiguous().t()
    guard = watched(model, LosesUpdates(model.parameters(), lr=1e-2), batches(60))
    found = the(guard, "HD306")
    assert (found.step, found.severity) == (40, Severity.ERROR)  # the fifth sample
    assert found.evidence["tensors"] == ["inner.weight"]
    assert loud_codes(guard) == {"HD306"}


def test_hd306_quiet_on_the_same_optimizer_where_nothing_is_lost() -> None:
    model = make_net()
    guard = watched(model, LosesUpdates(model.parameters(), lr=1e-2), batches(60))
    assert loud(guard) == []


def in_bfloat16(rate: float) -> Guard:
    model = plain_net().bfloat16()
    data = [(x.bfloat16(), y.bfloat16()) for x, y in batches(60)]
    return watched(model, SGD(model.parameters(), lr=rate), data)


def test_hd306_updates_below_the_resolution_of_bfloat16_weights() -> None:
    guard = in_bfloat16(rate=1e-6)
    found = the(guard, "HD306")
    assert (found.step, found.severity) == (40, Severity.ERROR)
    assert found.evidence["tensor_count"] == 4
    assert "fp32 master weights" in found.remedies[1].text
    assert loud_codes(guard) == {"HD306"}


def test_hd306_quiet_on_bfloat16_weights_whose_updates_arrive() -> None:
    assert loud(in_bfloat16(rate=1e-2)) == []


@pytest.mark.parametrize("rate", [1e-8, 1e-10, 1e-12])
@pytest.mark.parametrize("optimizer_type", [SGD, Adam])
def test_hd307_rate_with_too_many_zeros(optimizer_type: Any, rate: float) -> None:
    model = make_net()
    guard = watched(model, optimizer_type(model.parameters(), lr=rate), batches(210))
    found = the(guard, "HD307")
    assert found.severity == Severity.WARNING
    assert found.step in (190, 200)  # the twentieth sample; a bias of 0 cannot tell in the first
    assert found.evidence["ratio"] < 1e-7
    assert found.evidence["lr"] == rate
    assert "Raise the learning rate" in found.remedies[0].text
    assert loud_codes(guard) == {"HD307"}


def test_hd307_quiet_on_a_small_rate_that_still_matters() -> None:
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-6), batches(250))
    assert loud(guard) == []


def test_hd308_updates_larger_than_the_weights() -> None:
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=10.0), batches(60))
    found = the(guard, "HD308")
    assert found.severity == Severity.ERROR
    assert found.step <= 3
    assert {"inner.weight", "head.weight"} <= set(found.evidence["tensors"])
    assert found.evidence["largest_ratio"] > 1.0
    assert "Lower the learning rate" in found.remedies[0].text
    assert loud_codes(guard) <= {"HD308", "HD104"}


def test_hd308_quiet_on_weights_that_begin_at_zero() -> None:
    model = plain_net()
    nn.init.zeros_(model[2].weight)
    guard = watched(model, Adam(model.parameters(), lr=1e-2), batches(120))
    assert loud(guard) == []


# HD312 and HD313: half precision.


def half_precision(
    share: float, *, scaler: bool = False, dtype: torch.dtype = torch.float16
) -> Guard:
    """A loss that is multiplied by a small share, as in a mean over very many elements."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = SGD(model.parameters(), lr=1e-3 / share)
    grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16) if scaler else None
    with Guard(model, optimizer, scaler=grad_scaler) as guard:
        for x, y in guard(batches(110)):
            with torch.autocast("cpu", dtype=dtype):
                loss = (model(x) - y).square().mean() * share
            guard.backward(loss)
            if grad_scaler is None:
                optimizer.step()
            else:
                grad_scaler.step(optimizer)
                grad_scaler.update()
            optimizer.zero_grad()
    return guard


def test_hd312_float16_without_a_scaler() -> None:
    guard = half_precision(1e-7)
    found = the(guard, "HD312")
    assert (found.step, found.severity) == (100, Severity.WARNING)  # the third count of zeros
    assert found.evidence["median_zero_share"] > 0.5
    assert "GradScaler" in found.remedies[0].text
    assert loud_codes(guard) == {"HD312", "HD205"}


@pytest.mark.parametrize(
    "options",
    [{"scaler": True}, {"dtype": torch.bfloat16}, {"share": 1.0}],
    ids=["with a scaler", "in bfloat16", "with gradients of an ordinary size"],
)
def test_hd312_quiet(options: dict[str, Any]) -> None:
    assert loud(half_precision(**{"share": 1e-7, **options})) == []


def scaled_training(overflow_from: int, steps: int) -> Guard:
    """float16 whose inputs come in another unit from some step on: every gradient overflows."""
    model = plain_net()
    optimizer = SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    with Guard(model, optimizer, scaler=scaler) as guard:
        for number, (x, y) in enumerate(guard(batches(steps))):
            unit = 1e4 if number >= overflow_from else 1.0
            with torch.autocast("cpu", dtype=torch.float16):
                out = model(x * unit)
            loss = (out - y).square().mean()
            guard.backward(loss)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return guard


def test_hd313_and_hd414_scale_that_collapses() -> None:
    guard = scaled_training(overflow_from=60, steps=72)
    collapsed, skips = the(guard, "HD313"), the(guard, "HD414")
    assert (collapsed.step, collapsed.severity) == (68, Severity.ERROR)
    assert (collapsed.evidence["highest"], collapsed.evidence["scale"]) == (2.0**12, 2.0**4)
    assert (skips.step, skips.severity) == (67, Severity.WARNING)
    assert skips.evidence["in_a_row"] == 8
    assert loud_codes(guard) == {"HD313", "HD414"}
    assert guard.actions == [], "the scaler skipped, not the guard"


def test_hd313_and_hd414_quiet_on_a_scale_that_holds() -> None:
    guard = scaled_training(overflow_from=1000, steps=120)
    assert loud(guard) == []
