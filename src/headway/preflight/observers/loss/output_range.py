"""What values an output can take: the range of the formula behind it, read from its graph."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor, nn

from headway.preflight.observer import Observer, TorchCall
from headway.torch_adapters.autograd_graph import node_kind, ops_with_role, saved_value
from headway.torch_adapters.compat import find_aliases
from headway.torch_adapters.loss_graph import add_note, read_note
from headway.torch_adapters.nested_state import find_tensors

# What values an output can take: the range of the formula behind it, read from its graph.

# Layers can give any number. What follows them (activations, squares, clamps, factors, offsets)
# narrows that down, and each step of it is followed as an interval. Numbers that the graph does
# not keep are noted on its nodes by the observer below.

Interval: TypeAlias = tuple[float, float]

CONSTANT, OUTPUT = "constant", "model-output"
"""What is noted on nodes: the other operand's range, and that a model gave it."""
ANYTHING: Interval = (-math.inf, math.inf)
MOST_NODES = 200
_SAME = ops_with_role("range")
_JOINED = ("Cat", "Stack", "Where")
_KEEPS_SIGN = ("Sum", "Cumsum", "Logcumsumexp", "NativeDropout", "UpsampleBilinear2D")
_FIXED: dict[str, Interval] = {
    "Softmax": (0.0, 1.0),
    "LogSoftmax": (-math.inf, 0.0),
    "LogSigmoid": (-math.inf, 0.0),
    "Sigmoid": (0.0, 1.0),
    "Hardsigmoid": (0.0, 1.0),
    "Tanh": (-1.0, 1.0),
    "Erf": (-1.0, 1.0),
    "Sin": (-1.0, 1.0),
    "Cos": (-1.0, 1.0),
    "Atan": (-math.pi / 2, math.pi / 2),
    "Gelu": (-0.171, math.inf),
    "Silu": (-0.279, math.inf),
    "Mish": (-0.31, math.inf),
    "Hardswish": (-0.376, math.inf),
    "Softplus": (0.0, math.inf),
    "LinalgVectorNorm": (0.0, math.inf),
    "Norm": (0.0, math.inf),
    "Logsumexp": ANYTHING,
}
"""The same for every input."""
_BOUNDING = (
    "Abs", "Celu", "Clamp", "ClampMax", "ClampMin", "Elu", "Exp", "Expm1", "Hardtanh", "Pow",
    "Relu", "Sqrt", "Threshold",
)  # fmt: skip
_OF_MODELS = (
    "Abs", "Atan", "Clamp", "ClampMax", "ClampMin", "Cos", "Erf", "LinalgVectorNorm", "Maximum",
    "Minimum", "Norm", "Pow", "Sin", "Sqrt",
)  # fmt: skip
"""These bound an output only inside a model; in a formula after it they are part of the loss."""
_NAMES = {
    "LinalgVectorNorm": "norm", "LogSigmoid": "logsigmoid", "LogSoftmax": "log_softmax",
    "Pow": "power", "ClampMin": "clamp", "ClampMax": "clamp", "Threshold": "relu",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The range of an output, and what bounds it."""

    low: float
    high: float
    made_by: str
    node: Any
    """The one that bounds it."""

    @property
    def ends(self) -> Interval:
        return (self.low, self.high)


def find_value_range(tensor: Tensor) -> ValueRange | None:
    """The range of what a tensor can be; None where that is any number."""
    walk = _RangeWalk()
    low, high = walk.interval(tensor.grad_fn)
    if (low, high) == ANYTHING or low > high or walk.made_by is None:
        return None
    return ValueRange(low, high, walk.made_by, walk.node)


class _RangeWalk:
    def __init__(self) -> None:
        self._known: dict[Any, Interval] = {}
        self._in_model = False
        self.made_by: str | None = None
        self.node: Any = None

    def interval(self, node: Any, depth: int = 0) -> Interval:
        if node is None or depth > 40 or len(self._known) > MOST_NODES:
            return ANYTHING
        if node in self._known:
            return self._known[node]
        self._known[node] = ANYTHING
        self._in_model = self._in_model or bool(read_note(node, OUTPUT))
        kind = node_kind(node)
        found = self._of(node, kind, depth)
        if any(math.isnan(end) for end in found):
            found = ANYTHING
        self._known[node] = found
        return found

    def _of(self, node: Any, kind: str, depth: int) -> Interval:
        if kind in _OF_MODELS and not self._in_model:
            return ANYTHING
        if kind in _FIXED:
            if _FIXED[kind] != ANYTHING:
                self._bounded(node, kind)
            return _FIXED[kind]
        below = [(item, at) for at, (item, _) in enumerate(node.next_functions) if item is not None]
        if kind in _JOINED:
            if kind == "Where" and len(below) < 2:
                return ANYTHING  # the other one is a constant that nobody noted
            return _union([self.interval(item, depth + 1) for item, _ in below])
        if kind in ("Add", "Sub", "Mul", "Div", "Maximum", "Minimum"):
            return self._of_two(node, kind, below, depth)
        if len(below) != 1:
            return ANYTHING
        bounds = _BOUNDS.get(kind)
        if kind in _BOUNDING:
            # Named before what lies below it: the nearest to the end is the one to be mended.
            self._bounded(node, kind)
        inner = self.interval(below[0][0], depth + 1)
        if kind in _SAME:
            return inner
        if kind in _KEEPS_SIGN:
            return (min(inner[0], 0.0) * math.inf if inner[0] < 0 else 0.0, _up(inner[1]))
        if kind == "Rsub":
            constant = read_note(node, CONSTANT)
            return ANYTHING if constant is None else _minus(constant, inner)
        return ANYTHING if bounds is None else bounds(node, inner)

    def _of_two(
        self, node: Any, kind: str, below: Sequence[tuple[Any, int]], depth: int
    ) -> Interval:
        if len(below) == 2:
            one, other = (self.interval(item, depth + 1) for item, _ in below)
            if kind == "Mul" and below[0][0] is below[1][0] and self._in_model:
                self._bounded(node, "square")
                return _square(one)
        else:
            constant = read_note(node, CONSTANT)
            if constant is None or len(below) != 1:
                return ANYTHING
            inner = self.interval(below[0][0], depth + 1)
            one, other = (inner, constant) if below[0][1] == 0 else (constant, inner)
            if kind in ("Maximum", "Minimum"):
                self._bounded(node, kind)
        return _PAIRS[kind](one, other)

    def _bounded(self, node: Any, kind: str) -> None:
        if self.made_by is None:
            self.made_by, self.node = _NAMES.get(kind, kind.lower()), node


def _up(end: float) -> float:
    return math.inf if end > 0 else 0.0


def _union(found: Sequence[Interval]) -> Interval:
    if not found:
        return ANYTHING
    return (min(low for low, _ in found), max(high for _, high in found))


def _plus(one: Interval, other: Interval) -> Interval:
    return (one[0] + other[0], one[1] + other[1])


def _minus(one: Interval, other: Interval) -> Interval:
    return (one[0] - other[1], one[1] - other[0])


def _times(one: Interval, other: Interval) -> Interval:
    ends = [0.0 if a == 0 or b == 0 else a * b for a in one for b in other]
    return (min(ends), max(ends))


def _over(one: Interval, other: Interval) -> Interval:
    if other[0] < 0 < other[1]:
        return ANYTHING
    return _times(one, _inverse(other))


def _inverse(given: Interval) -> Interval:
    low, high = given
    if low >= 0:
        return (0.0 if math.isinf(high) else 1 / high if high else math.inf, _one_over(low))
    if high <= 0:
        return (-_one_over(-high), 0.0 if math.isinf(low) else 1 / low)
    return ANYTHING


def _one_over(end: float) -> float:
    return math.inf if end == 0 else 1 / end


def _square(given: Interval) -> Interval:
    low, high = given
    largest = max(low * low, high * high)
    return (0.0 if low <= 0 <= high else min(low * low, high * high), largest)


def _power(node: Any, given: Interval) -> Interval:
    exponent = saved_value(node, "exponent")
    if isinstance(exponent, bool) or not isinstance(exponent, (int, float)) or exponent <= 0:
        return ANYTHING
    if exponent == 2:
        return _square(given)
    return (0.0, math.inf) if exponent % 2 == 0 or given[0] >= 0 else ANYTHING


def _exp(end: float) -> float:
    return math.inf if end > 700 else math.exp(end)


def _clamped(node: Any, given: Interval) -> Interval:
    low = _number(node, "min", "min_val")
    high = _number(node, "max", "max_val")
    low = given[0] if low is None else max(given[0], low)
    high = given[1] if high is None else min(given[1], high)
    return (low, max(low, high))


def _number(node: Any, *names: str) -> float | None:
    for name in names:
        value = saved_value(node, name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def _elu(node: Any, given: Interval) -> Interval:
    alpha = _number(node, "alpha") or 1.0
    scale = _number(node, "scale") or 1.0
    return (max(given[0], -alpha) * scale, math.inf)


def _log(end: float) -> float:
    return -math.inf if end <= 0 else math.log(end)


_BOUNDS: dict[str, Callable[[Any, Interval], Interval]] = {
    "Relu": lambda _, given: (max(given[0], 0.0), max(given[1], 0.0)),
    "Threshold": lambda _, given: (max(given[0], 0.0), max(given[1], 0.0)),
    "Elu": _elu,
    "Celu": _elu,
    "Clamp": _clamped,
    "ClampMin": _clamped,
    "ClampMax": _clamped,
    "Hardtanh": _clamped,
    "Exp": lambda _, given: (_exp(given[0]), _exp(given[1])),
    "Expm1": lambda _, given: (_exp(given[0]) - 1, _exp(given[1]) - 1),
    "Log": lambda _, given: (_log(given[0]), _log(given[1])),
    "Log1P": lambda _, given: (_log(given[0] + 1), _log(given[1] + 1)),
    "Abs": lambda _, given: (0.0, max(abs(given[0]), abs(given[1]))),
    "Pow": _power,
    "Sqrt": lambda _, given: (0.0, math.inf),
    "Neg": lambda _, given: (-given[1], -given[0]),
    "Reciprocal": lambda _, given: _inverse(given),
}
_PAIRS: dict[str, Callable[[Interval, Interval], Interval]] = {
    "Add": _plus,
    "Sub": _minus,
    "Mul": _times,
    "Div": _over,
    "Maximum": lambda one, other: (max(one[0], other[0]), max(one[1], other[1])),
    "Minimum": lambda one, other: (min(one[0], other[0]), min(one[1], other[1])),
}


# Notes on the nodes what the intervals need and the graph does not keep.

# The constants of sums and products, the line of every activation, and which tensors models gave.

STEPS = 5
MOST = 4096
"""Elements of a constant whose range is looked up."""
_ARITHMETIC = (
    "add", "add_", "__radd__", "sub", "sub_", "subtract", "rsub", "__rsub__", "mul", "mul_",
    "multiply", "__rmul__", "div", "div_", "divide", "true_divide", "__rdiv__", "__rtruediv__",
    "maximum", "minimum", "max", "min",
)  # fmt: skip
_ACTIVATIONS = (
    "softplus", "relu", "relu_", "relu6", "hardtanh", "tanh", "tanh_", "exp", "exp_", "expm1",
    "abs", "absolute", "square", "pow", "__pow__", "clamp", "clamp_", "clamp_min", "clip", "elu",
    "celu", "selu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "logsigmoid", "sin", "cos",
    "atan", "erf", "norm", "vector_norm", "sqrt", "threshold",
)  # fmt: skip


class OutputRange(Observer):
    """Writes notes; reports nothing."""

    functions = find_aliases(*_ARITHMETIC, *_ACTIVATIONS)
    calls_before = STEPS

    def start(self) -> None:
        self._arithmetic = frozenset(find_aliases(*_ARITHMETIC))

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if self.script.step < STEPS and len(self.script.stack) == 1:
            for _, item in find_tensors(output):
                add_note(item, OUTPUT, True)

    def function_ended(self, call: TorchCall) -> None:
        result = call.result
        if self.script.step >= STEPS or not isinstance(result, Tensor) or result.grad_fn is None:
            return
        if call.function not in self._arithmetic:
            add_note(result, "made_at", self.script.place())
            stack = self.script.stack
            if stack and type(stack[-1]).__module__.startswith("torch.nn"):
                add_note(result, "made_in", weakref.ref(stack[-1]))
            return
        if len(call.args) != 2 or set(call.kwargs) - {"rounding_mode"}:
            return
        constants = [
            item for item in call.args if not isinstance(item, Tensor) or not item.requires_grad
        ]
        if len(constants) == 1:
            ends = _bounds_of_call(constants[0])
            if ends is not None:
                add_note(result, CONSTANT, ends)


def _bounds_of_call(constant: Any) -> tuple[float, float] | None:
    if isinstance(constant, bool):
        return None
    if isinstance(constant, (int, float)):
        return (float(constant), float(constant)) if math.isfinite(constant) else None
    if not isinstance(constant, Tensor) or not 0 < constant.numel() <= MOST:
        return None
    if not constant.is_floating_point():
        return None
    low, high = (float(end) for end in constant.detach().aminmax())
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
