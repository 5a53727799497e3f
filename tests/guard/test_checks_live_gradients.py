"""HD2, gradients, under the real guard: each check fires on its fault and not on a healthy twin."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.guarded_trainings import loud, loud_codes, the, watched
from support.trainings import Batch, batches, make_net, squared_error
from torch import Tensor, nn
from torch.optim import SGD, Adam

from headway import Guard, Policy, Severity

BAD = 30


# HD201: non-finite gradients.


def root_of_zero(model: Any, x: Tensor) -> Tensor:
    """Finite, but its slope there is not."""
    return torch.sqrt((model.head.weight * 0.0).sum())


def hidden_branch(model: Any, x: Tensor) -> Tensor:
    """`where` picks the finite branch; the gradient of the other is 0 · NaN."""
    y = model.inner(x).clamp(max=-1.0)
    return torch.where(y > 0, torch.sqrt(y), torch.zeros_like(y)).mean()


@pytest.mark.parametrize("clips", [False, True], ids=["plain", "the user clips"])
@pytest.mark.parametrize(
    ("term", "nearest"), [(root_of_zero, "head.weight"), (hidden_branch, "inner.bias")]
)
def test_hd201_finite_loss_with_an_infinite_slope(term: Any, nearest: str, *, clips: bool) -> None:
    model = make_net()
    optimizer = Adam(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, (x, y) in enumerate(guard(batches(60))):
            loss = squared_error(model, (x, y))
            if number == BAD:
                loss = loss + term(model, x)
            loss.backward()
            if clips:  # which spreads the NaN over all the gradients before the optimizer's hook
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    found = the(guard, "HD201")
    assert (found.step, found.severity) == (BAD, Severity.ERROR)
    assert found.where.module == nearest
    assert found.evidence["held"] is True
    assert found.remedies[0].cured
    assert "sqrt" in found.remedies[0].text
    assert loud_codes(guard) == {"HD201"}
    assert [action.step for action in guard.actions] == [BAD]


def test_hd201_quiet_on_a_root_that_is_protected() -> None:
    model = make_net()

    def loss_of(net: Any, batch: Batch) -> Tensor:
        return squared_error(net, batch) + torch.sqrt((net.head.weight * 0.0).sum() + 1e-12)

    guard = watched(model, Adam(model.parameters(), lr=1e-2), batches(60), loss_of)
    assert loud(guard) == []
    assert guard.actions == []


# HD202: exploding gradients.


def linear_training(rate: float) -> Guard:
    """Least squares: from a rate of about 0.8 on the gradient grows at every step."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    return watched(model, SGD(model.parameters(), lr=rate), batches(120, size=16))


def test_hd202_norm_that_grows_without_bound() -> None:
    guard = linear_training(rate=0.9)
    found = the(guard, "HD202")
    assert found.severity == Severity.ERROR
    assert found.step < 64
    assert found.evidence["factor"] > 1000
    assert found.evidence["after"] > found.evidence["before"]
    assert found.evidence["loss_after"] > found.evidence["loss_before"]
    assert guard.actions == [], "a climb is no spike: nothing to hold back"


def test_hd202_quiet_at_a_rate_the_loss_bears() -> None:
    assert loud(linear_training(rate=0.1)) == []


# HD203: vanishing gradients.


def deep(act: type[nn.Module], depth: int = 10) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(6, 16), act()]
    for _ in range(depth - 2):
        layers += [nn.Linear(16, 16), act()]
    return nn.Sequential(*layers, nn.Linear(16, 1))


def test_hd203_deep_sigmoid_stack() -> None:
    model = deep(nn.Sigmoid)
    guard = watched(model, SGD(model.parameters(), lr=0.01), batches(60))
    found = the(guard, "HD203")
    assert found.severity == Severity.WARNING
    assert found.step == 40  # the fifth sample
    assert found.where.module == "0.weight"
    assert found.evidence["ratio"] < 1e-4
    by_quarter = found.evidence["gradient_per_element_by_quarter"]
    assert by_quarter == sorted(by_quarter)
    assert loud_codes(guard) == {"HD203"}


def test_hd203_quiet_on_relus_with_their_initialisation() -> None:
    model = deep(nn.ReLU)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    guard = watched(model, SGD(model.parameters(), lr=0.01), batches(100))
    assert loud(guard) == []


# HD204: missing gradients.


class EncoderAndHead(nn.Module):
    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 12))
        self.head = nn.Linear(12, 1)
        self.cut = cut

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        return self.head(code.detach() if self.cut else code)


