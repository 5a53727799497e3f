"""Notes on the graph what `reach.py` needs and the graph does not keep.

The constants of sums and products, the line of every activation, and which tensors models gave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from headway.preflight.loss_zone import note
from headway.preflight.observer import Call, Observer
from headway.preflight.reach import CONSTANT, OUTPUT
from headway.preflight.spellings import spellings
from headway.torch_tools.nested import tensors_in

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


class OutputReach(Observer):
    """Writes notes, tells nothing."""

    functions = spellings(*_ARITHMETIC, *_ACTIVATIONS)

    def start(self) -> None:
        self._arithmetic = frozenset(spellings(*_ARITHMETIC))

    def module_ended(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        if self.scene.step < STEPS and len(self.scene.stack) == 1:
            for _, item in tensors_in(output):
                note(item, OUTPUT, True)

    def function_ended(self, call: Call) -> None:
        result = call.result
        if self.scene.step >= STEPS or not isinstance(result, Tensor) or result.grad_fn is None:
            return
        if call.function not in self._arithmetic:
            note(result, "made_at", self.scene.place())
            stack = self.scene.stack
            if stack and type(stack[-1]).__module__.startswith("torch.nn"):
                note(result, "made_in", type(stack[-1]).__name__)
            return
        if len(call.args) != 2 or set(call.kwargs) - {"rounding_mode"}:
            return
        constants = [
            item for item in call.args if not isinstance(item, Tensor) or not item.requires_grad
        ]
        if len(constants) == 1:
            ends = _range(constants[0])
            if ends is not None:
                note(result, CONSTANT, ends)


def _range(constant: Any) -> tuple[float, float] | None:
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
