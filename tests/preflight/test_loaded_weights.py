"""HD706, HD707: what was loaded, and what is tied."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support.observer_trainings import codes, first_cause, fit, net
from torch import nn


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def test_a_prefix_in_the_state():
    def in_the_state():
        model = net()
        state = {f"module.{name}": value for name, value in net(16).state_dict().items()}
        model.load_state_dict(state, strict=False)
        fit(model, adam(model))

    def in_the_model():
        model = nn.Sequential()
        model.add_module("model", net())
        model.load_state_dict(net().state_dict(), strict=False)
        fit(model, adam(model))

    def other_names():
        model = net()
        state = {f"layer{name}": value for name, value in net().state_dict().items()}
        model.load_state_dict(state, strict=False)
        fit(model, adam(model))

    for work in (in_the_state, in_the_model, other_names):
        assert first_cause(work, 3) == "HD706", work.__name__


def test_names_filtered_until_nothing_is_left(tmp_path: Path):
    torch.save({f"module.{k}": v for k, v in net().state_dict().items()}, tmp_path / "a.pt")

    def work():
        model = net()
        given, own = torch.load(tmp_path / "a.pt"), model.state_dict()
        own.update({name: value for name, value in given.items() if name in own})
        model.load_state_dict(own)
        fit(model, adam(model))

    assert first_cause(work, 3) == "HD706"


@pytest.mark.parametrize(
    ("kind", "expected"), [("fresh", "HD706"), ("rows", None), ("other task", None)]
)
def test_a_loaded_head_that_was_replaced(kind: str, expected: str | None):
    def work():
        model = net()
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        old = model[2]
        model[2] = nn.Linear(16, 24 if kind == "other task" else 6)
        if kind == "rows":
            with torch.no_grad():
                model[2].weight[:4] = old.weight
        fit(model, adam(model))

    assert first_cause(work, 3) == expected


def test_initialised_after_loading():
    def again(module):
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)

    def work():
        model = net()
        model.load_state_dict(net().state_dict())
        model.apply(again)
        fit(model, adam(model))

    def by_reset():
        model = net()
        model.load_state_dict(net().state_dict())
        for layer in model:
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
        fit(model, adam(model))

    for each in (work, by_reset):
        assert first_cause(each, 3) == "HD706"


def test_healthy_loading(tmp_path: Path):
    torch.save(net().state_dict(), tmp_path / "a.pt")

    def whole():
        model = net()
        model.load_state_dict(torch.load(tmp_path / "a.pt"))
        fit(model, adam(model))

    def a_new_head():
        model = net(64)
        state = {k: v for k, v in net(64).state_dict().items() if not k.startswith("2.")}
        model.load_state_dict(state, strict=False)
        model[2].reset_parameters()
        fit(model, adam(model))

    def a_body_in_a_larger_model():
        model = nn.Sequential(net(), nn.Tanh(), nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4))
        state = {f"0.{k}": v for k, v in net().state_dict().items()}
        model.load_state_dict(state, strict=False)
        fit(model, adam(model))

    def a_part_of_a_checkpoint():
        model = net()
        state = {**net().state_dict(), "decoder.weight": torch.randn(100, 100)}
        model.load_state_dict(state, strict=False)
        fit(model, adam(model))

    def loaded_and_cast():
        model = net()
        model.load_state_dict(torch.load(tmp_path / "a.pt"))
        model = model.double().float()
        fit(model, adam(model))

    for work in (
        whole,
        a_new_head,
        a_body_in_a_larger_model,
        a_part_of_a_checkpoint,
        loaded_and_cast,
    ):
        assert codes(work, 4) == [], work.__name__


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(12, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)).tanh())


def read(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(4):
        tokens = torch.randint(0, 12, (8, 6))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def cloned(model: Words) -> None:
    model.head.weight = nn.Parameter(model.embed.weight.clone())


def copied(model: Words) -> None:
    model.head.weight.data.copy_(model.embed.weight.data)


def deep(model: Words) -> None:
    model.head.weight = copy.deepcopy(model.embed.weight)


@pytest.mark.parametrize("tie", [cloned, copied, deep])
def test_a_copy_of_the_embedding(tie):
    def work():
        model = Words()
        tie(model)
        read(model)

    assert first_cause(work, 3) == "HD707"


def test_healthy_ties():
    def tied():
        model = Words()
        model.head.weight = model.embed.weight
        read(model)

    def separate():
        read(Words())

    def frozen_copy():
        model = Words()
        copied(model)
        model.embed.requires_grad_(False)
        read(model)

    for work in (tied, separate, frozen_copy):
        assert codes(work, 4) == [], work.__name__


def test_a_second_stage_that_initialises_what_it_loaded():
    class Whole(nn.Module):
        def __init__(self, body):
            super().__init__()
            self.body, self.head = body, nn.Linear(4, 4)
            self.apply(self._start)

        @staticmethod
        def _start(module):
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)

        def forward(self, x):
            return self.head(self.body(x))

    def work():
        first = net()
        fit(first, adam(first), 6)
        body = net()
        body.load_state_dict(first.state_dict())
        model = Whole(body)
        fit(model, torch.optim.AdamW(model.parameters(), lr=0.001), 6)

    assert first_cause(work, 20) == "HD706"


def test_a_target_network_and_the_best_weights_are_healthy():
    def work():
        model, target = net(), net().requires_grad_(False)
        best = copy.deepcopy(model.state_dict())

        def each(step):
            if step % 3 == 0:
                target.load_state_dict(model.state_dict())
            if step == 10:
                model.load_state_dict(best)

        fit(model, adam(model), 16, each=each)

    assert codes(work, 20) == []
