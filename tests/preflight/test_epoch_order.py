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

from holdfast.core.findings import Severity
from holdfast.preflight.check_run import watch

Batches = Iterable[tuple[Tensor, Tensor]]
Pass = Callable[[Tensor, Tensor, int], Batches]


def codes(work: Callable[[], None]) -> list[str]:
    gc.collect()
    checked = watch(work, max_steps=None)
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
