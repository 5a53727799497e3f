"""The focal loss: cross entropy that cares less for what is already right."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.numerics.losses._reduce import Reduction, reduce
from headway.numerics.ops._look import wide
from headway.numerics.ops.log_sum_exp import logsumexp


def focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    alpha: float | Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """(1 - p)^gamma times the cross entropy, p being the probability of the right class.

    Floating-point targets in the shape of the logits: one yes or no each, by sigmoid; `alpha`
    weighs yes, 1 - alpha no. Integer targets: one of the classes along dimension 1, by softmax;
    `alpha` weighs each class, as a tensor, or all of them. Where all labels are ignored it is 0.

    Nothing is bent: 1 - p is taken from logits, in logarithms, so that it keeps its digits when p
    is nearly 1 and has a gradient for every gamma, below 1 too. The mean is over the positions that
    count, not over the sum of alpha.
    """
    inside = wide(logits)
    if target.is_floating_point():
        if target.shape != logits.shape:
            raise ValueError(
                f"logits have shape {tuple(logits.shape)} and yes-or-no targets "
                f"{tuple(target.shape)}: they must be the same"
            )
        return _binary(inside, target.to(inside.dtype), gamma, alpha, reduction)
    counted = target != ignore_index
    labels = torch.where(counted, target, 0).unsqueeze(1)
    log_all = logsumexp(inside, 1)
    log_right = inside.gather(1, labels).squeeze(1) - log_all
    others = inside.scatter(1, labels, -torch.inf)
    log_wrong = logsumexp(others, 1) - log_all
    each = -torch.exp(gamma * log_wrong) * log_right
    if isinstance(alpha, Tensor):
        each = each * alpha.to(each.dtype)[labels.squeeze(1)]
    elif alpha is not None:
        each = each * alpha
    return reduce(each, reduction, counted)


def _binary(
    logits: Tensor, target: Tensor, gamma: float, alpha: float | Tensor | None, reduction: Reduction
) -> Tensor:
    yes, no = F.logsigmoid(logits), F.logsigmoid(-logits)
    # log(1 - p) of "yes" is log p of "no", and the other way round.
    for_yes = -target * torch.exp(gamma * no) * yes
    for_no = -(1 - target) * torch.exp(gamma * yes) * no
    if alpha is None:
        return reduce(for_yes + for_no, reduction)
    return reduce(alpha * for_yes + (1 - alpha) * for_no, reduction)
