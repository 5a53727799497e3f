"""What a loss function is given: its arguments, facts about their values, and the activation that
made the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.preflight.observer import TorchCall
from headway.torch_adapters.autograd_graph import (
    input_metadata,
    next_nodes,
    node_kind,
    ops_with_role,
    saved_value,
)
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.op_schema import CLASS_LOSSES, REDUCTION_POSITION

# Which activation a prediction comes straight from, seen through reshapes and the like.

_ACTIVATIONS = {
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Sigmoid": "sigmoid",
    "Hardsigmoid": "sigmoid",
    "Tanh": "tanh",
    "Relu": "relu",
}
_SAME_VALUES, _PARTS = ops_with_role("value"), ops_with_role("part")
MOST_ACTIVATION_STEPS = 12


@dataclass(frozen=True, slots=True)
class OutputActivation:
    """An activation and how a tensor was taken from its output."""

    activation: str
    node: Any
    whole: bool
    """Nothing was cut out of it: what sums to 1 there does so here."""

    @property
    def dim(self) -> int | None:
        """The axis of a softmax, counted from the front."""
        dim = saved_value(self.node, "dim")
        shape = self.shape
        if not isinstance(dim, int) or not shape:
            return None
        if dim >= 1 << 63:  # a negative number, kept without its sign
            dim -= 1 << 64
        return dim % len(shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the activation's output."""
        described = input_metadata(self.node)
        return tuple(described[0].shape) if described else ()


def find_output_activation(tensor: Tensor) -> OutputActivation | None:
    """The activation whose output this tensor is, if it is one's."""
    node, whole = tensor.grad_fn, True
    for _ in range(MOST_ACTIVATION_STEPS):
        if node is None:
            return None
        name = node_kind(node)
        if name in _ACTIVATIONS:
            return OutputActivation(_ACTIVATIONS[name], node, whole)
        if name in _PARTS:
            whole = False
        elif name not in _SAME_VALUES:
            return None
        followed = next_nodes(node)
        if len({following.name() for following in followed}) != 1:
            return None
        whole = whole and len(followed) == 1
        node = followed[0]
    return None


# Whether logits are clipped at 0 on their way to the loss: such a number has no gradient.

_NO_SLOPE_BELOW_0 = {
    "Relu": "relu",
    "Threshold": "relu",
    "Clamp": "clamp",
    "ClampMin": "clamp",
    "Hardtanh": "relu6",
}


@dataclass(frozen=True, slots=True)
class ClippedOutput:
    """A clip at 0 and the share of numbers that it clips."""

    name: str
    node: Any
    share: float


def find_clipped_output(tensor: Tensor) -> ClippedOutput | None:
    """The op that clips a prediction at 0, below a log_softmax and reshapes."""
    node = tensor.grad_fn
    for _ in range(MOST_ACTIVATION_STEPS):
        if node is None:
            return None
        kind = node_kind(node)
        if kind in _NO_SLOPE_BELOW_0:
            low = saved_value(node, "min", "min_val")
            if kind in ("Relu", "Threshold") or low == 0:
                share = _clipped_share(node)
                return (
                    None if share is None else ClippedOutput(_NO_SLOPE_BELOW_0[kind], node, share)
                )
        if kind not in _SAME_VALUES and kind != "LogSoftmax":
            return None
        followed = next_nodes(node)
        if len(followed) != 1:
            return None
        node = followed[0]
    return None


def _clipped_share(node: Any) -> float | None:
    values = saved_value(node, "result", "self")
    if not isinstance(values, Tensor) or not values.numel():
        return None
    return float((sample_elements(values) <= 0).double().mean())


# What a call of a loss function was given, whatever the function and however it was passed.

_BY_NUMBER = {0: "none", 1: "mean", 2: "sum"}
LOSSES: tuple[Callable[..., Any], ...] = find_aliases(*REDUCTION_POSITION)


