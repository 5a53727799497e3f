"""The call in which a bad number originated, and backward passes with an infinite slope."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.explain.explanation import Operand, Phase

# The op at the moment its output turned bad, the kinds of origin, and helpers that count elements
# and format numbers.

# What an explanation is made from, and what it is: the bad call, and the kind of its origin.

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
    """A kind of origin."""

    name: str
    """`division-by-zero`."""
    cause: str
    """What happened, in a sentence or two with the numbers of this case."""


# Numbers that were bad before any op of the step touched them.


def classify_leaf(operand: Operand) -> OriginKind:
    """The kind of an origin that no op of the step made: the tensor came bad."""
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


# Origins in backward: the forward op whose slope is infinite there.

_NODE = re.compile(r"(?P<stem>\w+?)Backward\d+")  # a user's own Function has no number
_HIDDEN = (
    ". The gradient that arrives there is exactly 0, as where the forward value is hidden by "
    "torch.where or a mask; but 0 · inf is NaN."
)

_SLOPES: dict[str, tuple[str, str]] = {
    "sqrt": ("sqrt-at-zero", "the slope of sqrt is infinite at 0"),
    "rsqrt": ("division-by-zero", "rsqrt was taken of 0"),
    "pow": ("pow-singular", "the slope of x ** p is infinite at 0 for p below 1"),
    "log": ("log-of-zero", "log was taken of 0, where its slope is 1/0"),
    "log2": ("log-of-zero", "log2 was taken of 0, where its slope is 1/0"),
    "log10": ("log-of-zero", "log10 was taken of 0, where its slope is 1/0"),
    "log1p": ("log-of-zero", "log1p was taken of -1, where its slope is 1/0"),
    "xlogy": ("log-of-zero", "x·log(y) was taken of y = 0, where its slope is 1/0"),
    "logit": ("log-of-zero", "logit was taken of 0 or 1, where its slope is 1/0"),
    "entr": ("log-of-zero", "-p·log(p) was taken of p = 0, where its slope is infinite"),
    "binarycrossentropy": (
        "log-of-zero",
        "the slope of binary cross entropy by its target is log(p / (1 - p)), infinite at 0 and 1",
    ),
    "div": ("division-by-zero", "the division was by 0"),
    "reciprocal": ("division-by-zero", "1/x was taken of 0"),
    "acos": ("acos-at-one", "acos has an infinite slope at 1 and -1, and none beyond"),
    "asin": ("acos-at-one", "asin has an infinite slope at 1 and -1, and none beyond"),
    "atanh": ("acos-at-one", "atanh has an infinite slope at 1 and -1"),
    "acosh": ("acos-at-one", "acosh has an infinite slope at 1, and none below"),
    "erfinv": ("acos-at-one", "erfinv has an infinite slope at 1 and -1"),
    "std": ("std-singular", "the slope of std is infinite where the numbers are all the same"),
    "var": ("std-singular", "var was taken of a single number"),
    "stdmean": ("std-singular", "the slope of std is infinite where the numbers are all the same"),
    "varmean": ("std-singular", "var was taken of a single number"),
    "linalgvectornorm": ("norm-at-zero", "a norm has no slope at a vector of zeros"),
    "norm": ("norm-at-zero", "a norm has no slope at a vector of zeros"),
    "hypot": ("norm-at-zero", "hypot has no slope at (0, 0)"),
    "weightnorminterface": ("norm-at-zero", "a vector of zeros was divided by its norm"),
    "cdist": ("norm-at-zero", "a distance has no slope where two points are the same"),
    "euclideandist": ("norm-at-zero", "a distance has no slope where two points are the same"),
    "exp": ("exp-overflow", "exp had overflowed to inf"),
    "exp2": ("exp-overflow", "exp2 had overflowed to inf"),
    "expm1": ("exp-overflow", "expm1 had overflowed to inf"),
    "logsumexp": (
        "masked-softmax-row",
        "logsumexp was taken of a row that holds nothing but -inf, and -inf - -inf is NaN",
    ),
    "linalgeigh": (
        "division-by-zero",
        "two eigenvalues are the same, and the slope of the eigenvectors (eigh) divides by their "
        "difference",
    ),
    "linalgeig": (
        "division-by-zero",
        "two eigenvalues are the same, and the slope of the eigenvectors (eig) divides by their "
        "difference",
    ),
    "linalgsvd": (
        "division-by-zero",
        "two singular values are the same, or one is 0, and the slope of the SVD divides by "
        "their difference",
    ),
    "nllloss": ("mean-of-nothing", "the mean over the labels has none that counts"),
    "nativelayernorm": ("std-singular", "the numbers it normalised are all the same, with no eps"),
    "nativegroupnorm": ("std-singular", "the numbers it normalised are all the same, with no eps"),
}
_HIDEABLE = frozenset(
    ("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "logit", "div", "reciprocal")
) | {"exp", "exp2", "expm1"}
"""Whose backward takes the gradient itself times, or over, what is singular."""
_CHAINED = frozenset(("logit", "nllloss", "weightnorminterface", "nativelayernorm"))
"""Whose backward is one op of its own, with no 0 or infinity to be seen in the arguments."""


def classify_slope(call: BadCall) -> OriginKind | None:
    """By the node that was running."""
    stem = _stem(call)
    if stem not in _SLOPES:
        return None
    at = _singular(call)
    if at is None and _SLOPES[stem][0] == "acos-at-one" and count_true(torch.isnan(call.output)):
        at = torch.isnan(call.output)
    if at is None and (stem not in _CHAINED or _large(call)):
        return None
    name, why = _SLOPES[stem]
    if stem == "pow" and call.op == "pow" and isinstance(call.argument(1), (int, float)):
        why = f"the slope of x ** {format_number(call.argument(1) + 1)} is infinite at 0"
    bad = nonfinite_mask(call.output) if at is None else at
    return OriginKind(
        name,
        f"in backward, {why}: {format_share_are(bad, 'elements')} there"
        f"{note_eps_in_float16(call.output.dtype) if name != 'exp-overflow' else ''}"
        f"{_HIDDEN if stem in _HIDEABLE and _hidden(call) else ''}",
    )


def _stem(call: BadCall) -> str:
    """`linalgvectornorm` of `LinalgVectorNormBackward0`, or of `linalg_vector_norm`."""
    name = call.forward_op or ""
    if call.node is not None:
        match = _NODE.fullmatch(call.node)
        name = match["stem"] if match else ""
    return name.replace("_", "").lower().removeprefix("special")


def _singular(call: BadCall) -> Tensor | None:
    """Where an argument is 0 or infinite and the result bad for it; None if nowhere."""
    bad = nonfinite_mask(call.output)
    scalars = [value for value in call.args if isinstance(value, float)]
    for value in (*float_arguments(call), *scalars):
        try:
            spread = expand_to_output(value, call.output)
        except RuntimeError:  # not an elementwise op
            continue
        at = bad & ((spread == 0) | torch.isinf(spread) | (spread.abs() == 1) & _at_one(call))
        if count_true(at):
            return at
    return None


def _at_one(call: BadCall) -> bool:
    return call.op in ("logit", "erfinv", "logit_backward")


def _large(call: BadCall) -> bool:
    """Finite numbers near the limit: then it is an overflow, whatever the op."""
    limit = float(torch.finfo(call.output.dtype).max) ** 0.5
    return any(count_true(value.abs() > limit) for value in float_arguments(call))


def _hidden(call: BadCall) -> bool:
    """NaN from a gradient of exactly 0."""
    if call.op not in ("mul", "div") or len(float_arguments(call)) < 2:
        return False
    spread = [expand_to_output(value, call.output) for value in float_arguments(call)[:2]]
    nothing = [value == 0 for value in spread]
    if call.op == "div":
        lost = nothing[0] & nothing[1]
    else:
        lost = nothing[0] & torch.isinf(spread[1]) | nothing[1] & torch.isinf(spread[0])
    return count_true(torch.isnan(call.output) & lost) > 0
