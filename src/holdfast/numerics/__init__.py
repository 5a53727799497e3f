"""Numerics that do not go bad in the first place. Needs torch, and nothing else of holdfast.

    ops/            normalize, divide, sqrt, log, …: finite in value and gradient
    losses/         cross entropy, focal, KL, token losses over ranks, and how to combine them
    activations.py  which activation when, by torch's own names
    nway/           the contrastive loss of any number of views, along the lines that matter
    eps.py          the small number that goes with a dtype

The names below are loaded when first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.numerics.activations import ACTIVATIONS, Activation
    from holdfast.numerics.eps import eps_for
    from holdfast.numerics.losses.binary import (
        binary_cross_entropy,
        binary_cross_entropy_of_probabilities,
    )
    from holdfast.numerics.losses.combiner import LossCombiner, NonFiniteLoss
    from holdfast.numerics.losses.cross_entropy import cross_entropy
    from holdfast.numerics.losses.divergence import kl_divergence
    from holdfast.numerics.losses.focal import focal
    from holdfast.numerics.losses.latents import Scales, huber, mse
    from holdfast.numerics.losses.tokens import count_tokens, masked_token_loss
    from holdfast.numerics.nway.loss import nway_contrastive
    from holdfast.numerics.nway.module import NWayContrastive
    from holdfast.numerics.nway.temperature import Temperature
    from holdfast.numerics.ops.cosine import cosine_similarity
    from holdfast.numerics.ops.direction import normalize
    from holdfast.numerics.ops.division import divide
    from holdfast.numerics.ops.exponential import exp
    from holdfast.numerics.ops.length import norm
    from holdfast.numerics.ops.log_sum_exp import logsumexp
    from holdfast.numerics.ops.logarithm import log
    from holdfast.numerics.ops.masked_average import masked_mean
    from holdfast.numerics.ops.masked_shares import masked_log_softmax, masked_softmax
    from holdfast.numerics.ops.spread import std, var
    from holdfast.numerics.ops.square_root import sqrt

_HOMES = {
    "ACTIVATIONS": "holdfast.numerics.activations",
    "Activation": "holdfast.numerics.activations",
    "LossCombiner": "holdfast.numerics.losses.combiner",
    "NWayContrastive": "holdfast.numerics.nway.module",
    "NonFiniteLoss": "holdfast.numerics.losses.combiner",
    "Scales": "holdfast.numerics.losses.latents",
    "Temperature": "holdfast.numerics.nway.temperature",
    "binary_cross_entropy": "holdfast.numerics.losses.binary",
    "binary_cross_entropy_of_probabilities": "holdfast.numerics.losses.binary",
    "cosine_similarity": "holdfast.numerics.ops.cosine",
    "count_tokens": "holdfast.numerics.losses.tokens",
    "cross_entropy": "holdfast.numerics.losses.cross_entropy",
    "divide": "holdfast.numerics.ops.division",
    "eps_for": "holdfast.numerics.eps",
    "exp": "holdfast.numerics.ops.exponential",
    "focal": "holdfast.numerics.losses.focal",
    "huber": "holdfast.numerics.losses.latents",
    "kl_divergence": "holdfast.numerics.losses.divergence",
    "log": "holdfast.numerics.ops.logarithm",
    "logsumexp": "holdfast.numerics.ops.log_sum_exp",
    "masked_log_softmax": "holdfast.numerics.ops.masked_shares",
    "masked_mean": "holdfast.numerics.ops.masked_average",
    "masked_softmax": "holdfast.numerics.ops.masked_shares",
    "masked_token_loss": "holdfast.numerics.losses.tokens",
    "mse": "holdfast.numerics.losses.latents",
    "norm": "holdfast.numerics.ops.length",
    "normalize": "holdfast.numerics.ops.direction",
    "nway_contrastive": "holdfast.numerics.nway.loss",
    "sqrt": "holdfast.numerics.ops.square_root",
    "std": "holdfast.numerics.ops.spread",
    "var": "holdfast.numerics.ops.spread",
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
        raise AttributeError(f"module 'holdfast.numerics' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
