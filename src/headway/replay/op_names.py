"""Ops under the names that people write."""

from __future__ import annotations

from torch import nn

_USERS = {
    "to_copy": "to",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm",
    "native_batch_norm_legit": "batch_norm",
    "native_batch_norm_legit_no_training": "batch_norm",
    "batch_norm_with_update": "batch_norm",
    "cudnn_batch_norm": "batch_norm",
    "miopen_batch_norm": "batch_norm",
    "fused_rms_norm": "rms_norm",
    "native_dropout": "dropout",
    "safe_softmax": "softmax",
    "nll_loss_forward": "nll_loss",
    "nll_loss2d_forward": "nll_loss",
    "multi_margin_loss_forward": "multi_margin_loss",
    "ctc_loss": "ctc_loss",
    "cudnn_ctc_loss": "ctc_loss",
    "linalg_vector_norm": "norm",
    "embedding_bag_forward_only": "embedding_bag",
    "cdist_forward": "cdist",
    "euclidean_dist": "cdist",
    "pdist_forward": "pdist",
    "trilinear": "bilinear",
    "weight_norm_interface": "weight_norm",
    "prelu_kernel": "prelu",
    "log_sigmoid_forward": "logsigmoid",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d",
    "fft_r2c": "rfft",
    "fft_c2r": "irfft",
    "fft_c2c": "fft",
    "linalg_inv_ex": "linalg_inv",
    "linalg_solve_ex": "linalg_solve",
    "linalg_cholesky_ex": "linalg_cholesky",
    "linalg_lu_factor_ex": "linalg_lu_factor",
    "mkldnn_rnn_layer": "rnn",
    "cudnn_rnn": "rnn",
    "thnn_fused_lstm_cell": "lstm_cell",
    "thnn_fused_gru_cell": "gru_cell",
    "efficient_attention_forward": "scaled_dot_product_attention",
    "flash_attention_forward": "scaled_dot_product_attention",
}
_PRODUCTS = frozenset(("addmm", "mm", "bmm", "matmul", "mv", "dot", "add", "addmv", "linear"))
_CONVOLUTIONS = frozenset(("convolution", "mkldnn_convolution", "cudnn_convolution"))


def names(words: str) -> frozenset[str]:
    """A set of names, written one after the other."""
    return frozenset(words.split())


def bare(name: str) -> str:
    """aten's name without leading underscores and the one of an in-place op."""
    name = name.lstrip("_")
    return name[:-1] if name.endswith("_") else name


def users_op(aten: str, module: type | None = None, dims: int = 0) -> str:
    """The user's name of an op; `module` is what ran it, `dims` those of its first tensor."""
    if module is not None:
        if issubclass(module, nn.Linear) and aten in _PRODUCTS:
            return "linear"
        if issubclass(module, nn.RNNBase):
            return module.__name__.lower()
    if aten in _CONVOLUTIONS:
        return f"conv{dims - 2}d" if 3 <= dims <= 5 else "conv"
    if aten.startswith("scaled_dot_product"):
        return "scaled_dot_product_attention"
    return _USERS.get(aten, aten)
