"""What reaches the first weights: its scale, its variety, and how many samples of it."""

from __future__ import annotations

import gc
import linecache
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from headway.core.findings import Severity
from headway.preflight.observers.data.repeated_samples import RepeatedSamples
from headway.preflight.runner import run_check


def codes(work: Callable[[], None]) -> list[str]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    found = checked.report.findings
    return [item.code for item in found if item.severity >= Severity.WARNING]


class Eye(nn.Module):
    def __init__(self, first: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.scale = first, scale
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.out = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x * self.scale)
        return self.out(torch.relu(self.conv(x)).mean((2, 3)))


def train(
    prepare: Callable[[Tensor], Tensor],
    *,
    first: nn.Module | None = None,
    scale: float = 1.0,
    kept: int = 16,
    pieces: int = 1,
    target: float | None = None,
) -> Callable[[], None]:
    """Pixels of 0 to 255, and whatever is done with them before the model."""

    def work() -> None:
        torch.manual_seed(0)
        pixels = torch.randint(0, 256, (112, 3, 8, 8)).float()
        labels = torch.randint(0, 2, (112,))
        if target is not None:
            labels = torch.full((112,), int(target))
        model = Eye(first or nn.Identity(), scale)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for x, y in DataLoader(TensorDataset(pixels, labels), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            images = prepare(x)[:kept].chunk(pieces)
            for image, label in zip(images, y[:kept].chunk(pieces), strict=True):
                (F.cross_entropy(model(image), label) / pieces).backward()
            optimizer.step()

    return work


def raw(x: Tensor) -> Tensor:
    return x


def scaled(x: Tensor) -> Tensor:
    return x / 255


@pytest.mark.parametrize(
    "prepare", [raw, lambda x: x / 255 / 255, lambda x: (x / 255 / 255 - 0.5) / 0.5]
)
def test_far_from_unit_scale(prepare: Callable[[Tensor], Tensor]) -> None:
    assert "HD502" in codes(train(prepare))


def test_scaled_somewhere() -> None:
    assert codes(train(scaled)) == []
    assert codes(train(raw, scale=1 / 255)) == []
    assert codes(train(raw, first=nn.BatchNorm2d(3))) == []


def test_ids_and_one_hots() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5000, 8)
            self.kinds = nn.Linear(40, 8)
            self.out = nn.Linear(8, 2)

        def forward(self, ids: Tensor, kind: Tensor) -> Tensor:
            return self.out(self.embed(ids).mean(1) + self.kinds(kind))

    def work() -> None:
        torch.manual_seed(0)
        model = Words()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            ids = torch.randint(0, 5000, (16, 6))
            kind = F.one_hot(torch.randint(0, 40, (16,)), 40).float()
            optimizer.zero_grad()
            F.cross_entropy(model(ids, kind), ids[:, 0] % 2).backward()
            optimizer.step()

    assert codes(work) == []


def test_samples_or_targets_that_are_all_the_same() -> None:
    assert "HD503" in codes(train(lambda x: torch.full_like(x, 0.5)))
    assert "HD503" in codes(train(scaled, target=1.0))


def test_one_noise_tensor_and_one_image() -> None:
    def work() -> None:
        torch.manual_seed(0)
        noise, image = torch.randn(1, 3, 8, 8), torch.rand(1, 3, 8, 8)
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(40):
            optimizer.zero_grad()
            F.mse_loss(model(noise), image).backward()
            optimizer.step()

    assert codes(work) == []


def test_one_of_sixteen_samples() -> None:
    assert "HD510" in codes(train(scaled, kept=1))


def test_pieces_of_a_batch() -> None:
    assert codes(train(scaled, pieces=16)) == []


def test_a_batch_without_samples() -> None:
    assert "HD504" in codes(train(scaled, kept=0))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


@dataclass(frozen=True, slots=True)
class Plan:
    batch_size: int = 32


class Runner:
    """A trainer whose second phase makes a loader of its own."""

    def __init__(self, second: Callable[[Dataset[Any], int], DataLoader[Any]]) -> None:
        self.plan, self.second = Plan(), second

    def epoch(self, loader: DataLoader[Any]) -> None:
        for x, y in loader:
            self.optimizer.zero_grad()
            F.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()

    def __call__(self) -> None:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(256, 6), torch.randint(0, 3, (256,)))
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.epoch(DataLoader(data, batch_size=self.plan.batch_size, shuffle=True))
        self.epoch(self.second(Subset(data, range(12)), self.plan.batch_size))


def test_a_second_loader_without_a_size() -> None:
    assert codes(Runner(lambda data, size: DataLoader(data, shuffle=True))) == ["HD510"]


def test_a_second_loader_with_one_of_its_own() -> None:
    assert codes(Runner(lambda data, size: DataLoader(data, batch_size=1))) == []
    assert codes(Runner(lambda data, size: DataLoader(data, size))) == []


