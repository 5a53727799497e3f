"""Averaged models with stale batch-norm statistics, and modules that stand in several layers."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

from headway.core.findings import Finding, Severity
from headway.preflight.runner import run_check


def found(work: Callable[[], None], code: str) -> list[Finding]:
    gc.collect()
    checked = run_check(work, max_steps=None)
    assert checked.error is None
    assert list(checked.report.notes) == []
    return [item for item in checked.report.findings if item.code == code]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def train(kind: str) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        model = net()
        average: nn.Module = copy.deepcopy(model)
        if kind.startswith("swa"):
            buffers = kind == "swa with buffers"
            average = AveragedModel(
                model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=buffers
            )
        if kind == "other":
            average = net()
        average.eval()
        if kind == "teacher in training mode":
            average.train()
        optimizer = torch.optim.SGD(model.parameters(), 0.05)
        data = torch.randn(64, 6) * 3 + 1
        labels = data[:, :3].argmax(1)
        for step in range(6):
            optimizer.zero_grad()
            F.cross_entropy(model(data), labels).backward()
            optimizer.step()
            if isinstance(average, AveragedModel):
                average.update_parameters(model)
            elif kind not in ("kept", "other"):
                with torch.no_grad():
                    for old, new in zip(average.parameters(), model.parameters(), strict=True):
                        old.mul_(0.9).add_(new, alpha=0.1)
                    if kind == "buffers":
                        for old, new in zip(average.buffers(), model.buffers(), strict=True):
                            old.copy_(new)
            if step == 4:
                if kind == "swa with update_bn":
                    update_bn([data], average)
                with torch.no_grad():
                    F.cross_entropy(average(data), labels)

    return work


def test_an_average_of_the_weights_alone() -> None:
    [finding] = found(train("by hand"), "HD320")
    assert "its 1 batch-norm layers" in finding.message
    assert (finding.where.file or "").endswith("test_averaged_models.py")


@pytest.mark.parametrize(
    "kind",
    [
        "buffers",
        "swa",  # torch's own copies the buffers
        "swa with buffers",
        "swa with update_bn",
        "kept",
        "other",
        "teacher in training mode",
    ],
)
def test_averages_and_copies_that_are_well(kind: str) -> None:
    assert not found(train(kind), "HD320")


class Layer(nn.Module):
    def __init__(self, ff: nn.Module) -> None:
        super().__init__()
        self.norm, self.ff = nn.LayerNorm(6), ff

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.ff(self.norm(x))


def stack(*, shared: bool) -> Callable[[], None]:
    def work() -> None:
        torch.manual_seed(0)
        ff = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        layers = [Layer(ff if shared else copy.deepcopy(ff)) for _ in range(3)]
        act = nn.ReLU()  # no weights: may stand anywhere
        model = nn.Sequential(*layers, act, nn.Linear(6, 3), act, nn.Linear(3, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.randn(8, 6)), torch.arange(8) % 3).backward()
            optimizer.step()

    return work


def test_one_module_in_all_layers_is_information() -> None:
    [finding] = found(stack(shared=True), "HD910")
    assert finding.severity == Severity.INFO
    assert "0.ff, 1.ff, 2.ff are one Sequential object" in finding.message


def test_layers_of_their_own() -> None:
    assert not found(stack(shared=False), "HD910")


def siblings(kind: str) -> Callable[[], None]:
    """Three layers one after the other, three beside each other, or those of torch."""

    def work() -> None:
        torch.manual_seed(0)
        one = nn.Linear(8, 8)
        if kind == "fresh":
            layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        else:
            layers = nn.ModuleList([copy.deepcopy(one) for _ in range(3)])  # copies
        model = nn.ModuleDict({"layers": layers, "head": nn.Linear(8, 3)})
        if kind == "torch":
            encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            model["layers"] = nn.TransformerEncoder(encoder, 2, enable_nested_tensor=False)
        if kind == "loaded":
            model.load_state_dict(copy.deepcopy(model.state_dict()))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in range(3):
            x = torch.randn(8, 8)
            h = x
            if kind == "torch":
                h = model["layers"](x[:, None])[:, 0]
            elif kind == "beside":
                h = sum(layer(x).tanh() for layer in layers)  # type: ignore[assignment]
            else:
                for layer in layers:
                    h = h + layer(h).tanh()
            optimizer.zero_grad()
            F.cross_entropy(model["head"](h), x[:, :3].argmax(1)).backward()
            optimizer.step()

    return work


@pytest.mark.parametrize(
    ("kind", "severity"),
    [("copies", Severity.WARNING), ("beside", Severity.ERROR), ("torch", Severity.INFO)],
)
def test_layers_that_start_as_copies(kind: str, severity: Severity) -> None:
    [finding] = found(siblings(kind), "HD316")
    assert finding.severity == severity
    lines = Path(__file__).read_text().splitlines()
    line = lines[(finding.where.line or 1) - 1]
    assert line.endswith("# copies") or "nn.TransformerEncoder(" in line


@pytest.mark.parametrize("kind", ["fresh", "loaded"])
def test_layers_that_may_be_equal(kind: str) -> None:
    assert not found(siblings(kind), "HD316")


def twins(kind: str) -> Callable[[], None]:
    """Two critics; the second one begins with the weights of the first."""

    def work() -> None:
        torch.manual_seed(0)
        first, second = (nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in "ab")
        second.load_state_dict(first.state_dict())  # twin
        groups = [[*first.parameters(), *second.parameters()]]
        if kind == "two optimizers":
            groups = [[*first.parameters()], [*second.parameters()]]
        optimizers = [torch.optim.Adam(group, 0.01) for group in groups]
        for _ in range(3):
            x = torch.randn(16, 4)
            other = torch.randn(16, 4) if kind == "own samples" else x
            loss = F.mse_loss(first(x), x[:, :1]) + F.mse_loss(second(other), other[:, :1])
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()

    return work


def test_twins_that_stay_equal() -> None:
    [finding] = found(twins("same samples"), "HD316")
    assert finding.severity == Severity.ERROR
    lines = Path(__file__).read_text().splitlines()
    assert lines[(finding.where.line or 1) - 1].endswith("# twin")


@pytest.mark.parametrize("kind", ["two optimizers", "own samples"])
def test_twins_that_come_apart_or_are_compared(kind: str) -> None:
    assert not found(twins(kind), "HD316")
