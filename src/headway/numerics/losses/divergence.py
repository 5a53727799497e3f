"""The Kullback-Leibler divergence between two softmax distributions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headway.numerics.eps import eps_for
from headway.numerics.losses._reduce import Reduction, reduce
from headway.numerics.ops._look import wide
from headway.numerics.ops.masked_shares import masked_log_softmax


def kl_divergence(
    logits: Tensor,
    target_logits: Tensor,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """KL(target ‖ prediction), both given as logits; summed along `dim`, then reduced.

    "mean" is over the distributions, so it is what torch calls "batchmean". Exact for finite
    logits. An outcome that the target excludes (-inf) adds nothing; torch's gives NaN there. Bent
    where the prediction excludes what the target allows: the divergence is infinite, here the
    prediction's logarithm counts as that of the smallest normal number (-87.3 in float32), with no
    gradient. Distributions where the mask is false count for nothing.
    """
    if logits.shape != target_logits.shape:
        raise ValueError(
            f"logits have shape {tuple(logits.shape)} and target_logits "
            f"{tuple(target_logits.shape)}: they must be the same"
        )
    ours, theirs = wide(logits), wide(target_logits)
    floor = math.log(eps_for(ours.dtype))
    log_q = masked_log_softmax(ours, dim=dim)
    log_p = masked_log_softmax(theirs, dim=dim)
    p = torch.exp(log_p)
    log_q = torch.where(log_q == torch.finfo(log_q.dtype).min, floor, log_q)
    apart = torch.where(p > 0, log_p, 0.0) - torch.where(p > 0, log_q, 0.0)
    return reduce((p * apart).sum(dim), reduction, mask)
