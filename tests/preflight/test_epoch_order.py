"""The order of the samples from pass to pass, and the randomness of a loader's workers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from headway.core.findings import Severity
from headway.preflight.runner import run_check

Batches = Iterable[tuple[Tensor, Tensor]]
Pass = Callable[[Tensor, Tensor, int], Batches]


def codes(work: Callable[[], None]) -> list[str]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    found = checked.report.findings
    return [item.code for item in found if item.severity >= Severity.WARNING]


def train(pass_over: Pass, passes: int = 3) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        x, y = torch.randn(80, 6), torch.randint(0, 4, (80,))
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for number in range(passes):
            for xb, yb in pass_over(x, y, number):
                optimizer.zero_grad()
                F.cross_entropy(model(xb), yb).backward()
                optimizer.step()

    return work


def distributed(*, set_epoch: bool) -> Pass:
    made: list[DataLoader[tuple[Tensor, ...]]] = []

    def pass_over(x: Tensor, y: Tensor, number: int) -> Batches:
        if not made:
            data = TensorDataset(x, y)
            made.append(DataLoader(data, 8, sampler=DistributedSampler(data, 2, 0)))
        if set_epoch:
            made[0].sampler.set_epoch(number)  # type: ignore[attr-defined]
        return made[0]  # type: ignore[return-value]

    return pass_over


def picked(*, once: bool) -> Pass:
    orders: list[Tensor] = []

    def pass_over(x: Tensor, y: Tensor, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        if not orders or not once:
            orders.append(torch.randperm(len(x)))
        for at in orders[-1].split(16):
            yield x[at], y[at]

    return pass_over


def loader(*, shuffle: bool, seed: int | None = None, ordered: bool = False) -> Pass:
    made: list[DataLoader[tuple[Tensor, ...]]] = []

    def pass_over(x: Tensor, y: Tensor, number: int) -> Batches:
        if not made:
            at = y.argsort() if ordered else torch.arange(len(y))
            made.append(DataLoader(TensorDataset(x[at], y[at]), 16, shuffle=shuffle))
        if seed is not None:
            torch.manual_seed(seed)
        return made[0]  # type: ignore[return-value]

    return pass_over


@pytest.mark.parametrize(
    "pass_over",
    [
        distributed(set_epoch=False),
        picked(once=True),
        loader(shuffle=True, seed=0),
        loader(shuffle=False, ordered=True),
    ],
)
def test_the_same_order(pass_over: Pass) -> None:
    assert "HD507" in codes(train(pass_over))


def slices(x: Tensor, y: Tensor, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    for at in range(0, len(x), 16):
        yield x[at : at + 16], y[at : at + 16]


def whole(x: Tensor, y: Tensor, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    yield x, y


@pytest.mark.parametrize(
    "pass_over",
    [
        distributed(set_epoch=True),
        picked(once=False),
        loader(shuffle=True),
        loader(shuffle=False),
        slices,
        whole,
    ],
)
def test_another_order_or_none(pass_over: Pass) -> None:
    assert codes(train(pass_over)) == []


class Noisy(Dataset[tuple[Tensor, int]]):
    def __init__(self, own: np.random.Generator | None = None) -> None:
        self.own = own

    def __len__(self) -> int:
        return 32

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        drawn = np.random.randn(6) if self.own is None else self.own.normal(size=6)
        return torch.from_numpy(drawn).float(), at % 4


def seed_all_alike(worker: int) -> None:
    np.random.seed(0)


@pytest.mark.parametrize(
    ("data", "init", "alike"),
    [
        (Noisy(), None, False),
        (Noisy(), seed_all_alike, True),
        (Noisy(np.random.default_rng(0)), None, True),
    ],
)
def test_workers(data: Noisy, init: Callable[[int], None] | None, alike: bool) -> None:
    def pass_over(x: Tensor, y: Tensor, number: int) -> Batches:
        return DataLoader(data, 8, shuffle=True, num_workers=2, worker_init_fn=init)

    found = codes(train(pass_over, 1))
    assert ("HD508" in found) == alike


class Deck:
    """An iterator over arrays, in an order that is drawn when a pass begins."""

    def __init__(self, x: np.ndarray, y: np.ndarray, seed: int | None, order: str) -> None:
        self.x, self.y, self.order = x, y, order
        self.seed, self.rng = seed, np.random.default_rng(5)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rng = self.rng if self.seed is None else np.random.default_rng(self.seed)
        order = rng.permutation(len(self.x)) if self.order == "drawn" else np.arange(len(self.x))
        for at in np.array_split(order, 5):
            yield torch.from_numpy(self.x[at]), torch.from_numpy(self.y[at])


@pytest.mark.parametrize(
    ("seed", "order", "found"),
    [(3, "drawn", ["HD507"]), (None, "drawn", []), (3, "own", [])],
)
def test_arrays_in_an_iterator(seed: int | None, order: str, found: list[str]) -> None:
    def work() -> None:
        torch.manual_seed(0)
        rng = np.random.default_rng(1)
        x, y = rng.normal(size=(80, 6)).astype(np.float32), rng.integers(0, 4, 80)
        deck = Deck(x, y, seed, order)
        model, criterion = nn.Linear(6, 4), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(4):
            for xb, yb in deck:
                optimizer.zero_grad()
                criterion(model(xb), yb).backward()
                optimizer.step()

    assert codes(work) == found


def test_shuffled_once_and_then_read_in_order() -> None:
    def work() -> None:
        torch.manual_seed(0)
        x, y = torch.randn(80, 6), torch.randint(0, 4, (80,))
        order = torch.randperm(80)
        x, y = x[order], y[order]
        model = nn.Linear(6, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(4):
            for at in range(0, 80, 16):
                optimizer.zero_grad()
                F.cross_entropy(model(x[at : at + 16]), y[at : at + 16]).backward()
                optimizer.step()

    assert codes(work) == []
