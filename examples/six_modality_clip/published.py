"""The published loss for N modalities: a logit for every one of the B^N tuples.

python published.py        what its logits, its gradient and its memory come to
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.numerics import nway_contrastive

EPS = 1e-8
SCALE = 1 / 0.07


def unit(feature: Tensor) -> Tensor:
    return feature / (feature.norm(dim=-1, keepdim=True) + EPS)


def product_logits(features: Sequence[Tensor]) -> Tensor:
    """Version 0: the sum over coordinates of the product of all features."""
    axes = "abcdefgh"[: len(features)]
    return torch.einsum(",".join(f"{axis}z" for axis in axes) + f"->{axes}", *map(unit, features))


def norm_logits(features: Sequence[Tensor]) -> Tensor:
    """Version 1: every feature against the direction of their sum; makes B^N x D numbers."""
    count = len(features)
    spread = []
    for axis, feature in enumerate(map(unit, features)):
        shape = [1] * count + [feature.shape[1]]
        shape[axis] = feature.shape[0]
        spread.append(feature.view(shape))
    total = unit(sum(spread[1:], spread[0]))
    return torch.stack([(total * feature).sum(-1) for feature in spread]).sum(0)


def dense_loss(logits: Tensor) -> Tensor:
    """The cross entropy along every axis, with its target on the hyper-diagonal."""
    target = torch.zeros_like(logits)
    target[(torch.arange(logits.shape[0]),) * logits.dim()] = 1
    losses = [
        F.cross_entropy(SCALE * logits.movedim(axis, 1), target.movedim(axis, 1), reduction="sum")
        for axis in range(logits.dim())
    ]
    return torch.stack(losses).mean() / logits.shape[0]


FORMS = {"product": product_logits, "norm": norm_logits}


def needed_bytes(form: str, batch: int, width: int, modalities: int = 6) -> int:
    """Size in bytes of the largest float32 tensor that a form creates."""
    return 4 * batch**modalities * (width if form == "norm" else 1)


def readable(size: float) -> str:
    power = min(int(math.log(size, 1024)), 4)
    return f"{size / 1024**power:,.1f} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}"


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    features = [torch.randn(6, 512, requires_grad=True) for _ in range(6)]
    with torch.no_grad():
        rms = product_logits(features).square().mean().sqrt()
        aligned = product_logits([features[0]] * 6)[(0,) * 6]
    print(f"product form, 6 x 512: logits of rms {rms:.1e}, {aligned:.1e} for perfect agreement")

    def gradient(loss: Tensor) -> float:
        return torch.stack([g.norm() for g in torch.autograd.grad(loss, features)]).norm().item()

    dense = dense_loss(product_logits(features))
    ours = nway_contrastive(features, score="product", scale=SCALE)
    same = nway_contrastive(features, score="product", scale=SCALE, rescale=False)
    print(f"  loss {dense.item():.6f}, log B is {math.log(6):.6f}; ours unscaled {same.item():.6f}")
    print(f"  gradient norm {gradient(dense):.1e} published, {gradient(ours):.1e} ours")
    print("\nlargest tensor of the norm form, by batch:")
    for batch in (4, 8, 12, 16, 32, 64):
        print(f"  {batch:4}  {readable(needed_bytes('norm', batch, 512)):>14}")


if __name__ == "__main__":
    main()
