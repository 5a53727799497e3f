"""Token batches of unequal length, on one process and on several."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from headway import numerics

Batch = tuple[Tensor, Tensor]


def batches(ranks: int, micro: int) -> list[list[Batch]]:
    """Features and labels, by rank; lengths differ widely, and one is all padding."""
    maker = torch.Generator().manual_seed(11)
    made: list[list[Batch]] = []
    for rank in range(ranks):
        own = []
        for number in range(micro):
            features = torch.randn(2, 7, 5, generator=maker, dtype=torch.float64)
            labels = torch.randint(0, 5, (2, 7), generator=maker)
            counted = [7, 1, 0, 4][(rank + number) % 4]
            labels[:, counted:] = -100
            own.append((features, labels))
        made.append(own)
    return made


def _weights() -> Tensor:
    maker = torch.Generator().manual_seed(5)
    return torch.randn(5, 5, generator=maker, dtype=torch.float64).requires_grad_()


def big_batch_gradient(ranks: int, micro: int) -> Tensor:
    weights = _weights()
    everything = [batch for own in batches(ranks, micro) for batch in own]
    features = torch.cat([batch[0] for batch in everything]).flatten(0, 1)
    labels = torch.cat([batch[1] for batch in everything]).flatten()
    return torch.autograd.grad(F.cross_entropy(features @ weights, labels), weights)[0]


def rank_gradient(rank: int, ranks: int, micro: int, how: str) -> Tensor:
    """A rank's gradient after accumulation and after the ranks have met."""
    weights = _weights()
    own = batches(ranks, micro)[rank]
    if how == "means":
        losses = [
            numerics.cross_entropy((features @ weights).flatten(0, 1), labels.flatten()) / micro
            for features, labels in own
        ]
        return torch.autograd.grad(torch.stack(losses).sum(), weights)[0]
    tokens = numerics.count_tokens([labels for _, labels in own])
    for features, labels in own:
        numerics.masked_token_loss(
            features @ weights,
            labels,
            tokens=tokens,
            gradients=how,  # type: ignore[arg-type]
        ).backward()
    gradient = weights.grad
    assert gradient is not None
    if ranks > 1:
        dist.all_reduce(gradient)
        if how == "averaged":
            gradient /= ranks
        # Asked without a number, the ranks count by themselves: the whole of one micro-batch each.
        features, labels = own[0]
        loss = numerics.masked_token_loss(features @ weights, labels, gradients=how)  # type: ignore[arg-type]
        alone = loss.detach().clone()
        dist.all_reduce(alone)
        alone = alone / ranks if how == "averaged" else alone
        firsts = [one[0] for one in batches(ranks, micro)]
        logits = torch.cat([x for x, _ in firsts]).flatten(0, 1) @ weights
        expected = F.cross_entropy(logits, torch.cat([y for _, y in firsts]).flatten())
        torch.testing.assert_close(alone, expected.detach())
    return gradient
