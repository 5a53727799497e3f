"""Origins in backward: the forward op whose slope is infinite there."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from headway.explain.origin.bad_call import (
    BadCall,
    OriginKind,
    count_true,
    expand_to_output,
    float_arguments,
    format_number,
    format_share_are,
    nonfinite_mask,
    note_eps_in_float16,
)

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
