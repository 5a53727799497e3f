"""Counting in tensors, and numbers in words."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headway.replay.births.calls import BadCall


def figure(value: float) -> str:
    """A number as people write it: `65504`, `0.25`, `3.403e+38`."""
    if math.isfinite(value) and abs(value) < 1e6 and value == int(value):
        return str(int(value))
    return f"{value:.4g}"


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def maximum(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max)


def how_many(mask: Tensor) -> int:
    return int(mask.sum())


def share(mask: Tensor, what: str = "inputs") -> str:
    """`3 of 640 inputs`, with the verb's number left to `are`."""
    return f"{how_many(mask)} of {mask.numel()} {what}"


def are(count: int) -> str:
    return "is" if count == 1 else "are"


def share_are(mask: Tensor, what: str = "inputs") -> str:
    """`3 of 640 inputs are`."""
    return f"{share(mask, what)} {are(how_many(mask))}"


def nonfinite(tensor: Tensor) -> Tensor:
    return ~torch.isfinite(tensor)


def floats(call: BadCall) -> list[Tensor]:
    """The floating-point tensors among the arguments, also inside of lists."""
    found: list[Tensor] = []
    waiting: list[Any] = [*call.args, *call.kwargs.values()]
    for value in waiting:  # grows while it is walked through
        if isinstance(value, Tensor) and value.is_floating_point():
            found.append(value)
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
    return found


def infinite_scalars(call: BadCall) -> int:
    """How many of the arguments are infinities written as plain numbers."""
    return sum(isinstance(value, float) and math.isinf(value) for value in call.args)


def overwritten(call: BadCall, value: Any) -> bool:
    """Whether the op wrote its output over this argument, whose numbers are gone then."""
    return (
        isinstance(value, Tensor)
        and value.layout == call.output.layout == torch.strided
        and value.untyped_storage().data_ptr() == call.output.untyped_storage().data_ptr()
    )


def beside(value: Any, output: Tensor) -> Tensor:
    """An argument of an elementwise op, spread out to the shape of the output."""
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, device=output.device)
    return tensor.to(output.device).expand(output.shape)


def too_small_for_half(dtype: torch.dtype) -> str:
    """Why an epsilon did not help, where it cannot."""
    if dtype != torch.float16:
        return ""
    return "; float16 turns anything below 3e-08 into 0, an epsilon of 1e-08 among them"
