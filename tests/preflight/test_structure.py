"""Layers that parameters() does not see, and dropout that leaves nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.observer_trainings import fit, net
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from headway.preflight.runner import CheckResult, run_check


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")
    torch.manual_seed(0)
    gc.collect()  # the models of the tests before would be found as well


_draws = torch.Generator().manual_seed(0)
X = torch.randn(32, 8, generator=_draws)
Y = torch.randint(0, 3, (32,), generator=_draws)


def train(model: nn.Module, parameters: object = None, steps: int = 3) -> CheckResult:
    def work() -> None:
        optimizer = torch.optim.Adam(parameters or model.parameters(), lr=1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(X), Y).backward()
            optimizer.step()

    checked = run_check(work, max_steps=steps)
    if checked.error is not None:
        raise checked.error
    return checked


def codes(checked: CheckResult) -> set[str]:
    return {item.code for item in checked.report.findings if item.severity >= 20}


class Listed(nn.Module):
    def __init__(self, keep: Callable[[list[nn.Module]], object] = list) -> None:
        super().__init__()
        self.hidden = keep([nn.Linear(8, 8) for _ in range(2)])
        self.head = nn.Linear(8, 3)

    def layers(self) -> list[nn.Module]:
        if isinstance(self.hidden, dict):
            return list(self.hidden.values())
        return list(getattr(self.hidden, "layers", self.hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers():
            x = F.relu(layer(x))
        return self.head(x)


@dataclass
class Stack:
    layers: list[nn.Module]


@pytest.mark.parametrize(
    "keep",
    [list, tuple, lambda items: {str(at): item for at, item in enumerate(items)}, Stack],
)
def test_plain_containers(keep: Callable[[list[nn.Module]], object]) -> None:
    checked = train(Listed(keep))
    finding = next(item for item in checked.report.findings if item.code == "HD906")
    assert "hidden" in finding.message
    assert finding.where.file is not None
    assert finding.where.file.endswith("test_structure.py")
    assert checked.report.causes[0].code == "HD906"


def test_nested_list_and_plain_tensor() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [[nn.Linear(8, 8)], {"b": nn.Linear(8, 8)}]
            self.shift = torch.zeros(8, requires_grad=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.relu(self.blocks[0][0](x)) + self.shift
            return self.head(F.relu(self.blocks[1]["b"](x)))

    found = [item for item in train(Model()).report.findings if item.code == "HD906"]
    assert {item.where.module for item in found} == {"blocks", "shift"}


def test_module_list_is_healthy() -> None:
    assert "HD906" not in codes(train(Listed(nn.ModuleList)))


def test_given_to_the_optimizer_by_hand() -> None:
    model = Listed()
    everything = [*model.parameters(), *(p for layer in model.hidden for p in layer.parameters())]
    assert "HD906" not in codes(train(model, everything))


def test_teacher_in_a_list() -> None:
    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = [nn.Linear(8, 3)]
            self.body = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                soft = self.teacher[0](x)
            return self.body(x) + soft

    assert "HD906" not in codes(train(Student()))


@pytest.mark.parametrize(
    "noise",
    [nn.Dropout(0.9), nn.Sequential(nn.Dropout(0.6), nn.Dropout(0.6)), nn.Dropout1d(0.85)],
)
def test_too_much_dropout(noise: nn.Module) -> None:
    checked = train(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), noise, nn.Linear(16, 3)))
    assert "HD909" in codes(checked)


def test_functional_dropout_is_found_at_its_line() -> None:
    class Model(Listed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(F.dropout(F.relu(self.hidden[0](x)), p=0.95))

    found = [i for i in train(Model(nn.ModuleList)).report.findings if i.code == "HD909"]
    assert found[0].where.line is not None
    assert found[0].where.file == __file__


class Recurrent(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rnn = nn.LSTM(1, 8, num_layers=2, dropout=rate, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.rnn(x.unsqueeze(-1))[0]
        return self.head(self.attention(x, x, x)[0].mean(1))


@pytest.mark.parametrize("rate", [0.9, 0.1])
def test_dropout_within_recurrent_layers_and_attention(rate: float) -> None:
    found = [i for i in train(Recurrent(rate)).report.findings if i.code == "HD909"]
    assert {i.where.module for i in found} == ({"rnn", "attention"} if rate > 0.5 else set())


def test_usual_dropout() -> None:
    layers = [part for _ in range(8) for part in (nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5))]
    assert "HD909" not in codes(train(nn.Sequential(*layers, nn.Linear(8, 3))))


def test_dropout_that_is_off() -> None:
    class Model(Listed):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(F.dropout(F.relu(self.hidden[0](x)), p=0.95, training=False))

    assert "HD909" not in codes(train(Model(nn.ModuleList)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("original", [True, False])
def test_flat_parameters_of_fsdp_are_trained(original: bool) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:

        def work() -> None:
            cpu = torch.device("cpu")
            model = FullyShardedDataParallel(net(), device_id=cpu, use_orig_params=original)
            fit(model, torch.optim.Adam(model.parameters(), lr=1e-2))

        checked = run_check(work, max_steps=None)
        assert checked.error is None
        assert codes(checked) == set()
    finally:
        dist.destroy_process_group()
