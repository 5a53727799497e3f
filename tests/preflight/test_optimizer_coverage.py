"""HD401, HD402, HD904: what the optimizers hold against what the losses reach."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from support.observer_trainings import batch, checked, codes, first_cause, fit, net
from torch import nn

from headway.core.findings import Severity


class Split(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Tanh())
        self.head = nn.Linear(16, 4)
        self.frozen_by_no_grad = False

    def forward(self, x):
        if self.frozen_by_no_grad:
            with torch.no_grad():
                h = self.body(x)
        else:
            h = self.body(x)
        return self.head(h)


def test_a_copy_made_after_the_optimizer():
    def work():
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        model = copy.deepcopy(model)
        fit(model, optimizer)

    assert first_cause(work, 3) == "HD402"


def test_the_old_model_is_still_alive():
    def work():
        old = net()
        optimizer = torch.optim.SGD(old.parameters(), lr=0.1)
        fit(copy.deepcopy(old), optimizer)

    assert first_cause(work, 3) == "HD402"


def test_a_head_replaced_after_the_optimizer():
    def work():
        model = Split()
        optimizer = torch.optim.Adam(model.parameters())
        model.head = nn.Linear(16, 4)
        fit(model, optimizer)

    assert first_cause(work, 3) == "HD402"


def test_a_wrapper_that_copies():
    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = copy.deepcopy(inner)

        def forward(self, x):
            return self.inner(x)

    def work():
        model = net()
        optimizer = torch.optim.Adam(model.parameters())
        fit(Wrapped(model), optimizer)

    assert codes(work, 3)[:1] == ["HD402"]
    assert first_cause(work, 3) == "HD904"


def test_materialised_after_the_optimizer():
    def work():
        with torch.device("meta"):
            model = Split()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model = model.to_empty(device="cpu")
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.1)
        fit(model, optimizer)

    assert first_cause(work, 3) == "HD904"


def test_a_late_head():
    def work():
        model = Split()
        del model.head
        optimizer = torch.optim.Adam(model.parameters())
        model.head = nn.Linear(16, 4)
        fit(model, optimizer)

    done = checked(work, 3)
    assert done.report.causes[0].code == "HD401"
    where = done.report.findings[0].where
    assert where.file == __file__
    assert where.line


def test_a_loss_module_of_its_own_left_out():
    class Centers(nn.Module):
        def __init__(self):
            super().__init__()
            self.centers = nn.Parameter(torch.randn(4, 4))

        def forward(self, h, y):
            return (h - self.centers[y]).pow(2).mean()

    def work():
        model, extra = net(), Centers()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(4):
            x, y = batch()
            h = model(x)
            loss = F.cross_entropy(h, y) + extra(h, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert first_cause(work, 3) == "HD401"


def test_healthy_coverage():
    def features_under_no_grad():
        model = Split()
        model.frozen_by_no_grad = True
        fit(model, torch.optim.Adam(model.head.parameters(), lr=0.01))

    def frozen_backbone():
        model = Split()
        model.body.requires_grad_(False)
        fit(model, torch.optim.Adam(model.head.parameters(), lr=0.01))

    def loaded_body_under_a_head():
        model = Split()
        model.body.load_state_dict(Split().body.state_dict())
        fit(model, torch.optim.Adam(model.head.parameters(), lr=0.01))

    def moved_and_cast_in_place():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        fit(model.double().float(), optimizer)

    def a_replaced_head_that_was_added():
        model = Split()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        model.head = nn.Linear(16, 4)
        optimizer.add_param_group({"params": model.head.parameters()})
        fit(model, optimizer)

    def two_optimizers_one_later():
        model = Split()
        first = torch.optim.Adam(model.head.parameters(), lr=0.01)
        second = torch.optim.Adam(model.body.parameters(), lr=0.01)
        for _ in range(6):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            first.zero_grad(), second.zero_grad()
            loss.backward()
            first.step()
            second.step()

    def an_input_is_trained():
        model, image = net(), torch.randn(1, 8, requires_grad=True)
        optimizer = torch.optim.Adam([image], lr=0.05)
        for _ in range(6):
            optimizer.zero_grad()
            model(image).pow(2).mean().backward()
            optimizer.step()

    for work in (
        features_under_no_grad,
        frozen_backbone,
        loaded_body_under_a_head,
        moved_and_cast_in_place,
        a_replaced_head_that_was_added,
        two_optimizers_one_later,
        an_input_is_trained,
    ):
        assert codes(work, 6) == [], work.__name__


def test_a_momentum_teacher_is_healthy():
    def work():
        student = net()
        teacher = copy.deepcopy(student).requires_grad_(False)

        def average(_):
            with torch.no_grad():
                for mine, its in zip(student.parameters(), teacher.parameters(), strict=True):
                    its.lerp_(mine, 0.1)

        fit(student, torch.optim.Adam(student.parameters(), lr=0.01), each=average)

    assert codes(work) == []


def test_a_script_without_modules_is_watched():
    def work():
        w = torch.randn(8, 4, requires_grad=True)
        b = torch.zeros(4, requires_grad=True)
        optimizer = torch.optim.SGD([w, b], lr=0.1)
        for _ in range(6):
            x, y = batch()
            loss = F.cross_entropy(x @ w + b, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    done = checked(work, 6)
    assert [item for item in done.report.findings if item.severity > Severity.INFO] == []
    assert done.report.coverage.ran > 20


def folds(*, rebuild: bool):
    model = Split()
    optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, 30)
    model.head = nn.Linear(16, 4)
    if rebuild:
        optimizer = torch.optim.Adam(model.parameters())
    fit(model, optimizer, 12)


def test_a_head_replaced_long_after_the_first_steps():
    assert first_cause(lambda: folds(rebuild=False), 60) == "HD402"


def test_a_new_optimizer_for_the_replaced_head():
    assert "HD402" not in codes(lambda: folds(rebuild=True), 60)


class Gated(nn.Module):
    def __init__(self, *, converted: bool) -> None:
        super().__init__()
        self.body = nn.Linear(8, 4)
        made = nn.Parameter(torch.randn(4))
        self.gate = made.double().float() if converted else made
        self.last = None

    def forward(self, x):
        self.last = self.body(x)
        return self.last * self.gate


def test_a_converted_parameter_is_not_registered():
    def work(*, converted: bool):
        model = Gated(converted=converted)
        fit(model, torch.optim.Adam(model.parameters()), 4)

    assert "HD906" in codes(lambda: work(converted=True))
    assert "HD906" not in codes(lambda: work(converted=False))
