"""Infinities that are meant: masks, and what is written in the code."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from headway.replay.finiteness import NEGATIVE
from headway.replay.op_names import names

SOFTMAXES = names(
    "softmax log_softmax safe_softmax masked_softmax logsumexp logcumsumexp "
    "efficient_attention_forward flash_attention_forward native_multi_head_attention"
)
SELECTS = names(
    "nll_loss_forward nll_loss2d_forward cross_entropy_loss gather index index_select "
    "take masked_select embedding kl_div ctc_loss"
)
"""Ops that pick elements: one that picks a masked element is to blame, not the mask."""
REDUCES = names("sum mean logsumexp amax max amin min prod linalg_vector_norm dot var std mse_loss")


def is_softmax(aten: str) -> bool:
    """Whether an op cannot bear a row in which everything is masked."""
    return aten in SOFTMAXES or aten.startswith("scaled_dot_product")


def has_literal(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an infinity stands among the arguments as a number."""
    return any(math.isinf(number) for number in _numbers((*args, *kwargs.values())))


def is_mask(tensor: Tensor, flags: int) -> bool:
    """Whether all its elements are 0 or −inf, and both are there."""
    if flags != NEGATIVE:
        return False
    nothing = tensor == 0
    return bool(nothing.any()) and bool((nothing | (tensor == -math.inf)).all())


def is_leaf_mask(tensor: Tensor, flags: int, role: str) -> bool:
    """The same for a tensor that was there before; a buffer with −inf is hardly anything else."""
    if role == "buffer" and flags == NEGATIVE and tensor.numel() > 1:
        return bool(torch.isfinite(tensor).any())
    return role != "weight" and is_mask(tensor, flags)


def _numbers(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        if isinstance(value, float):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from (item for item in value if isinstance(item, float))