@dataclass(frozen=True, slots=True)
class LossArguments:
    """The arguments that all loss functions share."""

    function: str
    prediction: Tensor
    target: Tensor
    reduction: str
    ignore_index: int
    weighted: bool
    log_target: bool

    @classmethod
    def of(cls, call: TorchCall) -> LossArguments | None:
        """None where prediction or target is no tensor."""
        prediction, target = call.argument(0, "input"), call.argument(1, "target")
        if not isinstance(prediction, Tensor) or not isinstance(target, Tensor):
            return None
        name = call.name
        of_classes = name in CLASS_LOSSES
        ignore = call.argument(4, "ignore_index", -100) if of_classes else -100
        second = of_classes or name.startswith("binary")
        weight = call.argument(2, "weight") if second else call.kwargs.get("weight")
        return cls(
            name,
            prediction,
            target,
            _reduction(call),
            ignore if isinstance(ignore, int) else -100,
            isinstance(weight, Tensor),
            call.kwargs.get("log_target") is True,
        )

    @property
    def labels(self) -> bool:
        """Whether the targets are class ids."""
        whole = not self.target.is_floating_point() and not self.target.is_complex()
        return self.function in CLASS_LOSSES and whole

    @property
    def class_axis(self) -> int:
        """The axis of the prediction along which the classes lie."""
        if self.function in CLASS_LOSSES:
            return 1 if self.prediction.ndim > 1 else 0
        return self.prediction.ndim - 1


def _reduction(call: TorchCall) -> str:
    if call.kwargs.get("size_average") is False or call.kwargs.get("reduce") is False:
        return "sum" if call.kwargs.get("reduce") is not False else "none"
    said = call.argument(REDUCTION_POSITION.get(call.name, 99), "reduction", "mean")
    return _BY_NUMBER.get(said, "mean") if isinstance(said, int) else str(said)


# What can be said about the tensors that meet in a loss: shapes, ranges, what they look like.

MOST_ROWS = 256
"""Rows looked at: what is true of a loss's input is true of every row."""
MOST_ELEMENTS = 1 << 20


