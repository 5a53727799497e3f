"""Numbers outside of what a function is defined for, or at its very edge: log, sqrt, pow, acos."""

from __future__ import annotations

import math

import torch

from headway.replay.births.calls import BadCall, Kind
from headway.replay.births.numbers import (
    beside,
    dtype_name,
    figure,
    how_many,
    overwritten,
    share_are,
    too_small_for_half,
)

LOG_OF = {"log": 0, "log2": 0, "log10": 0, "log1p": 0, "xlogy": 1, "xlog1py": 1, "entr": 0}
"""Which argument the logarithm is taken of."""
INVERSES = ("acos", "asin", "atanh", "acosh", "erfinv")


def log(call: BadCall) -> Kind | None:
    value, edge = call.argument(LOG_OF[call.op]), -1 if "log1p" in call.op else 0
    negative, zero, lowest = torch.isnan(call.output), torch.isinf(call.output), ""
    if not overwritten(call, value):
        of = beside(value, call.output)
        negative, zero = negative & (of < edge), zero & (of == edge)
        lowest = f", the lowest {figure(float(of.min()))}"
    if how_many(negative):
        return Kind(
            "log-of-negative",
            f"{call.op} of a negative number: {share_are(negative)} below {edge}{lowest}, and "
            "its logarithm is NaN",
        )
    if not how_many(zero):
        return None
    return Kind(
        "log-of-zero",
        f"{call.op} of {edge}: {share_are(zero)} exactly {edge}, and {call.op}({edge}) is -inf"
        + too_small_for_half(call.output.dtype),
    )


def logit(call: BadCall) -> Kind | None:
    value = call.argument(0)
    if overwritten(call, value):
        edge, outside = torch.isinf(call.output), torch.isnan(call.output)
    else:
        edge, outside = (value == 0) | (value == 1), (value < 0) | (value > 1)
    if how_many(outside):
        return Kind(
            "log-of-negative",
            f"logit of a number that is no probability: {share_are(outside)} outside [0, 1]",
        )
    if not how_many(edge):
        return None
    return Kind(
        "log-of-zero",
        f"logit of a certain probability: {share_are(edge)} exactly 0 or 1, and "
        "log(p / (1 - p)) is infinite there",
    )


def sqrt(call: BadCall) -> Kind | None:
    value = call.argument(0)
    gone = overwritten(call, value)
    below = torch.isnan(call.output) if gone else value < 0
    if how_many(below):
        lowest = "" if gone else f", the lowest {figure(float(value[below].min()))}"
        return Kind(
            "sqrt-of-negative",
            f"{call.op} of a negative number: {share_are(below)} below 0{lowest}, and the square "
            "root of those is NaN",
        )
    zero = torch.isinf(call.output) if gone else value == 0
    if call.op != "rsqrt" or not how_many(zero):
        return None
    return Kind(
        "division-by-zero",
        f"rsqrt of 0: {share_are(zero)} exactly 0, and 1/sqrt(0) is inf"
        + too_small_for_half(call.output.dtype),
    )


def power(call: BadCall) -> Kind | None:
    base, exponent = call.argument(0), call.argument(1)
    if overwritten(call, base):
        base = math.nan  # only what the exponent and the result tell is left
    of, to = beside(base, call.output), beside(exponent, call.output)
    bad = ~torch.isfinite(call.output)
    zero = bad & (of == 0) & (to < 0)
    if how_many(zero):
        return Kind(
            "pow-singular",
            f"0 to a negative power: {share_are(zero)} exactly 0, and 0 ** "
            f"{figure(float(to[zero][0]))} is inf",
        )
    negative = torch.isnan(call.output) & (of < 0) & (to != torch.trunc(to))
    if not how_many(negative):
        return None
    return Kind(
        "pow-singular",
        f"a negative number to a fractional power: {share_are(negative)} below 0, the lowest "
        f"{figure(float(of[negative].min()))}, and ** {figure(float(to[negative][0]))} of those "
        "is NaN",
    )


def gamma(call: BadCall) -> Kind | None:
    """lgamma, digamma: infinite at 0 and at every negative whole number."""
    value = call.argument(0)
    if overwritten(call, value):
        return None
    pole = ~torch.isfinite(call.output) & (value <= 0) & (value == torch.trunc(value))
    if not how_many(pole):
        return None
    first = figure(float(value[pole][0]))
    return Kind(
        "log-of-zero" if call.op == "lgamma" else "division-by-zero",
        f"{call.op} at a pole of the gamma function: {share_are(pole)} exactly 0 or a negative "
        f"whole number, and {call.op}({first}) is infinite",
    )


def determinant(call: BadCall) -> Kind | None:
    """slogdet: of a matrix that has no inverse."""
    singular = torch.isneginf(call.output)
    if not how_many(singular):
        return None
    return Kind(
        "log-of-zero",
        f"the log of a determinant of 0: {share_are(singular, 'matrices')} singular, and log(0) is "
        "-inf",
    )


def inverse(call: BadCall) -> Kind | None:
    value = call.argument(0)
    if overwritten(call, value):
        return None
    name, bad = call.op, ~torch.isfinite(call.output)
    outside = bad & ((value < 1) if name == "acosh" else (value.abs() > 1))
    if how_many(outside):
        furthest = value[outside][value[outside].abs().argmax()]
        domain = "below 1" if name == "acosh" else "outside [-1, 1]"
        return Kind(
            "acos-at-one",
            f"{name} of a number it is not defined for: {share_are(outside)} {domain}, the "
            f"furthest {float(furthest):.9g} ({dtype_name(value.dtype)})",
        )
    edge = bad & (value.abs() == 1)
    if not how_many(edge):
        return None
    return Kind(
        "acos-at-one",
        f"{name} at its edge: {share_are(edge)} exactly 1 or -1, and {name} is infinite there",
    )
