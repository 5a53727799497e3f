"""How the loss is called: mistakes are named, memory is bounded, scales learn within bounds."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

import headway
from headway.numerics import NWayContrastive, Temperature, nway_contrastive


def rows(n: int = 3, B: int = 4, D: int = 5) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(B, D, generator=draw) for _ in range(n)]


@pytest.mark.parametrize(
    ("features", "options", "told"),
    [
        (rows(1), {}, "at least 2 modalities"),
        ([*rows(2), torch.zeros(3, 5)], {}, r"features\[2\] has shape \(3, 5\)"),
        ([torch.zeros(4)] * 3, {}, r"not \(B, D\)"),
        ([torch.zeros(4, 5, dtype=torch.long)] * 2, {}, "floating point"),
        (rows(), {"score": "nrom"}, "no score is called 'nrom'"),
        (rows(), {"score": "v18"}, "never worked"),
        (rows(), {"reduction": "none"}, "reduction must be"),
        (rows(), {"axes": "last"}, "axes must be"),
        (rows(), {"block": 0}, "block must be"),
        (rows(), {"scale": torch.ones(3)}, "scale must be one number"),
        (rows(), {"targets": torch.zeros(4, 4)}, r"targets has shape \(4, 4\), not \(4, 4, 4\)"),
        (rows(), {"score": "distance", "mask": torch.ones(4, 4, 4)}, "no dense"),
        (rows(), {"gather": object()}, "not set up"),
    ],
)
def test_a_mistake_is_named(features: list[Tensor], options: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        nway_contrastive(features, **options)


def test_dense_targets_beyond_the_limit_are_refused_with_their_size() -> None:
    targets = torch.zeros(1).expand((12,) * 6)  # takes no memory itself
    with pytest.raises(ValueError, match=re.escape("12^6 = 2,985,984 logits")) as refused:
        nway_contrastive(rows(6, 12), targets=targets, limit=10_000_000)
    assert "59,719,680 bytes" in str(refused.value)
    assert "the limit is 10,000,000" in str(refused.value)
    assert "804 logits" in str(refused.value)


def test_a_stacked_tensor_is_a_sequence_too() -> None:
    features = rows()
    assert nway_contrastive(torch.stack(features)).item() == nway_contrastive(features).item()


def test_an_empty_batch_costs_nothing() -> None:
    features = [torch.zeros(0, 5, requires_grad=True) for _ in range(3)]
    value = nway_contrastive(features)
    value.backward()
    assert value.item() == 0


def test_no_tensor_of_batch_squared_is_made() -> None:
    """Blocks of 64 rows are all there is, and features."""
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(x, Tensor):
                    largest = max(largest, x.numel())
            return out

    features = [f.requires_grad_() for f in rows(3, 1500, 8)]
    with Watch():
        nway_contrastive(features, block=64).backward()
    assert largest <= max(64 * 1500, 3 * 1500 * 8)


def test_the_module_is_the_function_with_its_options() -> None:
    features = rows()
    criterion = NWayContrastive(score="v11", scale=5.0, reduction="sum")
    expected = nway_contrastive(features, score="leave-one-out", scale=5.0, reduction="sum")
    assert criterion(features).item() == criterion(*features).item() == expected.item()
    assert "score='leave-one-out'" in repr(criterion)
    assert list(criterion.parameters()) == []
    learns = NWayContrastive(scale=Temperature())
    assert [name for name, _ in learns.named_parameters()] == ["scale.log_scale"]


def test_the_temperature_learns_and_stays_within_its_bounds() -> None:
    temperature = Temperature(maximum=20.0)
    features = [rows(1)[0]] * 3  # perfect: the loss wants an ever larger scale
    optimizer = torch.optim.SGD(temperature.parameters(), lr=10.0)
    for _ in range(30):
        optimizer.zero_grad()
        nway_contrastive(features, score="norm", scale=temperature()).backward()
        optimizer.step()
    assert temperature().item() == pytest.approx(20.0)
    before = temperature.log_scale.item()
    optimizer.zero_grad()
    (temperature() * 1.0).backward()  # wants a smaller one
    optimizer.step()
    assert temperature.log_scale.item() < before
    with pytest.raises(ValueError, match="does not hold"):
        Temperature(200.0)


def test_the_temperature_starts_where_clip_starts() -> None:
    assert Temperature()().item() == pytest.approx(1 / 0.07)
    assert Temperature().log_scale.item() == pytest.approx(math.log(1 / 0.07))


def test_a_training_in_half_with_a_loss_scale_gets_its_gradients() -> None:
    net = nn.Linear(5, 8).to(torch.float16)
    features = [net(f.half()) for f in rows()]
    loss = nway_contrastive(features)
    (loss * 1024).backward()
    assert net.weight.grad is not None
    assert net.weight.grad.isfinite().all()
    assert net.weight.grad.abs().max() > 0


def test_importing_the_package_does_not_import_torch() -> None:
    program = "import sys, headway; headway.numerics.__all__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_the_package_is_reached_from_headway() -> None:
    assert headway.numerics.nway_contrastive is nway_contrastive
    assert dir(headway.numerics) == sorted(headway.numerics.__all__)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = headway.numerics.nowhere
