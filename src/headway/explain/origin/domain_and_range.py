"""Origins outside a function's domain (log, sqrt, pow, acos) or beyond the range of the dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headway.explain.origin.bad_call import (
    BadCall,
    OriginKind,
    count_infinite_scalars,
    count_true,
    dtype_name,
    expand_to_output,
    float_arguments,
    format_number,
    format_share,
    format_share_are,
    is_or_are,
    is_overwritten,
    largest_number,
    nonfinite_mask,
    note_eps_in_float16,
)
from headway.torch_adapters.compat import map_nested, nested_leaves

# Inputs outside the domain of a function, or at its boundary: log, sqrt, pow, acos.

LOG_OF = {"log": 0, "log2": 0, "log10": 0, "log1p": 0, "xlogy": 1, "xlog1py": 1, "entr": 0}
"""Position of the argument of the logarithm."""
INVERSES = ("acos", "asin", "atanh", "acosh", "erfinv")


def classify_log(call: BadCall) -> OriginKind | None:
    value, edge = call.argument(LOG_OF[call.op]), -1 if "log1p" in call.op else 0
    negative, zero, lowest = torch.isnan(call.output), torch.isinf(call.output), ""
    if not is_overwritten(call, value):
        of = expand_to_output(value, call.output)
        negative, zero = negative & (of < edge), zero & (of == edge)
        lowest = f", minimum {format_number(float(of.min()))}"
    if count_true(negative):
        return OriginKind(
            "log-of-negative",
            f"{call.op} of a negative value: {format_share_are(negative)} below {edge}{lowest}",
        )
    if not count_true(zero):
        return None
    return OriginKind(
        "log-of-zero",
        f"{call.op} of {edge}: {format_share_are(zero)} exactly {edge}, and "
        f"{call.op}({edge}) is -inf" + note_eps_in_float16(call.output.dtype),
    )


def classify_logit(call: BadCall) -> OriginKind | None:
    value = call.argument(0)
    if is_overwritten(call, value):
        edge, outside = torch.isinf(call.output), torch.isnan(call.output)
    else:
        edge, outside = (value == 0) | (value == 1), (value < 0) | (value > 1)
    if count_true(outside):
        return OriginKind(
            "log-of-negative",
            f"logit outside its domain: {format_share_are(outside)} outside [0, 1]",
        )
    if not count_true(edge):
        return None
    return OriginKind(
        "log-of-zero",
        f"logit of 0 or 1: {format_share_are(edge)} exactly 0 or 1, where log(p / (1 - p)) is "
        "infinite",
    )


def classify_sqrt(call: BadCall) -> OriginKind | None:
    value = call.argument(0)
    gone = is_overwritten(call, value)
    below = torch.isnan(call.output) if gone else value < 0
    if count_true(below):
        lowest = "" if gone else f", minimum {format_number(float(value[below].min()))}"
        return OriginKind(
            "sqrt-of-negative",
            f"{call.op} of a negative value: {format_share_are(below)} below 0{lowest}",
        )
    zero = torch.isinf(call.output) if gone else value == 0
    if call.op != "rsqrt" or not count_true(zero):
        return None
    return OriginKind(
        "division-by-zero",
        f"rsqrt of 0: {format_share_are(zero)} exactly 0, and 1/sqrt(0) is inf"
        + note_eps_in_float16(call.output.dtype),
    )


def classify_power(call: BadCall) -> OriginKind | None:
    base, exponent = call.argument(0), call.argument(1)
    if is_overwritten(call, base):
        base = math.nan  # only the exponent and the result are left
    of, to = expand_to_output(base, call.output), expand_to_output(exponent, call.output)
    bad = ~torch.isfinite(call.output)
    zero = bad & (of == 0) & (to < 0)
    if count_true(zero):
        return OriginKind(
            "pow-singular",
            f"0 to a negative power: {format_share_are(zero)} exactly 0, and 0 ** "
            f"{format_number(float(to[zero][0]))} is inf",
        )
    negative = torch.isnan(call.output) & (of < 0) & (to != torch.trunc(to))
    if not count_true(negative):
        return None
    return OriginKind(
        "pow-singular",
        f"a negative value to a fractional power: {format_share_are(negative)} below 0, minimum "
        f"{format_number(float(of[negative].min()))}, exponent "
        f"{format_number(float(to[negative][0]))}",
    )


def classify_gamma(call: BadCall) -> OriginKind | None:
    """lgamma, digamma: infinite at 0 and at negative integers."""
    value = call.argument(0)
    if is_overwritten(call, value):
        return None
    pole = ~torch.isfinite(call.output) & (value <= 0) & (value == torch.trunc(value))
    if not count_true(pole):
        return None
    first = format_number(float(value[pole][0]))
    return OriginKind(
        "log-of-zero" if call.op == "lgamma" else "division-by-zero",
        f"{call.op} at a pole of the gamma function: {format_share_are(pole)} 0 or a negative "
        f"integer, and {call.op}({first}) is infinite",
    )


def classify_determinant(call: BadCall) -> OriginKind | None:
    """slogdet of a singular matrix."""
    singular = torch.isneginf(call.output)
    if not count_true(singular):
        return None
    return OriginKind(
        "log-of-zero",
        f"log of a determinant of 0: {format_share_are(singular, 'matrices')} singular, and log(0) "
        "is -inf",
    )


def classify_inverse(call: BadCall) -> OriginKind | None:
    value = call.argument(0)
    if is_overwritten(call, value):
        return None
    name, bad = call.op, ~torch.isfinite(call.output)
    outside = bad & ((value < 1) if name == "acosh" else (value.abs() > 1))
    if count_true(outside):
        furthest = value[outside][value[outside].abs().argmax()]
        domain = "below 1" if name == "acosh" else "outside [-1, 1]"
        return OriginKind(
            "acos-at-one",
            f"{name} outside its domain: {format_share_are(outside)} {domain}, such as "
            f"{float(furthest):.9g} ({dtype_name(value.dtype)})",
        )
    edge = bad & (value.abs() == 1)
    if not count_true(edge):
        return None
    return OriginKind(
        "acos-at-one",
        f"{name} at the boundary of its domain: {format_share_are(edge)} exactly 1 or -1, where "
        f"{name} is infinite",
    )


# Results beyond the range of their dtype; float64 gives the exact ones.

_PLAIN = frozenset(("mul", "add", "sub", "sum", "mean", "mm", "bmm", "addmm", "pow", "square"))
"""Ops for which finite inputs and an infinite result can only mean overflow."""
_FORMS = ("_{}", "native_{}", "linalg_{}", "special_{}", "{}_forward")
_ALIASES = {
    "norm": ("linalg_vector_norm",),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), ("convolution",)),
}
_GROWTH = {"exp": math.e, "expm1": math.e, "exp2": 2.0, "sinh": math.e, "cosh": math.e}


def classify_exponential(call: BadCall) -> OriginKind | None:
    value, limit = call.argument(0), largest_number(call.output.dtype)
    past = torch.isinf(call.output)
    if not count_true(past):
        return None
    base = _GROWTH[call.op]
    edge = math.log(limit) / math.log(base)
    over = f"{call.op} overflows {dtype_name(call.output.dtype)}"
    where = f"above its maximum of {format_number(limit)}"
    if is_overwritten(call, value):
        return OriginKind(
            "exp-overflow",
            f"{over}: {format_share(past, 'results')} {is_or_are(count_true(past))} {where}",
        )
    if not torch.isfinite(value[past]).all():
        return None
    largest = float(value[past].abs().max())
    digits = largest * math.log10(base)
    exact = format_number(base**largest) if digits < 300 else f"10**{digits:.0f}"
    return OriginKind(
        "exp-overflow",
        f"{over}: {call.op}({format_number(largest)}) is {exact}, {where} ({format_share(past)} "
        f"{is_or_are(count_true(past))} above {format_number(edge)})",
    )


def classify_overflow(call: BadCall) -> OriginKind | None:
    """Any op: the result is finite in float64 only, or too large for float64 too."""
    if not call.output.is_floating_point() or _infinite_inputs(call):
        return None
    bad, limit = nonfinite_mask(call.output), largest_number(call.output.dtype)
    name = dtype_name(call.output.dtype)
    shown = "the conversion" if call.op in ("to", "to_copy", "copy") else call.op
    exact = _in_float64(call)
    if exact is None or count_true(nonfinite_mask(exact[bad])):
        if call.op not in _PLAIN or count_true(torch.isnan(call.output)):
            return None
        return OriginKind(
            "overflow",
            f"{shown} overflows {name}: {format_share_are(bad, 'results')} above its maximum of "
            f"{format_number(limit)}",
        )
    largest = float(exact[bad].abs().max())
    if largest > limit * (1 - torch.finfo(call.output.dtype).eps):
        what = (
            f"the largest result is {format_number(largest)}, above its maximum of "
            f"{format_number(limit)}"
        )
    else:
        what = (
            f"the result would be {format_number(largest)}, but an intermediate value is above its "
            f"maximum of {format_number(limit)}"
        )
    return OriginKind(
        "overflow",
        f"{shown} overflows {name}: {what} ({format_share(bad, 'results')}; recomputed in float64)",
    )


def classify_attention(call: BadCall) -> OriginKind | None:
    """Fused attention: recompute the scores in float64 and compare them with the dtype."""
    query, key = (call.argument(position).double() for position in (0, 1))
    scores = query @ key.transpose(-2, -1)
    scale = call.kwargs.get("scale") or query.shape[-1] ** -0.5
    largest, limit = float((scores * scale).abs().max()), largest_number(call.output.dtype)
    if largest <= limit:
        return None
    return OriginKind(
        "overflow",
        f"attention scores overflow {dtype_name(call.output.dtype)}: the largest is "
        f"{format_number(largest)}, above its maximum of {format_number(limit)} "
        "(recomputed in float64)",
    )


def _infinite_inputs(call: BadCall) -> bool:
    return count_infinite_scalars(call) > 0 or any(
        not is_overwritten(call, value) and count_true(nonfinite_mask(value))
        for value in float_arguments(call)
    )


def _in_float64(call: BadCall) -> Tensor | None:
    """The output, recomputed in float64."""
    if any(is_overwritten(call, value) for value in float_arguments(call)):
        return None
    args, kwargs = map_nested(_doubled, (call.args, dict(call.kwargs)))
    device = call.output.device.type
    for function in _functions(call.op):
        try:
            with torch.no_grad(), torch.autocast(device, enabled=False):
                made = function(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        results = [
            result
            for result in nested_leaves(made)
            if isinstance(result, Tensor) and result.shape == call.output.shape
        ]
        if results:
            return min(results, key=lambda result: _distance(result, call.output))
    return None


def _distance(exact: Tensor, output: Tensor) -> float:
    """Largest difference where both are finite: selects one of several results."""
    known = torch.isfinite(output) & torch.isfinite(exact)
    if not count_true(known):
        return 0.0
    return float((exact[known] - output[known].to(exact.dtype)).abs().max())


def _functions(op: str) -> Iterator[Any]:
    """Candidate aten functions for an op name, without those that draw random numbers."""
    for name in (op, *(form.format(op) for form in _FORMS), *_ALIASES.get(op, ())):
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        tags = {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}
        if torch.Tag.nondeterministic_seeded not in tags:
            yield packet


def _doubled(value: Any) -> Any:
    """A copy in float64: some ops write to their arguments."""
    if isinstance(value, Tensor):
        return value.to(torch.float64, copy=True) if value.is_floating_point() else value.clone()
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value
