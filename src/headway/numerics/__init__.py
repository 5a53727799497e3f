"""Numerics that do not go bad in the first place. Needs torch, and nothing else of headway.

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
    from headway.numerics.activations import ACTIVATIONS, Activation
    from headway.numerics.eps import eps_for
    from headway.numerics.losses.binary import (
        binary_cross_entropy,
        binary_cross_entropy_of_probabilities,
    )
    from headway.numerics.losses.combiner import LossCombiner, NonFiniteLoss
    from headway.numerics.losses.cross_entropy import cross_entropy
    from headway.numerics.losses.divergence import kl_divergence
    from headway.numerics.losses.focal import focal
    from headway.numerics.losses.latents import Scales, huber, mse
    from headway.numerics.losses.tokens import count_tokens, masked_token_loss
    from headway.numerics.nway.loss import nway_contrastive
    from headway.numerics.nway.module import NWayContrastive
    from headway.numerics.nway.temperature import Temperature
    from headway.numerics.ops.cosine import cosine_similarity
    from headway.numerics.ops.direction import normalize
    from headway.numerics.ops.division import divide
    from headway.numerics.ops.exponential import exp
    from headway.numerics.ops.length import norm
    from headway.numerics.ops.log_sum_exp import logsumexp
    from headway.numerics.ops.logarithm import log
    from headway.numerics.ops.masked_average import masked_mean
    from headway.numerics.ops.masked_shares import masked_log_softmax, masked_softmax
    from headway.numerics.ops.spread import std, var
    from headway.numerics.ops.square_root import sqrt

_HOMES = {
    "ACTIVATIONS": "headway.numerics.activations",
    "Activation": "headway.numerics.activations",
    "LossCombiner": "headway.numerics.losses.combiner",
    "NWayContrastive": "headway.numerics.nway.module",
    "NonFiniteLoss": "headway.numerics.losses.combiner",
    "Scales": "headway.numerics.losses.latents",
    "Temperature": "headway.numerics.nway.temperature",
    "binary_cross_entropy": "headway.numerics.losses.binary",
    "binary_cross_entropy_of_probabilities": "headway.numerics.losses.binary",
    "cosine_similarity": "headway.numerics.ops.cosine",
    "count_tokens": "headway.numerics.losses.tokens",
    "cross_entropy": "headway.numerics.losses.cross_entropy",
    "divide": "headway.numerics.ops.division",
    "eps_for": "headway.numerics.eps",
    "exp": "headway.numerics.ops.exponential",
    "focal": "headway.numerics.losses.focal",
    "huber": "headway.numerics.losses.latents",
    "kl_divergence": "headway.numerics.losses.divergence",
    "log": "headway.numerics.ops.logarithm",
    "logsumexp": "headway.numerics.ops.log_sum_exp",
    "masked_log_softmax": "headway.numerics.ops.masked_shares",
    "masked_mean": "headway.numerics.ops.masked_average",
    "masked_softmax": "headway.numerics.ops.masked_shares",
    "masked_token_loss": "headway.numerics.losses.tokens",
    "mse": "headway.numerics.losses.latents",
    "norm": "headway.numerics.ops.length",
    "normalize": "headway.numerics.ops.direction",
    "nway_contrastive": "headway.numerics.nway.loss",
    "sqrt": "headway.numerics.ops.square_root",
    "std": "headway.numerics.ops.spread",
    "var": "headway.numerics.ops.spread",
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
