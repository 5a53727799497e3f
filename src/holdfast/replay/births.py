"""Why an op turned finite numbers into a non-finite one: the kinds of birth, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from holdfast.replay.explanation import Operand, Phase


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


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of birth."""

    name: str
    """`division-by-zero`."""
    cause: str
    """What happened, in a sentence with the numbers of this case."""


def explain(call: BadCall) -> Kind:
    """Which kind of birth it is."""
    return Kind("unknown", f"{call.op} made a non-finite number of finite ones")


def explain_leaf(operand: Operand) -> Kind:
    """The kind of a birth that no op of the step made: the tensor came bad."""
    return Kind(f"poisoned-{operand.role}", f"{operand.name} holds NaN or Inf already")
