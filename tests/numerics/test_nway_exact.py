"""The loss along lines is the dense one: value and gradient, every score, every convention."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.nway_reference import LINES, PAIRS, SCALE, hyper_diagonal, reference
from torch import Tensor

from headway.numerics import nway_contrastive
from headway.numerics.nway.contrastive_loss import SCORES, find_score

ALL = [*LINES, *PAIRS]


def some_features(
    seed: int, n: int, B: int, D: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    draw = torch.Generator().manual_seed(seed)
    common = torch.randn(B, D, generator=draw, dtype=torch.float64)
    return [
        (common + torch.randn(B, D, generator=draw, dtype=torch.float64)).to(dtype).requires_grad_()
        for _ in range(n)
    ]


def both(value: Tensor, features: list[Tensor]) -> tuple[float, Tensor]:
    return value.item(), torch.stack(torch.autograd.grad(value, features))


def assert_same(ours: Tensor, theirs: Tensor, features: list[Tensor], within: float) -> None:
    value, grad = both(ours, features)
    expected, expected_grad = both(theirs, features)
    assert abs(value - expected) <= within * max(1, abs(expected))
    assert (grad - expected_grad).abs().max() <= within * max(1, expected_grad.abs().max().item())


def least_spread(features: list[Tensor], normalize: bool) -> float:
    """The smallest sum of squares about the mean of any coordinate along any line."""
    own = torch.stack([f.detach() for f in features])
    if normalize:
        own = own / own.norm(dim=-1, keepdim=True)
    least = torch.inf
    for k in range(len(own)):
        for by in range(own.shape[1]):
            moved = own.clone()
            moved[k] = own[k].roll(by, 0)
            least = min(least, (moved - moved.mean(0)).square().sum(0).min().item())
    return least


def test_every_score_is_tested() -> None:
    assert sorted(ALL) == sorted(SCORES)


@pytest.mark.parametrize("score", ALL)
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 6),
    B=st.integers(1, 3),
    D=st.integers(2, 9),
    normalize=st.booleans(),
    axes=st.sampled_from(["mean", "first-plus-rest"]),
    reduction=st.sampled_from(["mean", "sum"]),
    block=st.sampled_from([None, 1, 2]),
)
def test_value_and_gradient_are_those_of_the_dense_loss(
    score: str,
    seed: int,
    n: int,
    B: int,
    D: int,
    normalize: bool,
    axes: str,
    reduction: str,
    block: int | None,
) -> None:
    features = some_features(seed, n, B, D)
    if score == "coordinate-std":
        # A root of a difference: nearer to zero not even the reference is right to 1e-10.
        assume(least_spread(features, normalize) > 1e-6)
    options = {"normalize": normalize, "axes": axes, "reduction": reduction}
    ours = nway_contrastive(features, score=score, block=block, **options)
    assert_same(ours, reference(features, score, **options), features, 1e-10)


@pytest.mark.parametrize("score", LINES)
def test_soft_targets_and_masks_are_those_of_the_dense_loss(score: str) -> None:
    features = some_features(3, 3, 4, 5)
    draw = torch.Generator().manual_seed(4)
    targets = torch.rand(4, 4, 4, generator=draw, dtype=torch.float64)
    factor = (torch.rand(4, 4, 4, generator=draw) < 0.7).double()
    keep = (factor > 0) | (hyper_diagonal(factor) > 0)
    for given_ in (
        {"targets": targets},
        {"mask": factor},
        {"targets": targets, "mask": factor},
        {"mask": keep},
    ):
        for axes, unit in (("mean", True), ("first-plus-rest", False)):
            options = {"axes": axes, "normalize": unit, **given_}
            ours = nway_contrastive(features, score=score, **options)
            assert_same(ours, reference(features, score, **options), features, 1e-10)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("score", ALL)
def test_gradients_are_those_of_finite_differences(score: str, normalize: bool) -> None:
    features = some_features(1, 3, 3, 3)
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda scale, *f: nway_contrastive(
            f, score=score, scale=scale, normalize=normalize, block=2
        ),
        (scale, *features),
    )


@pytest.mark.parametrize("score", LINES)
def test_tiles_and_blocks_of_tuples_change_nothing(
    score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = some_features(2, 3, 40, 6)
    whole = both(nway_contrastive(features, score=score), features)
    targets = hyper_diagonal(torch.zeros(40, 40, 40, dtype=torch.float64))
    monkeypatch.setattr("headway.numerics.nway.features.ON_CPU", 1)
    monkeypatch.setattr("headway.numerics.nway.streaming.room", lambda like: 100_000)
    small = both(nway_contrastive(features, score=score), features)
    dense = both(nway_contrastive(features, score=score, targets=targets), features)
    for value, grad in (small, dense):
        assert value == pytest.approx(whole[0], rel=1e-12)
        assert torch.allclose(grad, whole[1], rtol=1e-9, atol=1e-11)


def test_without_gradient_the_value_is_the_same() -> None:
    for score in ALL:
        features = some_features(6, 3, 5, 4)
        with torch.no_grad():
            value = nway_contrastive(features, score=score)
        assert value.item() == pytest.approx(nway_contrastive(features, score=score).item())
        assert not value.requires_grad


def test_two_modalities_with_the_product_are_clip() -> None:
    image, text = some_features(7, 2, 6, 8)
    unit = [x / x.norm(dim=1, keepdim=True) for x in (image, text)]
    logits = SCALE * unit[0] @ unit[1].T
    own = torch.arange(6)
    clip = (
        torch.nn.functional.cross_entropy(logits, own)
        + torch.nn.functional.cross_entropy(logits.T, own)
    ) / 2
    assert_same(nway_contrastive([image, text], score="product"), clip, [image, text], 1e-12)


def test_the_published_product_can_be_had() -> None:
    features = some_features(8, 5, 3, 16)
    ours = nway_contrastive(features, score="product", rescale=False)
    assert_same(ours, reference(features, "product", rescale=False), features, 1e-12)


@pytest.mark.parametrize("score", SCORES.values(), ids=list(SCORES))
def test_published_numbers_are_other_names(score: object) -> None:
    for alias in score.published:
        assert find_score(alias) is score
