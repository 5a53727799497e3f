"""The call in which a non-finite value originates, and derivatives that are infinite."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.explain.explanation import INPUT_CONTAINS, Operand, Phase

# The op at the moment its output turned bad, the kinds of origin, and helpers that count elements
# and format numbers.

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
    "masked-nan",
    "poisoned-batch",
    "poisoned-weight",
    "poisoned-buffer",
    "carried-state",
    "uninitialised-memory",
)
"""Names of the kinds, besides `unknown`."""


@dataclass(frozen=True, slots=True)
class BadCall:
    """An op whose output is non-finite, with its arguments as they were dispatched."""

    op: str
    """`log`, `div`, `mm`: aten's name without overload, leading underscore and trailing in-place
    underscore."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Tensor
    """The first non-finite output."""
    phase: Phase = "forward"
    node: str | None = None
    """The autograd node that was running, in backward: `SqrtBackward0`."""
    forward_op: str | None = None
    """The forward op of that node."""
    inputs: tuple[Operand, ...] = ()
    """The tensors among the arguments, described."""
    deliberate: bool = False
    """The infinities among its inputs were written on purpose (a mask), not computed."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def argument(self, position: int, name: str = "", default: Any = None) -> Any:
        """An argument, by position or by keyword."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class OriginKind:
    """A kind of origin."""

    name: str
    """`division-by-zero`."""
    cause: str
    """What happened, with the numbers of this case, in one or two sentences."""


# Tensors that are non-finite before any op of the step reads them.


def classify_leaf(operand: Operand) -> OriginKind:
    """The kind of an origin that no op of the step made."""
    name, story = _LEAF_CAUSES.get(
        operand.role, ("unknown", "{name} already contains {what} before the step uses it")
    )
    cause = story.format(name=operand.name, what=_describe_bad(operand))
    # One without a name.
    cause = cause.replace("constant, a constant in the code,", "a constant in the code", 1)
    return OriginKind(name, f"{cause}: {_count_bad(operand)}")


_LEAF_CAUSES = {
    "batch": ("poisoned-batch", f"{INPUT_CONTAINS} {{what}} when it leaves the DataLoader"),
    "data": ("poisoned-batch", f"{INPUT_CONTAINS} {{what}} before the step reads it"),
    "weight": ("poisoned-weight", "parameter {name} already contains {what} from an earlier step"),
    "buffer": ("poisoned-buffer", "buffer {name} already contains {what} from an earlier step"),
    "carried": ("carried-state", "{name}, created in an earlier step, already contains {what}"),
    "uninitialised": (
        "uninitialised-memory",
        "{name} is uninitialised memory (torch.empty), read before it is written, and contains "
        "{what}",
    ),
    "constant": ("unknown", "{name}, a constant in the code, is {what}"),
}


def classify_masked(operand: Operand) -> OriginKind:
    """NaN in the data that is masked only after it was used."""
    return OriginKind(
        "masked-nan",
        f"{_count_bad(operand)} are NaN and are masked after this op: the loss excludes them, "
        "but in backward 0 · NaN is NaN. Mask them before it",
    )


_NAMED_BY_COUNT = frozenset(("batch", "data"))
"""Roles whose cause names the tensor with the count: the headline begins with the sample."""


def _describe_bad(operand: Operand) -> str:
    found = [what for count, what in ((operand.nan, "NaN"), (operand.inf, "Inf")) if count]
    return " and ".join(found) or "NaN or Inf"


def _count_bad(operand: Operand) -> str:
    """`1 of 128 values in batch[0] (float32 [16, 8])`."""
    many = math.prod(operand.shape)
    counts = [str(count) for count in (operand.nan, operand.inf) if count]
    where = ""
    if operand.role in _NAMED_BY_COUNT:  # a variable of the script, or an expression of the batch
        where = f" in `{operand.name}`" if operand.role == "data" else f" in {operand.name}"
    share = f"{' and '.join(counts) or 'some'} of {many} value{'' if many == 1 else 's'}"
    return f"{share}{where} ({_shape(operand)})"


