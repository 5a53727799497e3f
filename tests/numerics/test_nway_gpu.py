"""The N-way loss on a GPU: halves, blocks, fused passes; and nothing waits for the device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from holdfast.numerics import nway_contrastive
from holdfast.numerics.nway.names import SCORES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


HARDER = {"product": 4}
"""A product carries the rounding of all its factors."""


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


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "within"), [(torch.float32, 2e-5), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("score", ["norm", "std", "variance", "product"])
def test_fused_it_agrees_too(score: str, dtype: torch.dtype, within: float) -> None:
    assert_near(rows(dtype), within * HARDER.get(score, 1), score=score, fuse=True)


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