def dtype_of(tensor: Tensor) -> str:
    """`float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def describe_tensor(tensor: Tensor) -> dict[str, Any]:
    """Shape, dtype and range."""
    facts: dict[str, Any] = {"shape": list(tensor.shape), "dtype": dtype_of(tensor)}
    values = sample_elements(tensor)
    if values.numel():
        low, high = (float(bound) for bound in values.aminmax())
        if math.isfinite(low) and math.isfinite(high):
            facts |= {"low": low, "high": high}
    return facts


def sample_elements(tensor: Tensor) -> Tensor:
    """The values of a tensor as float64; of a huge one, some of every part."""
    flat = tensor.detach().reshape(-1)
    if flat.numel() > MOST_ELEMENTS:
        flat = flat[:: flat.numel() // MOST_ELEMENTS + 1]
    return flat.to(torch.float64)


def sample_rows(tensor: Tensor, axis: int) -> Tensor:
    """Rows along an axis, at most `MOST_ROWS`, spread over the tensor."""
    if tensor.ndim == 0:
        return tensor.detach().reshape(1, 1).to(torch.float64)
    flat = tensor.detach().movedim(axis, -1)
    flat = flat.reshape(-1, flat.shape[-1])
    if flat.shape[0] > MOST_ROWS:
        flat = flat[:: flat.shape[0] // MOST_ROWS + 1]
    return flat.to(torch.float64)


def rounding_tolerance(tensor: Tensor) -> float:
    """How far a sum of probabilities may be from 1 in this precision."""
    return 1e-3 if tensor.dtype in (torch.float32, torch.float64) else 2e-2


def sums_to_one(tensor: Tensor, axis: int) -> bool:
    """Whether every row is a distribution over at least two classes."""
    found = sample_rows(tensor, axis)
    if found.shape[-1] < 2 or not found.numel() or bool((found < -1e-6).any()):
        return False
    return bool(((found.sum(-1) - 1).abs() < rounding_tolerance(tensor)).all())


def are_log_probabilities(tensor: Tensor, axis: int) -> bool:
    """Whether every row is the logarithm of a distribution."""
    found = sample_rows(tensor, axis)
    if not found.numel():
        return False
    return bool((found.logsumexp(-1).abs() < max(rounding_tolerance(tensor), 1e-2)).all())


def share_of_odd_rows(tensor: Tensor, axis: int) -> float:
    """The share of rows that are neither a distribution nor empty."""
    found = sample_rows(tensor, axis)
    if not found.numel():
        return 0.0
    total = found.sum(-1)
    odd = ((total - 1).abs() > 0.02) & (total.abs() > 1e-6)
    return float(odd.double().mean())


def share_outside(tensor: Tensor, low: float, high: float, *, masked: bool = False) -> float:
    """The share of values that lie outside a range by more than a hair.

    Where a mask may follow (`masked`), one single value outside among others inside stands for
    "unknown", and none is.
    """
    values = sample_elements(tensor)
    values = values[values.isfinite()]
    if not values.numel():
        return 0.0
    slack = 0.01 * (high - low) if math.isfinite(high - low) else 1e-3
    outside = (values < low - slack) | (values > high + slack)
    if masked and bool(outside.any()):
        stands_for_unknown = values[outside].unique().numel() == 1
        if stands_for_unknown and values.unique().numel() > 2:
            return 0.0
    return float(outside.double().mean())


def broadcast_size(one: Tensor, other: Tensor) -> int | None:
    """How many numbers come out where two shapes meet; None where they cannot."""
    try:
        return math.prod(int(size) for size in torch.broadcast_shapes(one.shape, other.shape))
    except RuntimeError:
        return None


def is_crossed_broadcast(one: Tensor, other: Tensor) -> bool:
    """(N, 1) meets (N): each prediction is compared with every target.

    Pairs on purpose are written with as many axes on both sides: (B, N, 1) against (B, 1, N).
    """
    if one.shape == other.shape:
        return False
    if tuple(d for d in one.shape if d != 1) != tuple(d for d in other.shape if d != 1):
        return False
    if one.ndim == other.ndim and one.ndim > 2:
        return False
    size = broadcast_size(one, other)
    return size is not None and size > max(one.numel(), other.numel())


def find_repeated_side(prediction: Tensor, target: Tensor, batch: set[int]) -> str:
    """The side of a regression loss whose numbers are used several times: "prediction", "target",
    or "" for neither.

    A prediction (N, 1) meets targets (N, 4) or (N, N), or (1, C) meets (N, C) although the model
    was given N rows; a single target (1, 1) meets predictions (N, 1). A target with a graph (the
    centre of a cluster) is no target.
    """
    one, other = tuple(prediction.shape), tuple(target.shape)
    if target.requires_grad:
        return ""
    if len(one) == 1:
        return "prediction" if other == one * 2 and one[0] > 1 else ""
    if len(one) != len(other):
        return ""
    differing = [axis for axis in range(len(one)) if one[axis] != other[axis]]
    if differing and all(one[axis] == 1 for axis in differing):
        same_rows = len(one) == 2 and 0 not in differing and one[0] > 1  # else pairs are meant
        lost_rows = differing == [0] and other[0] in batch
        return "prediction" if same_rows or lost_rows else ""
    return "target" if differing == [0] and target.numel() == 1 else ""


# The torch functions that a loss is made with, by name.

REDUCTION_NAMES = (
    "mean", "sum", "norm", "vector_norm", "logsumexp",
)  # fmt: skip
ARITHMETIC_NAMES = (
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "true_divide", "neg", "__rsub__",
)  # fmt: skip
READ_NAMES = (
    "item", "__float__", "__format__", "tolist", "numpy", "__array__",
)  # fmt: skip
