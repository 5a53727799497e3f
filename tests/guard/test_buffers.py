"""What a bad forward did to the buffers is undone; what the user did to them is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from support.grids import all_but
from support.trainings import Batch, assert_same, batches, make_net, squared_error, state_of
from torch import Tensor, nn

from headway import Guard
from headway.guard import step_hooks

STEPS = 14
BAD = 11


class WithBody(nn.Module):
    """A regression net around some module under test."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.body = body
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.inner(x)))


class Channels(nn.Module):
    """Lets a norm over channels see its input as channels."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.view(len(x), 2, 4)).flatten(1)


class Assigned(nn.Module):
    """Replaces its buffers instead of changing them: `self.mean = …`."""

    mean: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.calls = self.calls + 1
        return x - self.mean


class Reshaped(nn.Module):
    """A memory of the last batch, whose shape follows the batch's."""

    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.detach().flatten()[: 1 + int((x > 0).sum()) % 5].clone()
        return x


class Large(nn.Module):
    """A statistic too large to be copied at every step: its version tells when it changed."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(8, 4096))
        self.register_buffer("position", torch.arange(8.0).repeat(4096, 1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.table.mul_(0.9).add_(x.detach().mean(0)[:, None], alpha=0.1)
        return x + self.table.mean(1)


BODIES: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm": lambda: nn.BatchNorm1d(8),
    "BatchNorm cumulative": lambda: nn.BatchNorm1d(8, momentum=None),
    "BatchNorm without statistics": lambda: nn.BatchNorm1d(8, track_running_stats=False),
    "InstanceNorm with statistics": lambda: Channels(
        nn.InstanceNorm1d(2, track_running_stats=True, affine=True)
    ),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)),
    "no buffers": lambda: nn.LayerNorm(8),
    "replaced by assignment": Assigned,
    "changing shape": Reshaped,
    "large": Large,
}


def make(body: str) -> tuple[WithBody, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = WithBody(BODIES[body]())
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def nan_input(batch: Batch) -> Batch:
    x, y = batch
    return torch.where(torch.arange(6) == 2, math.nan, x), y


def inf_input(batch: Batch) -> Batch:
    x, y = batch
    return torch.where(torch.arange(6) == 2, math.inf, x), y


def step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, passes: int = 1) -> None:
    for _ in range(passes):
        squared_error(model, batch).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("passes", [1, 2], ids=["one forward", "two forwards"])
@pytest.mark.parametrize("spoil", all_but([nan_input, inf_input], nan_input))
@pytest.mark.parametrize("body", BODIES)
def test_a_bad_forward_leaves_no_trace(
    body: str, spoil: Callable[[Batch], Batch], passes: int
) -> None:
    """Against a run that never saw the bad batch, with accumulation and without."""
    (model, optimizer), (clean, clean_optimizer) = make(body), make(body)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            before = state_of(model, optimizer)
            step(model, optimizer, spoil(batch) if number == BAD else batch, passes)
            if number == BAD:
                assert_same(before, state_of(model, optimizer))
            else:
                step(clean, clean_optimizer, batch, passes)
            assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer), f"@{number}")
        assert [action.step for action in guard.actions] == [BAD]


@pytest.mark.parametrize("body", BODIES)
def test_a_bad_forward_leaves_no_trace_in_a_plain_loop(body: str) -> None:
    """Without `guard(loader)`: what the last good step left is what a bad one goes back to."""
    model, optimizer = make(body)
    with Guard(model, optimizer):
        for number, batch in enumerate(batches(STEPS)):
            before = state_of(model, optimizer)
            step(model, optimizer, nan_input(batch) if number == BAD else batch)
            if number == BAD:
                assert_same(before, state_of(model, optimizer))


def test_buffers_stay_the_same_tensors() -> None:
    """Others may hold references to them: an EMA, a view, the compiled graph."""
    model, optimizer = make("BatchNorm")
    held = dict(model.named_buffers())
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            step(model, optimizer, nan_input(batch) if number == BAD else batch)
    assert all(buffer is held[name] for name, buffer in model.named_buffers())


def test_a_frozen_batchnorm_is_left_alone() -> None:
    model = make_net()
    model.norm.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            step(model, optimizer, nan_input(batch) if number == BAD else batch)
        assert [action.step for action in guard.actions] == [BAD]
    assert_same(before, dict(model.named_buffers()))
    assert versions == {name: buffer._version for name, buffer in model.named_buffers()}


def test_buffers_the_user_changed_between_steps_are_not_rolled_back() -> None:
    """Statistics set anew just before the bad step: the hold goes back to these, not past them."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            step(model, optimizer, nan_input(batch) if number == BAD else batch)
            if number == BAD - 1:
                model.norm.running_mean.fill_(3.0)
                model.norm.num_batches_tracked.fill_(77)
            elif number == BAD:
                assert model.norm.running_mean.tolist() == [3.0] * 12
                assert model.norm.num_batches_tracked.item() == 77


def test_a_state_dict_loaded_between_steps_is_not_rolled_back() -> None:
    model, other = make_net(), make_net(1)
    other.norm.running_var.fill_(5.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            step(model, optimizer, nan_input(batch) if number == BAD else batch)
            if number == BAD - 1:
                model.load_state_dict(other.state_dict())
            elif number == BAD:
                assert_same(dict(other.state_dict()), dict(model.state_dict()))


def test_a_validation_pass_between_steps_changes_nothing() -> None:
    (model, optimizer), (clean, clean_optimizer) = make("BatchNorm"), make("BatchNorm")
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            step(model, optimizer, nan_input(batch) if number == BAD else batch)
            if number != BAD:
                step(clean, clean_optimizer, batch)
            model.eval()
            with torch.no_grad():
                model(nan_input(batch)[0])
            model.train()
            assert_same(state_of(clean, clean_optimizer), state_of(model, optimizer))


def test_a_batchnorm_that_came_later_is_restored_too() -> None:
    """Its buffers were not there when the guard was made."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(120))):
            if number == 5:
                model.norm = nn.BatchNorm1d(12)
                optimizer.add_param_group({"params": model.norm.parameters()})
            before = state_of(model, optimizer)
            step(model, optimizer, nan_input(batch) if number == 110 else batch)
            if number == 110:
                assert_same(before, state_of(model, optimizer))
    assert len(guard.actions) == 1


def test_shared_buffers_are_restored_once() -> None:
    norm = nn.BatchNorm1d(8)
    torch.manual_seed(0)
    model = WithBody(nn.Sequential(norm, nn.ReLU(), norm))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(guard(batches(STEPS))):
            before = state_of(model, optimizer)
            step(model, optimizer, nan_input(batch) if number == BAD else batch)
            if number == BAD:
                assert_same(before, state_of(model, optimizer))


def test_buffers_that_replays_of_a_graph_changed_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of a CUDA graph run without Python: what they do to the buffers is not undone by a
    bad step that follows. Here, a step counts as recorded where no device records anything."""
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = batches(6)
    with Guard(model, optimizer) as guard:
        for number, batch in enumerate(data):
            with monkeypatch.context() as patch:
                patch.setattr(step_hooks, "is_capturing", lambda number=number: number == 3)
                loss = squared_error(model, batch) * (math.nan if number == 5 else 1.0)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if number == 4:
                with torch.no_grad():
                    model.norm.running_mean.fill_(7.0)
                    before = state_of(model, optimizer)
    assert [action.step for action in guard.actions] == [len(data) - 2]
    assert_same(before, state_of(model, optimizer))
    assert not model._forward_pre_hooks
