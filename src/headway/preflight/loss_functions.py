"""The torch functions that a loss is made with, by name."""

from __future__ import annotations

LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "ctc_loss",
    "cosine_embedding_loss", "triplet_margin_loss", "triplet_margin_with_distance_loss",
    "margin_ranking_loss", "gaussian_nll_loss", "poisson_nll_loss", "hinge_embedding_loss",
    "soft_margin_loss", "multi_margin_loss", "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
)  # fmt: skip
REDUCTIONS = (
    "mean", "sum", "norm", "vector_norm", "logsumexp",
)  # fmt: skip
ARITHMETIC = (
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "true_divide", "neg", "__rsub__",
)  # fmt: skip
READS = (
    "item", "__float__", "__format__", "tolist", "numpy", "__array__",
)  # fmt: skip
