"""The op at the moment its output turned bad, the kinds of origin, and helpers that count elements
and format numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.explain.explanation import Operand, Phase

# What an explanation is made from, and what it is: the bad call, and the kind of its birth.

KINDS = (
    "division-by-zero",
    "zero-over-zero",
    "log-of-zero",
    "log-of-negative",
    "sqrt-of-negative",
    "sqrt-at-zero",
    "pow-singular",
    "overflow",
    "exp-overflow",
    "zero-times-infinity",
    "infinity-minus-infinity",
    "norm-at-zero",
    "std-singular",
    "acos-at-one",
    "masked-softmax-row",
    "mean-of-nothing",
    "masked-target",
    "poisoned-batch",
    "poisoned-weight",
    "poisoned-buffer",
    "carried-state",
    "uninitialised-memory",
)
"""Every name a kind may have, besides `unknown`."""


@dataclass(frozen=True, slots=True)
class BadCall:
    """An op at the moment its output turned bad: the tensors are alive, as they were dispatched."""

    op: str
    """`log`, `div`, `mm`: aten's name without overload, leading underscore and trailing in-place
    underscore."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Tensor
    """The first output that is bad."""
    phase: Phase = "forward"
    node: str | None = None
    """Autograd's node that was running, in backward: `SqrtBackward0`."""
    forward_op: str | None = None
    """The forward op of that node."""
    inputs: tuple[Operand, ...] = ()
    """The tensors among the arguments, described."""
    deliberate: bool = False
    """The infinities among its inputs were written on purpose (a mask), not computed."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """An argument, however it was passed."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class OriginKind:
    """A kind of birth."""

    name: str
    """`division-by-zero`."""
    cause: str
    """What happened, in a sentence or two with the numbers of this case."""


# Numbers that were bad before any op of the step touched them.


def classify_leaf(operand: Operand) -> OriginKind:
    """The kind of a birth that no op of the step made: the tensor came bad."""
    name, story = _LEAF_CAUSES.get(
        operand.role, ("unknown", "{name} was bad before the step used it")
    )
    return OriginKind(name, f"{story.format(name=operand.name)}: {_holds(operand)}")


_LEAF_CAUSES = {
    "batch": ("poisoned-batch", "the data came bad, in {name}, before the model touched it"),
    "data": ("poisoned-batch", "the data is bad, in `{name}`, before the step touched it"),
    "weight": ("poisoned-weight", "the parameter {name} is bad already, from an earlier update"),
    "buffer": ("poisoned-buffer", "the buffer {name} is bad already, from an earlier step"),
    "carried": ("carried-state", "{name} was made before this step and carried into it"),
    "uninitialised": (
        "uninitialised-memory",
        "{name} is memory that was allocated (torch.empty) and read before anything was written",
    ),
    "constant": ("unknown", "{name} is a constant of the code, and it is not a finite number"),
}


def _holds(operand: Operand) -> str:
    many = math.prod(operand.shape)
    parts = [
        f"{count} {what}"
        for count, what in ((operand.nan, "NaN"), (operand.inf, "infinite"))
        if count
    ]
    found = " and ".join(parts) or "NaN or Inf"
    return f"{found} of {many} number{'' if many == 1 else 's'}, {_shape(operand)}"


def _shape(operand: Operand) -> str:
    return f"{operand.dtype.removeprefix('torch.')} {list(operand.shape)}"


# Counting in tensors, and numbers in words.


def format_number(value: float) -> str:
    """A number as people write it: `65504`, `0.25`, `3.403e+38`."""
    if math.isfinite(value) and abs(value) < 1e6 and value == int(value):
        return str(int(value))
    return f"{value:.4g}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def largest_number(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max)


def count_true(mask: Tensor) -> int:
    return int(mask.sum())


def format_share(mask: Tensor, what: str = "inputs") -> str:
    """`3 of 640 inputs`, with the verb's number left to `are`."""
    return f"{count_true(mask)} of {mask.numel()} {what}"


def is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def format_share_are(mask: Tensor, what: str = "inputs") -> str:
    """`3 of 640 inputs are`."""
    return f"{format_share(mask, what)} {is_or_are(count_true(mask))}"


def nonfinite_mask(tensor: Tensor) -> Tensor:
    return ~torch.isfinite(tensor)


def float_arguments(call: BadCall) -> list[Tensor]:
    """The floating-point tensors among the arguments, also inside of lists."""
    found: list[Tensor] = []
    waiting: list[Any] = [*call.args, *call.kwargs.values()]
    for value in waiting:  # grows while it is walked through
        if isinstance(value, Tensor) and value.is_floating_point():
            found.append(value)
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
    return found


def count_infinite_scalars(call: BadCall) -> int:
    """How many of the arguments are infinities written as plain numbers."""
    return sum(isinstance(value, float) and math.isinf(value) for value in call.args)


def is_overwritten(call: BadCall, value: Any) -> bool:
    """Whether the op wrote its output over this argument, whose numbers are gone then."""
    return (
        isinstance(value, Tensor)
        and value.layout == call.output.layout == torch.strided
        and value.untyped_storage().data_ptr() == call.output.untyped_storage().data_ptr()
    )


def expand_to_output(value: Any, output: Tensor) -> Tensor:
    """An argument of an elementwise op, spread out to the shape of the output."""
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, device=output.device)
    return tensor.to(output.device).expand(output.shape)


def note_eps_in_float16(dtype: torch.dtype) -> str:
    """Why an epsilon did not help, where it cannot."""
    if dtype != torch.float16:
        return ""
    return "; float16 turns anything below 3e-08 into 0, an epsilon of 1e-08 among them"
