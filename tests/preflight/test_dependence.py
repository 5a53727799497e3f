"""Which samples an output depends on: faults, and models that only look like them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from headway.preflight.runner import CheckResult
from headway.preflight.runner import run_check as watch_unasked

B, T, D = 16, 10, 6


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_STRICT", "1")


def watch(work: Callable[[], Any], **how: Any) -> CheckResult:
    checked = watch_unasked(work, **how)
    assert checked.error is None
    return checked


class Recurrent(nn.Module):
    def __init__(self, how: Callable[[Recurrent, Tensor], Tensor], **options: Any) -> None:
        super().__init__()
        self.rnn = nn.GRU(D, 8, **options)
        self.head = nn.Linear(8, 3)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


class Transformer(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed = nn.Linear(D, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, **options)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x)).mean(dim=1))


class Flat(nn.Module):
    def __init__(self, how: Callable[[Flat, Tensor], Tensor], *, zeros: bool = False) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(T * D, 8), nn.Linear(8, 3)
        self.norm = nn.BatchNorm1d(8)
        self.how = how
        if zeros:
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)


def last_of_wrong_axis(net: Recurrent, x: Tensor) -> Tensor:
    return net.head(net.rnn(x)[0][:, -1])


def viewed(net: Recurrent, x: Tensor) -> Tensor:
    return net.head(net.rnn(x.view(T, x.shape[0], D))[0][-1])


def transposed(net: Recurrent, x: Tensor) -> Tensor:
    return net.head(net.rnn(x.transpose(0, 1))[0][-1])


def batch_first(net: Recurrent, x: Tensor) -> Tensor:
    return net.head(net.rnn(x)[0][:, -1])


def softmax_over(dim: int) -> Callable[[Flat, Tensor], Tensor]:
    def how(net: Flat, x: Tensor) -> Tensor:
        h = net.inner(x.flatten(1))
        return net.head(h * torch.softmax(h, dim=dim))

    return how


def plain(net: Flat, x: Tensor) -> Tensor:
    return net.head(F.dropout(torch.relu(net.norm(net.inner(x.flatten(1))))))


def normed_by_hand(net: Flat, x: Tensor) -> Tensor:
    h = net.inner(x.flatten(1))
    return net.head((h - h.mean(0)) / (h.std(dim=0) + 1e-5))


def without_the_input(net: Flat, x: Tensor) -> Tensor:
    return net.head(torch.relu(net.inner(torch.zeros_like(x.flatten(1)))))


def overwritten(net: Flat, x: Tensor) -> Tensor:
    h = net.inner(x.flatten(1))
    h = torch.ones_like(h)
    return net.head(h)


def train(make: Callable[[], nn.Module], *, loader: bool, steps: int = 4) -> nn.Module:
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    x, y = torch.randn(steps * B, T, D), torch.randint(0, 3, (steps * B,))
    parts = [(x[at : at + B], y[at : at + B]) for at in range(0, len(x), B)]
    batches: Any = DataLoader(TensorDataset(x, y), B) if loader else parts
    for inputs, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(inputs), labels).backward()
        optimizer.step()
    return net


def codes(make: Callable[[], nn.Module], *, loader: bool) -> list[str]:
    report = watch(lambda: train(make, loader=loader), max_steps=3).report
    return [item.code for item in report.findings if item.code in ("HD210", "HD509")]


MIXING = [
    lambda: Recurrent(last_of_wrong_axis),
    lambda: Recurrent(viewed),
    lambda: Transformer(),
    lambda: Flat(softmax_over(0)),
]
APART = [
    lambda: Recurrent(transposed),
    lambda: Recurrent(batch_first, batch_first=True),
    lambda: Transformer(batch_first=True),
    lambda: Flat(softmax_over(1)),
    lambda: Flat(plain),
    lambda: Flat(normed_by_hand),
    lambda: Flat(plain, zeros=True),
]


@pytest.mark.parametrize("loader", [True, False])
@pytest.mark.parametrize("make", MIXING)
def test_samples_that_see_each_other(make: Callable[[], nn.Module], loader: bool) -> None:
    assert codes(make, loader=loader) == ["HD210"]


@pytest.mark.parametrize("loader", [True, False])
@pytest.mark.parametrize("make", APART)
def test_samples_apart(make: Callable[[], nn.Module], loader: bool) -> None:
    assert codes(make, loader=loader) == []


def test_the_line_is_named() -> None:
    report = watch(lambda: train(lambda: Recurrent(viewed), loader=True)).report
    [finding] = [item for item in report.findings if item.code == "HD210"]
    assert finding.where.op == "view"
    assert finding.where.line == viewed.__code__.co_firstlineno + 1


@pytest.mark.parametrize("how", [without_the_input, overwritten])
def test_an_input_that_is_ignored(how: Callable[[Flat, Tensor], Tensor]) -> None:
    report = watch(lambda: train(lambda: Flat(how), loader=True), max_steps=3).report
    [finding] = [item for item in report.findings if item.code == "HD509"]
    assert finding.where.file == __file__
    assert not [item for item in report.findings if item.code == "HD210"]


class Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return self.head(adjacency @ torch.relu(self.inner(adjacency @ x)))


@pytest.mark.parametrize("sparse", [True, False])
def test_a_graph(sparse: bool) -> None:
    def work() -> None:
        net = Graph()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        x, y = torch.randn(20, 5), torch.randint(0, 3, (20,))
        adjacency = (torch.rand(20, 20) > 0.7).float() / 6
        if sparse:
            adjacency = adjacency.to_sparse()
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(net(x, adjacency), y).backward()
            optimizer.step()

    found = watch(work, max_steps=4).report.findings
    assert not [item for item in found if item.code == "HD210"]


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return F.normalize(self.one(a), dim=1) @ F.normalize(self.two(b), dim=1).T


def test_a_table_of_all_pairs() -> None:
    def work() -> None:
        net = Pairs()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(4):
            scores = net(torch.randn(B, 6), torch.randn(B, 6))
            optimizer.zero_grad()
            F.cross_entropy(scores, torch.arange(B)).backward()
            optimizer.step()

    found = watch(work, max_steps=4).report.findings
    assert not [item for item in found if item.code in ("HD210", "HD509")]


class Stateful(nn.Module):
    """Keeps a hidden state with its graph cut, a hook that writes elsewhere, a count and noise."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRUCell(6, 8), nn.Linear(8, 3)
        self.state: Tensor | None = None
        self.count = 0
        self.register_forward_hook(lambda *hooked: seen.append(hooked[2].detach()))

    def forward(self, x: Tensor) -> Tensor:
        before = torch.zeros(len(x), 8) if self.state is None else self.state.detach()
        self.state = self.rnn(F.dropout(x, 0.3), before)
        self.count += 1
        return self.head(self.state)


