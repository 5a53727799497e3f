"""Binary cross entropy, from logits or from probabilities."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from headway.numerics.losses._reduce import Reduction, reduce, same_shape
from headway.numerics.ops._look import wide


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
    false count for nothing; if none counts, the mean is 0 with gradient 0.
    """
    same_shape(logits, target)
    inside = wide(logits)
    each = F.binary_cross_entropy_with_logits(
        inside, target.to(inside.dtype), weight, reduction="none", pos_weight=pos_weight
    )
    return reduce(each, reduction, mask)


def binary_cross_entropy_of_probabilities(
    probabilities: Tensor,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross entropy of *probabilities*; prefer `binary_cross_entropy` where logits exist.

    torch's own `binary_cross_entropy`, in float32 for half inputs. It is bent by torch: logarithms
    are at least -100, and the gradient divides by at least 1e-12. A float16 sigmoid is exactly 1
    from logits of 8 on, and nothing can bring back what is lost there: with logits nothing is lost.
    """
    same_shape(probabilities, target)
    inside = wide(probabilities)
    each = F.binary_cross_entropy(inside, target.to(inside.dtype), weight, reduction="none")
    return reduce(each, reduction, mask)
