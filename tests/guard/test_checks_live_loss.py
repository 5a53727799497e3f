"""HD1, the loss, under the real guard: each check fires on its fault and not on a healthy twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.guarded_trainings import loud, loud_codes, the, until_halted, watched
from support.trainings import Batch, batches, make_net, squared_error
from torch import Tensor, nn
from torch.optim import SGD, Adam

from headway import Guard, Policy, Severity

BAD = 30


# HD101: non-finite loss.


SINGULAR: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "the logarithm of 0": (lambda x: torch.log(x), -math.inf),
    "the root of a negative number": (lambda x: torch.sqrt(x - 1.0), math.nan),
    "0 divided by 0": (lambda x: x / x, math.nan),
    "1 divided by 0": (lambda x: 1.0 / x, math.inf),
    "an exponential that overflows": (lambda x: torch.exp(100.0 + x), math.inf),
}


@pytest.mark.parametrize("op", SINGULAR)
def test_hd101_a_loss_that_is_no_number_at_one_batch(op: str) -> None:
    singular, value = SINGULAR[op]
    model = make_net()
    optimizer = Adam(model.parameters(), lr=1e-2)
    losses = []
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(60))):
            error = squared_error(model, batch)
            size = model.head.weight.square().mean()
            extra = singular(size * 0.0) if number == BAD else 0.01 * size
            guard.backward(error + extra, error=error, extra=extra)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(error.detach()))
    found = the(guard, "HD101")
    assert (found.step, found.severity) == (BAD, Severity.ERROR)
    assert found.evidence["value"] == pytest.approx(value, nan_ok=True)
    assert found.evidence["components"] == ["extra"]
    assert found.evidence["held"] is True
    assert "update skipped" in found.message
    assert loud_codes(guard) <= {"HD101", "HD201"}
    assert [action.step for action in guard.actions] == [BAD]
    assert losses[-1] < losses[0]


def test_hd101_first_loss_already_bad_acquits_the_learning_rate() -> None:
    model = make_net()
    data = batches(5)
    data[0] = (data[0][0], data[0][1] / 0.0)
    guard = watched(model, Adam(model.parameters(), lr=1e-2), data)
    found = the(guard, "HD101")
    assert found.step == 0
    assert "learning rate is not the cause" in found.remedies[0].text


def test_hd101_quiet_on_protected_ops() -> None:
    model = make_net()
    optimizer = Adam(model.parameters(), lr=1e-2)

    def loss_of(net: nn.Module, batch: Batch) -> Tensor:
        zero = net.head.bias.sum() * 0.0
        return squared_error(net, batch) + 0.01 * torch.log(zero + 1e-6) + torch.sqrt(zero + 1e-12)

    guard = watched(model, optimizer, batches(60), loss_of)
    assert loud(guard) == []
    assert guard.actions == []


# HD103: spikes of the loss.


class Unstable:
    """SGD whose rate is raised for a few steps now and then, which damages the weights."""

    def __init__(self, raised_at: tuple[int, ...]) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(6, 1)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self._raised_at = raised_at

    def each(self, number: int) -> None:
        raised = any(at <= number < at + 4 for at in self._raised_at)
        self.optimizer.param_groups[0]["lr"] = 3.0 if raised else 0.1


def test_hd103_the_third_spike_that_damages_the_weights_is_a_warning() -> None:
    run = Unstable(raised_at=(200, 280, 360))
    data = batches(440, size=16)
    # Let through: the guard would hold these updates back, and there would be no damage to see.
    policy = Policy(hold_spikes=False)
    guard = watched(run.model, run.optimizer, data, each=run.each, policy=policy)
    mild, severe = [finding for finding in guard.findings if finding.code == "HD103"]
    assert mild.severity == Severity.INFO
    assert mild.step in range(201, 204)
    assert mild.evidence["last_step"] in range(281, 284)
    assert severe.severity == Severity.WARNING
    assert severe.step in range(361, 364)
    assert severe.evidence["peak"] > 100 * severe.evidence["median"]
    assert "recovered" in severe.message
    assert loud_codes(guard) == {"HD103"}


def test_hd103_a_single_spike_is_information() -> None:
    run = Unstable(raised_at=(200,))
    policy = Policy(hold_spikes=False)
    guard = watched(run.model, run.optimizer, batches(300, size=16), each=run.each, policy=policy)
    assert the(guard, "HD103").severity == Severity.INFO
    assert loud(guard) == []


# HD104: divergence.


def raised(optimizer: Any, *, at: int, **changes: Any) -> Callable[[int], None]:
    def each(number: int) -> None:
        if number == at:
            optimizer.param_groups[0].update(changes)

    return each


def test_hd104_rate_raised_beyond_what_the_loss_bears() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = SGD(model.parameters(), lr=0.05)
    each = raised(optimizer, at=99, lr=0.8)
    guard = watched(model, optimizer, batches(250, size=16), each=each)
    found = the(guard, "HD104")
    assert found.severity == Severity.ERROR
    assert found.step in range(100, 120)
    assert found.evidence["best"] < 0.1 < found.evidence["level"]
    assert found.evidence["best_step"] < 110
    assert guard.actions == [], "a climb is no spike: nothing to hold back"
    assert loud_codes(guard) == {"HD104"}


def test_hd104_update_with_the_wrong_sign() -> None:
    model = make_net()
    optimizer = Adam(model.parameters(), lr=1e-2)
    each = raised(optimizer, at=99, maximize=True)
    guard = watched(model, optimizer, batches(250, size=16), each=each)
    found = the(guard, "HD104")
    assert found.step in range(100, 140)
    assert loud_codes(guard) == {"HD104"}


@pytest.mark.parametrize("rate", [1.0, 2.0, 10.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_rate_far_too_high_is_called_an_error_before_the_loss_is_infinite(
    rate: float, momentum: float
) -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = SGD(model.parameters(), lr=rate, momentum=momentum)
    guard = until_halted(model, optimizer, batches(250, size=16), because="21 in a row")
    first_bad = min(f.step for f in loud(guard) if f.code in ("HD101", "HD201"))
    growing = [f for f in loud(guard) if f.code in ("HD104", "HD202", "HD308")]
    assert growing
    assert all(f.severity == Severity.ERROR and f.step < first_bad for f in growing)
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_hd104_quiet_on_the_bump_after_a_warm_restart() -> None:
    model = make_net()
    optimizer = SGD(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=60)
    guard = watched(model, optimizer, batches(240, size=16), each=lambda number: schedule.step())
    assert loud(guard) == []


# HD106 and HD107: components.


class Detector(nn.Module):
    """Three heads on one trunk, as a detector has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(6, 16), nn.ReLU())
        self.box, self.score, self.point = nn.Linear(16, 1), nn.Linear(16, 1), nn.Linear(16, 1)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        x, y = batch
        code = self.trunk(x)
        return {
            "box": (self.box(code) - y).square().mean(),
            "score": F.binary_cross_entropy_with_logits(self.score(code), (y > 0).float()),
            "point": (self.point(code) - y.abs()).abs().mean(),
        }


