"""Labels and targets as a loss function gets them: imbalance, padding, scale, noise."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from headway.core.findings import Severity
from headway.preflight.runner import run_check

pytestmark = pytest.mark.slow  # whole trainings, each watched from end to end


def codes(work: Callable[[], None]) -> list[str]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    found = checked.report.findings
    return [item.code for item in found if item.severity >= Severity.WARNING]


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


def blobs(classes: int, spread: float, count: int = 4000) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    labels = torch.randint(0, classes, (count,))
    return spread * torch.randn(classes, 10)[labels] + torch.randn(count, 10), labels


def classify(
    x: Tensor,
    y: Tensor,
    *,
    weight: Tensor | None = None,
    sampler: WeightedRandomSampler | None = None,
    smoothing: float = 0.0,
    epochs: int = 1,
    lr: float = 1e-2,
) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(1)
        model = mlp(10, int(y.max()) + 1)
        optimizer = torch.optim.Adam(model.parameters(), lr)
        data = TensorDataset(x, y)
        loader = DataLoader(data, batch_size=32, shuffle=sampler is None, sampler=sampler)
        batches = (batch for _ in range(epochs) for batch in loader)
        for step, (xb, yb) in enumerate(batches):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(xb), yb, weight=weight, label_smoothing=smoothing)
            loss.backward()
            optimizer.step()
            if step == 100:
                return

    return work


def rare(share: float) -> tuple[Tensor, Tensor]:
    x, _ = blobs(2, 2.0)
    y = (torch.rand(len(x)) < share).long()
    return x + 2.0 * y[:, None], y


def test_a_rare_class() -> None:
    assert "HD506" in codes(classify(*rare(0.06)))


def test_a_rare_class_with_weights_or_a_sampler() -> None:
    x, y = rare(0.06)
    assert codes(classify(x, y, weight=torch.tensor([1.0, 15.0]))) == []
    draws = WeightedRandomSampler(torch.where(y == 1, 15.0, 1.0).tolist(), len(y))
    assert codes(classify(x, y, sampler=draws)) == []


def test_labels_shuffled_apart() -> None:
    x, y = blobs(5, 2.0, 1000)
    assert "HD512" in codes(classify(x, y[torch.randperm(len(y))], epochs=4))


def test_a_rule_of_two_features_in_the_first_pass() -> None:
    """It looks like noise for hundreds of steps, and is learned later."""
    torch.manual_seed(0)
    x = torch.randn(4000, 10)
    assert codes(classify(x, (x[:, 0] * x[:, 1] > 0).long(), lr=1e-3)) == []
    y = torch.randint(0, 2, (4000,))
    report = run_check(classify(x, y, lr=1e-3), max_steps=None).report
    found = [item for item in report.findings if item.code == "HD512"]
    assert [item.severity for item in found] in ([], [Severity.INFO])


def test_labels_of_positions() -> None:
    """Blanks to be copied as blanks are not a class that dominates."""

    class Copier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.out = nn.Embedding(10, 16), nn.Linear(16, 10)

        def forward(self, ids: Tensor) -> Tensor:
            out: Tensor = self.out(self.embed(ids))
            return out

    def work() -> None:
        torch.manual_seed(0)
        model, criterion = Copier(), nn.CrossEntropyLoss()
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(8):
            ids = torch.zeros(32, 30, dtype=torch.long)
            ids[:, 12:15] = torch.randint(1, 9, (32, 3))
            optimizer.zero_grad()
            criterion(model(ids).view(-1, 10), ids.view(-1)).backward()
            optimizer.step()

    assert "HD506" not in codes(work)


def many_passes(x: Tensor, y: Tensor) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(1)
        model = mlp(10, int(y.max()) + 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        for _ in range(12):
            for rows in torch.randperm(len(x)).split(32):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()

    return work


def test_few_samples_learned_by_heart() -> None:
    x, y = blobs(6, 1.0, count=500)
    assert "HD512" in codes(many_passes(x, y[torch.randperm(len(y))]))
    assert codes(many_passes(x, y)) == []


@pytest.mark.parametrize("classes", [2, 5])
def test_a_share_of_wrong_labels(classes: int) -> None:
    x, y = blobs(classes, 1.5)
    wrong = torch.rand(len(y)) < 0.35
    assert "HD512" in codes(classify(x, torch.where(wrong, torch.randint(0, classes, y.shape), y)))


def test_two_classes_that_are_one() -> None:
    x, y = blobs(4, 2.0)
    y = torch.where((y == 0) & (torch.rand(len(y)) < 0.5), torch.full_like(y, 4), y)
    assert "HD512" in codes(classify(x, y))


@pytest.mark.parametrize("spread", [2.0, 0.5, 0.25])
def test_easy_and_hard_tasks_with_and_without_smoothing(spread: float) -> None:
    x, y = blobs(4, spread)
    assert codes(classify(x, y, smoothing=0.1 if spread == 0.5 else 0.0)) == []


def padded(ignore: int) -> Callable[[], None]:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(20, 16)
            self.out = nn.Linear(16, 20)

        def forward(self, ids: Tensor) -> Tensor:
            return self.out(self.embed(ids))

    def work() -> None:
        torch.manual_seed(0)
        ids = torch.randint(1, 20, (64, 12))
        ids[torch.arange(12)[None] >= torch.randint(3, 13, (64, 1))] = 0
        model = Tagger()
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for (batch,) in DataLoader(TensorDataset(ids), batch_size=16, shuffle=True):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(
                logits.reshape(-1, 20), batch[:, 1:].reshape(-1), ignore_index=ignore
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


def test_padding_in_the_loss_and_left_out() -> None:
    assert "HD506" in codes(padded(-100))
    assert codes(padded(0)) == []


def regress(scale: float, shift: float = 0.0, *, by_hand: bool = False) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        model = mlp(4, 1)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(4):
            x = torch.randn(32, 4)
            target = scale * (x[:, :1] + x[:, 1:2].abs()) + shift
            predicted = model(x)
            loss = ((predicted - target) ** 2).mean() if by_hand else F.mse_loss(predicted, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


@pytest.mark.parametrize("by_hand", [False, True])
def test_targets_far_from_unit_scale(by_hand: bool) -> None:
    assert "HD511" in codes(regress(1000.0, by_hand=by_hand))
    assert codes(regress(1.0, by_hand=by_hand)) == []
    assert codes(regress(80.0, by_hand=by_hand)) == []


def test_the_same_samples_under_two_names() -> None:
    x, y = blobs(4, 2.0, 400)
    other = torch.where(y == 0, torch.full_like(y, 1), y)
    assert "HD512" in codes(
        classify(torch.cat([x, x]).repeat(5, 1), torch.cat([y, other]).repeat(5))
    )


def test_mixup_has_two_labels_for_each_input() -> None:
    x, y = blobs(4, 2.0, 320)

    def work() -> None:
        torch.manual_seed(1)
        model = mlp(10, 4)
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        for indices in torch.cat([torch.randperm(320) for _ in range(4)]).split(32):
            order, share = torch.randperm(32), float(torch.rand(()))
            xb, yb = x[indices], y[indices]
            output = model(share * xb + (1 - share) * xb[order])
            loss = share * F.cross_entropy(output, yb)
            loss = loss + (1 - share) * F.cross_entropy(output, yb[order])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert codes(work) == []


def test_two_trainings_have_labels_of_their_own() -> None:
    x, y = blobs(4, 2.0, 400)
    first, second = classify(x, y, epochs=4), classify(x, y // 2, epochs=4)

    def work() -> None:
        first()
        second()

    assert codes(work) == []
