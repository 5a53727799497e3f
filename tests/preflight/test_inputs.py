"""What reaches the first weights: its scale, its variety, and how many samples of it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from holdfast.core.findings import Severity
from holdfast.preflight.check_run import watch


def codes(work: Callable[[], None]) -> list[str]:
    gc.collect()
    checked = watch(work, max_steps=None)
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
    checked = watch(train(scaled, kept=0), max_steps=None)
    assert "HD504" in [item.code for item in checked.report.findings]
