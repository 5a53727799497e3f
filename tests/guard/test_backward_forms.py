"""However backward is called: it goes through unchanged, and the loss is on record."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.paired_trainings import steps_of
from support.trainings import Batch, Net, assert_same, batches, make_net, squared_error, state_of
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from headway import Guard

Form = Callable[[Net, Batch], float]


def plain(net: Net, batch: Batch) -> float:
    loss = squared_error(net, batch)
    loss.backward()
    return loss.item()


def of_the_function(net: Net, batch: Batch) -> float:
    loss = squared_error(net, batch)
    torch.autograd.backward(loss)
    return loss.item()


def of_several_at_once(net: Net, batch: Batch) -> float:
    output = net(batch[0])
    losses = [output.pow(2).mean(), (output - batch[1]).abs().mean()]
    torch.autograd.backward(losses)
    return sum(loss.item() for loss in losses)


def of_some_inputs_only(net: Net, batch: Batch) -> float:
    loss = squared_error(net, batch)
    loss.backward(inputs=list(net.head.parameters()))
    return loss.item()


def with_its_gradient_given(net: Net, batch: Batch) -> float:
    """The number that is recorded is missing here: what was differentiated is not the loss."""
    loss = squared_error(net, batch)
    loss.backward(gradient=torch.tensor(0.5))
    return math.nan


def with_a_gradient_penalty(net: Net, batch: Batch) -> float:
    x = batch[0].clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    loss = squared_error(net, batch) + (slope.norm(dim=1) - 1).pow(2).mean()
    loss.backward()
    return loss.item()


def with_checkpointing(net: Net, batch: Batch) -> float:
    return checkpointed(net, batch, use_reentrant=False)


def with_reentrant_checkpointing(net: Net, batch: Batch) -> float:
    """Starts a backward inside the backward: still one pass."""
    return checkpointed(net, batch, use_reentrant=True)


def checkpointed(net: Net, batch: Batch, *, use_reentrant: bool) -> float:
    x = batch[0].clone().requires_grad_(True)
    inner = checkpoint(lambda value: torch.relu(net.inner(value)), x, use_reentrant=use_reentrant)
    loss = (net.head(net.norm(inner)) - batch[1]).pow(2).mean()
    loss.backward()
    return loss.item()


def with_a_graph_for_later(net: Net, batch: Batch) -> float:
    loss = squared_error(net, batch)
    loss.backward(retain_graph=True)
    return loss.item()


FORMS: dict[str, Form] = {
    form.__name__: form
    for form in (
        plain,
        of_the_function,
        of_several_at_once,
        of_some_inputs_only,
        with_its_gradient_given,
        with_a_gradient_penalty,
        with_checkpointing,
        with_reentrant_checkpointing,
        with_a_graph_for_later,
    )
}


@pytest.mark.parametrize("name", FORMS)
def test_the_training_is_left_as_it_is_and_the_loss_is_on_record(name: str, tmp_path: Path) -> None:
    outcomes: list[Any] = []
    losses: list[float] = []
    for guarded in (True, False):
        net = make_net()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        guard = Guard(net, optimizer, run_dir=tmp_path) if guarded else None
        losses = []
        for batch in batches(6):
            losses.append(FORMS[name](net, batch))
            optimizer.step()
            optimizer.zero_grad()
        outcomes.append([state_of(net, optimizer), losses])
        if guard:
            guard.close()
    assert_same(*outcomes)
    steps = steps_of(tmp_path)
    found = [step.values.get("loss", math.nan) for step in steps]
    assert found == pytest.approx(losses, nan_ok=True)
    assert all("micro_batches" not in step.values for step in steps)


@pytest.mark.parametrize("name", FORMS)
def test_a_bad_step_is_held(name: str) -> None:
    net = make_net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    with Guard(net, optimizer) as guard:
        for number, (x, y) in enumerate(guard(batches(6))):
            before = state_of(net, optimizer)
            FORMS[name](net, (x, y * math.nan if number == 4 else y))
            optimizer.step()
            optimizer.zero_grad()
            if number == 4:
                assert_same(before, state_of(net, optimizer))
        assert [action.step for action in guard.actions] == [4]


def test_the_gradients_of_a_held_step_can_be_looked_at() -> None:
    """The same tensors as before the step, for whoever wants to see what was wrong."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with Guard(net, optimizer):
        (squared_error(net, batches(1)[0]) * math.nan).backward()
        before = [parameter.grad for parameter in net.parameters()]
        optimizer.step()
        after = [parameter.grad for parameter in net.parameters()]
    assert all(one is other is not None for one, other in zip(before, after, strict=True))


def test_gradients_written_by_hand_are_guarded() -> None:
    """No backward at all: `p.grad = …`, as in evolution strategies or hand-made meta-learning."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with Guard(net, optimizer) as guard:
        for number, batch in enumerate(guard(batches(6))):
            before = state_of(net, optimizer)
            gradients = torch.autograd.grad(squared_error(net, batch), list(net.parameters()))
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.grad = gradient * (math.nan if number == 4 else 1.0)
            optimizer.step()
            optimizer.zero_grad()
            same = all(
                torch.equal(value, before[f"model.{name}"])
                for name, value in net.named_parameters()
            )
            assert same == (number == 4)
        assert [action.step for action in guard.actions] == [4]


def test_a_backward_that_fails_is_the_users_and_the_next_one_counts(tmp_path: Path) -> None:
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    with Guard(net, optimizer, run_dir=tmp_path) as guard:
        for number, batch in enumerate(guard(batches(4))):
            loss = squared_error(net, batch)
            loss.backward()
            if number == 2:
                with pytest.raises(RuntimeError, match="second time"):
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    assert len(steps_of(tmp_path)) == 4


def test_a_backward_of_somebody_else_is_not_ours(tmp_path: Path) -> None:
    net, stranger = make_net(), make_net(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    losses: list[float] = []
    with Guard(net, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(4)):
            (squared_error(stranger, batch) * 100).backward()
            losses.append(plain(net, batch))
            (squared_error(stranger, batch) * math.nan).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert guard.actions == []
    assert [step.values["loss"] for step in steps_of(tmp_path)] == pytest.approx(losses)


def test_a_tensor_hook_that_changes_gradients(tmp_path: Path) -> None:
    """What a hook left in the gradient is what is judged."""
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    calls: list[int] = []

    def spoil(gradient: Tensor) -> Tensor:
        calls.append(1)
        return gradient * (math.nan if len(calls) == 3 else 1.0)

    net.head.weight.register_hook(spoil)
    with Guard(net, optimizer, run_dir=tmp_path) as guard:
        for batch in guard(batches(5)):
            plain(net, batch)
            optimizer.step()
            optimizer.zero_grad()
        assert [action.step for action in guard.actions] == [2]
    assert steps_of(tmp_path)[2].values["grad_nonfinite_tensors"] == 1
