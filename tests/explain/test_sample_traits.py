"""What failing samples have in common is said before their numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headway.explain.batch_samples import add_common, blame_batch, find_common
from headway.explain.counterfactual import worth_bisecting
from headway.explain.explanation import Explanation, Spike, add_sentences
from headway.explain.failing_step import FailingStep
from headway.explain.remedies.drop_samples import DropSamples


def step_with(batch: Any) -> FailingStep:
    model = nn.Linear(4, 1)
    return FailingStep([model], [torch.optim.SGD(model.parameters(), lr=0.1)], [batch], {})


def data(size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 256, generator=generator)
    return inputs, torch.arange(size) % 3


def test_inputs_of_another_scale() -> None:
    x, y = data()
    x[[2, 5]] *= 3000.0
    assert find_common(step_with([x, y]), 0, (2, 5)) == "inputs about 3,000 times the usual"
    assert (
        find_common(step_with({"x": x, "y": y}), 0, (2, 5)) == "inputs about 3,000 times the usual"
    )


def test_zeros_constants_and_labels() -> None:
    x, y = data()
    x[3] = 0.0
    assert find_common(step_with([x, y]), 0, (3,)) == "inputs that are all 0"
    x[3] = 0.7
    assert find_common(step_with([x, y]), 0, (3,)) == "inputs that are constant"
    x, y = data()
    y[[4, 9]] = 7
    assert find_common(step_with([x, y]), 0, (4, 9)) == "the label 7"


@pytest.mark.parametrize("rows", [(), (1,), (1, 2), tuple(range(12))])
def test_nothing_is_said_about_samples_like_the_others(rows: tuple[int, ...]) -> None:
    x, y = data()
    assert find_common(step_with([x, y]), 0, rows) == ""


def test_healthy_samples_that_are_as_large_are_counted() -> None:
    """An overflow may depend on a sign: half of the samples of another scale do not fail."""
    x, y = data()
    x[[2, 5, 9]] *= 3000.0
    said = "inputs about 3,000 times the usual, like 2 more of the batch"
    assert find_common(step_with([x, y]), 0, (2,)) == said


def test_nothing_is_said_if_many_healthy_samples_are_as_large() -> None:
    x, y = data()
    x[[2, 5, 6, 9, 11]] *= 3000.0
    assert find_common(step_with([x, y]), 0, (2,)) == ""
    x, y = data()
    x *= 1.6 ** torch.arange(16.0)[:, None]  # no gap between large and usual
    assert find_common(step_with([x, y]), 0, (15,)) == ""
    x, y = data()
    x[[2, 5]] *= 3000.0
    x[7] = torch.inf
    assert find_common(step_with([x, y]), 0, (2, 5)) == ""
    assert find_common(step_with([x, y]), 3, (2,)) == ""


def test_the_remedy_and_the_spike_say_it() -> None:
    x, y = data()
    x[[2, 5]] *= 3000.0
    step = step_with([x, y])
    text = "Fix or remove samples 2, 5 with inputs about 3,000 times the usual"
    assert DropSamples(step, {0: (2, 5)}).text == text
    assert add_common(step, Spike(rows=(2, 5))).common == "inputs about 3,000 times the usual"


def test_a_batch_of_another_scale_is_named_as_a_whole() -> None:
    healthy, (x, y) = list(data()), data()
    spike = Spike(rows=(1, 6), layers=("weight",), growth=(9e6,))
    found = blame_batch(step_with([3000.0 * x, y]), [healthy], spike)
    assert found.rows == ()
    assert found.common == "inputs about 3,000 times those of the batch before"
    assert add_common(step_with([3000.0 * x, y]), found) == found
    after_labels = blame_batch(step_with([y, 3000.0 * x]), [[y, x]], spike)
    assert after_labels.common == "targets about 3,000 times those of the batch before"
    explanation = add_sentences(Explanation(7, "spike", "deterministic", spike=found))
    assert explanation.headline == (
        "The gradient spike comes from a batch with inputs about 3,000 times those of the batch "
        "before, and is largest in weight (9e+06 times its usual norm)."
    )
    assert not worth_bisecting(None, found, step_with([3000.0 * x, y]))


def test_a_batch_like_the_one_before_is_not_blamed() -> None:
    (x, y), spike = data(), Spike(rows=(2,))
    some = x.clone()
    some[[2, 5]] *= 3000.0
    wild = x * 10.0 ** torch.arange(16.0)[:, None]
    for batch, healthy in (
        ([x, y], [x, y]),
        ([some, y], [x, y]),
        ([3000.0 * x, y], [wild, y]),  # the rows of this run have no usual size
        ([3000.0 * x, y], [torch.zeros_like(x), y]),
        ([3000.0 * x, y], {"x": x, "y": y}),
        ([3000.0 * x, y], [x[:, :5], y]),
        ([torch.full_like(x, torch.nan), y], [x, y]),
    ):
        assert blame_batch(step_with(batch), [healthy], spike) == spike
    assert blame_batch(step_with([3000.0 * x, y]), [], spike) == spike
