"""The loss combiner: weights, choice about non-finite components, shares, and the guard."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import Tensor, nn

import headway
from headway.numerics import LossCombiner, NonFiniteLoss


def parts(x: Tensor) -> dict[str, Tensor]:
    return {"box": x.square().mean(), "dfl": x.abs().mean()}


def test_the_total_is_the_weighted_sum() -> None:
    x = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    combine = LossCombiner(box=7.5, dfl=1.5)
    components = parts(x)
    total = combine(**components)
    torch.testing.assert_close(total, 7.5 * components["box"] + 1.5 * components["dfl"])
    assert {name: value.item() for name, value in combine.last.items()} == pytest.approx(
        {"box": 14 / 3, "dfl": 2.0}
    )
    assert not any(value.requires_grad for value in combine.last.values())
    assert combine(box=torch.tensor([2.0]), other=torch.tensor(1.0)).item() == 16
    assert LossCombiner({"box": 2.0})(box=torch.tensor(3.0)).item() == 6


def test_a_component_that_is_not_finite_raises_by_name() -> None:
    combine = LossCombiner()
    with pytest.raises(NonFiniteLoss, match="dfl = nan") as caught:
        combine(box=torch.tensor(1.0), dfl=torch.tensor(math.nan))
    assert caught.value.names == ["dfl"]
    assert math.isnan(combine.last["dfl"].item())


def test_left_out_it_is_counted_and_its_graph_is_not_visited() -> None:
    x = torch.tensor([0.0], requires_grad=True)
    combine = LossCombiner(on_nonfinite="leave out")

    def step() -> Tensor:
        return combine(box=(x + 1).square().sum(), dfl=torch.log(x).sum())

    with pytest.warns(UserWarning, match="non-finite components left out of the loss: dfl = -inf"):
        total = step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step()
    total.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0]
    assert combine.left_out == {"dfl": 2}
    assert combine.last["dfl"].item() == -math.inf
    with pytest.raises(NonFiniteLoss, match="all components are non-finite"):
        combine(dfl=torch.log(x).sum())


def test_kept_it_stays_in_the_total() -> None:
    combine = LossCombiner(on_nonfinite="keep")
    assert combine(box=torch.tensor(1.0), dfl=torch.tensor(math.nan)).isnan()
    assert not combine.left_out


def test_gradient_shares_are_those_of_the_weighted_components() -> None:
    trunk = torch.tensor([1.0, 2.0], requires_grad=True)
    other = torch.tensor([1.0], requires_grad=True)
    combine = LossCombiner(box=3.0, dead=5.0)
    components = {
        "box": trunk.sum(),
        "dfl": trunk.sum() * other.sum(),
        "dead": other.sum(),
        "constant": torch.tensor(4.0),
    }
    shares = combine.gradient_shares(trunk, **components)
    assert shares == pytest.approx({"box": 0.75, "dfl": 0.25, "dead": 0.0, "constant": 0.0})
    both = combine.gradient_shares([trunk, other], **components)
    norms = {"box": 3 * 2**0.5, "dfl": (2 + 9) ** 0.5, "dead": 5.0, "constant": 0.0}
    assert both == pytest.approx({name: norm / sum(norms.values()) for name, norm in norms.items()})
    combine(**components).backward()  # the graph is still there
    assert combine.gradient_shares(trunk, constant=torch.tensor(4.0)) == {"constant": 0.0}


def test_mistakes_are_told() -> None:
    with pytest.raises(ValueError, match="'leave out'"):
        LossCombiner(on_nonfinite="ignore")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing to combine"):
        LossCombiner()()
    with pytest.raises(ValueError, match="its mean or sum"):
        LossCombiner()(box=torch.ones(3))


def test_the_guard_names_the_component_that_was_kept() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    combine = LossCombiner(on_nonfinite="keep", dfl=0.5)
    with headway.Guard(model, optimizer) as guard:
        for step in range(6):
            out = model(torch.randn(4, 3))
            broken = math.nan if step == 4 else 1.0
            total = combine(box=out.square().mean(), dfl=out.abs().mean() * broken)
            guard.backward(total, **combine.last)
            optimizer.step()
            optimizer.zero_grad()
    assert any(
        "dfl" in str(finding.evidence) or "dfl" in finding.message for finding in guard.findings
    )
    assert all(p.isfinite().all() for p in model.parameters())