def _shape(operand: Operand) -> str:
    return f"{operand.dtype.removeprefix('torch.')} {list(operand.shape)}"


# Counts and numbers as text.


def format_number(value: float) -> str:
    """A short number: `65504`, `0.25`, `3.403e+38`."""
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
    """`3 of 640 inputs`."""
    return f"{count_true(mask)} of {mask.numel()} {what}"


def is_or_are(count: int) -> str:
    return "is" if count == 1 else "are"


def format_share_are(mask: Tensor, what: str = "inputs") -> str:
    """`3 of 640 inputs are`."""
    return f"{format_share(mask, what)} {is_or_are(count_true(mask))}"


def nonfinite_mask(tensor: Tensor) -> Tensor:
    return ~torch.isfinite(tensor)


def float_arguments(call: BadCall) -> list[Tensor]:
    """The floating-point tensors among the arguments, also inside lists."""
    found: list[Tensor] = []
    waiting: list[Any] = [*call.args, *call.kwargs.values()]
    for value in waiting:  # grows while it is walked through
        if isinstance(value, Tensor) and value.is_floating_point():
            found.append(value)
        elif isinstance(value, (list, tuple)):
            waiting.extend(value)
    return found


def count_infinite_scalars(call: BadCall) -> int:
    """Number of arguments that are infinite Python floats."""
    return sum(isinstance(value, float) and math.isinf(value) for value in call.args)


def is_overwritten(call: BadCall, value: Any) -> bool:
    """Whether the op overwrote this argument with its output."""
    return (
        isinstance(value, Tensor)
        and value.layout == call.output.layout == torch.strided
        and value.untyped_storage().data_ptr() == call.output.untyped_storage().data_ptr()
    )


def expand_to_output(value: Any, output: Tensor) -> Tensor:
    """An argument of an elementwise op, expanded to the shape of the output."""
    tensor = value if isinstance(value, Tensor) else torch.tensor(value, device=output.device)
    return tensor.to(output.device).expand(output.shape)


def note_eps_in_float16(dtype: torch.dtype) -> str:
    """Why a small eps does not help in float16; empty for other dtypes."""
    if dtype != torch.float16:
        return ""
    return "; in float16 values below 3e-08 become 0, so an eps of 1e-08 has no effect"


# Origins in backward: the derivative of the forward op is infinite.

_NODE = re.compile(r"(?P<stem>\w+?)Backward\d+")  # a user's own Function has no number
_HIDDEN = (
    ". The incoming gradient is exactly 0 there, as behind torch.where or a mask, but 0 · inf is "
    "NaN."
)

