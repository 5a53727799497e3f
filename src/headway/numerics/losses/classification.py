"""Cross entropy, binary cross entropy, focal loss, KL divergence, and the token loss over micro-
batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from headway.numerics.losses.regression import Reduction, reduce_loss, same_shape
from headway.numerics.ops._shared import eps_for, wide
from headway.numerics.ops.softmax_ops import logsumexp, masked_log_softmax

# Binary cross entropy, from logits or from probabilities.


def binary_cross_entropy(
    logits: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross entropy of *logits*: torch's own `binary_cross_entropy_with_logits`.

    Exact for every finite logit. Half logits are computed in float32. Elements where the mask is
    false are ignored; if all are, the mean is 0 with gradient 0.
    """
    same_shape(logits, target)
    inside = wide(logits)
    each = F.binary_cross_entropy_with_logits(
        inside, target.to(inside.dtype), weight, reduction="none", pos_weight=pos_weight
    )
    return reduce_loss(each, reduction, mask)


def binary_cross_entropy_of_probabilities(
    probabilities: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross entropy of *probabilities*; prefer `binary_cross_entropy` where logits exist.

    torch's own `binary_cross_entropy`, in float32 for half inputs. torch limits it: logarithms
    are at least -100, and the gradient divides by at least 1e-12. A float16 sigmoid is exactly 1
    from logits of 8 on, and that information is lost; with logits it is not.
    """
    same_shape(probabilities, target)
    inside = wide(probabilities)
    each = F.binary_cross_entropy(inside, target.to(inside.dtype), weight, reduction="none")
    return reduce_loss(each, reduction, mask)


# Cross entropy that is 0 where every label is ignored, with an optional z-loss.


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
      together, which does not change the cross entropy. 1e-4 is usual. It is off at 0.

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
        return reduce_loss(each, reduction, counted)
    if importance is None:
        return reduce_loss(each, reduction, counted)
    total = importance.sum()
    # No division where the sum has no terms.
    return reduce_loss(each, "sum", counted) / torch.where(total == 0, 1.0, total)


# The Kullback-Leibler divergence between two softmax distributions.


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
    logits. An outcome that the target excludes (-inf) adds nothing; torch's gives NaN there. Where
    the prediction excludes what the target allows, the exact divergence is infinite; here the
    prediction's logarithm counts as that of the smallest normal number (-87.3 in float32), with no
    gradient. Distributions where the mask is false are ignored.
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
    return reduce_loss((p * apart).sum(dim), reduction, mask)


# The focal loss: cross entropy with less weight on samples that are already right.


def focal(
    logits: Tensor,
    target: Tensor,
    *,
    gamma: float = 2.0,
    alpha: float | Tensor | None = None,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
) -> Tensor:
    """(1 - p)^gamma times the cross entropy, where p is the probability of the correct class.

    Floating-point targets in the shape of the logits: one yes or no each, by sigmoid; `alpha`
    weighs yes, 1 - alpha no. Integer targets: one of the classes along dimension 1, by softmax;
    `alpha` weighs each class, as a tensor, or all of them. Where all labels are ignored it is 0.

    Exact: 1 - p is computed from logits, in logarithms, so that it stays accurate when p
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
    return reduce_loss(each, reduction, counted)


def _binary(
    logits: Tensor, target: Tensor, gamma: float, alpha: float | Tensor | None, reduction: Reduction
) -> Tensor:
    yes, no = F.logsigmoid(logits), F.logsigmoid(-logits)
    # log(1 - p) of "yes" is log p of "no", and the other way round.
    for_yes = -target * torch.exp(gamma * no) * yes
    for_no = -(1 - target) * torch.exp(gamma * yes) * no
    if alpha is None:
        return reduce_loss(for_yes + for_no, reduction)
    return reduce_loss(alpha * for_yes + (1 - alpha) * for_no, reduction)


# The token loss with the right denominator, over micro-batches and ranks.

# A mean per micro-batch, averaged over micro-batches and ranks, gives a token of a short batch
# more weight than one of a long batch. The gradient of the whole batch needs one denominator for
# all of them: the number of tokens that count, over all micro-batches and ranks.


def count_tokens(
    labels: Tensor | Iterable[Tensor],
    *,
    ignore_index: int = -100,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """How many labels count, over all the micro-batches given and all ranks.

    One small all-reduce where torch.distributed is initialised: every rank of the group must call.
    """
    several = [labels] if isinstance(labels, Tensor) else list(labels)
    if not several:
        raise ValueError("no labels: a rank without any gives an empty tensor on its device")
    count = torch.stack([(item != ignore_index).sum() for item in several]).sum()
    if _ranks(group) > 1:
        dist.all_reduce(count, group=group)
    return count


def masked_token_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    tokens: int | Tensor | None = None,
    gradients: Literal["averaged", "summed"] = "averaged",
    group: dist.ProcessGroup | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Cross entropy summed over this rank's tokens, over the number of tokens everywhere.

    `logits` are (..., classes), `labels` (...). `tokens` is the number of tokens that count in the
    whole update, over micro-batches and ranks: `count_tokens([...])` of its micro-batches. Without
    it, these labels are all of this rank's update, and the count is summed over the ranks.

    `gradients` says how the gradients of the ranks are combined: "averaged", as
    DistributedDataParallel and FSDP do, or "summed". Averaging divides by the number of ranks once
    too often, so the loss is multiplied by it. The mean (or sum) of the losses over the ranks,
    added up over the micro-batches, is the loss of the whole batch. Do not divide by the number of
    micro-batches.

    If all labels are ignored, the loss is 0 with gradient 0. Class weights change the sum and
    not the denominator.
    """
    if logits.shape[:-1] != labels.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}: logits have the "
            "labels' shape and then the classes"
        )
    if gradients not in ("averaged", "summed"):
        raise ValueError(f"gradients is {gradients!r}: it is 'averaged' or 'summed'")
    if tokens is None:
        tokens = count_tokens(labels, ignore_index=ignore_index, group=group)
    total = cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        weight=weight,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
        reduction="sum",
    )
    if gradients == "averaged":
        total = total * _ranks(group)
    divisor = torch.as_tensor(tokens, device=total.device)
    return total / divisor.clamp_min(1)


def _ranks(group: dist.ProcessGroup | None) -> int:
    ready = dist.is_available() and dist.is_initialized()
    return dist.get_world_size(group) if ready else 1
