"""Losses: torch's own where torch has one, and 0 where there is nothing to learn from."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.stable_op_cases import DTYPES
from torch import Tensor

from headway import numerics

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def gradient(loss: Tensor, at: Tensor) -> Tensor:
    return torch.autograd.grad(loss, at, retain_graph=True)[0]


def logits_of(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    maker = torch.Generator().manual_seed(3)
    x = torch.randn(shape, generator=maker, dtype=torch.float64) * scale
    return x.to(dtype).requires_grad_()


def same(ours: Tensor, theirs: Tensor, at: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)
    mine, plain = gradient(ours.sum(), at), gradient(theirs.sum(), at)
    torch.testing.assert_close(mine, plain, rtol=tolerance, atol=tolerance)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.sampled_from([(6, 5), (4, 5, 3), (2, 5, 2, 2)]),
    weighted=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1, 0.6]),
    reduction=st.sampled_from(["mean", "sum", "none"]),
    ignored=st.integers(0, 2),
)
def test_cross_entropy_is_torchs(
    shape: tuple[int, ...], weighted: bool, smoothing: float, reduction: Any, ignored: int
) -> None:
    logits = logits_of(*shape)
    target = torch.arange(logits[:, 0].numel()).reshape(logits[:, 0].shape) % 5
    target.view(-1)[:ignored] = -7
    weight = torch.tensor([1.0, 2, 0.5, 0.1, 3]).double() if weighted else None
    options = {
        "weight": weight,
        "ignore_index": -7,
        "label_smoothing": smoothing,
        "reduction": reduction,
    }
    theirs = F.cross_entropy(logits, target, **options)
    same(numerics.cross_entropy(logits, target, **options), theirs, logits)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_takes_soft_targets_and_one_row(reduction: Any) -> None:
    logits = logits_of(4, 5)
    soft = logits_of(4, 5, scale=2).detach().softmax(1)
    weight = torch.tensor([1.0, 2, 0.5, 0.1, 3]).double()
    for options in ({}, {"weight": weight}, {"label_smoothing": 0.2}):
        theirs = F.cross_entropy(logits, soft, reduction=reduction, **options)  # type: ignore[arg-type]
        ours = numerics.cross_entropy(logits, soft, reduction=reduction, **options)  # type: ignore[arg-type]
        same(ours, theirs, logits)
    row, label = logits_of(5), torch.tensor(2)
    same(numerics.cross_entropy(row, label), F.cross_entropy(row, label), row)


@every_dtype
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("z_loss", [0.0, 1e-3])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_of_nothing_is_zero_with_zero_gradient(
    dtype: torch.dtype, smoothing: float, z_loss: float, weighted: bool
) -> None:
    logits = logits_of(4, 5, dtype=dtype)
    weight = torch.ones(5) if weighted else None
    for target in (torch.full((4,), -100), torch.zeros(0, dtype=torch.long)):
        some = logits[: len(target)]
        loss = numerics.cross_entropy(
            some, target, weight=weight, label_smoothing=smoothing, z_loss=z_loss
        )
        assert loss.item() == 0
        assert not gradient(loss, logits).any()
    none = numerics.cross_entropy(logits, torch.ones(4).long(), weight=torch.zeros(5))
    assert none.item() == 0
    assert not gradient(none, logits).any()


def test_z_loss_is_the_squared_logarithm_of_the_normaliser() -> None:
    logits = logits_of(4, 5)
    target = torch.tensor([1, -100, 4, 0])
    counted = target != -100
    plain = F.cross_entropy(logits, target)
    added = 0.01 * logits.logsumexp(1)[counted].square().mean()
    same(numerics.cross_entropy(logits, target, z_loss=0.01), plain + added, logits)
    weight = torch.tensor([1.0, 2, 0.5, 0.1, 3]).double()
    shares = weight[target[counted]] / weight[target[counted]].sum()
    plain = F.cross_entropy(logits, target, weight)
    added = 0.01 * (shares * logits.logsumexp(1)[counted].square()).sum()
    same(numerics.cross_entropy(logits, target, weight=weight, z_loss=0.01), plain + added, logits)


Loss = Callable[[Tensor, Tensor], Tensor]
HALVES: list[tuple[str, Loss, bool]] = [
    ("cross_entropy", numerics.cross_entropy, True),
    ("focal", numerics.focal, True),
    ("binary", numerics.binary_cross_entropy, False),
    ("focal of yes and no", numerics.focal, False),
    ("kl", numerics.kl_divergence, False),
    ("mse", numerics.mse, False),
    ("huber", numerics.huber, False),
]


@pytest.mark.parametrize(
    ("loss", "labels"), [row[1:] for row in HALVES], ids=[r[0] for r in HALVES]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_inputs_are_computed_in_float32(loss: Loss, labels: bool, dtype: torch.dtype) -> None:
    logits = logits_of(64, 5, scale=6, dtype=dtype)
    target = torch.arange(64) % 5 if labels else torch.rand(64, 5).to(dtype)
    value = loss(logits, target)
    exact_at = logits.detach().double().requires_grad_()
    exact = loss(exact_at, target if labels else target.double())
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(exact.item(), rel=1e-5)
    step = torch.finfo(dtype).eps
    right = gradient(exact, exact_at)
    mine = gradient(value, logits)
    torch.testing.assert_close(mine.double(), right, rtol=2 * step, atol=2e-7)


@pytest.mark.parametrize(
    ("loss", "labels"), [row[1:] for row in HALVES], ids=[r[0] for r in HALVES]
)
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e4, 1e30])
def test_losses_are_finite_at_any_scale(
    loss: Loss, labels: bool, scale: float, request: pytest.FixtureRequest
) -> None:
    if loss is numerics.mse and scale > 1e19:
        pytest.skip("the square does not fit, and the loss says so")
    logits = logits_of(6, 5, scale=scale, dtype=torch.float32)
    target = torch.arange(6) % 5 if labels else torch.rand(6, 5).round()
    value = loss(logits, target)
    assert value.isfinite()
    assert gradient(value, logits).isfinite().all()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_is_the_published_formula(gamma: float) -> None:
    logits = logits_of(6, 5)
    target = torch.tensor([0, 1, 2, -100, 4, 3])
    kept = target != -100
    p = logits.softmax(1)[kept].gather(1, target[kept][:, None]).squeeze(1)
    ours = numerics.focal(logits, target, gamma=gamma)
    same(ours, (-((1 - p) ** gamma) * p.log()).mean(), logits, 1e-10)
    alpha = torch.tensor([1.0, 2, 0.5, 0.1, 3]).double()
    expected = (-alpha[target[kept]] * (1 - p) ** gamma * p.log()).mean()
    same(numerics.focal(logits, target, gamma=gamma, alpha=alpha), expected, logits, 1e-10)
    yes = (torch.rand(6, 5) < 0.3).double()
    p = logits.sigmoid()
    right = torch.where(yes == 1, p, 1 - p)
    share = torch.where(yes == 1, 0.25, 0.75)
    expected = (-share * (1 - right) ** gamma * right.log()).mean()
    same(numerics.focal(logits, yes, gamma=gamma, alpha=0.25), expected, logits, 1e-10)
    assert torch.autograd.gradcheck(lambda x: numerics.focal(x, target, gamma=gamma), logits)


def test_focal_is_finite_when_everything_is_right_or_ignored() -> None:
    for gamma in (0.0, 0.5, 2.0):
        logits = (torch.eye(5) * 200).requires_grad_()
        loss = numerics.focal(logits, torch.arange(5), gamma=gamma)
        assert gradient(loss, logits).isfinite().all()
        loss = numerics.focal(logits, torch.full((5,), -100), gamma=gamma)
        assert loss.item() == 0
        assert not gradient(loss, logits).any()
        lone = torch.zeros(3, 1, requires_grad=True)
        loss = numerics.focal(lone, torch.zeros(3).long(), gamma=gamma)
        assert gradient(loss, lone).isfinite().all()
    with pytest.raises(ValueError, match="same"):
        numerics.focal(torch.zeros(3, 1), torch.zeros(3))


def test_binary_cross_entropy_is_torchs() -> None:
    logits = logits_of(4, 3)
    target = (torch.rand(4, 3) < 0.5).double()
    plain = F.binary_cross_entropy_with_logits(logits, target)
    same(numerics.binary_cross_entropy(logits, target), plain, logits)
    weight = torch.tensor([1.0, 2.0, 3.0]).double()
    plain = F.binary_cross_entropy_with_logits(logits, target, pos_weight=weight)
    same(numerics.binary_cross_entropy(logits, target, pos_weight=weight), plain, logits)
    of_probabilities = numerics.binary_cross_entropy_of_probabilities(logits.sigmoid(), target)
    same(of_probabilities, F.binary_cross_entropy(logits.sigmoid(), target), logits)
    mask = torch.tensor([[True], [False], [True], [False]])
    plain = F.binary_cross_entropy_with_logits(logits[::2], target[::2])
    same(numerics.binary_cross_entropy(logits, target, mask=mask), plain, logits)
    nothing = numerics.binary_cross_entropy(logits, target, mask=torch.zeros(4, 1).bool())
    assert nothing.item() == 0
    assert not gradient(nothing, logits).any()
    with pytest.raises(ValueError, match="same"):
        numerics.binary_cross_entropy(logits, target[:, :1])
    sure = torch.tensor([0.0, 1.0], requires_grad=True)
    wrong = numerics.binary_cross_entropy_of_probabilities(sure, torch.tensor([1.0, 0.0]))
    assert wrong.item() == pytest.approx(100)
    assert gradient(wrong, sure).isfinite().all()


def test_kl_divergence_is_torchs_and_survives_excluded_outcomes() -> None:
    ours, theirs = logits_of(4, 5), logits_of(4, 5, scale=2).detach()
    plain = F.kl_div(
        ours.log_softmax(1), theirs.log_softmax(1), log_target=True, reduction="batchmean"
    )
    same(numerics.kl_divergence(ours, theirs), plain, ours, 1e-10)
    assert numerics.kl_divergence(ours, ours).item() == pytest.approx(0, abs=1e-12)
    excluded = theirs.clone()
    excluded[:, 1] = -math.inf
    loss = numerics.kl_divergence(ours, excluded)
    log_q = ours.log_softmax(1)[:, [0, 2, 3, 4]]
    log_p = theirs[:, [0, 2, 3, 4]].log_softmax(1)
    same(loss, (log_p.exp() * (log_p - log_q)).sum(1).mean(), ours, 1e-10)
    impossible = ours.detach().float().clone()
    impossible[:, 1] = -math.inf
    impossible.requires_grad_()
    loss = numerics.kl_divergence(impossible, theirs.float())
    assert loss.isfinite()
    assert gradient(loss, impossible).isfinite().all()
    mask = torch.tensor([True, False, False, False])
    same(
        numerics.kl_divergence(ours, theirs, mask=mask),
        numerics.kl_divergence(ours[:1], theirs[:1]),
        ours,
    )
    with pytest.raises(ValueError, match="same"):
        numerics.kl_divergence(ours, theirs[:1])


def test_mse_and_huber_are_torchs_and_report_scales() -> None:
    prediction = logits_of(4, 8)
    latent = logits_of(4, 8, scale=5).detach().flip(0)
    scales = numerics.Scales()
    assert scales.read() == {}
    same(
        numerics.mse(prediction, latent, scales=scales), F.mse_loss(prediction, latent), prediction
    )
    read = scales.read()
    assert read["target"] == pytest.approx(latent.square().mean().sqrt().item())
    assert read["ratio"] == pytest.approx(0.2)
    assert read["error"] ** 2 == pytest.approx(F.mse_loss(prediction, latent).item())
    plain = F.huber_loss(prediction, latent, delta=0.5)
    same(numerics.huber(prediction, latent, delta=0.5), plain, prediction)
    mask = torch.tensor([[True], [False], [True], [True]])
    spoilt = torch.where(mask, latent, math.nan)
    kept = mask.squeeze(1)
    for loss, plain_loss in ((numerics.mse, F.mse_loss), (numerics.huber, F.huber_loss)):
        ours = loss(prediction, spoilt, mask=mask, scales=scales)
        same(ours, plain_loss(prediction[kept], latent[kept]), prediction)
        assert math.isfinite(scales.read()["error"])
        nothing = loss(prediction, spoilt, mask=torch.zeros_like(mask))
        assert nothing.item() == 0
        assert not gradient(nothing, prediction).any()
        with pytest.raises(ValueError, match="same"):
            loss(prediction, latent[0])


def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(ValueError, match="one of"):
        numerics.mse(torch.ones(2), torch.ones(2), reduction="median")  # type: ignore[arg-type]
