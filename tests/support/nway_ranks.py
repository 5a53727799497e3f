"""What each rank does in the test of the gathered loss; in a file of its own to be imported."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from headway.numerics import nway_contrastive

COUNTS = [3, 4]
SCORES = [
    ("norm", True, "mean"),
    ("product", True, "sum"),
    ("std", False, "mean"),
    ("leave-one-out", True, "mean"),
    ("coordinate-std", False, "sum"),
    ("cosine", True, "mean"),
    ("distance", False, "mean"),
    ("anchor", True, "mean"),
]


def samples() -> list[Tensor]:
    draw = torch.Generator().manual_seed(3)
    return [
        torch.randn(sum(COUNTS), 5, generator=draw, dtype=torch.float64) * (k + 1) for k in range(3)
    ]


def network() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(5, 6, dtype=torch.float64)


def gathered_losses(rank: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """For each score the value and the gradient this rank gives to DDP."""
    net, values, grads = network(), {}, {}
    scale = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
    mine = slice(sum(COUNTS[:rank]), sum(COUNTS[: rank + 1]))
    for index, (score, normalize, reduction) in enumerate(SCORES):
        net.zero_grad()
        scale.grad = None
        value = nway_contrastive(
            [net(x[mine]) for x in samples()],
            score=score,
            scale=scale,
            normalize=normalize,
            reduction=reduction,
            gather=True if index % 2 else dist.group.WORLD,
        )
        value.backward()
        values[score] = value.item()
        assert net.weight.grad is not None
        assert scale.grad is not None
        grads[score] = [*net.weight.grad.flatten().tolist(), scale.grad.item()]
    return values, grads
