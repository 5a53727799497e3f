"""An op's schema: which arguments it mutates, views or overwrites, its tensors, and its name as
users write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# The loss functions of torch.nn.functional.

CLASS_LOSSES = ("cross_entropy", "nll_loss")
"""Losses whose prediction has a class axis; they have an `ignore_index`."""
BINARY_LOSSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
REGRESSION_LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
TASK_LOSSES = (*CLASS_LOSSES, *BINARY_LOSSES, *REGRESSION_LOSSES)
REDUCTION_POSITION = {
    **dict.fromkeys(CLASS_LOSSES, 6),
    **dict.fromkeys(BINARY_LOSSES, 5),
    **dict.fromkeys(REGRESSION_LOSSES, 4),
    "huber_loss": 2,
    "kl_div": 4,
    "soft_margin_loss": 4,
    "poisson_nll_loss": 7,
    "gaussian_nll_loss": 5,
}
"""Position of `reduction` in the losses that compare a prediction with a target elementwise."""
LOSS_NAMES = (
    *REDUCTION_POSITION, "ctc_loss", "cosine_embedding_loss", "triplet_margin_loss",
    "triplet_margin_with_distance_loss", "margin_ranking_loss", "hinge_embedding_loss",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
)  # fmt: skip
"""All loss functions."""

# Ops under the names that people write.

_USERS = {
    "to_copy": "to",
    "lift_fresh": "tensor",
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


def name_set(words: str) -> frozenset[str]:
    """A set of names, written one after the other."""
    return frozenset(words.split())


def bare_name(name: str) -> str:
    """aten's name without leading underscores and the one of an in-place op."""
    name = name.lstrip("_")
    return name[:-1] if name.endswith("_") else name


def user_op_name(aten: str, module: type | None = None, dims: int = 0) -> str:
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


# What an op's schema says about how numbers flow through it, read once per op.

# Their results do not depend on the numbers in the tensors they are given.
_SHAPE_ONLY = name_set(
    "empty empty_like empty_strided empty_permuted empty_quantized new_empty "
    "new_empty_strided zeros zeros_like new_zeros ones ones_like new_ones full full_like "
    "new_full scalar_tensor rand rand_like randn randn_like randint randint_like arange "
    "linspace eye"
)
_UNINITIALISED = name_set(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided"
)
# In-place ops that leave nothing of what was there.
_OVERWRITES = name_set(
    "copy fill zero normal uniform random exponential bernoulli cauchy geometric "
    "log_normal foreach_copy foreach_zero"
)
_COLLECTIVE = frozenset(("c10d", "c10d_functional", "_c10d_functional"))
# Views that do not say so.
_SHARES_MEMORY = name_set(
    "unsafe_view reshape_alias unsafe_split unsafe_split_with_sizes unsafe_chunk"
)
_CHOOSES = name_set("where masked_fill nan_to_num masked_scatter")
# `lift_fresh` is how `torch.tensor(…)` comes into being.
_CONSTANT = name_set("lift_fresh full full_like new_full scalar_tensor")


@dataclass(frozen=True, slots=True)
class OpSchema:
    """The effects of an op on its arguments."""

    aten: str
    """The name in `BadCall`: without overload, leading underscore and in-place underscore."""
    arguments: tuple[str, ...] = ()
    mutated: frozenset[str] = frozenset()
    """Arguments that it changes."""
    overwrites: bool = False
    """Nothing of what they held is left."""
    view: bool = False
    """Only hands on memory that is there already."""
    shape_only: bool = False
    constant: bool = False
    """Makes a tensor of what is written in the code."""
    uninitialised: bool = False
    chooses: bool = False
    """Leaves out some of what it is given."""
    pointwise: bool = False
    """Every element of the result depends on those at its own position."""
    collective: bool = False
    """What it writes may come from another rank, and later."""


PASSED_OVER = OpSchema("passed over")
"""Stands for every op of a part of the step that a trace passes over."""

_known: dict[int, tuple[Any, OpSchema]] = {}
"""By the identity of an op, with the op itself: its own hash is a Python function."""


def read_schema(func: Any) -> OpSchema:
    """The facts of an op as it is dispatched."""
    found = _known.get(id(func))
    if found is None:
        found = _known[id(func)] = (func, _parse_schema(func))
    return found[1]


def op_name(func: Any) -> str:
    """The name of an op without namespace and overload: `allreduce_`."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return str(getattr(func, "__name__", func)).partition(".")[0]
    return str(schema.name).rpartition("::")[2]


def _parse_schema(func: Any) -> OpSchema:
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order op: what it does inside is its own affair
        return OpSchema(bare_name(str(getattr(func, "__name__", func))))
    namespace, _, name = schema.name.rpartition("::")
    aten = bare_name(name)
    mutated = frozenset(
        argument.name
        for argument in schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    aliased = [given.alias_info is not None for given in schema.returns]
    is_out = "out" in mutated or any(
        argument.name in mutated and getattr(argument, "is_out", False)
        for argument in schema.arguments
    )
    return OpSchema(
        aten=aten,
        arguments=tuple(argument.name for argument in schema.arguments),
        mutated=mutated,
        overwrites=is_out or (bool(mutated) and aten in _OVERWRITES),
        view=not mutated and (any(aliased) or aten in _SHARES_MEMORY) and aten not in _CONSTANT,
        shape_only=aten in _SHAPE_ONLY or aten in _CONSTANT,
        constant=aten in _CONSTANT,
        uninitialised=aten in _UNINITIALISED,
        chooses=aten in _CHOOSES,
        pointwise=torch.Tag.pointwise in func.tags,
        collective=namespace in _COLLECTIVE,
    )


def tensor_arguments(
    facts: OpSchema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors an op was given, by the names of its arguments."""
    known = len(facts.arguments)
    for position, value in enumerate(args):
        name = facts.arguments[position] if position < known else f"argument {position}"
        yield from _named_tensors(name, value)
    for name, value in kwargs.items():
        yield from _named_tensors(name, value)


def _named_tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            if isinstance(item, Tensor):
                yield f"{name}[{position}]", item
