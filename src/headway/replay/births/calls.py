"""What an explanation is made from, and what it is: the bad call, and the kind of its birth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from headway.replay.explanation import Operand, Phase

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
class Kind:
    """A kind of birth."""

    name: str
    """`division-by-zero`."""
    cause: str
    """What happened, in a sentence or two with the numbers of this case."""
