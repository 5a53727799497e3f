"""Data sets that reading changes, samplers that miss samples, and validation on a training part."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from headway.core.findings import Finding
from headway.preflight.runner import run_check


def found(work: Callable[[], None], code: str) -> list[Finding]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code == code]


def fit(loader: Any, *, epochs: int = 3, val: Any = None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(epochs):
        model.train()
        for x, y, *rest in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for rows in rest:  # new targets, written by the loop
                loader.dataset.soft[rows] = torch.rand(len(rows), 12).numpy()
        if val is not None:
            model.eval()
            with torch.no_grad():
                for x, _ in val:
                    model(x)


class Stored(Dataset[Any]):
    def __init__(self, read: Callable[[Any, int], Any], *, tensors: bool = False) -> None:
        rng = np.random.default_rng(0)
        inputs = rng.uniform(1, 2, (40, 12)).astype(np.float32)
        self.inputs: Any = torch.from_numpy(inputs) if tensors else inputs
        self.soft = rng.uniform(1, 2, (40, 12)).astype(np.float32)
        self.full = [False] * 40
        self.read = read

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.read(self, index), index % 3, *([] if self.read is not with_index else [index])


def in_place(data: Stored, index: int) -> Any:
    row = data.inputs[index]
    row -= 1.5
    row /= 0.3
    return row


def copied(data: Stored, index: int) -> Any:
    row = data.inputs[index].copy()
    row -= 1.5
    return row


def cached(data: Stored, index: int) -> Any:
    if not data.full[index]:
        data.full[index] = True
        data.inputs[index] *= 2
    return data.inputs[index]


def with_index(data: Stored, index: int) -> Any:
    return data.inputs[index]


@pytest.mark.parametrize("tensors", [False, True])
def test_reading_changes_the_data(tensors: bool) -> None:
    data = Stored(in_place, tensors=tensors)
    [finding] = found(lambda: fit(DataLoader(data, 8, shuffle=True)), "HD516")
    assert finding.evidence["attribute"] == "inputs"
    assert finding.where.function == "__getitem__"


@pytest.mark.parametrize("read", [copied, cached, with_index])
def test_data_that_reading_does_not_change(read: Callable[[Any, int], Any]) -> None:
    assert not found(lambda: fit(DataLoader(Stored(read), 8, shuffle=True)), "HD516")


def labelled(count: int = 60) -> tuple[TensorDataset, Tensor]:
    torch.manual_seed(0)
    labels = torch.arange(count) % 3
    return TensorDataset(torch.randn(count, 12), labels), labels


@pytest.mark.parametrize("each", [False, True])
def test_weights_of_classes_are_no_weights_of_samples(each: bool) -> None:
    data, labels = labelled()
    weights = torch.tensor([0.2, 0.3, 0.5])
    sampler = WeightedRandomSampler(weights[labels] if each else weights, len(data))
    reported = found(lambda: fit(DataLoader(data, 10, sampler=sampler)), "HD515")
    assert bool(reported) is not each


def splits(kind: str) -> Callable[[], None]:
    def work() -> None:
        data, _ = labelled(200)
        train, held = random_split(data, [150, 50])
        loaders: dict[str, tuple[Any, Any]] = {
            "whole": (data, held),
            "split": (train, held),
            "both": (data, data),
            "other": (data, Subset(labelled(400)[0], range(300, 400))),
        }
        first, second = loaders[kind]
        fit(DataLoader(first, 25, shuffle=True), val=DataLoader(second, 25), epochs=4)

    return work


def test_validation_on_a_part_of_the_training_set() -> None:
    [finding] = found(splits("whole"), "HD117")
    assert "50 of 50 validation rows" in finding.message


@pytest.mark.parametrize("kind", ["split", "both", "other"])
def test_validation_on_other_rows_or_on_all(kind: str) -> None:
    assert not found(splits(kind), "HD117")