Parts = dict[str, Tensor]


def detect(change: Callable[[Parts], Parts], steps: int = 120) -> Guard:
    model = Detector()
    optimizer = Adam(model.parameters(), lr=3e-3)
    with Guard(model, optimizer) as guard:
        for batch in guard(batches(steps)):
            parts = change(model.losses(batch))
            guard.backward(sum(parts.values()), **parts)
            optimizer.step()
            optimizer.zero_grad()
    return guard


def test_hd106_component_identically_zero() -> None:
    """The selection it is computed from is always empty."""
    guard = detect(lambda parts: {**parts, "point": parts["point"] * 0.0})
    found = the(guard, "HD106")
    assert (found.step, found.severity) == (0, Severity.ERROR)
    assert found.evidence["component"] == "point"
    assert "exactly 0" in found.message
    assert loud_codes(guard) == {"HD106", "HD205"}


def test_hd106_component_that_never_moves() -> None:
    guard = detect(lambda parts: {**parts, "point": torch.tensor(0.7)}, steps=260)
    found = the(guard, "HD106")
    assert (found.step, found.severity) == (0, Severity.WARNING)
    assert found.evidence["component"] == "point"
    assert found.evidence["value"] == pytest.approx(0.7)


def test_hd106_quiet_while_every_component_trains() -> None:
    guard = detect(lambda parts: parts, steps=260)
    assert loud(guard) == []


def test_hd107_component_that_swamps_the_others() -> None:
    """A sum over a thousand pixels where the others are means, and in the wrong unit."""
    guard = detect(lambda parts: {**parts, "box": 1e6 * parts["box"]}, steps=260)
    found = the(guard, "HD107")
    assert (found.step, found.severity) == (0, Severity.WARNING)
    assert found.evidence["component"] == "box"
    assert "score" in found.message
    assert loud_codes(guard) == {"HD107"}


def test_hd107_quiet_on_a_small_regulariser_beside_the_main_loss() -> None:
    guard = detect(lambda parts: {**parts, "point": 1e-4 * parts["point"]}, steps=260)
    assert loud(guard) == []