@pytest.mark.parametrize(("steps", "told_at"), [(60, 40), (25, 20)], ids=["long", "short"])
def test_hd204_encoder_cut_off_by_detach(steps: int, told_at: int) -> None:
    model = EncoderAndHead(cut=True)
    guard = watched(model, Adam(model.parameters(), lr=1e-2), batches(steps))
    found = the(guard, "HD204")
    assert (found.step, found.severity) == (told_at, Severity.ERROR)
    assert found.evidence["tensor_count"] == 4
    assert found.evidence["trained_count"] == 6
    assert found.where.module == "encoder.2.bias"
    assert "cut after encoder.2.bias, before head.weight" in found.message
    assert loud_codes(guard) == {"HD204"}


def test_hd204_quiet_when_the_gradient_gets_through() -> None:
    model = EncoderAndHead(cut=False)
    guard = watched(model, Adam(model.parameters(), lr=1e-2), batches(60))
    assert loud(guard) == []


# HD206: gradients not cleared.


@pytest.mark.parametrize("optimizer_type", [SGD, Adam])
def test_hd206_zero_grad_forgotten(optimizer_type: Any) -> None:
    model = make_net()
    optimizer = optimizer_type(model.parameters(), lr=1e-3)
    with Guard(model, optimizer) as guard:
        for batch in guard(batches(40)):
            squared_error(model, batch).backward()
            optimizer.step()
    found = the(guard, "HD206")
    assert (found.step, found.severity) == (2, Severity.ERROR)
    assert "zero_grad" in found.remedies[0].text


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_hd206_quiet_wherever_gradients_are_cleared(when: str, *, to_none: bool) -> None:
    model = make_net()
    optimizer = SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for batch in guard(batches(40)):
            if when == "before":
                optimizer.zero_grad(set_to_none=to_none)
            loss = squared_error(model, batch)
            if when == "between":
                model.zero_grad(set_to_none=to_none)
            loss.backward()
            optimizer.step()
            if when == "after":
                optimizer.zero_grad(set_to_none=to_none)
    assert loud(guard) == []


# HD207: gradient spikes.


def with_a_spike(at: int, factor: float = 1e4) -> list[Batch]:
    data = batches(100)
    data[at] = (data[at][0], data[at][1] * factor)
    return data


def test_hd207_one_batch_in_the_wrong_unit_is_held_back() -> None:
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-2), with_a_spike(60))
    found = the(guard, "HD207")
    assert (found.step, found.severity) == (60, Severity.WARNING)
    assert found.evidence["held"] is True
    assert found.evidence["norm"] > 100 * found.evidence["median"]
    assert [(action.step, action.rung.value) for action in guard.actions] == [(60, "skip")]
    assert loud_codes(guard) == {"HD207"}


def test_hd207_when_told_to_let_spikes_pass_it_is_information() -> None:
    model = make_net()
    optimizer = SGD(model.parameters(), lr=1e-5)
    guard = watched(model, optimizer, with_a_spike(60), policy=Policy(hold_spikes=False))
    assert the(guard, "HD207").severity == Severity.INFO
    assert loud(guard) == []
    assert guard.actions == []


def test_hd207_quiet_on_batches_that_differ_by_an_ordinary_factor() -> None:
    data = [(x, y * (1.0 + 2.0 * (number % 7 == 0))) for number, (x, y) in enumerate(batches(150))]
    model = make_net()
    guard = watched(model, Adam(model.parameters(), lr=1e-3), data)
    assert loud(guard) == []
    assert guard.actions == []


# HD208: saturated clipping.


def clipped_training(limit: float, *, by_the_guard: bool) -> Guard:
    model = make_net()
    optimizer = SGD(model.parameters(), lr=0.05)
    with Guard(model, optimizer, max_norm=limit if by_the_guard else None) as guard:
        for batch in guard(batches(250)):
            squared_error(model, batch).backward()
            if not by_the_guard:
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()
    return guard


@pytest.mark.parametrize("by_the_guard", [True, False])
def test_hd208_a_limit_far_too_tight(*, by_the_guard: bool) -> None:
    guard = clipped_training(1e-4, by_the_guard=by_the_guard)
    found = the(guard, "HD208")
    assert (found.step, found.severity) == (0, Severity.WARNING)
    assert found.evidence["median"] < 1e-3
    assert loud_codes(guard) == {"HD208"}


@pytest.mark.parametrize("by_the_guard", [True, False])
def test_hd208_quiet_on_an_ordinary_limit(*, by_the_guard: bool) -> None:
    assert loud(clipped_training(1.0, by_the_guard=by_the_guard)) == []
