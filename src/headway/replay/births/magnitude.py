"""Results past the largest number of their dtype; the true ones come from float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from headway.replay.births.calls import BadCall, Kind
from headway.replay.births.numbers import (
    are,
    dtype_name,
    figure,
    floats,
    how_many,
    infinite_scalars,
    maximum,
    nonfinite,
    overwritten,
    share,
)

_PLAIN = frozenset(("mul", "add", "sub", "sum", "mean", "mm", "bmm", "addmm", "pow", "square"))
"""Finite numbers in and an infinite one out leave only one reason."""
_FORMS = ("_{}", "native_{}", "linalg_{}", "special_{}", "{}_forward")
_ALIASES = {
    "norm": ("linalg_vector_norm",),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), ("convolution",)),
}
_GROWTH = {"exp": math.e, "expm1": math.e, "exp2": 2.0, "sinh": math.e, "cosh": math.e}


def exponential(call: BadCall) -> Kind | None:
    value, limit = call.argument(0), maximum(call.output.dtype)
    past = torch.isinf(call.output)
    if not how_many(past):
        return None
    base = _GROWTH[call.op]
    edge = math.log(limit) / math.log(base)
    over = f"{call.op} overflows {dtype_name(call.output.dtype)}"
    where = f"past its maximum of {figure(limit)}"
    if overwritten(call, value):
        return Kind(
            "exp-overflow", f"{over}: {share(past, 'results')} {are(how_many(past))} {where}"
        )
    if not torch.isfinite(value[past]).all():
        return None
    largest = float(value[past].abs().max())
    digits = largest * math.log10(base)
    exact = figure(base**largest) if digits < 300 else f"10**{digits:.0f}"
    return Kind(
        "exp-overflow",
        f"{over}: {call.op}({figure(largest)}) is {exact}, {where} ({share(past)} "
        f"{are(how_many(past))} above {figure(edge)})",
    )


def overflow(call: BadCall) -> Kind | None:
    """Any op: finite in float64 and not in its own dtype, or too large even for float64."""
    if not call.output.is_floating_point() or _infinite_inputs(call):
        return None
    bad, limit = nonfinite(call.output), maximum(call.output.dtype)
    name = dtype_name(call.output.dtype)
    shown = "the conversion" if call.op in ("to", "to_copy", "copy") else call.op
    exact = _in_float64(call)
    if exact is None or how_many(nonfinite(exact[bad])):
        if call.op not in _PLAIN or how_many(torch.isnan(call.output)):
            return None
        return Kind(
            "overflow",
            f"{shown} overflows {name}: {share(bad, 'results')} {are(how_many(bad))} past its "
            f"maximum of {figure(limit)}",
        )
    largest = float(exact[bad].abs().max())
    if largest > limit * (1 - torch.finfo(call.output.dtype).eps):
        what = f"the largest result is {figure(largest)}, past its maximum of {figure(limit)}"
    else:
        what = (
            f"the result would be {figure(largest)}, but a number on the way is past its maximum "
            f"of {figure(limit)}"
        )
    return Kind(
        "overflow",
        f"{shown} overflows {name}: {what} ({share(bad, 'results')}; recomputed in float64)",
    )


def attention(call: BadCall) -> Kind | None:
    """Fused attention: whether its scores fit, computed the long way."""
    query, key = (call.argument(position).double() for position in (0, 1))
    scores = query @ key.transpose(-2, -1)
    scale = call.kwargs.get("scale") or query.shape[-1] ** -0.5
    largest, limit = float((scores * scale).abs().max()), maximum(call.output.dtype)
    if largest <= limit:
        return None
    return Kind(
        "overflow",
        f"attention scores overflow {dtype_name(call.output.dtype)}: the largest is "
        f"{figure(largest)}, past its maximum of {figure(limit)} (recomputed in float64)",
    )


def _infinite_inputs(call: BadCall) -> bool:
    return infinite_scalars(call) > 0 or any(
        not overwritten(call, value) and how_many(nonfinite(value)) for value in floats(call)
    )


def _in_float64(call: BadCall) -> Tensor | None:
    """The output as float64 would have had it."""
    if any(overwritten(call, value) for value in floats(call)):
        return None
    args, kwargs = tree_map(_doubled, (call.args, dict(call.kwargs)))
    device = call.output.device.type
    for function in _functions(call.op):
        try:
            with torch.no_grad(), torch.autocast(device, enabled=False):
                made = function(*args, **kwargs)
        except (RuntimeError, TypeError, NotImplementedError):
            continue
        results = [
            result
            for result in tree_leaves(made)
            if isinstance(result, Tensor) and result.shape == call.output.shape
        ]
        if results:
            return min(results, key=lambda result: _distance(result, call.output))
    return None


def _distance(exact: Tensor, output: Tensor) -> float:
    """How far apart they are where both are known: of several results, which one it is."""
    known = torch.isfinite(output) & torch.isfinite(exact)
    if not how_many(known):
        return 0.0
    return float((exact[known] - output[known].to(exact.dtype)).abs().max())


def _functions(op: str) -> Iterator[Any]:
    """aten's functions that may be meant; none that draws random numbers."""
    for name in (op, *(form.format(op) for form in _FORMS), *_ALIASES.get(op, ())):
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        tags = {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}
        if torch.Tag.nondeterministic_seeded not in tags:
            yield packet


def _doubled(value: Any) -> Any:
    """A copy in float64: some ops write into what they are given."""
    if isinstance(value, Tensor):
        return value.to(torch.float64, copy=True) if value.is_floating_point() else value.clone()
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    return value