class Reader(nn.Module):
    """A model with the arguments of a Hugging Face one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Any]:
        states = self.embed(input_ids) * attention_mask.unsqueeze(-1)
        logits = self.out(states.mean(1))
        return {"loss": F.cross_entropy(logits, labels[: len(logits)]), "logits": logits}


def by_keyword(kept: int, *, length: int = 48) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        data = TensorDataset(torch.randint(0, 50, (112, length)), torch.randint(0, 3, (112,)))
        model = Reader()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        for ids, labels in DataLoader(data, batch_size=16, shuffle=True):
            ids = ids[:kept]
            batch = {"labels": labels, "input_ids": ids, "attention_mask": torch.ones_like(ids)}
            optimizer.zero_grad()
            model(**batch)["loss"].backward()
            optimizer.step()

    return work


def test_inputs_by_keyword() -> None:
    found = [
        item
        for item in run_check(by_keyword(1), max_steps=None).report.findings
        if item.code == "HD510"
    ]
    assert [item.evidence["value"] for item in found] == [1]
    assert found[0].where.line is not None
    assert "model(**batch)" in linecache.getline(__file__, found[0].where.line)
    assert codes(by_keyword(16)) == []


def test_a_test_batch_that_is_larger_than_the_training_batch() -> None:
    """Training and test sizes are two settings, however the options are kept."""

    def work() -> None:
        torch.manual_seed(0)
        args = SimpleNamespace(batch_size=8, test_batch_size=128, val_bsz=256)
        train_kwargs = {"batch_size": args.batch_size}
        test_kwargs = {"batch_size": args.test_batch_size}
        eval_cfg = SimpleNamespace(batch_size=512)
        data = TensorDataset(torch.randn(256, 6), torch.randint(0, 3, (256,)))
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for x, y in DataLoader(data, **train_kwargs, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        model.eval()
        for x, _ in DataLoader(data, **test_kwargs):
            model(x)
        assert eval_cfg

    assert codes(work) == []


def test_a_size_of_another_loader() -> None:
    """The loader that feeds the steps has a size of its own."""

    def work() -> None:
        torch.manual_seed(0)
        train, replay = {"batch_size": 8}, {"batch_size": 64}
        data = TensorDataset(torch.randn(256, 6), torch.randint(0, 3, (256,)))
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for x, y in DataLoader(data, **train, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        assert replay

    assert codes(work) == []


def test_one_sample_without_its_axis() -> None:
    def work(single: bool) -> None:
        torch.manual_seed(0)
        model, batch_size = Net(), 16
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(6):
            x, y = torch.randn(batch_size, 6), torch.randint(0, 3, (batch_size,))
            optimizer.zero_grad()
            if single:
                F.cross_entropy(model(x[0]), y[0]).backward()
            else:
                losses = [F.cross_entropy(model(a), b) for a, b in zip(x, y, strict=True)]
                torch.stack(losses).mean().backward()
            optimizer.step()

    assert "HD510" in codes(lambda: work(single=True))
    assert codes(lambda: work(single=False)) == []


def test_a_collate_function_that_keeps_one_sample() -> None:
    def first_only(rows: list[Any]) -> Any:
        return rows[0][0].unsqueeze(0), rows[0][1].unsqueeze(0)

    def work() -> None:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(256, 6), torch.randint(0, 3, (256,)))
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for x, y in DataLoader(data, 32, collate_fn=first_only):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    found = [
        item for item in run_check(work, max_steps=None).report.findings if item.code == "HD510"
    ]
    assert [item.where.function for item in found] == ["first_only"]


@pytest.mark.parametrize("inside", [False, True])
def test_a_missing_value_in_a_loop_of_its_own(inside: bool) -> None:
    """A model that deals with missing values is none of our business."""

    class Careful(Net):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.nan_to_num())

    def work() -> None:
        torch.manual_seed(0)
        x, y = torch.randn(64, 6), torch.randint(0, 3, (64,))
        x[20, 4] = torch.nan
        model = Careful() if inside else Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for rows in torch.arange(64).split(16):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()

    report = run_check(work, max_steps=None).report
    causes = [(cause.code, cause.root.step) for cause in report.causes]
    assert causes == ([] if inside else [("HD501", 1)])


def test_a_second_forward_of_a_batch_is_no_second_pass() -> None:
    model = nn.Linear(4, 2)
    script: Any = SimpleNamespace(stack=[model], data_passes=None, optimizers=[object()])
    observer = RepeatedSamples(script, Mock())
    optimizer: Any = script.optimizers[0]
    batches = torch.randn(3, 8, 4)
    for batch in batches:
        for _ in range(2):  # two forwards of one batch, as in consistency training
            observer.module_ended(model, (batch,), {}, None)
        observer.step_ended(optimizer)
    assert script.data_passes == 1
    for batch in batches:
        observer.module_ended(model, (batch,), {}, None)
        observer.step_ended(optimizer)
    assert script.data_passes == 2
