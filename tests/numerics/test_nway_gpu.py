"""The N-way loss on a GPU: halves, blocks, kernels; and nothing waits for the device."""

from __future__ import annotations

import pytest
import torch
from support.nway_edge_cases import CASES, GRAM, leaves
from torch import Tensor

from headway.numerics import nway_contrastive
from headway.numerics.nway.contrastive_loss import SCORES
from headway.numerics.nway.triton_launch import can_fuse

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


HARDER = {"product": 4, "coordinate-std": 4}
"""A product carries the rounding of all its factors, a root that of a difference near zero."""


def rows(dtype: torch.dtype, B: int = 300, D: int = 64) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    common = torch.randn(B, D, generator=draw)
    return [
        (common + torch.randn(B, D, generator=draw)).to("cuda", dtype).requires_grad_()
        for _ in range(4)
    ]


def assert_near(features: list[Tensor], within: float, **options: object) -> None:
    value = nway_contrastive(features, **options)
    grads = torch.autograd.grad(value, features)
    options.pop("fuse", None)
    wide = [f.detach().double().requires_grad_() for f in features]
    exact = nway_contrastive(wide, **options)
    assert value.item() == pytest.approx(exact.item(), rel=within)
    for mine, theirs in zip(grads, torch.autograd.grad(exact, wide), strict=True):
        assert (mine.double() - theirs).abs().max() <= 4 * within * theirs.abs().max()


@pytest.mark.parametrize("score", list(SCORES))
@pytest.mark.parametrize(
    ("dtype", "within"),
    [(torch.float32, 2e-5), (torch.bfloat16, 1e-2), (torch.float16, 2e-3)],
    ids=str,
)
def test_it_agrees_with_float64(score: str, dtype: torch.dtype, within: float) -> None:
    assert_near(rows(dtype), within * HARDER.get(score, 1), score=score, block=128)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("score", GRAM)
def test_without_the_kernels_it_is_the_same(score: str, dtype: torch.dtype) -> None:
    """Also with raw features, a scale that learns, and rows wider than a program's."""
    within = {torch.float32: 2e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for normalize, B in ((True, 300), (False, 300), (True, 17000)):
        features = rows(dtype, B, 48)
        scale = torch.tensor(7.0, device="cuda", requires_grad=True)
        options = {"score": score, "normalize": normalize, "scale": scale, "reduction": "sum"}
        if not normalize:
            options["scale"] = scale = torch.tensor(0.05, device="cuda", requires_grad=True)
        found = []
        for fuse in (True, False):
            value = nway_contrastive(features, fuse=fuse, **options)
            found.append([value, *torch.autograd.grad(value, [scale, *features])])
        for mine, plain in zip(*found, strict=True):
            most = plain.double().abs().max().clamp_min(1e-6)
            assert (mine.double() - plain.double()).abs().max() <= 4 * within * most


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_value_and_gradient_are_finite(case: object, dtype: torch.dtype) -> None:
    for score in GRAM:
        for normalize in (True, False):
            features = [f.detach().cuda().requires_grad_() for f in leaves(case(), dtype)]
            value = nway_contrastive(features, score=score, normalize=normalize)
            grads = torch.autograd.grad(value, features)
            assert value.isfinite(), (score, normalize)
            assert all(grad.isfinite().all() for grad in grads), (score, normalize)


def test_what_is_not_finite_is_not_hidden() -> None:
    for score in GRAM:
        for bad in (torch.nan, torch.inf):
            for normalize in (True, False):
                features = rows(torch.float32)
                with torch.no_grad():
                    features[1][2, 3] = bad
                value = nway_contrastive(features, score=score, normalize=normalize)
                assert not value.isfinite(), (score, bad, normalize)


def test_the_kernels_are_used() -> None:
    pytest.importorskip("triton")
    assert can_fuse(torch.ones(1, device="cuda"), torch.float32)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
@pytest.mark.parametrize("score", list(SCORES))
def test_nothing_waits_for_the_device(score: str) -> None:
    features = rows(torch.bfloat16)
    nway_contrastive(features, score=score).backward()
    try:
        torch.cuda.set_sync_debug_mode("error")
        nway_contrastive(features, score=score).backward()
        nway_contrastive(features, score=score, normalize=False).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
