"""Where published forms gave NaN or nothing: zero, identical, opposite rows, far scales, halves."""

from __future__ import annotations

import pytest
import torch
from support.grids import all_but
from support.nway_edge_cases import CASES, GRAM, leaves, rows
from support.nway_reference import LINES, PAIRS, reference
from torch import Tensor

from headway.numerics import nway_contrastive

ALL = [*LINES, *PAIRS]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", all_but(DTYPES, torch.float32, torch.bfloat16), ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_value_and_gradient_are_finite(case: object, dtype: torch.dtype) -> None:
    for score in ALL:
        for normalize in (True, False):
            features = leaves(case(), dtype)
            scale = torch.tensor(1 / 0.07, requires_grad=True)
            value = nway_contrastive(
                features, score=score, scale=scale, normalize=normalize, reduction="sum"
            )
            value.backward()
            told = f"{score}, normalize={normalize}"
            assert value.isfinite(), told
            assert scale.grad is not None
            assert scale.grad.isfinite(), told
            for f in features:
                assert f.grad is not None
                assert f.grad.dtype == dtype
                assert f.grad.isfinite().all(), told


@pytest.mark.parametrize("score", LINES)
def test_soft_targets_are_finite_there_too(score: str) -> None:
    for case in CASES:
        features = [f[:3].float().requires_grad_() for f in case()]
        B = features[0].shape[0]
        targets = torch.full((B,) * len(features), 0.1)
        nway_contrastive(features, score=score, targets=targets).backward()
        assert all(f.grad is not None and f.grad.isfinite().all() for f in features), case.__name__


@pytest.mark.parametrize("score", ALL)
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_other_types_agree_with_float64_to_their_resolution(score: str, dtype: torch.dtype) -> None:
    """The features are rounded first: what is compared is the computing."""
    features = leaves(rows(3, n=6, B=5, D=64), dtype)
    value = nway_contrastive(features, score=score)
    wide = [f.detach().double().requires_grad_() for f in features]
    exact = nway_contrastive(wide, score=score)
    eps = max(torch.finfo(dtype).eps, 1e-5)  # logits of some hundreds carry 1e-5 in float32
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), rel=2e-5)
    for mine, theirs in zip(
        torch.autograd.grad(value, features), torch.autograd.grad(exact, wide), strict=True
    ):
        assert (mine.double() - theirs).abs().max() <= 4 * eps * theirs.abs().max()


@pytest.mark.parametrize("noise", [0.1, 1e-2, 1e-3, 1e-5])
def test_near_alignment_differences_of_large_numbers_do_no_harm(noise: float) -> None:
    """Where training leads: all views agree, and Gram forms subtract nearly equal numbers."""
    common = rows(7, n=1, B=16, D=64)[0]
    features = leaves([common + noise * f for f in rows(8, n=6, B=16, D=64)], torch.float32)
    wide = [f.detach().double().requires_grad_() for f in features]
    for score in ("norm", "variance", "std", "leave-one-out", "distance", "cosine"):
        # A small scale, so that samples still compete and the gradient is not zero.
        value = nway_contrastive(features, score=score, scale=2.0)
        exact = nway_contrastive(wide, score=score, scale=2.0)
        assert value.item() == pytest.approx(exact.item(), rel=1e-3), score
        mine = torch.stack(torch.autograd.grad(value, features)).double()
        theirs = torch.stack(torch.autograd.grad(exact, wide))
        assert (mine - theirs).norm() <= 0.02 * theirs.norm(), score


@pytest.fixture
def half_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does: operands rounded to half, results in float32."""

    def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
        assert left.dtype == right.dtype
        wide = torch.promote_types(left.dtype, torch.float32)
        return torch.bmm(left.to(wide), right.to(wide), out=out)

    def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
        total += product(left, right)

    monkeypatch.setattr(
        "headway.numerics.nway.contrastive_loss.can_multiply_halves", lambda device: True
    )
    monkeypatch.setattr("headway.numerics.nway.gram.product", product)
    monkeypatch.setattr("headway.numerics.nway.gram.add_product", add_product)


@pytest.mark.usefixtures("half_products")
@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
@pytest.mark.parametrize("score", GRAM)
def test_half_operands_agree_with_float64_to_their_resolution(
    score: str, dtype: torch.dtype
) -> None:
    common = rows(5, n=1, B=24, D=128)[0]
    features = leaves([common + f for f in rows(6, n=6, B=24, D=128)], dtype)
    value = nway_contrastive(features, score=score)
    wide = [f.detach().double().requires_grad_() for f in features]
    exact = nway_contrastive(wide, score=score)
    # A product of six carries the rounding of six.
    within = torch.finfo(dtype).eps * (8 if score == "product" else 2)
    assert abs(value.item() - exact.item()) <= within * max(exact.item(), 1)
    for mine, theirs in zip(
        torch.autograd.grad(value, features), torch.autograd.grad(exact, wide), strict=True
    ):
        assert (mine.double() - theirs).abs().max() <= 4 * within * theirs.abs().max()


@pytest.mark.usefixtures("half_products")
@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_half_operands_are_finite_too(dtype: torch.dtype) -> None:
    for case in CASES:
        for score in GRAM:
            features = leaves(case(), dtype)
            value = nway_contrastive(features, score=score)
            grads = torch.autograd.grad(value, features)
            assert value.isfinite(), (case.__name__, score)
            assert all(grad.isfinite().all() for grad in grads), (case.__name__, score)


def test_a_scale_that_is_common_to_all_features_changes_nothing_when_normalised() -> None:
    for score in ALL:
        plain = nway_contrastive(rows(), score=score).item()
        for factor in (2.0**90, 2.0**-90):
            features = [(f * factor).float() for f in rows()]
            assert nway_contrastive(features, score=score).item() == pytest.approx(plain, rel=1e-4)


def test_raw_features_of_1e15_are_exact_where_the_answer_exists() -> None:
    for score in ("norm", "std", "distance", "leave-one-out", "coordinate-std"):
        features = [(f * 2.0**50).float() for f in rows()]
        exact = reference(features, score, normalize=False).item()
        value = nway_contrastive(features, score=score, normalize=False).item()
        assert value == pytest.approx(exact, rel=1e-4), score


def test_what_is_not_finite_is_not_hidden() -> None:
    for score in ALL:
        for bad in (torch.nan, torch.inf):
            for normalize in (True, False):
                features = rows()
                features[1][2, 3] = bad
                value = nway_contrastive(features, score=score, normalize=normalize)
                assert not value.isfinite(), (score, bad, normalize)


def test_the_product_has_a_gradient() -> None:
    def gradient(score: str, **options: bool) -> float:
        features = leaves(rows(1, n=6, B=64, D=512), torch.float32)
        nway_contrastive(features, score=score, **options).backward()
        return torch.stack([f.grad for f in features if f.grad is not None]).norm().item()

    norm = gradient("norm")
    assert gradient("product") > 0.1 * norm
    assert gradient("product", rescale=False) < 1e-3 * norm


def test_opposite_is_not_aligned() -> None:
    """The published cosine took the absolute value of a product: two opposites scored as one."""
    one = rows()[0]
    aligned = nway_contrastive([one, one, one, one], score="cosine").item()
    torn = nway_contrastive([one, one, one, -one], score="cosine").item()
    assert torn > aligned + 0.1


def test_autocast_does_not_reach_inside() -> None:
    features = leaves(rows(), torch.float32)
    outside = nway_contrastive(features, score="norm")
    with torch.autocast("cpu", torch.bfloat16):
        inside = nway_contrastive(features, score="norm")
    assert inside.dtype == torch.float32
    assert inside.item() == outside.item()
