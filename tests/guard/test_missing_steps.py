"""A guard that guards nothing reports it (HD003), and never changes weights without a word."""

from __future__ import annotations

import gc
import logging

import pytest
import torch
from torch import Tensor, nn

import headway
from headway.guard.step_hooks import MAX_PASSES
from headway.torch_adapters import patching


@pytest.fixture(autouse=True)
def reach_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headway")


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def batches(count: int) -> list[Tensor]:
    return [torch.full((3, 4), 1.0 + number) for number in range(count)]


def codes(guard: headway.Guard) -> list[str]:
    return [finding.code for finding in guard.findings]


def test_an_optimizer_that_is_rebuilt_is_reported_at_its_third_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, old = network()
    guard = headway.Guard(model, old)
    new = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, x in enumerate(guard(batches(5))):
        model(x).sum().backward()
        new.step()
        new.zero_grad()
        assert (codes(guard) == ["HD003"]) is (number >= 2)
    guard.close()
    assert codes(guard) == ["HD003"]
    [finding] = guard.findings
    assert finding.severity.name == "ERROR"
    assert "another SGD steps the same parameters" in finding.message
    assert "Create the guard after" in finding.remedies[0].text
    assert "HD003" in caplog.text


def test_an_optimizer_that_is_rebuilt_later_is_reported_too() -> None:
    model, optimizer = network()
    guard = headway.Guard(model, optimizer)
    for number, x in enumerate(guard(batches(60))):
        if number == 10:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert codes(guard).count("HD003") == 1
    guard.close()


def test_bad_weights_stay_if_the_guard_saw_no_step() -> None:
    model, old = network()
    guard = headway.Guard(model, old)
    new = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in guard(batches(4)):
        (model(x).sum() * float("nan")).backward()
        new.step()
    assert model.weight.isnan().all()
    guard.close()
    assert model.weight.isnan().all(), "the guard does not replace what it did not guard"


def test_weights_restored_at_close_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    model, optimizer = network()
    guard = headway.Guard(model, optimizer)
    for x in guard(batches(4)):
        model(x).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model.weight.fill_(float("nan"))
    guard.close()
    assert model.weight.isfinite().all()
    assert "weights are restored to those after" in caplog.text


def test_no_step_at_all_is_reported_at_close() -> None:
    model, optimizer = network()
    guard = headway.Guard(model, optimizer)
    for x in guard(batches(4)):
        model(x).sum().backward()
    assert codes(guard) == []
    guard.close()
    [finding] = guard.findings
    assert finding.code == "HD003"
    assert "backward() ran 4 times" in finding.message


def test_an_error_before_the_first_step_is_not_blamed_on_the_guard() -> None:
    model, optimizer = network()
    guard = headway.Guard(model, optimizer)
    model(batches(1)[0]).sum().backward()
    guard.__exit__(KeyError, KeyError("config"), None)
    assert "HD003" not in codes(guard)


@pytest.mark.parametrize("passes", [MAX_PASSES - 1, MAX_PASSES])
def test_many_passes_without_a_step(passes: int) -> None:
    model, optimizer = network()
    guard = headway.Guard(model, optimizer)
    x = batches(1)[0]
    for _ in range(passes):
        model(x).sum().backward()
    assert (codes(guard) == ["HD003"]) is (passes >= MAX_PASSES)
    optimizer.step()
    guard.close()


def test_healthy_trainings_are_not_reported() -> None:
    model, optimizer = network()
    other = nn.Linear(4, 2)
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)
    guard = headway.Guard(model, optimizer)
    for _ in range(40):  # another model trains first
        other(batches(1)[0]).sum().backward()
        theirs.step()
    for number, x in enumerate(guard(batches(80))):  # gradients accumulate over 40 batches
        model(x).sum().backward()
        if number % 40 == 39:
            optimizer.step()
            optimizer.zero_grad()
    guard.close()
    assert "HD003" not in codes(guard)


def test_evaluation_alone_is_not_reported() -> None:
    model, optimizer = network()
    guard = headway.Guard(model, optimizer)
    with torch.no_grad():
        for x in guard(batches(5)):
            model(x)
    guard.close()
    assert codes(guard) == []


def test_a_wrapper_that_steps_the_guarded_optimizer_is_not_reported() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner
            self.count = 0

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            self.count += 1
            if self.count % 8 == 0:
                self.inner.step()

    model, optimizer = network()
    guard = headway.Guard(model, optimizer)
    wrapper = Wrapper(optimizer)
    for x in guard(batches(16)):
        model(x).sum().backward()
        wrapper.step()
    guard.close()
    assert codes(guard) == []


def test_nothing_stays_behind() -> None:
    from torch.optim import optimizer as torch_optimizer

    hooks = len(torch_optimizer._global_optimizer_post_hooks)
    model, optimizer = network()
    guard = headway.Guard(model, optimizer)
    assert len(torch_optimizer._global_optimizer_post_hooks) == hooks + 1
    for x in guard(batches(3)):
        model(x).sum().backward()
        optimizer.step()
    assert len(torch_optimizer._global_optimizer_post_hooks) == hooks, "free after the first step"
    guard.close()
    dropped = headway.Guard(*network())
    assert len(torch_optimizer._global_optimizer_post_hooks) == hooks + 1
    del dropped
    gc.collect()
    assert len(torch_optimizer._global_optimizer_post_hooks) == hooks
    assert not patching._listening()
