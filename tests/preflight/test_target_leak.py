"""Answers among the inputs: language models, tables, splits; and what only looks like it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

from headway.core.findings import Finding
from headway.preflight.observers.data.data_leakage import SPLITS
from headway.preflight.runner import run_check

V, T, B = 20, 12, 8


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")


def leaks(work: Callable[[], Any], steps: int | None = 3) -> list[Finding]:
    checked = run_check(work, max_steps=steps)
    assert checked.error is None
    return [item for item in checked.report.findings if item.code == "HD117"]


class Attention(nn.Module):
    """Written by hand; `mask`: "causal", "none" or a prefix length."""

    def __init__(self, mask: str | int, *, fused: bool = False) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(V, 16), nn.Embedding(T, 16)
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, V)
        self.mask, self.fused = mask, fused

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.embed(ids) + self.position(torch.arange(length))
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        allowed = torch.ones(length, length, dtype=torch.bool)
        if self.mask != "none":
            allowed = allowed.tril()
        if isinstance(self.mask, int):
            allowed[:, : self.mask] = True
        if self.fused:
            return self.head(x + F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))
        scores = (q @ k.transpose(1, 2) / 4).masked_fill(~allowed, float("-inf"))
        return self.head(x + scores.softmax(dim=-1) @ v)


class Recurrent(nn.Module):
    def __init__(self, *, both_ways: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, 16)
        self.rnn = nn.LSTM(16, 8, batch_first=True, bidirectional=both_ways)
        self.head = nn.Linear(16 if both_ways else 8, V)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def language(
    make: Callable[[], nn.Module], *, ignored: int = 0, masked: bool = False
) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        net = make()
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        text = torch.randint(0, V, (B * 4, T + 1))
        for at in range(4):
            rows = text[at * B : (at + 1) * B]
            x, y = rows[:, :-1], rows[:, 1:].clone()
            if masked:
                x, y = rows[:, :-1].clone(), rows[:, :-1].clone()
                hidden = torch.rand(x.shape) < 0.3
                y[~hidden] = -100
                x[hidden] = 0
            y[:, :ignored] = -100
            optimizer.zero_grad()
            F.cross_entropy(net(x).reshape(-1, V), y.reshape(-1)).backward()
            optimizer.step()

    return work


@pytest.mark.parametrize(
    "make",
    [
        lambda: Attention("none"),
        lambda: Attention("none", fused=True),
        lambda: Recurrent(both_ways=True),
    ],
)
def test_a_model_that_looks_ahead(make: Callable[[], nn.Module]) -> None:
    [finding] = leaks(language(make))
    assert "sees the tokens" in finding.message
    # A recurrent layer is told its directions where it is made.
    made_so = "gru is the first" in finding.message or "lstm is the first" in finding.message
    assert finding.where.function == ("__init__" if made_so else "forward")


@pytest.mark.parametrize(
    "work",
    [
        language(lambda: Attention("causal")),
        language(lambda: Attention("causal", fused=True)),
        language(lambda: Recurrent(both_ways=False)),
        language(lambda: Attention(4), ignored=4),  # a prefix model
        language(lambda: Attention("none"), masked=True),  # fills gaps
    ],
)
def test_models_that_may(work: Callable[[], None]) -> None:
    assert not leaks(work)


class Translator(nn.Module):
    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, 16)
        self.body = nn.Transformer(16, 2, 1, 1, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, V)
        self.causal = causal

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        return self.head(self.body(self.embed(source), self.embed(target), tgt_mask=mask))


@pytest.mark.parametrize("causal", [True, False])
def test_a_translator(causal: bool) -> None:
    def work() -> None:
        torch.manual_seed(0)
        net = Translator(causal=causal)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        for _ in range(4):
            source, target = torch.randint(0, V, (B, T)), torch.randint(0, V, (B, T + 1))
            loss = nn.CrossEntropyLoss()(net(source, target[:, :-1]).mT, target[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert bool(leaks(work)) is not causal


def table(
    change: Callable[[Tensor, Tensor], Tensor], *, numbers: bool = False
) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        x = torch.randn(256, 6)
        y = (x[:, 0] + torch.randn(256) > 0).float()
        if numbers:
            y = x[:, 0] + 0.5 * torch.randn(256)
        x = change(x, y)
        net = nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, 1))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for a, b in DataLoader(TensorDataset(x, y), 32, shuffle=True):
            out = net(a).squeeze(1)
            loss = ((out - b) ** 2).mean() if numbers else nn.BCEWithLogitsLoss()(out, b)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return work


def with_label(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, 3 * y[:, None] - 1], dim=1)


def as_it_is(x: Tensor, y: Tensor) -> Tensor:
    return x


def with_a_hint(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y[:, None] + 0.3 * torch.randn(len(x), 1)], dim=1)


@pytest.mark.parametrize("numbers", [True, False])
def test_a_label_among_the_features(numbers: bool) -> None:
    [finding] = leaks(table(with_label, numbers=numbers))
    assert finding.evidence["column"] == 6


def after_the_fact(x: Tensor, y: Tensor) -> Tensor:
    """Days late: nobody who pays has any."""
    days = torch.where(y == 1, 30 + 100 * torch.rand(len(y)), torch.zeros(len(y)))
    return torch.cat([x, (days[:, None] - days.mean()) / days.std()], dim=1)


def nearly_the_label(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y[:, None] + 0.05 * torch.randn(len(x), 1)], dim=1)


@pytest.mark.parametrize("change", [after_the_fact, nearly_the_label])
def test_a_column_that_gives_the_label_away(change: Any) -> None:
    [finding] = leaks(table(change))
    assert finding.evidence["column"] == 6


def classes_in(features: Callable[[Tensor], Tensor], classes: int = 2) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        y = torch.arange(256) % classes
        x = features(y)
        net = nn.Sequential(nn.Linear(x.shape[1], 16), nn.ReLU(), nn.Linear(16, classes))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for rows in torch.randperm(256).split(32):
            optimizer.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()

    return work


def far_blobs(y: Tensor) -> Tensor:
    return 4 * torch.randn(2, 8)[y] + torch.randn(len(y), 8)


def a_threshold(y: Tensor) -> Tensor:
    x = torch.randn(len(y), 8)
    x[:, 0] = x[:, 0].abs() * (2 * y - 1)
    return x


def sparse_features(y: Tensor) -> Tensor:
    return torch.relu(3 * torch.randn(2, 24)[y] + 0.3 * torch.randn(len(y), 24))


@pytest.mark.parametrize("features", [far_blobs, a_threshold, sparse_features])
def test_classes_that_are_honestly_apart(features: Callable[[Tensor], Tensor]) -> None:
    assert not leaks(classes_in(features))


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("change", [as_it_is, with_a_hint])
def test_features_that_only_help(change: Any, numbers: bool) -> None:
    assert not leaks(table(change, numbers=numbers))


def split(train: slice, validation: slice, *, folds: int = 1) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        x, y = torch.randn(160, 6), torch.randint(0, 2, (160,))
        for fold in range(folds):
            order = torch.arange(160).roll(40 * fold)
            split_rows = order[train], order[validation]
            a, b = split_rows
            net = nn.Linear(6, 2)
            optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
            for _ in range(3):
                net.train()
                for part in a.split(20):
                    optimizer.zero_grad()
                    F.cross_entropy(net(x[part]), y[part]).backward()
                    optimizer.step()
                net.eval()
                with torch.no_grad():
                    net(x[b])

    return work


def test_a_split_that_overlaps() -> None:
    [finding] = leaks(split(slice(0, 120), slice(100, 160)), steps=None)
    assert "20 of 60 validation rows" in finding.message
    lines = Path(__file__).read_text().splitlines()
    assert "split_rows = " in lines[(finding.where.line or 1) - 1]


@pytest.mark.parametrize(
    ("line", "takes"),
    [
        ("valid = Subset(data, range(120, 200))", True),
        ("x_train, x_val = x[:160], x[120:]", True),
        ("test_rows = rows[100:]", True),
        ("value = x[1:]", False),
        ("device = names[2:]", False),
        ("val_loader = DataLoader(valid, 16)", False),
    ],
)
def test_the_line_that_takes_the_validation_rows(line: str, takes: bool) -> None:
    assert bool(re.search(SPLITS[-1], line)) == takes


@pytest.mark.parametrize(
    "work",
    [
        split(slice(0, 120), slice(120, 160)),
        split(slice(0, 120), slice(0, 120)),
        split(slice(0, 120), slice(120, 160), folds=3),
    ],
)
def test_splits_that_do_not(work: Callable[[], None]) -> None:
    assert not leaks(work, steps=None)


@pytest.mark.parametrize(("overlap", "again"), [(0, "loader"), (0, "dataset"), (20, "no")])
def test_the_training_set_is_evaluated_too(overlap: int, again: str) -> None:
    """As ignite's examples do: results on the training rows, then on the validation rows."""

    def work() -> None:
        torch.manual_seed(0)
        x, y = torch.randn(180, 6), torch.randint(0, 2, (180,))
        trained = TensorDataset(x[:120], y[:120])
        trains = DataLoader(trained, 20, shuffle=True)
        validates = DataLoader(TensorDataset(x[120 - overlap :], y[120 - overlap :]), 20)
        looked_at = {
            "loader": [trains, validates],
            "dataset": [DataLoader(trained, 40), validates],
            "no": [validates],
        }[again]
        net = nn.Linear(6, 2)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(3):
            net.train()
            for rows, labels in trains:
                optimizer.zero_grad()
                F.cross_entropy(net(rows), labels).backward()
                optimizer.step()
            net.eval()
            for loader in looked_at:
                with torch.no_grad():
                    for rows, _ in loader:
                        net(rows)

    found = leaks(work, steps=None)
    assert [item.message for item in found] == (
        ["20 of 80 validation rows are training rows"] if overlap else []
    )


def test_one_dataset_split_by_samplers_that_overlap() -> None:
    def work() -> None:
        torch.manual_seed(0)
        whole = TensorDataset(torch.randn(180, 6), torch.randint(0, 2, (180,)))
        trains, validates = (
            DataLoader(whole, 20, sampler=SubsetRandomSampler(rows))
            for rows in (range(120), range(100, 180))
        )
        net = nn.Linear(6, 2)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(3):
            net.train()
            for rows, labels in trains:
                optimizer.zero_grad()
                F.cross_entropy(net(rows), labels).backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                for rows, _ in validates:
                    net(rows)

    [finding] = leaks(work, steps=None)
    assert finding.message == "20 of 80 validation rows are training rows"
