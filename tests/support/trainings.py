"""Small real trainings for the tests of the guard: seeded, a few milliseconds a step."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway import Policy
from headway.torch_adapters import live_objects

Batch = tuple[Tensor, Tensor]


def skip_or_halt(**options: Any) -> Policy:
    """A ladder of two rungs: nothing between skipping and the end."""
    return Policy(back_offs=0, roll_backs=0, **options)


def batches(count: int, *, seed: int = 0, size: int = 8, features: int = 6) -> list[Batch]:
    """Regression batches with a signal in them."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(features, 1, generator=generator)
    found = []
    for _ in range(count):
        x = torch.randn(size, features, generator=generator)
        found.append((x, x @ weights + 0.1 * torch.randn(size, 1, generator=generator)))
    return found


@contextlib.contextmanager
def nothing_else_trains() -> Iterator[None]:
    """Hide the models and optimizers that earlier tests left alive from the search for a script's.

    `headway run` looks for what a script trains among all objects of the process.
    """
    everything = live_objects.find_instances
    gc.collect()
    before = everything(nn.Module, torch.optim.Optimizer)
    known = {id(item) for item in before}  # `before` keeps them alive, so no identity is reused

    def find_instances(*kinds: type) -> list[Any]:
        return [item for item in everything(*kinds) if id(item) not in known]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live_objects, "find_instances", find_instances)
        yield
    del before


class Net(nn.Module):
    """A net with BatchNorm, so that a bad forward leaves traces in buffers."""

    def __init__(self, features: int = 6, width: int = 12) -> None:
        super().__init__()
        self.inner = nn.Linear(features, width)
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.inner(x))))


def make_net(seed: int = 0) -> Net:
    """The same net for the same seed."""
    torch.manual_seed(seed)
    return Net()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Weights, buffers, moments and step counters, copied."""
    state: dict[str, Any] = {f"model.{k}": v.clone() for k, v in model.state_dict().items()}
    for at, (_, entry) in enumerate(optimizer.state.items()):
        for key, value in entry.items():
            state[f"optimizer.{at}.{key}"] = _copied(value)
    return state


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return [_copied(item) for item in value] if isinstance(value, list) else value


def assert_same(one: Any, other: Any, where: str = "state") -> None:
    """Bit for bit, NaN equal to NaN."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), f"{where}: {one.keys() ^ other.keys()}"
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}[{at}]")
    elif isinstance(one, Tensor):
        left = one.to_dense() if one.is_sparse else one
        right = other.to_dense() if other.is_sparse else other
        assert left.dtype == right.dtype, where
        assert torch.equal(left.nan_to_num(12345.0), right.nan_to_num(12345.0)), where
    else:
        assert one == other or (one != one and other != other), where


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Iterable[Any],
    *,
    loss_of: Callable[[nn.Module, Any], Tensor] | None = None,
    spoil: Callable[[int, nn.Module], None] | None = None,
) -> Iterator[Tensor]:
    """A plain loop: yields the loss of each step after it was taken."""
    measure = loss_of or squared_error
    for number, batch in enumerate(loader):
        loss = measure(model, batch)
        loss.backward()
        if spoil is not None:
            spoil(number, model)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.detach()


def squared_error(model: nn.Module, batch: Batch) -> Tensor:
    x, y = batch
    return ((model(x) - y) ** 2).mean()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
