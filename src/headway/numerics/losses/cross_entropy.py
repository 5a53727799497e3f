"""Cross entropy that is 0 where every label is ignored, with an optional z-loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.numerics.losses._reduce import Reduction, reduce
from headway.numerics.ops._look import wide
from headway.numerics.ops.log_sum_exp import logsumexp


def cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """`torch.nn.functional.cross_entropy`, shapes included, made safe in three places.

    - When every label is ignored, or all classes present have weight 0, the mean is 0 with gradient
      0. torch gives NaN. Otherwise the value is torch's.
    - Half logits are computed in float32, in a copy as autocast makes one, and the loss is float32.
    - `z_loss` adds that coefficient times the squared logarithm of the normaliser, averaged or
      summed over the same positions with the same class weights. It keeps logits from drifting
      away together, which the cross entropy alone does not notice. 1e-4 is usual. It is off at 0.

    `target` holds class indices, or probabilities in the shape of the logits.
    """
    inside = wide(logits)
    weight = None if weight is None else weight.to(inside.dtype)
    soft = target.is_floating_point()
    if soft:
        target = target.to(inside.dtype)
    each = F.cross_entropy(
        inside,
        target,
        weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        reduction="none",
    )
    counted = None if soft else target != ignore_index
    importance = None
    if weight is not None and counted is not None:
        importance = torch.where(counted, weight[torch.where(counted, target, 0)], 0.0)
    if z_loss:
        squares = logsumexp(inside, dim=1 if inside.dim() > 1 else 0).square()
        each = each + z_loss * (squares if importance is None else squares * importance)
    if reduction != "mean":
        return reduce(each, reduction, counted)
    if importance is None:
        return reduce(each, reduction, counted)
    total = importance.sum()
    # Nothing is divided where nothing was added up.
    return reduce(each, "sum", counted) / torch.where(total == 0, 1.0, total)
