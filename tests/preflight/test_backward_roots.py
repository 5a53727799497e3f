"""Losses without a graph: who cut it, or whether there never was one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.loss_trainings import codes, labels, net, train
from torch import Tensor, nn

from headway.preflight.runner import run_check


def item(model: Any, x: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), labels())
    return torch.tensor(loss.item(), requires_grad=True)


def data(model: Any, x: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x), labels()).data
    return loss.requires_grad_()


def detached_output(model: Any, x: Tensor) -> Tensor:
    out = model(x).detach()
    return F.mse_loss(out, torch.zeros(12, 5)).requires_grad_(True)


def right_answers(model: Any, x: Tensor) -> Tensor:
    return 1 - (model(x).argmax(1) == labels()).float().mean()


def listed(model: Any, x: Tensor) -> Tensor:
    parts = [F.cross_entropy(model(x), labels()) for _ in range(2)]
    return torch.tensor([float(part) for part in parts], requires_grad=True).mean()


def through_numpy(model: Any, x: Tensor) -> Tensor:
    out = model(x).detach().numpy()
    return torch.from_numpy(out).sum()


@pytest.mark.parametrize(
    "loss_of", [item, data, detached_output, right_answers, listed, through_numpy]
)
@pytest.mark.filterwarnings("ignore")
def test_a_loss_that_was_cut(loss_of: Any) -> None:
    checked = train(net(), loss_of)
    assert checked.report.causes[0].code == "HD108", checked.report.findings
    where = checked.report.causes[0].root.where
    assert (where.file or "").endswith("test_backward_roots.py")
    assert where.function in (loss_of.__name__, "<listcomp>")


def no_grad(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        return F.cross_entropy(model(x), labels())


def no_grad_hidden(model: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        out = model(x)
    return F.cross_entropy(out, labels()).requires_grad_()


def inference(model: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return F.cross_entropy(model(x), labels())


def inference_then_loss(model: Any, x: Tensor) -> Tensor:
    with torch.inference_mode():
        out = model(x)
    return (out * nn.Parameter(torch.ones(5))).sum()


def switched_off(model: Any, x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    return F.cross_entropy(model(x), labels())


@pytest.mark.parametrize(
    "loss_of", [no_grad, no_grad_hidden, inference, inference_then_loss, switched_off]
)
def test_gradients_that_are_off(loss_of: Any) -> None:
    try:
        checked = train(net(), loss_of)
    finally:
        torch.set_grad_enabled(True)
    assert checked.report.causes[0].code == "HD905", checked.report.findings


def test_everything_frozen_is_told_by_the_check_of_frozen_parameters() -> None:
    model = net()
    model.requires_grad_(False)
    checked = train(model, lambda m, x: F.cross_entropy(m(x), labels()))
    assert {"HD410", "HD905"} <= codes(checked)
    assert checked.report.causes[0].code == "HD410"


def test_no_backward_at_all() -> None:
    def work() -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            with torch.no_grad():
                loss = F.cross_entropy(model(torch.randn(12, 6)), labels())
            if loss.requires_grad:
                loss.backward()
            optimizer.step()

    assert run_check(work).report.causes[0].code == "HD905"


def test_adversarial_inputs_teachers_and_closures_are_fine() -> None:
    def work() -> None:
        torch.manual_seed(0)
        model, teacher = net(), net()
        teacher.requires_grad_(False)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
        for _ in range(4):
            x = torch.randn(12, 6, requires_grad=True)
            model.requires_grad_(False)
            F.cross_entropy(model(x), labels()).backward()
            model.requires_grad_(True)
            assert x.grad is not None
            harder = (x + 0.1 * x.grad.sign()).detach()
            with torch.no_grad():
                wanted = teacher(harder).softmax(1)

            def closure(harder: Tensor = harder, wanted: Tensor = wanted) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(harder), wanted)
                loss.backward()
                return loss

            optimizer.step(closure)  # type: ignore[arg-type]

    checked = run_check(work, max_steps=4)
    assert checked.error is None
    assert codes(checked) == set(), checked.report.findings


def test_a_loss_that_is_a_leaf_costs_no_observer() -> None:
    def work() -> None:
        model = nn.Linear(6, 3)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            loss = model(torch.randn(8, 6)).pow(2).mean().detach()
            optimizer.zero_grad()
            loss.requires_grad_().backward()
            optimizer.step()

    checked = run_check(work, max_steps=None)
    assert [item.code for item in checked.report.findings][:1] == ["HD108"]
    assert checked.error is None
    assert not checked.notes