_SLOPES: dict[str, tuple[str, str]] = {
    "sqrt": ("sqrt-at-zero", "the derivative of sqrt is infinite at 0"),
    "rsqrt": ("division-by-zero", "the input of rsqrt is 0"),
    "pow": ("pow-singular", "the derivative of x ** p is infinite at 0 for p < 1"),
    "log": ("log-of-zero", "the derivative of log is 1/0 at 0"),
    "log2": ("log-of-zero", "the derivative of log2 is 1/0 at 0"),
    "log10": ("log-of-zero", "the derivative of log10 is 1/0 at 0"),
    "log1p": ("log-of-zero", "the derivative of log1p is 1/0 at -1"),
    "xlogy": ("log-of-zero", "the derivative of x·log(y) is x/0 at y = 0"),
    "logit": ("log-of-zero", "the derivative of logit is 1/0 at 0 and 1"),
    "entr": ("log-of-zero", "the derivative of -p·log(p) is infinite at p = 0"),
    "binarycrossentropy": (
        "log-of-zero",
        "the derivative of binary cross entropy with respect to its target is log(p / (1 - p)), "
        "infinite at 0 and 1",
    ),
    "div": ("division-by-zero", "the divisor is 0"),
    "reciprocal": ("division-by-zero", "the derivative of 1/x is infinite at 0"),
    "acos": ("acos-at-one", "the derivative of acos is infinite at 1 and -1 and undefined beyond"),
    "asin": ("acos-at-one", "the derivative of asin is infinite at 1 and -1 and undefined beyond"),
    "atanh": ("acos-at-one", "the derivative of atanh is infinite at 1 and -1"),
    "acosh": ("acos-at-one", "the derivative of acosh is infinite at 1 and undefined below"),
    "erfinv": ("acos-at-one", "the derivative of erfinv is infinite at 1 and -1"),
    "std": ("std-singular", "the derivative of std is infinite if all values are equal"),
    "var": ("std-singular", "the input of var is a single value"),
    "stdmean": ("std-singular", "the derivative of std is infinite if all values are equal"),
    "varmean": ("std-singular", "the input of var is a single value"),
    "linalgvectornorm": ("norm-at-zero", "the derivative of a norm is undefined at a zero vector"),
    "norm": ("norm-at-zero", "the derivative of a norm is undefined at a zero vector"),
    "hypot": ("norm-at-zero", "the derivative of hypot is undefined at (0, 0)"),
    "weightnorminterface": ("norm-at-zero", "a zero vector is divided by its norm"),
    "cdist": ("norm-at-zero", "the derivative of a distance is undefined if both points are equal"),
    "euclideandist": (
        "norm-at-zero",
        "the derivative of a distance is undefined if both points are equal",
    ),
    "exp": ("exp-overflow", "exp overflowed to inf"),
    "exp2": ("exp-overflow", "exp2 overflowed to inf"),
    "expm1": ("exp-overflow", "expm1 overflowed to inf"),
    "logsumexp": (
        "masked-softmax-row",
        "the input of logsumexp has a row that is all -inf, and -inf - -inf is NaN",
    ),
    "linalgeigh": (
        "division-by-zero",
        "two eigenvalues are equal, and the derivative of the eigenvectors (eigh) divides by "
        "their difference",
    ),
    "linalgeig": (
        "division-by-zero",
        "two eigenvalues are equal, and the derivative of the eigenvectors (eig) divides by "
        "their difference",
    ),
    "linalgsvd": (
        "division-by-zero",
        "two singular values are equal, or one is 0, and the derivative of the SVD divides by "
        "their difference",
    ),
    "nllloss": ("mean-of-nothing", "the mean is over 0 labels"),
    "nativelayernorm": ("std-singular", "all normalised values are equal, and eps is 0"),
    "nativegroupnorm": ("std-singular", "all normalised values are equal, and eps is 0"),
}
_HIDEABLE = frozenset(
    ("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "logit", "div", "reciprocal")
) | {"exp", "exp2", "expm1"}
"""Ops whose backward multiplies or divides the gradient by the singular value."""
_CHAINED = frozenset(("logit", "nllloss", "weightnorminterface", "nativelayernorm"))
"""Ops whose backward is a single op: no argument of it shows the 0 or infinity."""


def classify_slope(call: BadCall) -> OriginKind | None:
    """Classify by the autograd node that was running."""
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
        why = f"the derivative of x ** {format_number(call.argument(1) + 1)} is infinite at 0"
    bad = nonfinite_mask(call.output) if at is None else at
    return OriginKind(
        name,
        f"in backward, {why}: {format_share_are(bad, 'elements')} affected"
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
    """Mask of the elements where a 0 or infinite argument makes the result bad; None if none."""
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
    """Whether a finite argument is so large that the result is an overflow."""
    limit = float(torch.finfo(call.output.dtype).max) ** 0.5
    return any(count_true(value.abs() > limit) for value in float_arguments(call))


def _hidden(call: BadCall) -> bool:
    """Whether a gradient of exactly 0 becomes NaN."""
    if call.op not in ("mul", "div") or len(float_arguments(call)) < 2:
        return False
    spread = [expand_to_output(value, call.output) for value in float_arguments(call)[:2]]
    nothing = [value == 0 for value in spread]
    if call.op == "div":
        lost = nothing[0] & nothing[1]
    else:
        lost = nothing[0] & torch.isinf(spread[1]) | nothing[1] & torch.isinf(spread[0])
    return count_true(torch.isnan(call.output) & lost) > 0
