"""HD205, HD409, HD410, HD415: what is frozen, what moves all the same, what stops."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from support.observer_trainings import batch, checked, codes, first_cause, fit, net
from torch import nn


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def test_a_freeze_on_a_module():
    def work():
        model = net()
        model[0].requires_grad = False
        fit(model, adam(model))

    done = checked(work, 3)
    assert done.report.causes[0].code == "HD409"
    assert done.report.causes[0].root.where.line


def test_a_mistyped_freeze():
    def work():
        model = net()
        for parameter in model[0].parameters():
            parameter.require_grad = False
        fit(model, adam(model))

    assert first_cause(work, 3) == "HD409"


def test_a_freeze_that_is_undone():
    def work():
        model = net()
        model[0].requires_grad_(False)
        for parameter in model.parameters():
            parameter.requires_grad = True
        fit(model, adam(model))

    assert first_cause(work, 3) == "HD409"


def test_momentum_moves_what_was_frozen():
    def work():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(8):
            if step == 3:
                model[0].requires_grad_(False)
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(set_to_none=False)
            loss.backward()
            optimizer.step()

    assert first_cause(work, 8) == "HD409"


def decayed(*, all_weights: bool):
    """Weight decay by hand, before the step of the optimizer."""

    def work():
        model = net()
        model[0].requires_grad_(False)
        optimizer = torch.optim.Adam(model[2].parameters(), lr=0.01)

        def decay(_):
            for parameter in (model if all_weights else model[2]).parameters():
                parameter.data.mul_(0.999)  # decay

        fit(model, optimizer, 8, each=decay)

    return work


def test_decay_by_hand_moves_frozen_weights():
    cause = checked(decayed(all_weights=True), 8).report.causes[0]
    assert cause.code == "HD409"
    assert "by a factor of 0.999 between two steps" in cause.message
    lines = Path(__file__).read_text().splitlines()
    assert "mul_(0.999)  # decay" in lines[(cause.root.where.line or 1) - 1]
    assert codes(decayed(all_weights=False), 8) == []


def new_row(kind: str, decay: float = 0.1):
    """One row of a table is learned; the gradients of the others are set to 0."""

    def work():
        torch.manual_seed(0)
        table = nn.Embedding(12, 6)
        model = nn.Sequential(table, nn.Flatten(), nn.Linear(18, 3).requires_grad_(False))
        optimizer = torch.optim.AdamW(table.parameters(), lr=0.01, weight_decay=decay)
        keep = torch.zeros(12, 1)
        keep[11] = 1.0
        for _ in range(8):
            ids = torch.randint(12, (16, 3))
            ids[:, 1] = 11
            optimizer.zero_grad()
            F.cross_entropy(model(ids), ids[:, 0] % 3).backward()
            before = table.weight.detach().clone()
            if kind == "index":
                table.weight.grad[:11] = 0.0  # rows
            else:
                table.weight.grad.mul_(keep)  # rows
            optimizer.step()
            if kind == "restored":
                table.weight.data[:11] = before[:11]

    return work


def test_decay_moves_rows_without_a_gradient():
    for kind in ("index", "factor"):
        cause = checked(new_row(kind), 8).report.causes[0]
        assert cause.code == "HD409"
        lines = Path(__file__).read_text().splitlines()
        assert lines[(cause.root.where.line or 1) - 1].endswith("# rows")
    assert "HD409" not in codes(new_row("restored"), 8)
    assert "HD409" not in codes(new_row("index", decay=0.0), 8)


def test_frozen_weights_that_are_meant_to_move():
    def average():
        model, teacher = net(), net()
        pair = nn.ModuleDict({"student": model, "teacher": teacher})
        teacher.requires_grad_(False)

        def each(_):
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                    old.mul_(0.9).add_(new, alpha=0.1)
                for p in model.parameters():
                    p.clamp_(-0.2, 0.2)

        fit(pair["student"], adam(pair), 8, each=each)

    def codebook():
        model = net()
        model.codes = nn.Parameter(torch.randn(4, 8))
        model.codes.requires_grad_(False)

        def each(_):
            model.codes.data.add_(torch.randn(4, 8), alpha=0.1)

        fit(model[:3], adam(model[:3]), 8, each=each)

    assert "HD409" not in codes(average, 8)
    assert "HD409" not in codes(codebook, 8)


def test_healthy_freezes():
    def all_and_then_the_head():
        model = net()
        model.requires_grad_(False)
        for parameter in model[2].parameters():
            parameter.requires_grad = True
        fit(model, adam(model))

    def body():
        model = net()
        for parameter in model[0].parameters():
            parameter.requires_grad = False
        optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()))
        fit(model, optimizer)

    def all_and_some_of_it_once_more():
        model = net()
        for parameter in model.parameters():
            parameter.requires_grad = False
        model[2].requires_grad_(True)
        model[0].requires_grad_(False)
        fit(model, torch.optim.Adam(model[2].parameters()))

    def body_left_in_the_optimizer():
        model = net()
        model[0].requires_grad_(False)
        fit(model, torch.optim.AdamW(model.parameters(), weight_decay=0.1))

    def teacher():
        student = net()
        average = copy.deepcopy(student).requires_grad_(False)

        def follow(_):
            with torch.no_grad():
                for its, mine in zip(average.parameters(), student.parameters(), strict=True):
                    its.mul_(0.9).add_(mine, alpha=0.1)

        fit(student, adam(student), each=follow)

    def adversaries():
        maker, judge = net(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        first, second = adam(maker), adam(judge)
        for _ in range(6):
            x, _labels = batch()
            judge.requires_grad_(False)
            first.zero_grad()
            F.softplus(-judge(maker(x))).mean().backward()
            first.step()
            judge.requires_grad_(True)
            second.zero_grad()
            real, fake = judge(torch.randn(16, 4)), judge(maker(x).detach())
            (F.softplus(-real) + F.softplus(fake)).mean().backward()
            second.step()

    quiet = (all_and_then_the_head, body, all_and_some_of_it_once_more, body_left_in_the_optimizer)
    for work in (*quiet, teacher, adversaries):
        assert codes(work, 6) == [], work.__name__


def test_a_helper_that_leaves_gradients_off():
    def work():
        model = net()

        def saliency(step):
            if step == 7:
                look(model)

        fit(model, adam(model), 16, each=saliency)

    def look(model):
        for parameter in model[0].parameters():
            parameter.requires_grad = False

    done = checked(work, 16)
    assert done.report.causes[0].code == "HD415"
    assert done.report.causes[0].root.where.function == "look"


def test_everything_in_front_is_cut_off_later():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
            self.calls = 0

        def forward(self, x):
            h = self.body(x).tanh()
            self.calls += 1
            return self.head(h.detach() if self.calls > 10 else h)

    def work():
        model = Cut()
        fit(model, adam(model), 45)

    assert first_cause(work, 45) == "HD415"


def test_healthy_stops():
    def staged_freeze():
        model = net()

        def each(step):
            if step == 8:
                model[0].requires_grad_(False)

        fit(model, adam(model), 30, each=each)

    def gradual_unfreezing():
        model = net()
        model[0].requires_grad_(False)

        def each(step):
            if step == 8:
                unfreeze(model)

        fit(model, adam(model), 20, each=each)

    def unfreeze(model):
        model[0].requires_grad_(True)

    def put_back():
        model = net()

        def probe(step):
            for flag in (False, True):
                model[0].requires_grad_(flag)

        fit(model, adam(model), 20, each=probe)

    for work in (staged_freeze, gradual_unfreezing, put_back):
        assert codes(work, 40) == [], work.__name__


class Gated(nn.Module):
    def __init__(self, factor: float = 0.0, *, learned: bool = False):
        super().__init__()
        self.main, self.branch = nn.Linear(8, 4), nn.Linear(8, 4)
        self.gate = nn.Parameter(torch.zeros(())) if learned else factor

    def forward(self, x):
        return self.main(x) + self.gate * self.branch(x)


def test_a_factor_of_zero():
    def factor():
        model = Gated()
        fit(model, adam(model), 12)

    def rounding():
        class Rounded(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

            def forward(self, x):
                return self.second(torch.round(self.first(x)))

        model = Rounded()
        fit(model, adam(model), 12)

    for work in (factor, rounding):
        assert first_cause(work, 12) == "HD205", work.__name__


def test_gates_that_begin_at_zero_are_healthy():
    def gate():
        model = Gated(learned=True)
        fit(model, adam(model), 12)

    def lora():
        base = net()
        base.requires_grad_(False)
        down, up = nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)
        nn.init.zeros_(up.weight)
        model = nn.ModuleList([base, down, up])
        optimizer = torch.optim.Adam([*down.parameters(), *up.parameters()], lr=0.01)
        for _ in range(12):
            x, y = batch()
            loss = F.cross_entropy(base(x) + up(down(x)), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert model is not None

    for work in (gate, lora):
        assert codes(work, 12) == [], work.__name__


def test_everything_but_norms_frozen_names_the_line():
    def work():
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
        for name, parameter in model.named_parameters():
            if not name.startswith("1."):
                parameter.requires_grad = False
        fit(model, torch.optim.Adam(model.parameters(), lr=0.01))

    done = checked(work, 3)
    assert done.report.causes[0].code == "HD410"
    assert done.report.causes[0].root.where.line


def test_a_condition_that_no_name_meets():
    def inline():
        model = net()
        for name, parameter in model.named_parameters():
            if name.startswith("encoder."):
                parameter.requires_grad = False
        fit(model, adam(model))

    def in_a_function():
        model = net()
        freeze_layers(model)
        fit(model, adam(model))

    def freeze_layers(model):
        for name, parameter in model.named_parameters():
            if "backbone" in name:
                parameter.requires_grad_(False)

    for work in (inline, in_a_function):
        assert first_cause(work, 3) == "HD409", work.__name__


def test_a_freeze_of_another_object():
    def work():
        first = net()
        first[0].requires_grad_(False)
        model = net()
        model.load_state_dict(first.state_dict())
        fit(model, adam(model))

    assert first_cause(work, 3) == "HD409"


def test_conditions_that_are_met_or_not_asked():
    def met():
        model = net()
        for name, parameter in model.named_parameters():
            if name.startswith("0."):
                parameter.requires_grad = False
        fit(model, adam(model))

    def behind_a_flag(freeze=False):
        model = net()
        if freeze:
            for name, parameter in model.named_parameters():
                if name.startswith("encoder."):
                    parameter.requires_grad = False
        fit(model, adam(model))

    def a_target_network():
        model = net()
        target = net().requires_grad_(False)
        target.load_state_dict(model.state_dict())
        fit(model, adam(model), each=lambda _: target.load_state_dict(model.state_dict()))

    for work in (met, behind_a_flag, a_target_network):
        assert codes(work, 6) == [], work.__name__


def test_a_freeze_between_two_loops_is_a_stage():
    def work():
        model = net()
        optimizer = adam(model)
        fit(model, optimizer, 12)
        for parameter in model[0].parameters():
            parameter.requires_grad = False
        fit(model, optimizer, 30)

    assert codes(work, 60) == []


def test_every_few_steps_is_no_stage():
    def work():
        model = net()
        optimizer = adam(model)
        for step in range(30):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                for parameter in model[0].parameters():
                    parameter.requires_grad_(False)

    assert first_cause(work, 30) == "HD415"


def test_a_freeze_without_effect_in_a_second_stage():
    def work():
        first = net()
        fit(first, adam(first), 5)
        model = net()
        model.load_state_dict(first.state_dict())
        model[0].requires_grad = False
        fit(model, torch.optim.Adam(model.parameters(), lr=0.002), 5)

    assert first_cause(work, 20) == "HD409"
