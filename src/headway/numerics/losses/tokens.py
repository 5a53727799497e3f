"""The token loss with the right denominator, over micro-batches and ranks.

A mean per micro-batch, averaged over micro-batches and ranks, weighs a token of a short batch more
than one of a long batch. The gradient of the whole batch needs one denominator for all of them: the
number of tokens that count, everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from headway.numerics.losses.cross_entropy import cross_entropy


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
    it the labels given here are the whole of this rank's update, and the ranks are asked.

    `gradients` says what becomes of the ranks' gradients: "averaged", as DistributedDataParallel
    and FSDP do, or "summed". Averaging divides by the number of ranks once too often, so the loss
    is multiplied by it. The mean (or sum) of the losses over the ranks, added up over the
    micro-batches, is the loss of the big batch. Do not divide by the number of micro-batches.

    Where nothing counts anywhere the loss is 0 with gradient 0. Class weights change the sum and
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
