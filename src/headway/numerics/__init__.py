"""Ops and losses that stay finite in value and gradient. Needs torch, and nothing else of headway.

    ops/            normalize, divide, sqrt, log, …: finite in value and gradient; eps per dtype
    losses/         cross entropy, focal, KL, token losses over ranks, and how to combine them
    activations.py  when to use which activation, by torch's own names
    nway/           the exact contrastive loss over any number of modalities

The names below are imported when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.numerics.activations import ACTIVATIONS, Activation
    from headway.numerics.losses.classification import (
        binary_cross_entropy,
        binary_cross_entropy_of_probabilities,
        count_tokens,
        cross_entropy,
        focal,
        kl_divergence,
        masked_token_loss,
    )
    from headway.numerics.losses.regression import LossCombiner, NonFiniteLoss, Scales, huber, mse
    from headway.numerics.nway.contrastive_loss import (
        NWayContrastive,
        Temperature,
        nway_contrastive,
    )
    from headway.numerics.ops._shared import eps_for
    from headway.numerics.ops.elementwise import divide, exp, log, sqrt
    from headway.numerics.ops.mean_and_std import masked_mean, std, var
    from headway.numerics.ops.row_norms import cosine_similarity, norm, normalize
    from headway.numerics.ops.softmax_ops import logsumexp, masked_log_softmax, masked_softmax

_HOMES = {
    "ACTIVATIONS": "headway.numerics.activations",
    "Activation": "headway.numerics.activations",
    "LossCombiner": "headway.numerics.losses.regression",
    "NWayContrastive": "headway.numerics.nway.contrastive_loss",
    "NonFiniteLoss": "headway.numerics.losses.regression",
    "Scales": "headway.numerics.losses.regression",
    "Temperature": "headway.numerics.nway.contrastive_loss",
    "binary_cross_entropy": "headway.numerics.losses.classification",
    "binary_cross_entropy_of_probabilities": "headway.numerics.losses.classification",
    "cosine_similarity": "headway.numerics.ops.row_norms",
    "count_tokens": "headway.numerics.losses.classification",
    "cross_entropy": "headway.numerics.losses.classification",
    "divide": "headway.numerics.ops.elementwise",
    "eps_for": "headway.numerics.ops._shared",
    "exp": "headway.numerics.ops.elementwise",
    "focal": "headway.numerics.losses.classification",
    "huber": "headway.numerics.losses.regression",
    "kl_divergence": "headway.numerics.losses.classification",
    "log": "headway.numerics.ops.elementwise",
    "logsumexp": "headway.numerics.ops.softmax_ops",
    "masked_log_softmax": "headway.numerics.ops.softmax_ops",
    "masked_mean": "headway.numerics.ops.mean_and_std",
    "masked_softmax": "headway.numerics.ops.softmax_ops",
    "masked_token_loss": "headway.numerics.losses.classification",
    "mse": "headway.numerics.losses.regression",
    "norm": "headway.numerics.ops.row_norms",
    "normalize": "headway.numerics.ops.row_norms",
    "nway_contrastive": "headway.numerics.nway.contrastive_loss",
    "sqrt": "headway.numerics.ops.elementwise",
    "std": "headway.numerics.ops.mean_and_std",
    "var": "headway.numerics.ops.mean_and_std",
}

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "LossCombiner",
    "NWayContrastive",
    "NonFiniteLoss",
    "Scales",
    "Temperature",
    "binary_cross_entropy",
    "binary_cross_entropy_of_probabilities",
    "cosine_similarity",
    "count_tokens",
    "cross_entropy",
    "divide",
    "eps_for",
    "exp",
    "focal",
    "huber",
    "kl_divergence",
    "log",
    "logsumexp",
    "masked_log_softmax",
    "masked_mean",
    "masked_softmax",
    "masked_token_loss",
    "mse",
    "norm",
    "normalize",
    "nway_contrastive",
    "sqrt",
    "std",
    "var",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headway.numerics' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
