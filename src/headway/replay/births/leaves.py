"""Numbers that were bad before any op of the step touched them."""

from __future__ import annotations

import math

from headway.replay.births.calls import Kind
from headway.replay.explanation import Operand


def explain_leaf(operand: Operand) -> Kind:
    """The kind of a birth that no op of the step made: the tensor came bad."""
    name, story = _STORIES.get(operand.role, ("unknown", "{name} was bad before the step used it"))
    return Kind(name, f"{story.format(name=operand.name)}: {_holds(operand)}")


_STORIES = {
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
