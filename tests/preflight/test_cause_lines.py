"""Findings name the line to change where another line shows the symptom."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from preflight.test_lines import line_of, strict, train, watch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

__all__ = ["strict"]


class Sampled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean, self.head = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        drawn = torch.distributions.Normal(self.mean(x), 1.0)
        return self.head(drawn.sample())  # the cut


def test_a_sample_without_a_gradient() -> None:
    assert line_of(watch(lambda: train(Sampled())), "HD204").endswith("# the cut")


def test_a_switch_to_training_before_an_evaluation() -> None:
    def work() -> None:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3))
        for _ in range(3):
            train(model, 2)
            model.eval()
            model.train()  # too early
            with torch.no_grad():
                F.cross_entropy(model(torch.randn(8, 6)), torch.zeros(8, dtype=torch.long))

    assert line_of(watch(work, max_steps=None), "HD903").endswith("# too early")


class Frames(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> Any:
        stored = torch.full((6,), at * 3, dtype=torch.uint8) + torch.arange(6, dtype=torch.uint8)
        return stored.float(), at % 3  # not divided


def test_inputs_that_the_data_set_does_not_scale() -> None:
    def work() -> None:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 1e-5)
        for x, y in DataLoader(Frames(), 16, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

    assert line_of(watch(work, max_steps=None), "HD502").endswith("# not divided")


def test_a_loader_that_does_not_shuffle() -> None:
    def work() -> None:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        data = TensorDataset(torch.randn(300, 6), torch.arange(300) // 100)
        loader = DataLoader(data, 20)  # in order
        for _ in range(2):
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()

    assert line_of(watch(work, max_steps=None), "HD507").endswith("# in order")


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.adapter = nn.Linear(6, 3), None

    def add_adapter(self) -> None:
        self.adapter = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.adapter(self.body(x))


def test_a_layer_that_a_method_adds_after_the_optimizer() -> None:
    def work() -> None:
        model = Adapted()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        model.add_adapter()  # late
        train(model, optimizer=optimizer)

    assert line_of(watch(work), "HD401").endswith("# late")


class Restarted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.body = nn.Parameter(torch.ones(3)), nn.Linear(6, 3)

    def restart(self) -> None:
        self.scale = nn.Parameter(torch.full((3,), 0.5))  # new

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.body(x)


def test_a_parameter_that_a_method_replaces_after_the_optimizer() -> None:
    def work() -> None:
        model = Restarted()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        model.restart()
        train(model, optimizer=optimizer)

    assert line_of(watch(work), "HD402").endswith("# new")


class Clipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8),
            nn.ReLU(),
            nn.Linear(8, 3),
            nn.ReLU(),  # the last
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_one_layer_of_several_in_a_sequential() -> None:
    assert line_of(watch(lambda: train(Clipped())), "HD120").endswith("# the last")


class Numbered(nn.Module):
    def __init__(self, *, bent: bool) -> None:
        super().__init__()
        self.body, self.bent = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), bent
        self.fc1, self.fc2 = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc1(self.body(x))
        return self.fc2(torch.relu(h) if self.bent else h)  # nothing between


def test_two_numbered_layers_with_nothing_between() -> None:
    assert line_of(watch(lambda: train(Numbered(bent=False))), "HD908").endswith("between")
    found = watch(lambda: train(Numbered(bent=True))).report.findings
    assert "HD908" not in [item.code for item in found]


def test_a_running_loss_that_keeps_its_graph() -> None:
    def work() -> None:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        total: Any = 0.0
        for _ in range(40):
            loss = F.cross_entropy(model(torch.randn(8, 6)), torch.zeros(8, dtype=torch.long))
            total += loss  # kept
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert line_of(watch(work, max_steps=None), "HD803").endswith("# kept")


class Gated(nn.Module):
    """A branch that begins closed: its last layer is 0, or both are."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
        self.gate = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8))
        for layer in (self.gate[0], self.gate[2]) if both else (self.gate[2],):
            nn.init.zeros_(layer.weight)  # type: ignore[arg-type]  # closed

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return self.head(h + self.gate(h))


def test_a_branch_that_never_opens() -> None:
    assert line_of(watch(lambda: train(Gated(both=True)), max_steps=8), "HD316").endswith("closed")
    found = watch(lambda: train(Gated(both=False)), max_steps=8).report.findings
    assert "HD316" not in [item.code for item in found]


class Tokens(nn.Module):
    """A language model with a head that is tied to its embeddings."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(9, 8), nn.GRU(8, 8, batch_first=True)
        self.head = nn.Linear(8, 9, bias=False)
        self.head.weight = self.embed.weight
        if again:
            self.embed.weight = nn.Parameter(torch.randn(9, 8))  # parted

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embed(ids))[0])


def learn(model: nn.Module, rows: Any, ignored: int = -100) -> None:
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(4):
        ids = rows()
        loss = F.cross_entropy(model(ids[:, :-1]).transpose(1, 2), ids[:, 1:], ignore_index=ignored)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def full_rows() -> Tensor:
    return torch.randint(0, 9, (12, 10))


def padded_rows() -> Tensor:
    ids = torch.randint(1, 9, (12, 10))
    lengths = torch.randint(4, 11, (12, 1))
    return ids * (torch.arange(10) < lengths)


def test_weights_that_were_tied() -> None:
    assert line_of(watch(lambda: learn(Tokens(again=True), full_rows)), "HD707").endswith("parted")
    found = watch(lambda: learn(Tokens(), full_rows)).report.findings
    assert "HD707" not in [item.code for item in found]


def test_a_token_that_the_loss_ignores() -> None:
    checked = watch(lambda: learn(Tokens(), full_rows, ignored=0), max_steps=None)
    assert "cross_entropy" in line_of(checked, "HD119") or "model(ids" in line_of(checked, "HD119")
    checked = watch(lambda: learn(Tokens(), padded_rows, ignored=0), max_steps=None)
    assert "HD119" not in [item.code for item in checked.report.findings]


class Attended(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.score, self.head = nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.score(x).softmax(-1))  # over one element


def test_the_op_that_ends_a_gradient() -> None:
    found = line_of(watch(lambda: train(Attended()), max_steps=12), "HD205")
    assert found.endswith("# over one element")