def test_nothing_is_left_behind() -> None:
    def work(kept: list[Any]) -> None:
        torch.manual_seed(0)
        seen: list[Any] = []
        net = Stateful(seen)
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(net(torch.randn(B, 6)), torch.randint(0, 3, (B,))).backward()
            optimizer.step()
        kept += [copy.deepcopy(net.state_dict()), net.count, len(seen), torch.rand(3)]

    alone: list[Any] = []
    watched: list[Any] = []
    work(alone)
    report = watch(lambda: work(watched), max_steps=None).report
    assert not [item for item in report.findings if item.code in ("HD210", "HD509")]
    assert alone[1:3] == watched[1:3]
    assert torch.equal(alone[3], watched[3])
    for name, value in alone[0].items():
        assert torch.equal(value, watched[0][name])


class FewShot(nn.Module):
    """Queries are compared with a support set, whose size an inner axis happens to have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(D, 8), nn.Linear(8, 12)

    def forward(self, support: Tensor, queries: Tensor) -> Tensor:
        prototypes = self.body(support).mean(0)
        return self.head(self.body(queries) * prototypes).unflatten(1, (4, 3))


def test_a_support_set_is_no_mixing_of_samples() -> None:
    def work() -> None:
        torch.manual_seed(0)
        model = FewShot()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            loss = model(torch.randn(4, D), torch.randn(8, D)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert "HD210" not in [item.code for item in watch(work, max_steps=None).report.findings]


class Ids(nn.Module):
    """Token ids, whose embeddings go through a bidirectional RNN."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, D), nn.Linear(16, 3)
        self.rnn = nn.GRU(D, 8, batch_first=True, bidirectional=True)
        self.how = how

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.rnn(self.embed(ids))[1]  # (2, batch, 8)
        if self.how == "view":
            return self.head(hidden.view(len(ids), 16))
        return self.head(hidden.transpose(0, 1).reshape(len(ids), 16))


@pytest.mark.parametrize(("how", "mixed"), [("view", True), ("transpose", False)])
def test_states_of_ids_without_a_loader(how: str, mixed: bool) -> None:
    def work() -> None:
        torch.manual_seed(0)
        net = Ids(how)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        rows = torch.randint(0, 9, (4, B, T))
        for number in range(4):
            net(rows[number].clone()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = [item for item in watch(work, max_steps=None).report.findings if item.code == "HD210"]
    assert bool(found) is mixed
