"""The kernels of the N-way loss compute what plain torch does; over a stand-in for Triton."""

from __future__ import annotations

import pytest
import torch
from support.nway_edge_cases import CASES, GRAM, leaves, rows
from support.triton_on_cpu import imported_kernels
from torch import Tensor

from headway.numerics import nway_contrastive
from headway.numerics.nway import triton_launch


@pytest.fixture(autouse=True, params=[1 << 14, 16], ids=["whole rows", "rows in pieces"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    found = imported_kernels()
    monkeypatch.setattr(triton_launch, "_kernels", lambda device: found)
    monkeypatch.setattr(triton_launch, "_rests_kernels", lambda device: found)
    monkeypatch.setattr(triton_launch, "WIDEST_LINE", request.param)
    monkeypatch.setattr(triton_launch, "PIECE", 16)


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        wide = torch.promote_types(left.dtype, torch.float32)
        return torch.bmm(left.to(wide), right.to(wide), out=out)

    monkeypatch.setattr(
        "headway.numerics.nway.contrastive_loss.can_multiply_halves", lambda device: True
    )
    monkeypatch.setattr("headway.numerics.nway.gram.product", product)
    monkeypatch.setattr(
        "headway.numerics.nway.gram.add_product",
        lambda total, left, right: total.add_(product(left, right)),
    )


def found(features: list[Tensor], **options: object) -> list[Tensor]:
    scale = torch.tensor(5.0, requires_grad=True)
    value = nway_contrastive(features, scale=scale, **{"fuse": True, **options})
    return [value, *torch.autograd.grad(value, [scale, *features])]


def test_what_is_asked_of_them_before_they_are_used_they_pass() -> None:
    device = torch.device("cpu")
    assert triton_launch.softmax_is_right(triton_launch._kernels(device), device)
    assert triton_launch.rests_are_right(triton_launch._kernels(device), device)


@pytest.mark.parametrize(("normalize", "axes"), [(True, "first-plus-rest"), (False, "mean")])
@pytest.mark.parametrize("score", GRAM)
def test_they_agree_with_plain_torch(score: str, normalize: bool, axes: str) -> None:
    features = leaves([f + 0.5 for f in rows(3, n=4, B=21, D=9)], torch.float32)
    for block in (None, 8):
        options = {"score": score, "axes": axes, "normalize": normalize, "block": block}
        mine, plain = found(features, **options), found(features, fuse=False, **options)
        for one, other in zip(mine, plain, strict=True):
            assert (one - other).abs().max() <= 2e-5 * other.abs().max().clamp_min(1e-2)
    with torch.no_grad():
        value = nway_contrastive(features, scale=5.0, fuse=True, **options)
    assert value.item() == pytest.approx(plain[0].item(), rel=1e-5)


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("score", GRAM)
def test_they_agree_with_halves(score: str, dtype: torch.dtype) -> None:
    features = leaves([f + 0.5 for f in rows(4, n=4, B=18, D=32)], dtype)
    wide = [f.detach().double().requires_grad_() for f in features]
    mine, exact = found(features, score=score), found(wide, score=score, fuse=False)
    for one, other in zip(mine, exact, strict=True):
        within = 8 * torch.finfo(dtype).eps * other.abs().max().clamp_min(1e-2)
        assert (one.double() - other).abs().max() <= within


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_value_and_gradient_are_finite(case: object) -> None:
    for score in GRAM:
        for normalize in (True, False):
            features = leaves(case(), torch.float32)
            for part in found(features, score=score, normalize=normalize):
                assert part.isfinite().all(), (score, normalize)


def test_what_is_not_finite_is_not_hidden() -> None:
    for score in GRAM:
        for bad in (torch.nan, torch.inf):
            for normalize in (True, False):
                features = [f.float() for f in rows()]
                features[1][2, 3] = bad
                value = nway_contrastive(features, score=score, normalize=normalize, fuse=True)
                assert not value.isfinite(), (score, bad, normalize)
